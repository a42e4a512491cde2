"""MatMulPacked in register tiles: weights stay packed in memory and become floats in registers.

A word of a panel holds 32 / bits weights of one column that follow each other along the depth,
each as a signed number: less 2^(bits - 1). Shifted to the top and back, or looked up, it becomes a
float, less its zero point, and meets that number of each row of x; the sum of a block is scaled.

One row takes vectors that lie together in a chunk, wider panels than many rows have registers for,
and asks for the lines of those that come after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from atc.backends.cpu.matmul.cost import (
    FMA_WAIT,
    Ahead,
    Panel,
    Tile,
    asked_by_one_row,
    column_panels,
    row_tiles,
    vector_kinds,
)  # fmt: skip
from atc.backends.cpu.matmul.shared_panels import SharedParams, SharesPanels
from atc.backends.cpu.matmul.text import EpilogueFunctions, results, tile_function
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.machine import CALL, PAGE, Machine
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import LOADS, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import Array
from atc.ir.ops.quantize import MatMulPacked

WIDTHS = (2, 4, 1, 3)
"""Vectors of a panel."""
CHAINS = 4
"""Vectors of sums that hide each other's latency."""
SPARE, EACH = 3, 2
"""Registers beside sums: for all vectors, and for each one, without a zero point."""
UNPACKING, LOOKED_UP = 2.2, 1.0
"""Cycles to make floats of a vector of weights, and of 4 bits where one permutation does."""
LOOKUP_FEATURES = frozenset({"avx512f"})
"""Instruction sets with a permutation of 16 floats."""
SCATTERED = 2.0
"""How much longer than the L2 cache's rate says rows of x take that the L1 cache doesn't hold: a
step of the depth reads one number of each."""
SHOWN = 0.1
"""Part of what is computed while memory is waited for that takes time nevertheless, and of waiting
while more is computed: tiles of 4 bits that compute less are faster though all wait for memory."""
CROWDED = 1.15
"""How much longer loads of x take than there are ports for them."""


def pack_words(op: MatMulPacked, q: Array, width: int) -> Array:
    """Return weights as words [n / width][blocks][block * bits / 32][width], signed; those past the
    depth and the columns are anything."""
    per, panels = 8 // op.bits, -(-op.n // width)
    shifts = np.arange(per, dtype=np.uint8) * op.bits
    fields = (q.astype(np.uint8).reshape(op.n, -1, 1) >> shifts) & ((1 << op.bits) - 1)
    signed = (fields.reshape(op.n, -1) ^ (1 << (op.bits - 1))).astype(np.uint32)
    each = 32 // op.bits
    words = signed.reshape(op.n, -1, each) << (np.arange(each, dtype=np.uint32) * op.bits)
    padded = np.zeros((panels * width, words.shape[1]), np.uint32)
    padded[: op.n] = words.sum(-1, dtype=np.uint32)
    ordered = np.ascontiguousarray(padded.reshape(panels, width, -1).swapaxes(1, 2))
    return ordered.view(np.uint8)


def pack_blocks(op: MatMulPacked, values: Array, width: int) -> Array:
    """Return what each block of each column has, [n, blocks], as [n / width][blocks][width]."""
    panels = -(-op.n // width)
    padded = np.zeros((panels * width, op.blocks), values.dtype)
    padded[: op.n] = values.reshape(op.n, op.blocks)
    return np.ascontiguousarray(padded.reshape(panels, width, -1).swapaxes(1, 2))


def block_packs(w: Workload[MatMulPacked], width: int) -> dict[int, Pack]:
    """Return how scales are packed, and zero points where there are some."""
    op = w.op
    operands = (2,) if w.inputs[3] is None else (2, 3)
    return dict.fromkeys(operands, lambda values: pack_blocks(op, values, width))


class PackedTiles(Kernel[MatMulPacked, SharedParams], SharesPanels[MatMulPacked, SharedParams]):
    """The common part of register tiles, mr x nv, that unpack weights as they meet them."""

    op = MatMulPacked
    portable = False
    dynamic = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Constant weights and an epilogue in vectors; the run may count the rows."""
        op = w.op
        if is_dynamic((op.n, op.k)) or op.m == 0:
            return False
        known = all(k for k, t in zip(w.constant[1:4], w.inputs[1:4], strict=True) if t is not None)
        return known and lanes(target) > 1 and vector_epilogue(w.op.epilogue, w, target, 4)

    def high(self, w: Workload[MatMulPacked], nv: int, target: Target) -> int:
        """Return the rows of a tile of nv vectors that there are registers for."""
        raise NotImplementedError

    def pack(self, op: MatMulPacked, q: Array, width: int) -> Array:
        """Return the weights in panels of `width` columns."""
        raise NotImplementedError

    def ahead(self, target: Target) -> Ahead:
        """Return what a tile of one row asks for."""
        return asked_by_one_row(target.machine)

    def parameters(self, w: Workload[MatMulPacked], target: Target) -> Sequence[SharedParams]:
        """Tiles that fill the registers."""
        op, found = w.op, []
        for nv in WIDTHS:
            high = min(self.high(w, nv, target), max_value(op.m))
            if high >= 1 and nv <= -(-op.n // lanes(target)):
                found.append(SharedParams(mr=row_tiles(op.m, high)[0].rows, nv=nv))
        return found

    def packs(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights, scales and zero points in chunks, in the order of use."""
        op, chunk = w.op, _chunk(w, params, target)
        return {1: lambda q: self.pack(op, q, chunk), **block_packs(w, chunk)}

    def shared_panels(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target
    ) -> int:
        """Return the whole chunks where only the run counts the rows."""
        return w.op.n // _chunk(w, params, target) if is_dynamic(w.op.m) else 0

    def packing(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> str:
        """Panels are the same for any number of threads."""
        return super().packing(w, replace(params, partitions=1), target)

    def tile_values(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target,
        parameters: Sequence[str],
    ) -> dict[str, object]:  # fmt: skip
        """Return panels, tiles, whose functions have `parameters` first, and the epilogue.

        Where the run counts the rows, one row has a function for several panels at a time: the sums
        of one narrow panel would wait for each other. A result's are added as ever.
        """
        op, width = w.op, lanes(target)
        panels, tiles = column_panels(op.n, params.nv, width), row_tiles(op.m, params.mr)
        finish, chunk = EpilogueFunctions(op.epilogue, (), 4), _chunk(w, params, target)
        group, grouped = chunk // (params.nv * width), None

        def function(panel: Panel, tile: Tile) -> dict[str, object]:
            stores = [c.store for c in results(finish, panel, tile, op.n, width)]
            return {**tile_function(finish, panel, tile, parameters), "stores": stores}

        functions = [function(p, t) for p in panels for t in tiles]
        if group > 1:
            single = next(t for t in tiles if t.rows == 1)
            panel = Panel("group", 0, panels[0].count, chunk, chunk // width, 0)
            grouped = function(panel, single)
            functions.append(grouped)
        return {
            "op": op, "lanes": width, "width": params.nv * width, "panels": panels,
            "tiles": tiles, "functions": functions, "chunk": chunk, "group": group,
            "grouped": grouped, "ahead": self.ahead(target), "partitions": params.partitions,
            "epilogues": finish.functions(*vector_kinds(panels)),
            "arguments": ", ".join((*finish.places, f"y0 + i * {op.n} + j", *finish.extras)),
            "scale_load": LOADS[w.input(2).dtype], "scale_size": w.input(2).dtype.itemsize,
            "middle": 1 << (op.bits - 1),
            "words": op.block * op.bits // 32,
        }  # fmt: skip


class MatMulUnpackingTile(PackedTiles):
    """MatMulPacked, products of floats."""

    name = "matmul_packed_tile"
    template = "cpu/matmul/packed_tile.c.j2"

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Weights in whole words a block."""
        op = w.op
        types = [t.dtype for t in w.inputs[2:4] if t is not None]
        whole = op.block * op.bits % 32 == 0 and all(t in LOADS for t in types)
        return whole and super().accepts(w, target)

    def high(self, w: Workload[MatMulPacked], nv: int, target: Target) -> int:
        """Return the rows of a tile of nv vectors that there are registers for.

        Sums over all blocks wait in memory if need be: they are met once a block.
        """
        each = EACH + (w.inputs[3] is not None)
        return (target.vector_registers - SPARE - each * nv) // nv

    def pack(self, op: MatMulPacked, q: Array, width: int) -> Array:
        """Return the weights in words, signed."""
        return pack_words(op, q, width)

    def scratch(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> int:
        """Reserve the rows of x interleaved, where they would crowd in the cache."""
        op = w.op
        return op.m * op.k * 4 * params.partitions if _crowd(op) else 0

    def values(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and the words of a block and of the last one."""
        op, zeros = w.op, w.inputs[3]
        whole, rest = divmod(op.k, op.block)
        scales = f"const {w.input(2).dtype.c} *scales"
        parameters = ["const float *x", "const uint32_t *words", scales]
        if zeros is not None:
            parameters.append(f"const {zeros.dtype.c} *zeros")
        return {
            **self.tile_values(w, params, target, parameters),
            "zero_load": LOADS[zeros.dtype] if zeros is not None else "",
            "each": 32 // op.bits, "whole": whole, "rest": rest, "copied": _crowd(op),
        }  # fmt: skip

    def cost(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> float:
        """Cycles of all tiles, and waiting for memory."""
        op, nv = w.op, params.nv
        machine, width, cycles = target.machine, lanes(target), 0.0
        products, vectors = machine.fma_rate(4 * width), machine.load_rate(4 * width)
        looked_up = op.bits == 4 and target.features >= LOOKUP_FEATURES
        each = (LOOKED_UP if looked_up else UNPACKING) + 0.5 * (w.inputs[3] is not None)
        for panel in column_panels(op.n, nv, width):
            for tile in row_tiles(op.m, params.mr):
                sums = tile.rows * panel.vectors
                unpacking = each * panel.vectors
                loads = CROWDED * tile.rows / machine.loads + panel.vectors / 8 / vectors
                far = tile.rows * op.k * 4 > machine.l1_kept and panel.count > 1 and not _crowd(op)
                waiting = SCATTERED * tile.rows * 4 / machine.l2.rate if far else 0.0
                step = max(sums / products, loads) + unpacking + waiting
                own = CALL + op.k * max(step, machine.fma_latency * FMA_WAIT) + sums * 2
                cycles += panel.count * tile.count * own
        return beside_memory(w, cycles, machine)


def beside_memory(w: Workload[MatMulPacked], cycles: float, machine: Machine) -> float:
    """Return the cycles of tiles that compute so long while they wait for weights and scales."""
    op = w.op
    block = op.block * op.bits / 8 + w.input(2).dtype.itemsize
    waiting = op.n * op.blocks * block / machine.memory
    return max(cycles, waiting) + SHOWN * min(cycles, waiting)


def _chunk(w: Workload[MatMulPacked], params: SharedParams, target: Target) -> int:
    """Return how many columns lie together: of a panel, or of those that one row takes at a time
    where the run counts the rows."""
    op, width = w.op, params.nv * lanes(target)
    group = CHAINS // params.nv
    single = any(t.rows == 1 for t in row_tiles(op.m, params.mr))
    wide = is_dynamic(op.m) and group > 1 and single and op.n // width >= group
    return width * group if wide else width


def _crowd(op: MatMulPacked) -> bool:
    """Return whether rows of x lie a multiple of a page apart.

    More of them than ways evict each other.
    """
    return max_value(op.m) > 4 and op.k * 4 % PAGE == 0


KERNELS = (MatMulUnpackingTile(),)
