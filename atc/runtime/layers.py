"""Results of a network's nodes on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from atc.runtime.values import Array


@dataclass(frozen=True)
class Layer:
    """A node's result in the order of memory; `names` are what the model may call it."""

    node: str
    names: tuple[str, ...]
    result: Array


@runtime_checkable
class Layered(Protocol):
    """A network that shows what its nodes compute."""

    layers: tuple[Layer, ...]
    """Of the latest run; before the first one without results."""
