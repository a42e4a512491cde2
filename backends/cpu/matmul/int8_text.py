"""The C of what surrounds a tile of INT32 sums: its epilogue as a function, heads and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from atc.backends.cpu.matmul.cost import Panel, Tile
from atc.backends.cpu.matmul.prefetch import Prefetch
from atc.backends.cpu.matmul.text import (
    EpilogueFunctions,
    Result,
    plus,
    results,
    tile_function,
)
from atc.backends.kernel import Workload
from atc.backends.render.vector_expr import (
    integral,
    readable_typed,
    render_vector,
    stored,
    vector_reader,
    vectorisable,
)  # fmt: skip
from atc.ir.expr import Expr
from atc.ir.graph import DType
from atc.ir.ops import Epilogue, MatMul


def has_typed_epilogue(epilogue: Epilogue, w: Workload[MatMul], first: int) -> bool:
    """Return whether vectors can compute and store an epilogue over INT32 sums."""
    value = stored(epilogue.expr)
    fits = integral(epilogue.expr) or (value is not None and vectorisable(value))
    return fits and readable_typed(epilogue.views, w.inputs[first:])


@dataclass(frozen=True)
class BytesEpilogueFunctions(EpilogueFunctions):
    """The epilogue of INT32 sums, of operands and to a result of any type."""

    w: Workload[MatMul] = field(kw_only=True)

    @property
    def expr(self) -> Expr:
        """The stored value: floats, bytes as whole floats, or INT32."""
        return stored(self.epilogue.expr) or self.epilogue.expr

    @property
    def result(self) -> DType:
        """The type of y."""
        return self.w.outputs[0].dtype

    @cached_property
    def types(self) -> list[DType]:
        """The types of the epilogue's operands."""
        return [t.dtype for t in self.w.inputs[self.first :] if t is not None]

    @property
    def declared(self) -> list[str]:
        """The C parameters of the operands."""
        return [f"const {self.types[int(x[1:]) - self.first].c} *{x}" for x in self.operands]

    def _body(self, count: str) -> tuple[str, str, list[str], str]:
        kind = "vi32" if self.expr.dtype is DType.INT32 else "vf32"
        indices = [*self.outer, "i", "j"]
        read = vector_reader(self.epilogue.views, indices, self.first, count, self.types)
        lines, value = render_vector(self.expr, lambda k: "sums" if k == 0 else read(k - 1), "e")
        return kind, "vi32 sums", lines, value


@dataclass(frozen=True)
class TileText:
    """The C of the tiles' heads, results and calls; `started` and `rows` say whether sums start
    with numbers of their column and of their row, `ahead` what tiles ask for."""

    finish: BytesEpilogueFunctions
    w: Workload[MatMul]
    lanes: int
    started: bool
    rows: bool
    ahead: Prefetch | None = None

    def function(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return the head of a tile's function, and where each accumulator goes."""
        a, finish = self.w.input(0), self.finish
        operands = [f"const {a.dtype.c} *a", "const int8_t *b"]
        operands += self.ahead.parameters("int8_t") if self.ahead else []
        operands += ["const int32_t *starts"] * self.started
        operands += ["const int32_t *rows"] * self.rows
        found = results(finish, panel, tile, finish.w.op.n, self.lanes)
        return {**tile_function(finish, panel, tile, operands), "results": found}

    def arguments(self, target: str) -> str:
        """Return the last arguments of a tile's call, those after `b` and what it asks for by
        rows."""
        shared = self.ahead is not None and self.ahead.next
        starts = "starts + j" if self.w.constant[1] else "starts"
        given = [*["next"] * shared, *[starts] * self.started, *["rows + i"] * self.rows]
        return ", ".join((*given, *self.finish.places, target, *self.finish.extras))

    def start(self, result: Result) -> str:
        """Return what sums start with."""
        column, own = plus("starts", result.vector * self.lanes), f"v_i32_set1(rows[{result.row}])"
        start = f"v_i32_load({column})" if self.started else "v_i32_set1(0)"
        if not self.rows:
            return start
        return f"v_i32_add({start}, {own})" if self.started else own
