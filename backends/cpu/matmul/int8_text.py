"""The C of what surrounds a tile of INT32 sums: its epilogue as a function, heads and calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from atc.backends.cpu.matmul.cost import Panel, Tile
from atc.backends.cpu.matmul.text import plus, wrapped
from atc.backends.kernel import Workload
from atc.backends.render.vector_expr import (
    integral,
    read_at,
    read_views,
    readable_typed,
    render_vector,
    store_vector,
    stored,
    vector_reader,
    vectorisable,
)  # fmt: skip
from atc.ir.expr import Expr, Input
from atc.ir.graph import DType
from atc.ir.ops import Epilogue, MatMul


def has_typed_epilogue(epilogue: Epilogue, w: Workload[MatMul], first: int) -> bool:
    """Return whether vectors can compute and store an epilogue over INT32 sums."""
    value = stored(epilogue.expr)
    fits = integral(epilogue.expr) or (value is not None and vectorisable(value))
    return fits and readable_typed(epilogue.views, w.inputs[first:])


@dataclass(frozen=True)
class BytesEpilogueFunctions:
    """The epilogue of each vector of sums, at row i and column j: a function `finish`, and
    `finish_part` for part of a vector."""

    epilogue: Epilogue
    w: Workload[MatMul]
    outer: tuple[str, ...]
    """Variables of the batch loops."""
    first: int
    """The number of the epilogue's first operand, x<first>."""

    @property
    def expr(self) -> Expr:
        """The stored value: floats, bytes as whole floats, or INT32."""
        return stored(self.epilogue.expr) or self.epilogue.expr

    @property
    def plain(self) -> bool:
        """Whether sums are stored as they are."""
        return isinstance(self.expr, Input) and self.expr.index == 0

    @property
    def result(self) -> DType:
        """The type of y."""
        return self.w.outputs[0].dtype

    @cached_property
    def types(self) -> list[DType]:
        """The types of the epilogue's operands."""
        return [t.dtype for t in self.w.inputs[self.first :] if t is not None]

    @cached_property
    def places(self) -> list[str]:
        """The loop variables that the epilogue's operands are read at."""
        return read_at(self.expr, self.epilogue.views, [*self.outer, "i", "j"])

    @cached_property
    def extras(self) -> list[str]:
        """The epilogue's operands."""
        return [f"x{self.first + k}" for k in read_views(self.expr, self.epilogue.views)]

    @property
    def operands(self) -> list[str]:
        """The C parameters of the operands."""
        return [f"const {self.types[int(x[1:]) - self.first].c} *{x}" for x in self.extras]

    def functions(self, whole: bool, partial: bool) -> list[dict[str, object]]:
        """Return head, lines and value of the functions that the epilogue needs."""
        wanted = [("finish", "")] * whole + [("finish_part", "count")] * partial
        return [] if self.plain else [self._function(name, count) for name, count in wanted]

    def store(self, place: str, sums: str, row: int, column: int, part: int) -> str:
        """Return the statement that stores sums at row i + row and column j + column."""
        value, count = sums, str(part) if part else ""
        if not self.plain:
            places = [plus(v, {"i": row, "j": column}.get(v, 0)) for v in self.places]
            arguments = ", ".join([sums, *places, *([count] if part else []), *self.extras])
            value = f"finish{'_part' if part else ''}({arguments})"
        return store_vector(self.result, place, value, count)

    def _function(self, name: str, count: str) -> dict[str, object]:
        lines, value = self._body(count)
        parameters = ["vi32 sums", *(f"ptrdiff_t {v}" for v in self.places)]
        parameters += [*(["size_t count"] if count else []), *self.operands]
        unused = count and "j" not in self.places
        kind = "vi32" if self.expr.dtype is DType.INT32 else "vf32"
        head = wrapped(f"static inline {kind} {name}(", parameters)
        return {"head": head, "lines": [*(["(void)count;"] * bool(unused)), *lines], "value": value}

    def _body(self, count: str) -> tuple[list[str], str]:
        indices = [*self.outer, "i", "j"]
        read = vector_reader(self.epilogue.views, indices, self.first, count, self.types)
        return render_vector(self.expr, lambda k: "sums" if k == 0 else read(k - 1), "e")


@dataclass(frozen=True)
class TileText:
    """The C of the tiles' heads, results and calls; `started` and `rows` say whether sums start
    with numbers of their column and of their row."""

    finish: BytesEpilogueFunctions
    w: Workload[MatMul]
    lanes: int
    started: bool
    rows: bool

    def function(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return the head of a tile's function, and where each accumulator goes."""
        a, finish = self.w.input(0), self.finish
        parameters = [f"const {a.dtype.c} *a", "const int8_t *b"]
        parameters += ["const int32_t *starts"] * self.started
        parameters += ["const int32_t *rows"] * self.rows
        parameters += [f"ptrdiff_t {v}" for v in finish.places]
        parameters += [f"{finish.result.c} *y", *finish.operands]
        name = f"tile_{panel.name}_{tile.rows}"
        results = [
            self._result(panel, r, v) for r in range(tile.rows) for v in range(panel.vectors)
        ]
        head = wrapped(f"static K_NOINLINE void {name}(", parameters)
        return {"name": name, "panel": panel, "tile": tile, "head": head, "results": results}

    def arguments(self, target: str) -> str:
        """Return the last arguments of a tile's call, those after `b`."""
        given = [*["starts + j"] * self.started, *["rows + i"] * self.rows]
        if self.started and not self.w.constant[1]:
            given[0] = "starts"
        return ", ".join((*given, *self.finish.places, target, *self.finish.extras))

    def _result(self, panel: Panel, row: int, vector: int) -> dict[str, object]:
        name, column = f"c{row}_{vector}", vector * self.lanes
        part = panel.part if vector == panel.vectors - 1 else 0
        op = self.finish.w.op
        place = plus("y", row * op.n + column)
        store = self.finish.store(place, name, row, column, part)
        start = f"v_i32_load({plus('starts', column)})" if self.started else "v_i32_set1(0)"
        own = f"v_i32_set1(rows[{row}])"
        if self.rows:
            start = f"v_i32_add({start}, {own})" if self.started else own
        started = self.started or self.rows
        return {
            "name": name, "row": row, "vector": vector, "start": start, "store": store,
            "started": started,
        }  # fmt: skip


