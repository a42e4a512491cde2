"""Memory that a network's caller keeps from run to run: weights in training, optimizers' state."""

from __future__ import annotations

from dataclasses import dataclass

from atc.program.in_place import in_place
from atc.program.steps import Program


@dataclass(frozen=True)
class Held:
    """Tensors that the caller keeps: each is an input whose new value is an output.

    Each begins at a multiple of `alignment` bytes. `in_place` allows new values on old ones.
    `more` are the bytes of what is there, but isn't replaced.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    alignment: int = 1
    in_place: bool = True
    more: int = 0


def held_in_place(program: Program, held: Held) -> frozenset[str]:
    """Return the inputs whose new values are written where they lie."""
    return in_place(program, held.pairs) if held.in_place else frozenset()


def held_bytes(program: Program, held: Held) -> int:
    """Return the bytes of all that is held, and of new values that need room of their own."""
    spots = held_in_place(program, held)
    return held.more + sum(
        -(-program.types[source].nbytes // held.alignment) * held.alignment
        * (1 if source in spots else 2)
        for source, _ in held.pairs
    )  # fmt: skip
