"""Gradients by reverse-mode differentiation of the nodes between xs and y.

Need only be imported: they register themselves.
"""

from atc.lower.gradient import derivatives_layers, derivatives_tensor, reverse

__all__ = ["derivatives_layers", "derivatives_tensor", "reverse"]
