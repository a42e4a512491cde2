"""The C of register tiles: their heads, their results and their calls."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.cpu.matmul.cost import Panel, Tile
from atc.backends.cpu.matmul.prefetch import Prefetch
from atc.backends.cpu.matmul.text import EpilogueFunctions, spot, tile_ends, tile_function, wrapped
from atc.backends.render.stored_weights import FLOATS, Weights


def phases_of(busy: int, accumulators: int, spare: int) -> int:
    """Return how many partial sums make `busy` of them, if there are registers for that."""
    return max(1, min(-(-busy // accumulators), spare, 4))


@dataclass(frozen=True)
class TileText:
    """The C of the tiles' heads, results and calls."""

    finish: EpilogueFunctions
    target: str
    """The C address of a tile's first result."""
    weights: Weights
    """B as tiles read it."""
    stored: Weights
    """B in memory."""
    n: int
    lanes: int
    last_block: int
    """Where the last block of the depth begins: 0 when there is only one."""
    ahead: Prefetch | None
    """What tiles ask for."""
    phases: int
    free: int
    """Registers for sums, where tiles are of many heights and each has its own phases; else 0."""
    sizes: tuple[int, ...]
    """Bytes of the epilogue's operands."""
    nearby: int
    """Bytes of one that is read without being asked for."""
    busy: int
    """Sums that keep the FMA units busy."""
    leaves: bool
    """Whether tiles ask for the lines of their results, too."""
    waiting: int = 0
    """The length of rows of their own in which sums wait for the next block of the depth; 0: they
    do so in y."""

    def function(self, panel: Panel, tile: Tile, widens: bool = False) -> dict[str, object]:
        """Return the head of a tile's function, and where each accumulator goes.

        One that `widens` makes floats of a panel of B, for the tiles behind it.
        """
        asked = self.ahead.parameters(self.stored.c) if self.ahead else []
        b = [f"const {self.weights.c} *b"]
        if widens:
            b = [f"const {self.stored.c} *narrow", "float *restrict b"]
        operands = ["const float *a", *b, *["float *sums"] * bool(self.waiting), *asked]
        flags = ["bool first", "bool last"] * bool(self.last_block)
        sums, phases = tile.rows * panel.vectors, self.phases
        if self.free:
            phases = phases_of(self.busy, sums, self.free // sums)
        lines = range(0, panel.vectors * self.lanes, FLOATS.line)
        awaited = self.finish.awaited(self.sizes, self.nearby, tile.rows, lines)
        if self.leaves and not self.last_block:
            awaited += [spot("y", r, self.n, c) for r in range(tile.rows) for c in lines]
        return {
            **tile_function(self.finish, panel, tile, operands, flags, "_widening" * widens),
            "phases": phases, "awaited": awaited, "widens": widens,
            **tile_ends(self.finish, panel, tile, self.n, self.lanes, self.waiting),
        }  # fmt: skip

    def few(self, rows: int) -> dict[str, object]:
        """Return the head of the function for up to `rows` rows, and what it stores."""
        places, memory = self.finish.parameters
        parameters = ["const float *a", "const float *b", "ptrdiff_t columns", *places, *memory]
        head = wrapped("static K_NOINLINE void dots(", parameters)
        whole = self.finish.value("result", 0, 0, 0)
        part = self.finish.value("result", 0, 0, "(size_t)columns")
        return {"rows": rows, "head": head, "whole": whole, "part": part}

    @property
    def arguments(self) -> str:
        """The last arguments of a tile's call, those after `b` and what it asks for by rows."""
        blocks = ["k == 0", f"k == {self.last_block}"] * bool(self.last_block)
        shared = self.ahead is not None and self.ahead.next
        given = [*["next"] * shared, *self.finish.places, *blocks, self.target]
        return ", ".join((*given, *self.finish.extras))
