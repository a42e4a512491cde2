"""Epilogues of blocked convolutions: what becomes of a tile's results before they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.cpu.conv_tile import Geometry, spatial_strides
from atc.backends.cpu.elementwise import finish, loop_names
from atc.backends.cpu.expr import address
from atc.backends.cpu.vector_expr import (
    lanes,
    read_vector,
    render_vector,
    store_vector,
    stored,
    typed_epilogue,
)  # fmt: skip
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.expr import Call, Expr, Input, cost, walk
from atc.ir import DType
from atc.ops import Epilogue, identity_epilogue
from atc.view import View, dense

LONG = 8
"""Cost of an epilogue from which it gets a loop of its own: unrolled for all accumulators it would
be long code, and its constants would push them out of their registers."""


def leading_bias(epilogue: Epilogue) -> tuple[int | None, Expr]:
    """Take a first addition of a per-channel operand out of an epilogue.

    Returns the operand's index, with which accumulators may start, and the rest of the expression.
    """
    users = [e for e in walk(epilogue.expr) if isinstance(e, Call) and _reads_result(e)]
    if len(users) != 1 or users[0].fn != "Add" or users[0].dtype is not DType.FLOAT:
        return None, epilogue.expr
    others = [a for a in users[0].args if isinstance(a, Input) and a.index > 0]
    if len(others) != 1:
        return None, epilogue.expr
    k = others[0].index
    if any(epilogue.views[k - 1].strides[2:-1]):
        return None, epilogue.expr
    return k, _with(epilogue.expr, users[0], Input(DType.FLOAT, 0))


def _reads_result(e: Call) -> bool:
    return any(isinstance(a, Input) and a.index == 0 for a in e.args)


def _with(e: Expr, old: Expr, new: Expr) -> Expr:
    if e == old:
        return new
    return (
        Call(e.dtype, e.fn, tuple(_with(a, old, new) for a in e.args)) if isinstance(e, Call) else e
    )


@dataclass(frozen=True)
class Late:
    """An epilogue that vectors can't do: applied to all of y at the end, number by number."""

    loops: Sequence[tuple[str, int]]
    lines: Sequence[str]
    value: str
    place: str


def late_epilogue(epilogue: Epilogue, w: Workload) -> Late:
    """Return the loops over y that apply an epilogue to the results stored there."""
    shape = w.outputs[0].shape
    loops = loop_names("i", shape)
    indices = [v for v, _ in loops]
    place = address(dense(shape), indices)
    first = len(w.inputs) - len(epilogue.views)
    lines, value = finish(epilogue, w, f"y0[{place}]", indices, first)
    return Late(loops, lines, value, place)


class TileEpilogue:
    """What a tile does with its accumulators, and the operands it needs for that."""

    def __init__(self, epilogue: Epilogue, w: Workload, g: Geometry, target: Target) -> None:
        self.late: Late | None = None
        first = len(w.inputs) - len(epilogue.views)
        self.types = [t.dtype for t in w.inputs[first:] if t is not None]
        self.out = w.outputs[0].dtype
        if lanes(target) < 2 or not typed_epilogue(epilogue, w, first):
            self.late = late_epilogue(epilogue, w)
            epilogue = identity_epilogue(DType.FLOAT)
        self.views, self.g = epilogue.views, g
        self.bias, self.expr = leading_bias(epilogue)
        self.expr = stored(self.expr) or self.expr
        rest = {e.index for e in walk(self.expr) if isinstance(e, Input)}
        self.used = sorted((rest | {self.bias or 0}) - {0})
        floats = Input(DType.INT32, 0) not in set(walk(self.expr)) and self.out is DType.FLOAT
        self.rolled = cost(self.expr) > LONG and floats

    def parameters(self) -> str:
        """The operands as parameters of a tile function."""
        return "".join(f", const {self.types[k - 1].c} *x{k + 1}" for k in self.used)

    def arguments(self) -> str:
        """The operands at the first pixel and block of a tile."""
        texts = []
        for k in self.used:
            view = self.views[k - 1]
            row, column = spatial_strides(view, self.g)
            place = View((view.strides[0], view.strides[1], row, column), view.offset)
            texts.append(f", x{k + 1} + {address(place, ('n', 'block', 'row', 'col'))}")
        return "".join(texts)

    def start(self, vector: int) -> str:
        """The first value of an accumulator."""
        if self.bias is None:
            return "v_zero()"
        return self._read(self.bias, 0, 0, vector)

    def finish(
        self, row: int | str, column: int | str, vector: int | str, result: str
    ) -> tuple[list[str], str]:
        """The lines and the value to be stored of one result, at numbers or C variables."""

        def read(k: int) -> str:
            return result if k == 0 else self._read(k, row, column, vector)

        return render_vector(self.expr, read, "e")

    def store(self, place: str, value: str) -> str:
        """The statement that stores a vector at a place."""
        return store_vector(self.out, place, value)

    def _read(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        view = self.views[k - 1]
        by_row, by_column = spatial_strides(view, self.g)
        offset, place = 0, f"x{k + 1}"
        for index, stride in ((vector, view.strides[1]), (row, by_row), (column, by_column)):
            if isinstance(index, int):
                offset += index * stride
            elif stride:
                place += f" + {index} * {stride}"
        place += f" + {offset}" if offset else ""
        return read_vector(self.types[k - 1], place, view.strides[-1])
