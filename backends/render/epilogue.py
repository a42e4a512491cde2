"""Epilogues of blocked convolutions, applied to a tile's results before they are stored."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.kernel import Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.render.tile_geometry import Geometry, spatial_strides
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import (
    BYTES,
    lanes,
    read_vector,
    render_vector,
    store_vector,
    stored,
)
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.expr import Call, Const, Expr, Input, call, const, cost, rewritten, walk
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked, Epilogue, identity_epilogue
from atc.ir.view import View, dense

Output = tuple[str, int, int, int, int]
"""Accumulator, row, column, vector and place in y of a tile's result."""

LONG = 8
"""Cost from which an epilogue gets a loop of its own: unrolled for all accumulators, it would be
long code and its constants would spill them."""

NEVER_NAN = frozenset({"Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Round", "Cast"})
"""Functions of numbers that are numbers."""


def leading_bias(epilogue: Epilogue, sums: DType = DType.FLOAT) -> tuple[int | None, Expr]:
    """Split an epilogue that begins by adding a per-channel operand to the `sums`.

    Returns the index of the operand, which accumulators may start with, and the remaining
    expression.
    """
    users = [e for e in walk(epilogue.expr) if isinstance(e, Call) and _reads_result(e)]
    if len(users) != 1 or users[0].fn != "Add" or users[0].dtype is not sums:
        return None, epilogue.expr
    others = [a for a in users[0].args if isinstance(a, Input) and a.index > 0]
    if len(others) != 1:
        return None, epilogue.expr
    k = others[0].index
    if any(epilogue.views[k - 1].strides[2:-1]):
        return None, epilogue.expr
    return k, rewritten(epilogue.expr, known={users[0]: Input(sums, 0)})


def _reads_result(e: Call) -> bool:
    return any(isinstance(a, Input) and a.index == 0 for a in e.args)


def shorter(e: Expr) -> Expr:
    """Return a float expression with the same results when stored as bytes, in fewer steps.

    Storing bytes rounds, too. A value that is rounded, clamped around a zero point and moved back
    may be clamped around 0: where the additions are not exact, both clamp. (Zeros may differ in
    sign, which no byte shows.)
    """
    return _around_zero(e.args[0] if isinstance(e, Call) and e.fn == "Round" else e)


def rounded_once(e: Expr, half: DType) -> Expr:
    """Return a float expression with the same results when stored as 16-bit numbers.

    If a value is rounded, clamped by 16-bit numbers and rounded once more, the last rounding is
    enough. (Zeros may differ in sign.)
    """
    match e:
        case Call(fn="Cast", args=(Call(fn="Cast", dtype=dtype, args=(x,)),)) if dtype is half:
            return x if x.dtype is DType.FLOAT else e
        case Call(fn="Max" | "Min", args=(a, Const() as bound)):
            exact = float(np.float32(bound.value).astype(half.numpy)) == float(bound.value)
            return Call(e.dtype, e.fn, (rounded_once(a, half), bound)) if exact else e
        case _:
            return e


def _around_zero(expr: Expr) -> Expr:
    return rewritten(expr, _step_around_zero)


def _step_around_zero(e: Expr) -> Expr:
    match e.args if isinstance(e, Call) and e.fn == "Sub" else ():
        case (Call(fn="Min", args=(Call(fn="Max", args=(Call(fn="Add", args=(x, z)), low)), high)),
              Const() as zero) if z == zero:  # fmt: skip
            bounds = [_whole(v) for v in (zero, low, high)]
            if isinstance(x, Call) and x.fn == "Round" and all(b is not None for b in bounds):
                point, least, most = (b or 0 for b in bounds)
                held = call("Max", x, const(least - point, DType.FLOAT))
                return call("Min", held, const(most - point, DType.FLOAT))
    return e


def _whole(e: Expr) -> int | None:
    """Return the value of a constant that is a small integer."""
    if isinstance(e, Const) and e.dtype is DType.FLOAT and abs(float(e.value)) <= 255:
        return int(float(e.value)) if float(e.value).is_integer() else None
    return None


@dataclass(frozen=True)
class DeferredEpilogue:
    """An epilogue without a vector form: applied to all of y at the end, element by element."""

    loops: Sequence[tuple[str, int]]
    lines: Sequence[str]
    value: str
    place: str


def deferred_epilogue(epilogue: Epilogue, w: Workload) -> DeferredEpilogue:
    """Return the loops that apply an epilogue to the results stored in y."""
    shape = w.outputs[0].shape
    loops = loop_names("i", shape)
    indices = [v for v, _ in loops]
    place = address(dense(shape), indices)
    first = len(w.inputs) - len(epilogue.views)
    lines, value = epilogue_lines(epilogue, w, f"y0[{place}]", indices, first)
    return DeferredEpilogue(loops, lines, value, place)


def sums_floats(w: Workload[ConvBlocked], kinds: Container[DType] = (DType.FLOAT,)) -> bool:
    """Return whether a blocked convolution sums floats of one of these `kinds` in memory, and its
    tiles can store the results."""
    op, x = w.op, w.inputs[0]
    sums = op.accumulator is DType.FLOAT and x is not None and x.dtype in kinds
    return sums and (w.outputs[0].dtype is DType.FLOAT or typed_epilogue(op.epilogue, w, 2))


class TileEpilogue:
    """The epilogue of a tile's accumulators, and the operands that it needs."""

    def __init__(
        self, epilogue: Epilogue, w: Workload, g: Geometry, target: Target,
        sums: DType = DType.FLOAT,
    ) -> None:  # fmt: skip
        self.deferred: DeferredEpilogue | None = None
        first = len(w.inputs) - len(epilogue.views)
        self.types = [t.dtype for t in w.inputs[first:] if t is not None]
        self.sizes = [max_value(t.nbytes) for t in w.inputs[first:] if t is not None]
        self.nearby = target.machine.nearby
        self.out = w.outputs[0].dtype
        if lanes(target) < 2 or not typed_epilogue(epilogue, w, first):
            self.deferred = deferred_epilogue(epilogue, w)
            epilogue = identity_epilogue(DType.FLOAT)
        self.views, self.g = epilogue.views, g
        self.bias, self.expr = leading_bias(epilogue, sums)
        self.sums = sums
        self.expr = stored(self.expr) or self.expr
        self.zero = 0
        """What is added to results, as whole numbers, where they are stored as bytes."""
        self.neon = target.simd == "neon"
        if self.out in BYTES:
            self.expr = shorter(self.expr)
            if self.neon:
                self.expr, self.zero = self._without_zero(self.expr)
        elif self.out is DType.FLOAT16 and not target.deterministic:
            self.expr = rounded_once(self.expr, self.out)
        rest = {e.index for e in walk(self.expr) if isinstance(e, Input)}
        self.rest = sorted(rest - {0})
        self.used = sorted((rest | {self.bias or 0}) - {0})
        floats = Input(DType.INT32, 0) not in set(walk(self.expr)) and self.out not in BYTES
        self.rolled = cost(self.expr) > LONG and floats
        self.bytes = self.out in BYTES
        self.separate_sums = self.out is not DType.FLOAT
        """Whether sums can't be kept in y for an epilogue in a loop."""

    def parameters(self) -> str:
        """Return the operands as parameters of a tile function."""
        return "".join(f", const {self.types[k - 1].c} *x{k + 1}" for k in self.used)

    def arguments(self) -> str:
        """Return the operands at the first pixel and block of a tile."""
        texts = []
        for k in self.used:
            view = self.views[k - 1]
            row, column = spatial_strides(view, self.g)
            place = View((view.strides[0], view.strides[1], row, column), view.offset)
            texts.append(f", x{k + 1} + {address(place, ('n', 'block', 'row', 'col'))}")
        return "".join(texts)

    def start(self, vector: int) -> str:
        """Return the initial value of an accumulator."""
        if self.bias is None:
            return "v_zero()" if self.sums is DType.FLOAT else "v_i32_set1(0)"
        return self._read(self.bias, 0, 0, vector)

    def finish(
        self, row: int | str, column: int | str, vector: int | str, result: str, prefix: str = "e"
    ) -> tuple[list[str], str]:
        """Return the lines and the value to be stored of one result, at numbers or C variables."""

        def read(k: int) -> str:
            return result if k == 0 else self._read(k, row, column, vector)

        return render_vector(self.expr, read, prefix)

    def store(self, place: str, value: str) -> str:
        """Return the statement that stores a vector at a place."""
        if self.bytes and self.neon:
            return f"neon_store_{self._byte}({place}, {value}, {self.zero});"
        return store_vector(self.out, place, value)

    def held(self, value: str) -> str:
        """Return the C expression of a value that `store_run` takes."""
        return f"v_without_nan({value})" if self.out is DType.INT8 else value

    def store_run(self, place: str, count: int) -> str:
        """Return the statement that stores `count` vectors r0, r1, ... as bytes in a row."""
        vectors = ", ".join(f"r{k}" for k in range(count))
        if self.neon:
            return f"neon_store{count}_{self._byte}({place}, {vectors}, {self.zero});"
        return f"v_store{count}_{self._byte}({place}, {vectors});"

    @property
    def _byte(self) -> str:
        return "i8" if self.out is DType.INT8 else "u8"

    def in_runs(self, outputs: Sequence[Output]) -> tuple[list[list[Output]], list[Output]]:
        """Return contiguous groups of four results, and on NEON of two, and the rest."""
        fours, rest = self._groups(outputs, 4)
        pairs, single = self._groups(rest, 2) if self.neon else ([], rest)
        return fours + pairs, single

    def _groups(
        self, outputs: Sequence[Output], size: int
    ) -> tuple[list[list[Output]], list[Output]]:
        groups: list[list[Output]] = []
        rest: list[Output] = []
        waiting: list[Output] = []
        for each in sorted(outputs, key=lambda o: (o[3], o[1], o[2])):  # as they lie in y
            step = each[-1] - waiting[-1][-1] if waiting else self.g.block
            if is_dynamic(step) or step != self.g.block:
                rest += waiting
                waiting = []
            waiting.append(each)
            if len(waiting) == size:
                groups.append(waiting)
                waiting = []
        return groups, rest + waiting

    def _without_zero(self, e: Expr) -> tuple[Expr, int]:
        """Return x and z of round(x) + z: storing bytes rounds, and can add a zero point to what
        was made whole. NaN would be stored as the zero point, so x must be a number."""
        match e:
            case Call(fn="Add", args=(Call(fn="Round", args=(x,)), Const() as zero)):
                point = _whole(zero)
                return (x, point) if point is not None and self._is_number(x) else (e, 0)
            case _:
                return e, 0

    def _is_number(self, expr: Expr) -> bool:
        """Return whether only scales that are none could make an expression NaN."""
        return all(
            e.fn in NEVER_NAN
            if isinstance(e, Call)
            else isinstance(e, Const) or e.dtype in (*BYTES, DType.INT32) or self._of_channel(e)
            for e in walk(expr)
        )

    def _of_channel(self, e: Expr) -> bool:
        """Return whether an expression is an operand that is the same for all pixels."""
        if not isinstance(e, Input) or e.index == 0:
            return False
        return not any(self.views[e.index - 1].strides[2:-1])

    def awaited(self, outputs: Sequence[Output]) -> list[str]:
        """Return the addresses that a tile prefetches, of operands too large for the cache."""
        operands = [k for k in self.rest if self._is_large(k)]
        return [
            self._place(k, row, column, vector)
            for k in operands
            for _, row, column, vector, _ in outputs
        ]

    def _is_large(self, k: int) -> bool:
        view, floats = self.views[k - 1], self.types[k - 1] is DType.FLOAT
        vectors = spatial_strides(view, self.g)[1] != 0 and view.strides[-1] == 1
        return floats and vectors and self.sizes[k - 1] > self.nearby

    def _read(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        place = self._place(k, row, column, vector)
        return read_vector(self.types[k - 1], place, self.views[k - 1].strides[-1])

    def _place(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        view = self.views[k - 1]
        by_row, by_column = spatial_strides(view, self.g)
        offset, place = 0, f"x{k + 1}"
        for index, stride in ((vector, view.strides[1]), (row, by_row), (column, by_column)):
            if isinstance(index, int):
                offset += index * stride
            elif stride:
                place += f" + {index} * {stride}"
        return place + (f" + {offset}" if offset else "")
