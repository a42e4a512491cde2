"""MatMul in register tiles of mr rows by nv vectors, from the vector vocabulary.

B is read in panels of nv vectors: packed when compiling where it is constant, read in place where
its rows are dense, else copied into scratch. The loop order ([depth or row block], panel, row tile,
depth) reads every weight once, or A, where many rows meet few weights; the structure is that of
Goto & van de Geijn, "Anatomy of high-performance matrix multiplication", 2008. A, which a tile
reads one broadcast number at a time, is packed only where its columns are dense: steps of the depth
are then so far apart that they crowd in the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.cpu.matmul.cost import (
    NEAR_STEP,
    PhasedParams,
    Tile,
    column_panels,
    crowding,
    pressure,
    row_tiles,
    scattered_wait,
    step_wait,
    tile_count,
    tile_cycles,
    vector_kinds,
    while_fetching,
)
from atc.backends.cpu.matmul.operands import batch_base, is_widened_product, packed_base
from atc.backends.cpu.matmul.portable import pack_columns
from atc.backends.cpu.matmul.prefetch import asks_for_rows, asks_for_weights, prefetch
from atc.backends.cpu.matmul.row_blocks import (
    RowBlocks,
    all_tiles,
    cut_rows,
    rows_at_a_time,
)
from atc.backends.cpu.matmul.shared_panels import SharedParams, SharesPanels
from atc.backends.cpu.matmul.text import EpilogueFunctions
from atc.backends.cpu.matmul.tile_text import TileText, phases_of
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.machine import Machine
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.stored_weights import FLOATS, stored_weights
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_epilogue import typed_epilogue, vector_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import Dim, is_dynamic, lower_bound, max_value
from atc.ir.graph import DType
from atc.ir.ops import MatMul
from atc.ir.view import dense

WIDTHS = (2, 3, 4, 1, 5, 6)
STREAMING_WIDTHS = (4, 8, 6, 5, 2, 3, 1)
"""Vectors of a panel, the most useful first; for one or two rows what B streams through best."""
INTERLEAVED = 1.0
"""Cycles to interleave a number of A."""
LINE_ALONE, LINE_BESIDE = 0.5, 1.5
"""Cycles to read a line of A from the L2 cache, and, on Intel's servers, beside panels of B."""
FAR_PART, SLOW_PART = 0.3, 0.6
"""Parts of the time of reading what lies beyond the L2 cache that tiles wait; the second where a
block reads it again from a slow third cache."""
DEPTH = 512
"""The depth of a block of A and of panels of B that leave each other room in the L2 cache."""
GROUP = 8
"""Steps of the depth that are interleaved together: their lines may share a set of the L1 cache."""
AHEAD = 4
"""Vectors of B, of two pairs, that have registers where A is read in vectors: one instruction
reads a pair, before the products of the pair before."""
PAIR_REACH = 1008
"""Bytes up to which such an instruction's offset reaches."""
FEW_ROWS = 4
"""Rows up to which copying B takes longer than to sum along the depth, each by itself."""


def read_mode(w: Workload[MatMul], copy: bool) -> str:
    """Return how B is read.

    `packed` when compiling; `direct` in place, unless it is to be a `copy`; copied into scratch
    from dense `rows`, from dense `columns`, or from `any`thing. A copy of packed B is `widened`.
    """
    op = w.op
    if w.constant[1]:
        return "widened" if copy else "packed"
    if op.b_view.strides[-1] == 1 or op.n == 1:
        return "rows" if copy else "direct"
    return "columns" if op.b_view.strides[-2] == 1 else "any"


@dataclass(frozen=True, kw_only=True)
class TiledParams(PhasedParams, SharedParams):
    """Those of tiles, and of how B is read."""

    copy: bool = False
    """Whether B is copied into scratch where it could be read in place, or floats be made of each
    vector of it when that is read."""
    kb: int | None = None
    """The depth that is summed at a time; None: all of it."""
    mb: int | None = None
    """The rows that are multiplied by all panels of B before the next ones; None: all."""
    interleave: bool = False
    """Whether the rows of each tile of A are interleaved in scratch."""


class MatMulTile(Kernel[MatMul, TiledParams], SharesPanels[MatMul, TiledParams]):
    """float MatMul, mr x nv register tiles; constant B may have 16 bits.

    `kb` blocks the depth, so that the block of A stays in the L2 cache; `phases` are partial sums
    that hide the FMA's latency where a tile is small.
    """

    name = "matmul_tile"
    op = MatMul
    template = "cpu/matmul/tile.c.j2"
    portable = False
    dynamic = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats, and an epilogue in vectors; constant B has known rows and columns."""
        op = w.op
        if w.constant[1] and is_dynamic((op.k, op.n, op.b_view)):
            return False
        if _half(w) is not None:
            fits = w.constant[1] and lanes(target) > 1 and typed_epilogue(op.epilogue, w, 2)
        else:
            fits = vector_epilogue(op.epilogue, w, target, 2)
        return fits and is_widened_product(w)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[TiledParams]:
        """Tiles that fill the registers, as high as they go and so that they divide the rows."""
        op, width = w.op, lanes(target)
        busy, found = target.machine.sums(target.vector_bytes), list[TiledParams]()
        by_lane = _in_lanes(w, target)
        for nv in STREAMING_WIDTHS if max_value(op.m) <= 2 else WIDTHS:
            free = target.vector_registers - (min(2 * nv, AHEAD) if by_lane else 1 + nv)
            high = min(free // (nv + by_lane), max_value(op.m))
            if high < 1 or nv > -(-max_value(op.n) // width):
                continue
            for mr in _heights(op.m, high):
                phases = phases_of(busy, mr * nv, (free - mr * by_lane) // (mr * nv))
                phases -= by_lane and phases == 3  # lanes are shared evenly
                found.append(TiledParams(mr=mr, nv=nv, phases=phases))
        if is_dynamic(op.k):
            return found
        blocked = [
            replace(p, kb=kb)
            for p in found for kb in _depth_blocks(op, p.nv * width, p.mr, target.machine)
            if _half(w) is None  # floats wait in y
        ]
        below = [
            replace(p, mb=mb)
            for p in found + (blocked if target.machine.slow_l3 else [])
            for mb in rows_at_a_time(w, p.mr, self._depth(w, p), target.machine)
        ]
        if is_dynamic(op.m):
            return (*found, *blocked, *below)
        copied = [
            replace(p, copy=True) for p in (*found, *blocked) if _worth_copying(w, int(p.mr))
        ]
        interleaved = [
            replace(p, kb=kb, interleave=True, copy=copy)
            for kb in _interleaved_depths(op, target.machine) if _half(w) is None or kb == op.k
            for p in found for copy in (False, True)
            if not copy or _worth_copying(w, int(p.mr))
        ]
        return (*found, *blocked, *below, *copied, *interleaved)

    def packs(self, w: Workload[MatMul], params: TiledParams, target: Target) -> Mapping[int, Pack]:
        """Pack constant B into panels of nv vectors."""
        op = w.op
        if not w.constant[1]:
            return {}
        width = params.nv * lanes(target)
        return {1: lambda b: pack_columns(op, b, width, params.kb)}

    def packing(self, w: Workload[MatMul], params: TiledParams, target: Target) -> str:
        """Panels of as many columns are the same for any rows, as are blocks of the depth."""
        op, width = w.op, self.panel_columns(w, params, target)
        blocks = f" in blocks of {params.kb}" if params.kb not in (None, op.k) else ""
        return f"panels of {width} of {op.b_view} {op.k}x{op.n}{blocks}" if width else ""

    def panel_columns(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        """Return the columns of a panel, nv vectors."""
        return params.nv * lanes(target) if w.constant[1] else 0

    def scratch(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        """One panel of B where it has to be packed at run time, for each partition, and A where
        it is interleaved."""
        columns = params.partitions * self._panel_room(w, params, target)
        columns += w.op.m if params.interleave else 0
        return self._depth(w, params) * columns * 4

    def shared_panels(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        """Return the whole panels of a product whose rows only the run counts."""
        op = w.op
        if not is_dynamic(op.m) or is_dynamic(op.n) or any(n != 1 for n in op.batch):
            return 0
        return op.n // (params.nv * lanes(target))

    def waiting(self, params: TiledParams, target: Target) -> int:
        """Return the length of the rows in scratch where sums wait; 0 where they do so in y."""
        return 0

    def _panel_room(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        in_place = read_mode(w, params.copy) in ("packed", "direct")
        return 0 if in_place else params.nv * lanes(target)

    def _depth(self, w: Workload[MatMul], params: TiledParams) -> int:
        return params.kb or w.op.k

    def values(self, w: Workload[MatMul], params: TiledParams, target: Target) -> dict[str, object]:
        """Panels, tiles, how both operands are read, and the epilogue."""
        op, mode = w.op, read_mode(w, params.copy)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        depth = self._depth(w, params)
        width = params.nv * lanes(target)
        blocks = cut_rows(op.m, params.mb, params.mr)
        panels = column_panels(op.n, params.nv, lanes(target))
        bk, bn = op.b_view.strides[-2:]
        am, ak = op.a_view.strides[-2:]
        inside = is_dynamic((depth, am, ak, op.n, bk if mode == "direct" else width))
        by_lane = _in_lanes(w, target)
        finish = EpilogueFunctions(
            op.epilogue, tuple(outer), 2, open=inside, apart=by_lane, half=_half(w)
        )
        stored = stored_weights(w)
        weights = FLOATS if mode == "widened" else stored
        packed = mode in ("packed", "widened")
        count = tile_count(blocks[0].tiles)
        singly = count == 1 or by_lane or params.interleave or params.phases > 1
        rows_ahead = not singly and asks_for_rows(w, params.mb or op.m, depth, target.machine)
        steps = FLOATS.line if rows_ahead else depth
        ahead = prefetch(w, target, count, width, steps, stored) if packed else None
        in_lanes = by_lane and not params.interleave
        if ahead and ahead.next and in_lanes:
            in_lanes = ahead.every % lanes(target) == 0
        if ahead and ahead.next and params.phases > 1 and not in_lanes:
            ahead = None  # so few sums wait for one another
        widens = mode == "widened" and not in_lanes  # the first tile of a panel does
        runs = [_tiles_in_order(b, widens) for b in blocks]
        step = bk if mode == "direct" else width
        y = address(dense(op.loops), [*outer, "i", "j"])
        free = target.vector_registers - 1 - params.nv if is_dynamic(op.m) else 0
        text = TileText(
            finish, f"y0 + {y}", weights, stored, op.n, lanes(target), op.k - depth, ahead,
            params.phases, free, tuple(t.nbytes for t in w.inputs[2:] if t is not None),
            target.machine.nearby, target.machine.sums(target.vector_bytes), _leaves(w, target),
            self.waiting(params, target),
        )  # fmt: skip
        return {
            "batch": batch, "op": op, "width": width, "mode": mode,
            "lanes": lanes(target), "depth": depth, "blocked": depth != op.k,
            "blocks": list(zip(blocks, runs, strict=True)), "widens": widens,
            "panels": panels, "arguments": text.arguments,
            "functions": {
                (p.name, t.rows, first): text.function(p, t, first)
                for p in panels for tiles in runs for t, first in tiles
            },
            "epilogues": finish.functions(*vector_kinds(panels)),
            "a_base": batch_base(op.a_view, outer),
            "am": am, "ak": ak, "interleaved": params.interleave,
            "group": largest_divisor(depth, GROUP) if params.interleave else 0,
            "room": depth * self._panel_room(w, params, target), "partitions": params.partitions,
            "b_base": packed_base(op.batch, op.b_view, outer, op.k * width * -(-op.n // width))
            if packed else batch_base(op.b_view, outer),
            "bk": bk, "bn": bn, "step": step,
            "panel_step": depth * width if packed else width if mode == "direct" else width * bn,
            "block_step": -(-op.n // width) * width if packed else bk,
            "prefetch": ahead, "rows_ahead": rows_ahead,
            "line": FLOATS.line,
            "every": ahead.every if ahead and ahead.next else steps * rows_ahead,
            "stored": stored, "weights": weights, "in_lanes": in_lanes,
            "far": in_lanes and not is_dynamic(step) and lanes(target) * step * 4 > PAIR_REACH,
            "copies_open": is_dynamic((depth, bk, bn)), "load_a": None,
            "few": text.few(FEW_ROWS) if _sums_along(w, mode) else None,
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: TiledParams, target: Target) -> float:
        """Cycles of all tiles, of copying B, and of waiting for memory."""
        op, mode, machine = w.op, read_mode(w, params.copy), target.machine
        (am, ak), bk = op.a_view.strides[-2:], op.b_view.strides[-2]
        mr, nv, phases = params.mr, params.nv, params.phases
        depth, width = params.kb or op.k, lanes(target)
        rows = (params.kb and params.mb) or op.m
        near = rows * depth * 4 <= machine.l1_kept
        far = 0 if near else 1 if depth == op.k else 3  # reloaded results too
        panels = column_panels(op.n, nv, lanes(target))
        tiles = all_tiles(cut_rows(op.m, params.mb, mr))
        stored = stored_weights(w)
        weights = FLOATS if mode == "widened" else stored
        size, widening = weights.dtype.itemsize, weights.widening(target)
        by_lane = _in_lanes(w, target)
        cycles = sum(
            p.count * t.count * tile_cycles(
                machine, t.rows, p.vectors, width, depth, phases, far, size, widening,
                width if by_lane else 1, by_lane and mr >= op.m, mr < op.m,
            )
            for p in panels for t in tiles
        ) * (op.k // depth)
        cycles *= max(crowding(machine, mr, stride) for stride in (am * 4, op.n * 4))
        asks = mode in ("packed", "widened") and asks_for_weights(w, target, tile_count(tiles))
        if asks and mr < op.m:
            cycles *= pressure(machine, ((params.mb or op.m) * 4 + 2 * width * nv * size) * depth)
        columns = sum(p.count * p.vectors for p in panels) * lanes(target)
        steps = op.k * tile_count(tiles) * columns / (nv * lanes(target))
        if am == 1 and not params.interleave:
            cycles += steps * step_wait(machine, depth, ak * 4)
        if mode == "direct":
            wait = step_wait(machine, depth, bk * 4)
            cycles += steps * wait * (wait > NEAR_STEP or params.interleave)  # A fills the cache
            apart = scattered_wait(machine, depth, bk * 4, width * nv * 4, width * 4)
            cycles += steps * apart
        cycles += INTERLEAVED * op.m * op.k * params.interleave
        per_element = {"rows": 1.5 / lanes(target), "columns": 2.5 / lanes(target), "any": 1.5,
                       "widened": (0.2 + stored.widening(target)) / lanes(target)}  # fmt: skip
        copies = len(range(0, op.m, params.mb or op.m)) if mode == "widened" else 1
        cycles += copies * op.k * columns * per_element.get(mode, 0)
        if not near:  # every panel reads A from the L2 cache, as tiles may B meanwhile
            beside = machine.slow_l3 and nv * width * size * depth > machine.l1_kept
            line = LINE_BESIDE if beside else LINE_ALONE
            cycles += line * op.m * op.k / FLOATS.line * columns / (nv * lanes(target))
        if op.m * depth * 4 > machine.l2.size // 2:  # every panel reads A from beyond the L2 cache
            times = 1 if params.mb else columns / (nv * lanes(target))
            cycles += FAR_PART * op.m * op.k * 4 / machine.far_rate * times
        again = SLOW_PART if machine.slow_l3 else FAR_PART
        if machine.slow_l3 and op.m * op.n * 4 > machine.l2.size:  # sums that wait for others
            cycles += again * 2 * op.m * op.n * 4 * (op.k // depth - 1) / machine.far_rate
        if asks:
            nbytes = op.k * columns * stored.dtype.itemsize
            stream = nbytes / machine.memory
            cycles += 0.1 * (nv - 1) * stream if mr < op.m else 0  # tiles that share it wait
            if params.mb:  # every block of rows reads B from beyond the L2 cache
                near = nbytes <= machine.l2.size + machine.l3.size
                wait = again / machine.far_rate if near else FAR_PART / machine.memory
                cycles += wait * nbytes * (op.m // params.mb)
        if w.constant[1]:
            cycles = while_fetching(machine, cycles, op.k * op.n * stored.dtype.itemsize)
        return prod(op.batch) * cycles


def _half(w: Workload[MatMul]) -> DType | None:
    """Return the type of the results where they have 16 bits."""
    y = w.outputs[0].dtype
    return y if y.is_half else None


def _tiles_in_order(block: RowBlocks, widens: bool) -> list[tuple[Tile, bool]]:
    """Return a block's tiles, and of each whether it makes floats of B for those behind it.

    That is the first one, where any does.
    """
    if not widens:
        return [(t, False) for t in block.tiles]
    first, *rest = block.tiles
    behind = Tile(first.rows, first.count - 1, first.first + first.rows)
    others = [(t, False) for t in (behind, *rest) if t.count]
    return [(replace(first, count=1), True), *others]


def _in_lanes(w: Workload[MatMul], target: Target) -> bool:
    """Return whether instructions multiply by a lane of a vector of a row of A: 64-bit NEON's."""
    op = w.op
    rows = op.a_view.strides[-2:]
    known = not is_dynamic((op.m, op.k, *rows)) and rows[1] == 1 and op.k >= lanes(target)
    return known and target.simd == "neon" and target.arch == "aarch64"


def _sums_along(w: Workload[MatMul], mode: str) -> bool:
    """Return whether few rows are summed along the depth: those of a decoder's word times its keys.

    The run counts the columns, which are dense, as the rows of A are.
    """
    op = w.op
    if mode != "columns" or not is_dynamic(op.n) or lower_bound(op.m) > FEW_ROWS:
        return False
    return op.a_view.strides[-1] == 1 and not is_dynamic((op.k, op.b_view.strides[-1]))


def _heights(m: int, high: int) -> Sequence[int]:
    """Return the heights of row tiles worth trying, up to `high`."""
    if isinstance(m, Dim):
        return (high,)
    balanced, even = row_tiles(m, high)[0].rows, largest_divisor(m, high)
    return tuple({balanced: 0, even: 0}) if 3 * even >= 2 * high else (balanced,)


def _depth_blocks(op: MatMul, columns: int, mr: int, machine: Machine) -> Sequence[int]:
    """Return the blocks of the depth worth trying: where the L2 cache doesn't hold what tiles read
    again, all of A or a panel of so many columns of B, or it crowds there."""
    half, rows = machine.l2.size // 2, max_value(op.m)
    most = [half / (4 * rows)] if rows * op.k * 4 > half else []
    most += [half / (8 * columns)] if rows > mr and columns * op.k * 4 > half else []
    if machine.slow_l3 and rows > mr:
        most += [half / part / (4 * rows) for part in (2, 4) if rows * op.k * 4 > half / part]
        most += [DEPTH]
    found = (largest_divisor(op.k, max(128, kb)) for kb in most)
    return [*dict.fromkeys(kb for kb in found if 128 <= kb < op.k)]


def _interleaved_depths(op: MatMul, machine: Machine) -> list[int]:
    """Return the block of the depth for which A, whose columns are dense, fits into the L2 cache
    in tiles; none where it lies there well enough."""
    am, ak = op.a_view.strides[-2:]
    if am != 1 or not step_wait(machine, op.k, ak * 4):
        return []
    kb = largest_divisor(op.k, max(1, machine.l2.size // 2 // (4 * op.m)))
    return [kb] if kb >= min(op.k, 64) else []


def _worth_copying(w: Workload[MatMul], mr: int) -> bool:
    """Return whether so many row tiles read B that a copy of it, dense or in floats, may pay."""
    mode = read_mode(w, copy=False)
    apart = mode == "direct" and max_value(w.op.b_view.strides[-2]) >= 256
    return w.op.m >= 4 * mr and (apart or mode == "packed" and stored_weights(w) is not FLOATS)


def _leaves(w: Workload[MatMul], target: Target) -> bool:
    """Return whether the result is so large that its lines are far away when they are written."""
    y = w.outputs[0]
    return not is_dynamic(y.shape) and y.nbytes > target.machine.l2.size


KERNELS = (MatMulTile(),)
