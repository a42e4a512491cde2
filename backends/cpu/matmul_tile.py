"""MatMul in register tiles of mr rows by nv vectors, from the vector vocabulary.

B is read in panels of nv vectors: packed when compiling where it is constant, packed into scratch
or read in place where it isn't. The loop order (panel, row tile, depth) reads every weight once;
the structure is that of Goto & van de Geijn, "Anatomy of high-performance matrix multiplication",
2008, without the packing of A, which a tile reads one broadcast number at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from atc.backends.cpu.elementwise import loop_names
from atc.backends.cpu.expr import address
from atc.backends.cpu.matmul import pack_columns
from atc.backends.cpu.vector_expr import lanes, vector_epilogue, vector_finish
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.ir import DType
from atc.ops import MatMul
from atc.view import View, dense

TILES = ((12, 2), (14, 2), (9, 3), (8, 3), (6, 4), (4, 6), (6, 2), (4, 3), (4, 2), (28, 1), (2, 4))
"""Rows and vectors; a target uses those that fit its registers."""
ROW_TILES = {1: (7, 2), 2: (6, 2), 3: (4, 2), 4: (6, 1)}
"""For few rows: vectors and phases (partial sums over the depth that hide the FMA's latency)."""
STREAMED = 1 << 19
"""Bytes of B above which the next panel is prefetched: it no longer stays in the L2 cache."""


@dataclass(frozen=True)
class Tile:
    """Equal row tiles: `count` of them of `rows` rows, beginning at `first`."""

    rows: int
    count: int
    first: int


def row_tiles(m: int, mr: int) -> list[Tile]:
    """Split m rows into tiles of at most mr rows whose heights differ by one at most."""
    tiles = -(-m // mr)
    low, more = divmod(m, tiles)
    found = [Tile(low + 1, more, 0), Tile(low, tiles - more, more * (low + 1))]
    return [t for t in found if t.count and t.rows]


class MatMulTile(Kernel):
    """float MatMul, mr x nv register tiles."""

    name = "matmul_tile"
    op = MatMul
    template = "cpu/matmul_tile.c.j2"
    portable = False

    def accepts(self, w: Workload, target: Target) -> bool:
        """Floats, a vector's worth of columns or more, an epilogue in vectors."""
        op = w.op
        assert isinstance(op, MatMul)
        floats = all(t is not None and t.dtype is DType.FLOAT for t in w.inputs)
        fits = lanes(target) > 1 and 2 * op.n >= lanes(target) and op.k > 0 and prod(op.loops) > 0
        return floats and fits and vector_epilogue(op.epilogue, w, target, 2)

    def parameters(self, w: Workload, target: Target) -> Sequence[Params]:
        """Tiles that fit the registers; for few rows wide ones with several phases."""
        op = w.op
        assert isinstance(op, MatMul)
        most = -(-op.n // lanes(target))
        found: list[Params] = []
        if op.m in ROW_TILES:
            nv, phases = ROW_TILES[op.m]
            nv = min(nv, most, (target.vector_registers - 2) // (op.m * phases + 1))
            found.append({"mr": op.m, "nv": max(nv, 1), "phases": phases})
        for mr, nv in TILES:
            needed = mr * nv + nv + 1
            if needed <= target.vector_registers and nv <= most and (mr <= op.m or mr <= 4):
                found.append({"mr": min(mr, op.m), "nv": nv, "phases": 1})
        unique = {tuple(sorted(p.items())): p for p in found}
        return tuple(unique.values()) or ({"mr": min(op.m, 4), "nv": 1, "phases": 1},)

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """Pack constant B into panels of nv vectors."""
        op = w.op
        assert isinstance(op, MatMul)
        if not w.constant[1]:
            return {}
        width = int(params["nv"]) * lanes(target)
        return {1: lambda b: pack_columns(op, b, width)}

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        """One panel of B where it has to be packed at run time."""
        op = w.op
        assert isinstance(op, MatMul)
        if _mode(w) != "gather":
            return 0
        return op.k * int(params["nv"]) * lanes(target) * 4

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Panels, tiles, how both operands are read, and the epilogue."""
        op = w.op
        assert isinstance(op, MatMul)
        mr, nv, phases = (int(params[k]) for k in ("mr", "nv", "phases"))
        width = nv * lanes(target)
        tiles = row_tiles(op.m, mr)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        mode = _mode(w)
        rest = op.n % width
        panels = [("full", op.n // width, width), ("last", 1 if rest else 0, rest or width)]
        streamed = mode == "packed" and op.k * op.n * 4 > STREAMED
        total = sum(t.count for t in tiles)
        return {
            "batch": batch, "op": op, "nv": nv, "phases": phases, "width": width, "mode": mode,
            "lanes": lanes(target), "tiles": tiles, "panels": [p for p in panels if p[1]],
            "full_panels": op.n // width,
            "a_base": address(View(op.a_view.strides[:-2], op.a_view.offset), outer),
            "am": op.a_view.strides[-2], "ak": op.a_view.strides[-1],
            "b_base": _b_base(op, outer, width) if mode == "packed"
            else address(View(op.b_view.strides[:-2], op.b_view.offset), outer),
            "bk": op.b_view.strides[-2], "bn": op.b_view.strides[-1],
            "step": width if mode != "direct" else op.b_view.strides[-2],
            "prefetch": streamed, "ahead": _ahead(streamed, total, nv, op.k),
            "operands": [f"x{k}" for k in range(2, len(w.inputs))],
            "finish": self._finish(op, outer, ""), "finish_part": self._finish(op, outer, "count"),
            "y": address(dense(op.loops), [*outer, "i", "j"]),
        }  # fmt: skip

    def _finish(self, op: MatMul, outer: list[str], count: str) -> dict[str, object]:
        lines, value = vector_finish(op.epilogue, "result", [*outer, "i", "j"], 2, count)
        return {"lines": lines, "value": value}

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Scalar multiplications over lanes, padded panels, loads per FMA, idle FMA slots."""
        op = w.op
        assert isinstance(op, MatMul)
        mr, nv, phases = (int(params[k]) for k in ("mr", "nv", "phases"))
        rows = sum(t.rows * t.count for t in row_tiles(op.m, mr))
        columns = -(-op.n // (nv * lanes(target))) * nv
        loads = (mr + nv) / (mr * nv)
        idle = max(1.0, 10 / (mr * nv * phases))
        work = prod(op.batch) * rows * columns * op.k * max(0.5, 0.3 + 0.5 * loads) * idle
        packing = 0.0 if _mode(w) != "gather" else prod(op.batch) * op.k * op.n * 0.5
        streaming = op.k * op.n / 4 / max(1, rows / 4) if op.m > 4 else 0.0
        return work / 2 + packing + streaming / 8


def _mode(w: Workload) -> str:
    """Return how B is read: packed (constant), direct (dense rows) or gather (into scratch)."""
    op = w.op
    assert isinstance(op, MatMul)
    if w.constant[1]:
        return "packed"
    return "direct" if op.b_view.strides[-1] == 1 or op.n == 1 else "gather"


def _b_base(op: MatMul, outer: list[str], width: int) -> str:
    """Return where the panels of a batch begin in packed B; broadcast batches are kept once."""
    strides = op.b_view.strides[:-2]
    kept = dense([1 if s == 0 else n for n, s in zip(op.batch, strides, strict=True)]).strides
    size = op.k * width * -(-op.n // width)
    steps = tuple(0 if s == 0 else t * size for s, t in zip(strides, kept, strict=True))
    return address(View(steps), outer)


def _ahead(streamed: bool, tiles: int, nv: int, k: int) -> int:
    """Return the depth steps per prefetched line: each tile asks for its share of the next panel.

    0 where every step has to prefetch nv lines of its own panel (a single tile).
    """
    if not streamed or tiles < nv:
        return 0
    return max(1, min(16, tiles // nv, k))


KERNELS = (MatMulTile(),)
