"""The table of lowerings: (domain, operator) -> function that emits the IR for one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from atc.lower.context import LoweringContext

Lowering = Callable[[LoweringContext], "str | tuple[str, ...]"]
"""Emits into `ctx.b` and returns the value name of each output, in order."""

LoweringT = TypeVar("LoweringT", bound=Lowering)

_TABLE: dict[tuple[str, str], Lowering] = {}

LOWERINGS: Mapping[tuple[str, str], Lowering] = MappingProxyType(_TABLE)
"""All registered lowerings; the family modules fill it when `atc.lower` is imported."""


def lowers(*op_types: str, domain: str = "") -> Callable[[LoweringT], LoweringT]:
    """Register a lowering for operators of a domain ('' is ai.onnx)."""

    def register(function: LoweringT) -> LoweringT:
        for op_type in op_types:
            key = (domain, op_type)
            if key in _TABLE:
                raise ValueError(f"{key} is registered twice")
            _TABLE[key] = function
        return function

    return register
