"""The translation of one kind of operator to ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator

MANY = 1 << 20

# Takes the operator's inputs and returns its outputs, None for one that isn't computed.
Translation = Callable[[Builder, Operator, Sequence[Var]], list[Var | None]]


@dataclass(frozen=True)
class Rule:
    """A translation, and how many inputs the operator has: `least`, or up to `most`."""

    translate: Translation
    least: int
    most: int = 0

    def fits(self, count: int) -> bool:
        """Say whether an operator may have so many inputs."""
        return self.least <= count <= max(self.most, self.least)
