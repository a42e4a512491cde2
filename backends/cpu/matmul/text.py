"""The C of a tile's surroundings: its epilogue as a function, and heads that name only what is
needed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from atc.backends.cpu.matmul.cost import Panel, Tile
from atc.backends.render.activations import after_rounding
from atc.backends.render.epilogue import LONG
from atc.backends.render.expr import address
from atc.backends.render.vector_epilogue import epilogue_types, vector_epilogue_lines
from atc.backends.render.vector_expr import read_at, read_views, store_vector, stored
from atc.dims import Dim, is_dynamic
from atc.ir.expr import Expr, Input, cost
from atc.ir.graph import DType
from atc.ir.ops import Epilogue


def plus(name: str, offset: int | str) -> str:
    """Return the C sum of a variable and a constant, or another variable."""
    return f"{name} + {offset}" if offset else name


def spot(name: str, row: int, stride: int, column: int) -> str:
    """Return the C address of a row, counted from `name`, and a column in it."""
    if row and isinstance(stride, Dim):
        return plus(f"{name} + {stride if row == 1 else f'{row} * {stride}'}", column)
    return plus(name, row * stride + column)


def wrapped(start: str, parameters: Sequence[str]) -> str:
    """Return a C function head, broken into lines."""
    whole = [p.replace(" ", "\0") for p in parameters]
    text = f"{start.replace(' ', chr(0))}{', '.join(whole)})"
    filled = textwrap.fill(text, 100, subsequent_indent="    ", break_long_words=False)
    return filled.replace("\0", " ")


@dataclass(frozen=True)
class Result:
    """An accumulator of a tile, the statement that stores its results, and the place where sums
    wait for the rest of the depth: in y or, in rows of their own, at `sums`.

    `part` are the columns of a vector that isn't whole, else 0.
    """

    name: str
    row: int
    vector: int
    part: int
    place: str
    store: str


def accumulators(panel: Panel, tile: Tile) -> list[tuple[int, int, int]]:
    """Return row, vector, and the columns of a vector that isn't whole, of each accumulator."""
    last = panel.vectors - 1
    return [(r, v, panel.part if v == last else 0)
            for r in range(tile.rows) for v in range(panel.vectors)]  # fmt: skip


def results(
    finish: EpilogueFunctions, panel: Panel, tile: Tile, n: int, lanes: int, waiting: int = 0
) -> list[Result]:
    """Return the accumulators c<row>_<vector> of a tile, whose results lie in rows of n, and sums
    that wait for the rest in others of `waiting` numbers, if that isn't 0."""
    found = []
    for r, v, part in accumulators(panel, tile):
        name, place = f"c{r}_{v}", spot("y", r, n, v * lanes)
        store = finish.store(place, name, r, v * lanes, part)
        place = spot("sums", r, waiting, v * lanes) if waiting else place
        found.append(Result(name, r, v, part, place, store))
    return found


def tile_ends(
    finish: EpilogueFunctions, panel: Panel, tile: Tile, n: int, lanes: int, waiting: int = 0
) -> dict[str, object]:
    """Return the results of a tile, and the statements that store a row of them if that's a loop's.

    A long epilogue for each sum would be long code, and its constants would take their registers.
    """
    return {
        "results": results(finish, panel, tile, n, lanes, waiting),
        "row_stores": _row_stores(finish, panel, tile, n, lanes),
    }


def _row_stores(
    finish: EpilogueFunctions, panel: Panel, tile: Tile, n: int, lanes: int
) -> list[str]:
    """Return the statements that store row r of a tile, whose sums lie row by row in `stored`; none
    for a short epilogue."""
    if cost(finish.expr) <= LONG or tile.rows == 1:
        return []
    stores = []
    for v in range(panel.vectors):
        part, column = panel.part if v == panel.vectors - 1 else 0, v * lanes
        sums = f"v_load({plus(f'stored + r * {panel.vectors * lanes}', column)})"
        stores.append(finish.store(plus(f"y + r * {n}", column), sums, "r", column, part))
    return stores


def tile_function(
    finish: EpilogueFunctions, panel: Panel, tile: Tile, operands: Sequence[str],
    flags: Sequence[str] = (), suffix: str = "",
) -> dict[str, object]:  # fmt: skip
    """Return the name, with a suffix, and the head of a tile's function.

    Its parameters are the product's operands, places of the epilogue's, flags, and memory.
    """
    places, memory = finish.parameters
    name = f"tile_{panel.name}_{tile.rows}{suffix}"
    head = wrapped(f"static K_NOINLINE void {name}(", [*operands, *places, *flags, *memory])
    return {"name": name, "panel": panel, "tile": tile, "head": head}


@dataclass(frozen=True)
class EpilogueFunctions:
    """The epilogue of each vector of results, at row i and column j: a function `name`, and
    `name`_part for part of a vector."""

    epilogue: Epilogue
    outer: tuple[str, ...]
    """Variables of the batch loops."""
    first: int
    """The number of the epilogue's first operand, x<first>."""
    name: str = "finish"
    open: bool = False
    """Whether the tile itself reads extents known only at run time."""
    rounded: bool = False
    """Whether the products were rounded, which functions of their sums then need not outdo."""
    apart: bool = False
    """Whether tiles say that y shares no memory with operands: these are then read once a row."""
    half: DType | None = None
    """The type of y where that has 16 bits."""

    @property
    def expr(self) -> Expr:
        """The stored value, of floats."""
        return (self.half and stored(self.epilogue.expr)) or self.epilogue.expr

    @property
    def result(self) -> DType:
        """The type of y."""
        return self.half or DType.FLOAT

    @property
    def plain(self) -> bool:
        """Whether results are stored as they are."""
        return isinstance(self.expr, Input) and self.expr.index == 0

    @cached_property
    def places(self) -> list[str]:
        """The loop variables that the epilogue's operands are read at."""
        return read_at(self.expr, self.epilogue.views, [*self.outer, "i", "j"])

    @cached_property
    def operands(self) -> list[str]:
        """The epilogue's operands."""
        return [f"x{self.first + k}" for k in read_views(self.expr, self.epilogue.views)]

    @property
    def declared(self) -> list[str]:
        """The C parameters of the operands."""
        types = epilogue_types(self.epilogue)
        return [f"const {types[int(x[1:]) - self.first].c} *{x}" for x in self.operands]

    @property
    def extras(self) -> list[str]:
        """The arguments of a tile beside places and y: the epilogue's operands, and extents."""
        return [*self.operands, *["dims"] * (self.open or self.reads_extents)]

    @property
    def reads_extents(self) -> bool:
        """Whether the epilogue depends on extents known only at run time."""
        return is_dynamic((self.expr, *read_views(self.expr, self.epilogue.views).values()))

    def functions(self, whole: bool, partial: bool) -> list[dict[str, object]]:
        """Return head, lines and value of the functions that the epilogue needs."""
        wanted = [(self.name, "")] * whole + [(f"{self.name}_part", "count")] * partial
        return [] if self.plain else [self._function(name, count) for name, count in wanted]

    def value(self, result: str, row: int | str, column: int, part: int | str) -> str:
        """Return the C value to be stored for a vector of results at row i + row, j + column."""
        if self.plain:
            return result
        steps = {"i": row, "j": column}
        places = [plus(v, steps.get(v, 0)) for v in self.places]
        extents = ["dims"] * self.reads_extents
        arguments = [result, *places, *([str(part)] if part else []), *self.operands, *extents]
        return f"{self.name}{'_part' if part else ''}({', '.join(arguments)})"

    def store(self, place: str, sums: str, row: int | str, column: int, part: int) -> str:
        """Return the statement that stores sums at row i + row and column j + column."""
        value = self.value(sums, row, column, part)
        return store_vector(self.result, place, value, str(part) if part else "")

    def awaited(
        self, sizes: Sequence[int], nearby: int, rows: int, columns: Sequence[int]
    ) -> list[str]:
        """Return the places that a tile prefetches: of operands larger than `nearby` bytes."""
        found = []
        for k, (view, size) in enumerate(zip(self.epilogue.views, sizes, strict=True)):
            operand = f"x{self.first + k}"
            if is_dynamic((view, size)) or size <= nearby or operand not in self.operands:
                continue
            if view.strides[-2] and view.strides[-1] == 1:
                start = f"{operand} + {address(view, [*self.outer, 'i', 'j'])}"
                found += [spot(start, r, view.strides[-2], c) for r in range(rows) for c in columns]
        return found

    @property
    def parameters(self) -> tuple[list[str], list[str]]:
        """The C parameters of a tile for the places, and for y and the operands."""
        places = [f"ptrdiff_t {v}" for v in self.places]
        extents = ["const int64_t *dims"] * (self.open or self.reads_extents)
        y = f"{self.result.c} *{'restrict ' * self.apart}y"
        return places, [y, *self.declared, *extents]

    def _function(self, name: str, count: str) -> dict[str, object]:
        kind, sums, lines, value = self._body(count)
        parameters = [sums, *(f"ptrdiff_t {v}" for v in self.places)]
        parameters += [*(["size_t count"] if count else []), *self.declared]
        parameters += ["const int64_t *dims"] * self.reads_extents
        unused = count and "j" not in self.places
        head = wrapped(f"static inline {kind} {name}(", parameters)
        return {"head": head, "lines": [*(["(void)count;"] * bool(unused)), *lines], "value": value}

    def _body(self, count: str) -> tuple[str, str, list[str], str]:
        """Return the type of a function, the parameter of what it finishes, lines and value."""
        indices = [*self.outer, "i", "j"]
        expr = after_rounding(self.expr) if self.rounded else self.expr
        epilogue = Epilogue(expr, self.epilogue.views)
        lines, value = vector_epilogue_lines(epilogue, "result", indices, self.first, count)
        return "vf32", "vf32 result", lines, value
