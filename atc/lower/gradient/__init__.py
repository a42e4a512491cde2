"""Gradients by reverse-mode differentiation of the nodes between xs and y.

May import `lower` and what it may; importing them registers them. `derivatives*` have a rule each,
`expansions*` what operators without one are made of, `without` why some have none.
"""

from atc.lower.gradient import (
    backward,
    derivatives_layers,
    derivatives_tensor,
    derivatives_transforms,
    expansions,
    expansions_control,
    expansions_rnn,
    expansions_sampling,
    expansions_sequence,
    reverse,
)

__all__ = [
    "backward",
    "derivatives_layers", "derivatives_tensor", "derivatives_transforms", "expansions",
    "expansions_control", "expansions_rnn", "expansions_sampling",
    "expansions_sequence", "reverse",
]  # fmt: skip
