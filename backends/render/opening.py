"""Kernels whose C functions take extents as numbers, so that several workloads share one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

from atc.backends.kernel import Candidate, OpT, ParamsT, Workload
from atc.backends.target import Target
from atc.dims import is_dynamic, opened
from atc.dims.opened import Opened
from atc.ir.graph import TensorType
from atc.ir.view import View


@runtime_checkable
class OpensExtents(Protocol[OpT, ParamsT]):
    """A kernel whose values may be those of a workload with opened extents."""

    def with_open_extents(
        self, w: Workload[OpT], params: ParamsT, target: Target
    ) -> tuple[Workload[OpT], ParamsT]:
        """Return workload and parameters with those numbers `opened` that the C function takes.

        What differs in these alone shares the function. They are numbers that cost no time so:
        extents of loops around much work, and strides between what these loops meet.
        """
        raise NotImplementedError


def opened_view(view: View, name: str, kept: int = 1) -> View:
    """Return a view with its strides but the last `kept` opened, named after an operand."""
    outer = tuple(opened(s, f"{name}s{d}") for d, s in enumerate(view.strides[:-kept]))
    return View((*outer, *view.strides[-kept:]), opened(view.offset, f"{name}o"))


def opened_types(w: Workload[OpT]) -> Workload[OpT]:
    """Return the workload with all extents of its operands and results opened.

    That is for kernels which read the op alone: for the comment before the function.
    """
    outputs = tuple(opened_type(t, f"y{k}") for k, t in enumerate(w.outputs))
    return replace(w, inputs=opened_operands(w.inputs, "x"), outputs=outputs)


def opened_operands(
    types: Sequence[TensorType | None], name: str
) -> tuple[TensorType | None, ...]:
    """Return types with all their extents opened, named after operands of such a name."""
    return tuple(t and opened_type(t, f"{name}{k}") for k, t in enumerate(types))


def opened_type(type_: TensorType, name: str) -> TensorType:
    """Return a type with all its extents opened, named after an operand."""
    return replace(type_, shape=tuple(Opened(n, f"{name}n{d}") for d, n in enumerate(type_.shape)))


def opened_extents(c: Candidate, w: Workload, target: Target) -> tuple[Workload, Candidate]:
    """Return the workload and the candidate that a C function is rendered for."""
    if not _opens(cast(Hashable, type(c.kernel))) or is_dynamic(w):
        return w, c
    kernel = cast("OpensExtents[Any, Any]", c.kernel)
    w, params = kernel.with_open_extents(w, c.params, target)
    return w, replace(c, params=params)


@cache  # Python looks at all members of a protocol each time
def _opens(kind: Hashable) -> bool:
    return isinstance(kind, type) and issubclass(kind, OpensExtents)
