"""Map and Reduce: loop nests over affine views, with any scalar expression inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.expr import Expr, Input, inputs_of, operands_of
from atc.ir.graph import DType, Op, TensorType
from atc.ir.view import View


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the broken rule."""
    if not condition:
        raise ValueError(message)


def check_views(
    loops: Sequence[int], views: Sequence[View], inputs: Sequence[TensorType | None],
    coordinates: Sequence[View] = (),
) -> None:  # fmt: skip
    """Raise ValueError unless each operand has a view, which stays inside its tensor."""
    if len(views) != len(inputs):
        raise ValueError(f"{len(inputs)} operands but {len(views)} views")
    for k, view in enumerate((*views, *coordinates)):
        if len(view.strides) != len(loops):
            raise ValueError(f"view {k} has the wrong rank")
    if 0 in loops:
        return
    for k, (view, operand) in enumerate(zip(views, inputs, strict=True)):
        if operand is None:
            raise ValueError(f"operand {k} is missing")
        if not view.is_inside(loops, operand.size):
            raise ValueError(f"view {k} leaves {operand}")


def check_operands(
    expr: Expr, inputs: Sequence[TensorType | None], coordinates: Sequence[View] = ()
) -> None:
    """Raise ValueError unless every Input is an operand of that type, or an INT64 coordinate."""
    for e in operands_of(expr):
        if e.index >= len(inputs) + len(coordinates):
            raise ValueError(f"x{e.index} has no view")
        operand = inputs[e.index] if e.index < len(inputs) else None
        dtype = operand.dtype if operand is not None else DType.INT64
        if e.dtype is not dtype:
            raise ValueError(f"x{e.index} is {dtype.label}, not {e.dtype.label}")


@dataclass(frozen=True)
class Map(Op):
    """y[i] = expr over the loops `shape`; y is written densely in loop order.

    Input(k) reads operand k through `views[k]`; beyond the operands it is the INT64 value of one of
    the `coordinates`, which are views of no tensor (as OneHot, Range or EyeLike need them). The
    loops may be any factorisation of the output's shape.
    """

    shape: tuple[int, ...]
    expr: Expr
    views: tuple[View, ...]
    coordinates: tuple[View, ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that views stay inside their tensors and the result fills the output."""
        check_views(self.shape, self.views, inputs, self.coordinates)
        check_operands(self.expr, inputs, self.coordinates)
        if prod(self.shape) != outputs[0].size:
            raise ValueError(f"loops {self.shape} don't fill {outputs[0]}")
        if self.expr.dtype is not outputs[0].dtype:
            raise ValueError(f"expression makes {self.expr.dtype.label}")

    @property
    def is_movement(self) -> bool:
        """Whether the node only moves data: one operand, not computed upon."""
        return isinstance(self.expr, Input) and len(self.views) == 1 and not self.coordinates


@dataclass(frozen=True)
class Epilogue:
    """A function of each result before it is stored: `expr` over Input(0), the result.

    Input(k), k > 0, are extra operands of the node (its last inputs), read through `views[k - 1]`
    over the index space of the op's output.
    """

    expr: Expr
    views: tuple[View, ...] = ()


def identity_epilogue(dtype: DType) -> Epilogue:
    """Return the epilogue that stores the result as it is."""
    return Epilogue(Input(dtype, 0))


def check_epilogue(
    epilogue: Epilogue, loops: Sequence[int], extra: Sequence[TensorType | None], out: TensorType
) -> None:
    """Raise ValueError unless the extra operands and the stored type fit."""
    require(len(epilogue.views) == len(extra), "epilogue operands and views differ in number")
    check_views(loops, epilogue.views, extra)
    require(epilogue.expr.dtype is out.dtype, f"epilogue makes {epilogue.expr.dtype.label}")
    require(all(k <= len(extra) for k in inputs_of(epilogue.expr)), "epilogue operand is missing")


@dataclass(frozen=True)
class Reduce(Op):
    """y[i] = epilogue(reduction over j of expr), i over `shape`, j over `reduced`.

    `how` is Sum, Prod, Max, Min, And or Or. `views` and `coordinates`, as in Map, are over
    (*shape, *reduced); operands beyond the views feed the epilogue. An empty reduction gives the
    neutral element (ONNX Reduce-18).
    """

    how: str
    shape: tuple[int, ...]
    reduced: tuple[int, ...]
    expr: Expr
    views: tuple[View, ...]
    epilogue: Epilogue
    coordinates: tuple[View, ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that views stay inside their tensors and the result fills the output."""
        split = len(self.views)
        loops = (*self.shape, *self.reduced)
        check_views(loops, self.views, inputs[:split], self.coordinates)
        check_operands(self.expr, inputs[:split], self.coordinates)
        check_epilogue(self.epilogue, self.shape, inputs[split:], outputs[0])
        require(prod(self.shape) == outputs[0].size, f"loops {self.shape} don't fill {outputs[0]}")


@dataclass(frozen=True)
class ArgReduce(Op):
    """Index of the largest or smallest element along the middle of [outer, axis, inner].

    ONNX ArgMax-13, ArgMin-13. `how` is Max or Min; the first of equals wins unless `last`.
    """

    how: str
    outer: int
    axis: int
    inner: int
    last: bool = False

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the operand has outer * axis * inner elements."""
        x = inputs[0]
        require(x is not None and x.size == self.outer * self.axis * self.inner, "operand size")
        require(outputs[0].size == self.outer * self.inner, "result size")


@dataclass(frozen=True)
class Reshape(Op):
    """The same memory under another shape; costs nothing."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Element count and type are kept."""
        x = inputs[0]
        require(x is not None and x.size == outputs[0].size, f"{x} has another size: {outputs[0]}")
        require(x is not None and x.dtype is outputs[0].dtype, "the type changes")


@dataclass(frozen=True)
class SubView(Op):
    """A tensor inside of another: its elements from `begin` on, where they lie; costs nothing."""

    begin: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that it lies inside and has the operand's type."""
        x, y = inputs[0], outputs[0]
        require(x is not None and self.begin >= 0, f"a view of {x} from {self.begin}")
        require(x is not None and self.begin + y.size <= x.size, f"{y} leaves {x}")
        require(x is not None and x.dtype is y.dtype, "the type changes")
