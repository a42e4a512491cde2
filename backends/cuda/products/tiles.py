"""CUDA kernels of MatMul and Conv as matrix products: tiles in shared memory.

A Conv is the product of its filters with patches of the input (an implicit im2col).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from atc.backends.cuda.gpus import LAUNCH_NS, Gpu, gpu_of
from atc.backends.cuda.kernel import (
    MOST_BLOCKS,
    DeviceKernel,
    grid,
    seconds,
    unravel,
)
from atc.backends.cuda.products.views import aligned_chunks, is_along_rows, transposed
from atc.backends.kernel import KernelParams, Launch, Workload
from atc.backends.render.expr import address, load
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.render.reduction import accumulate
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic, upper_bound
from atc.ir.graph import DType, Op, row_major
from atc.ir.ops import Conv, ConvBlocked, MatMul, Window
from atc.ir.ops.elementwise import Epilogue
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View, dense

TILE, DEPTH, THREAD_TILE = 64, 16, 4
"""Rows and columns of a block's tile, the depth of a load, rows and columns of a thread's tile."""

SLIM = 8
"""Rows or columns below which most of a tile would be empty."""


def multiply_add(dtype: DType, total: str, a: str, b: str) -> str:
    """Return the C statement that adds a product: floats are rounded once, integers wrap."""
    if dtype.is_float:
        return f"{total} = fma{'' if dtype is DType.DOUBLE else 'f'}({a}, {b}, {total});"
    wide = f"uint{max(32, 8 * dtype.itemsize)}_t"
    return f"{total} = ({dtype.c})(({wide}){total} + ({wide})({a}) * ({wide})({b}));"


@dataclass(frozen=True)
class Operand:
    """An operand of a product as C: of row i, or column j, and depth p of a batch.

    `place` is the index of an element, `inside` the condition that there is one ('': always;
    otherwise it is 0), `indices` are the variables that both use. `zero` is the C of its zero
    point. It is contiguous `along_rows` (i or j), else along the depth: there in `chunks` of so
    many elements, which begin at multiples of that. `computed` is the C of a value that isn't
    stored as such. In each `run` of elements along the depth all are inside or none, and their
    places grow by `stride`.
    """

    source: str
    dtype: DType
    place: str
    inside: str = ""
    indices: tuple[tuple[str, str], ...] = ()
    zero: str = ""
    along_rows: bool = False
    chunks: int = 1
    computed: str = ""
    run: int = 1
    stride: str = ""

    @property
    def text(self) -> str:
        """All of its C, to find the names in it."""
        own = (self.inside, self.place, self.zero, self.computed)
        return " ".join((*own, *(c for _, c in self.indices)))

    @property
    def element(self) -> str:
        """The element as it is stored."""
        return f"{self.source}[{self.place}]"

    @property
    def value(self) -> str:
        """The value of an element, less its zero point."""
        value = self.computed or load(self.dtype, self.element)
        return f"({value} - {self.zero})" if self.zero else value


@dataclass(frozen=True)
class Product:
    """y[batch, i, j] = epilogue(sum over p of a[batch, i, p] * b[batch, p, j]), as C.

    `indices` are the variables that the result's place, `target`, and the epilogue derive from i
    and j; the epilogue is over `loops`, its operands begin at input `first`. `index` is the C type
    of i, j and p.
    """

    batch: tuple[tuple[str, int], ...]
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    accumulator: DType
    loops: tuple[str, ...]
    first: int
    target: str
    indices: tuple[tuple[str, str], ...] = ()
    index: str = "ptrdiff_t"

    @property
    def text(self) -> str:
        """All of the C of the result's place, to find the names in it."""
        return " ".join((self.target, *(c for _, c in self.indices)))

    @property
    def batches(self) -> int:
        """The number of products."""
        return prod(n for _, n in self.batch)


def index_type(w: Workload) -> str:
    """Return the C type of rows, columns and depth: 32 bits, of which divisions are much faster.

    Sums of two offsets in a tensor must fit. (On divisions of 64 bits nvcc 13.0 also crashes.)
    """
    sizes = (upper_bound(t.size) for t in (*w.inputs, *w.outputs) if t is not None)
    return "int" if max(sizes) < 1 << 30 else "ptrdiff_t"


@lru_cache(1 << 8)  # estimates of all tiles ask for it
def product_of(w: Workload) -> Product:
    """Return a MatMul, a MatMulPacked, a Conv or a ConvBlocked as a product of matrices."""
    return replace(_matrices(w), index=index_type(w))


def _matrices(w: Workload) -> Product:
    match w.op:
        case Conv():
            return _of_conv(w, w.op)
        case ConvBlocked():
            return _of_blocked(w, w.op)
        case MatMulPacked():
            return _of_packed(w, w.op)
        case _:
            return _of_matmul(w)


def packed_zero(w: Workload) -> str:
    """Return the C of the zero point of block `block` of packed weights."""
    assert isinstance(w.op, MatMulPacked)
    zeros = w.inputs[3]
    return str(1 << (w.op.bits - 1)) if zeros is None else load(zeros.dtype, "x3[block]")


def _of_packed(w: Workload, op: MatMulPacked) -> Product:
    each, size = 8 // op.bits, op.block * op.bits // 8
    mask = f" & {(1 << op.bits) - 1}" if op.bits < 8 else ""
    shift = f" >> p % {each} * {op.bits}" if each > 1 else ""
    number = f"(float)(x1[byte]{shift}{mask})"
    byte = f"block * {size} + p % {op.block}" + (f" / {each}" if each > 1 else "")
    rows = View((op.k, 1))
    return Product(
        (), op.m, op.n, op.k,
        Operand("x0", w.input(0).dtype, f"i * {op.k} + p", chunks=aligned_chunks(rows, op.k)),
        Operand(
            "x1", DType.FLOAT, "byte",
            indices=(("block", f"j * {op.blocks} + p / {op.block}"), ("byte", byte)),
            computed=f"({number} - {packed_zero(w)}) * x2[block]",
        ),
        DType.FLOAT, ("i", "j"), 4, f"i * {op.n} + j",
    )  # fmt: skip


def _of_matmul(w: Workload) -> Product:
    op, (a, b) = w.op, w.inputs[:2]
    assert isinstance(op, MatMul)
    assert a is not None
    assert b is not None
    batch = loop_names("b", op.batch)
    outer = [v for v, _ in batch]
    zeros = [f"({z})" if z else "" for z in (op.a_zero, op.b_zero)]
    columns = transposed(op.b_view)
    return Product(
        tuple(batch), op.m, op.n, op.k,
        Operand("x0", a.dtype, address(op.a_view, [*outer, "i", "p"]), zero=zeros[0],
                along_rows=is_along_rows(op.a_view), chunks=aligned_chunks(op.a_view, op.k)),
        Operand("x1", b.dtype, address(op.b_view, [*outer, "p", "j"]), zero=zeros[1],
                along_rows=is_along_rows(columns), chunks=aligned_chunks(columns, op.k)),
        op.accumulator, (*outer, "i", "j"), 2, address(dense(op.loops), [*outer, "i", "j"]),
    )  # fmt: skip


def channel_runs(w: Workload) -> int:
    """Return how many channels of a tap a Conv's product meets one after another by `by_taps`.

    All chunks of 16 bytes lie in such a run, or it is 1.
    """
    channels = w.input(1).shape[1] if isinstance(w.op, Conv) else 1
    return channels if channels % 16 == 0 else 1


def by_taps(w: Workload) -> Product:
    """Return a Conv as a product whose depth has the channels of each tap side by side.

    Most of the place of an input is then computed once for many. Filters must be packed so.
    """
    assert isinstance(w.op, Conv)
    product = _of_conv(w, w.op, by_taps=True)
    runs = replace(product.b, run=channel_runs(w), stride=str(row_major(w.input(0).shape)[1]))
    return replace(product, b=runs, index=index_type(w))


def _of_conv(w: Workload, op: Conv, by_taps: bool = False) -> Product:
    (x, weights), y = w.inputs[:2], w.outputs[0]
    assert x is not None
    assert weights is not None
    filters, channels = weights.shape[0] // op.group, weights.shape[1]
    outputs = [("n", y.shape[0]), *((f"o{d}", n) for d, n in enumerate(y.shape[2:]))]
    window = [(f"k{d}", n) for d, n in enumerate(op.window.kernel)]
    taps = [*window, ("c", channels)] if by_taps else [("c", channels), *window]
    inputs, inside = windows_met(op.window, x.shape[2:], y.shape[2:])
    depth, columns = prod(n for _, n in taps), prod(n for _, n in outputs)
    groups = (("g", op.group),) if op.group > 1 else ()
    own, first = (f"g * {filters} + i", f"g * {channels} + c") if groups else ("i", "c")
    strides, rows = row_major(x.shape), View((depth, 1))
    spatial = [f"i{d} * {s}" if s != 1 else f"i{d}" for d, s in enumerate(strides[2:])]
    place = " + ".join([f"n * {strides[0]}", f"({first}) * {strides[1]}", *spatial])
    row = f"({own}) * {depth} + p"
    return Product(
        groups, filters, columns, depth,
        Operand("x1", weights.dtype, row, zero=_zero_point(op, w, 3, own),
                chunks=aligned_chunks(rows, depth)),
        Operand("x0", x.dtype, place, " && ".join(inside),
                (*unravel("j", outputs), *unravel("p", taps), *inputs),
                _zero_point(op, w, 2, own), along_rows=True),
        op.accumulator, ("n", "m", *(v for v, _ in outputs[1:])), op.operands,
        address(dense(y.shape), ["n", "m", *(v for v, _ in outputs[1:])]),
        (*unravel("j", outputs), ("m", own)),
    )  # fmt: skip


def windows_met(
    window: Window, size: Sequence[int], out: Sequence[int]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the pixel i0, i1, ... of a tap, from o0, k0, ..., and when it is in the image."""
    inputs, inside = list[tuple[str, str]](), list[str]()
    for d, (extent, pad) in enumerate(zip(size, window.pads, strict=True)):
        reach = (window.kernel[d] - 1) * window.dilations[d]
        place = f"o{d} * {window.strides[d]} + k{d} * {window.dilations[d]}"
        inputs.append((f"i{d}", f"{place} - {pad}" if pad else place))
        last = (out[d] - 1) * window.strides[d] + reach - pad
        before, behind = upper_bound(pad) > 0, upper_bound(last - extent) >= 0
        inside += [f"i{d} >= 0"] * before + [f"i{d} < {extent}"] * behind
    return inputs, inside


def _of_blocked(w: Workload, op: ConvBlocked) -> Product:
    """Sum a block's channels one after another, or those of a plain x as a Conv does.

    Filters are stored in the order of these sums, see `blocked.py`.
    """
    x, weights, y = w.input(0), w.input(1), w.outputs[0]
    rank, block = op.window.rank, y.shape[-1]
    filters, channels = weights.shape[0] // op.group, weights.shape[1]
    blocked = len(x.shape) > op.plain
    outputs = [("n", y.shape[0]), *((f"o{d}", n) for d, n in enumerate(y.shape[2:-1]))]
    window = [(f"k{d}", n) for d, n in enumerate(op.window.kernel)]
    around = -(-channels // block) if blocked else channels
    taps = [("c", around), *window, *([("l", block)] if blocked else [])]
    inputs, inside = windows_met(op.window, x.shape[2 : 2 + rank], y.shape[2:-1])
    depth, columns = prod(n for _, n in taps), prod(n for _, n in outputs)
    groups = (("g", op.group),) if op.group > 1 else ()
    own, first = (f"g * {filters} + i", f"g * {around} + c") if groups else ("i", "c")
    pixels = [f"i{d}" for d in range(rank)]
    lanes = ["l"] if blocked else []
    loops = ["n", "mb", *(v for v, _ in outputs[1:]), "ml"]
    return Product(
        groups, filters, columns, depth,
        Operand("x1", weights.dtype, f"({own}) * {depth} + p",
                chunks=aligned_chunks(View((depth, 1)), depth)),
        Operand("x0", x.dtype, address(dense(x.shape), ["n", f"({first})", *pixels, *lanes]),
                " && ".join(inside), (*unravel("j", outputs), *unravel("p", taps), *inputs),
                str(op.zero) if op.zero else "", along_rows=not blocked,
                chunks=aligned_chunks(View((block, 1)), block) if blocked else 1),
        op.accumulator, tuple(loops), 2, address(dense(y.shape), loops),
        (*unravel("j", outputs), ("mb", f"({own}) / {block}"), ("ml", f"({own}) % {block}")),
    )  # fmt: skip


def _zero_point(op: Conv, w: Workload, index: int, filter_: str) -> str:
    """Return the C of zero point `index`: one number, or one per output channel."""
    point = w.inputs[index] if op.zero_points else None
    if point is None:
        return ""
    return f"x{index}[{filter_ if index == 3 and point.size > 1 else '0'}]"


def tiles_of(product: Product, rows: int, columns: int) -> list[tuple[str, int]]:
    """Return the loops over a product's tiles of so many rows and columns."""
    grid = [("tile_i", -(-product.m // rows)), ("tile_j", -(-product.n // columns))]
    return [*product.batch, *grid]


def epilogue_of(w: Workload) -> Epilogue:
    """Return the epilogue of a product."""
    op = w.op.product if isinstance(w.op, GroupedMatMul) else w.op
    assert isinstance(op, MatMul | MatMulPacked | Conv | ConvBlocked)
    return op.epilogue


RESIDENT, LEAST_STEPS, MOST_PARTS = 4, 4, 16 << 20
"""Blocks that a multiprocessor runs at a time; of blocks that share a product, the fewest steps of
each and the most bytes of their partial results."""


@dataclass(frozen=True, kw_only=True)
class SharedParams(KernelParams):
    """The number of `blocks` that share all steps of all tiles; 0: one block computes a tile."""

    blocks: int = 0


def sharing_blocks(tiles: int, steps: int, room: int, size: int) -> Iterator[int]:
    """Yield numbers of blocks that may be faster if they share all steps of the tiles.

    A device runs `room` blocks at a time; `size` is the bytes of a tile's results. A multiple of
    the tiles' number leaves fewer parts than blocks that begin in the middle of a tile.
    """
    most = min(room, tiles * steps // LEAST_STEPS, MOST_PARTS // (2 * size))
    if most > tiles:
        yield most // tiles * tiles
    if most > 1 and tiles < 3 * room and most % tiles:
        yield most


def sharing_ns(gpu: Gpu, blocks: int, size: int) -> float:
    """Return the time of another launch that adds the blocks' partial results of `size` bytes."""
    return LAUNCH_NS + gpu.memory_ns(2 * blocks * size) + 1000


class ProductTiles(DeviceKernel[Op, SharedParams]):
    """Products of tiles that a block loads to shared memory; a thread sums a small tile of each."""

    template = "cuda/products/matmul.cu.j2"
    dynamic = True
    barriers = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Results with enough rows and columns."""
        product = product_of(w)
        return min(upper_bound(product.m), upper_bound(product.n)) >= SLIM

    def parameters(self, w: Workload, target: Target) -> Sequence[SharedParams]:
        """Return a block for each tile, and shared steps where these are estimated to be faster."""
        largest = concrete(w)
        alone, product = SharedParams(), product_of(largest)
        steps, size = -(-product.k // DEPTH), TILE * TILE * product.accumulator.itemsize
        room = gpu_of(target.device).multiprocessors * RESIDENT
        sharing = sharing_blocks(_tiles(product), steps, room, size)
        found = [alone, *(SharedParams(blocks=n) for n in sharing)]
        least = self.cost(largest, alone, target)
        worth = [p for p in found if not p.blocks or self.cost(largest, p, target) < least]
        return sorted(worth, key=lambda params: self.cost(largest, params, target))

    def launch(self, w: Workload, params: SharedParams, target: Target) -> Launch:
        """Return a block for each tile, up to a limit, or as many as share all steps."""
        tiles, threads = _tiles(product_of(w)), (TILE // THREAD_TILE) ** 2
        if params.blocks:
            return Launch(params.blocks, threads, later=(min(upper_bound(tiles), params.blocks),))
        return grid(tiles, MOST_BLOCKS, threads)

    def scratch(self, w: Workload, params: SharedParams, target: Target) -> int:
        """Return the bytes of two tiles for each block that shares steps with others."""
        return 2 * params.blocks * TILE * TILE * product_of(w).accumulator.itemsize

    def values(self, w: Workload, params: SharedParams, target: Target) -> dict[str, object]:
        """Tiles, how operands are loaded, and the epilogue of a sum."""
        product = product_of(w)
        tiles = tiles_of(product, TILE, TILE)
        total = "sum" if params.blocks else "total[u][v]"
        after, value = epilogue_lines(epilogue_of(w), w, total, product.loops, product.first)
        return {
            "product": product, "type": product.accumulator.c, "after": after, "value": value,
            "tile": TILE, "depth": DEPTH, "thread_tile": THREAD_TILE,
            "tiles": _tiles(product), "indices": unravel("at", tiles), "blocks": params.blocks,
            "steps": -(-product.k // DEPTH),
            "join": accumulate("Sum", product.accumulator, "other"),
            "sides": [
                {"name": "a", "index": "i", "extent": product.m, "operand": product.a,
                 "first": "tile_i"},
                {"name": "b", "index": "j", "extent": product.n, "operand": product.b,
                 "first": "tile_j"},
            ],
            "step": multiply_add(product.accumulator, "total[u][v]", "a[u]", "b[v]"),
        }  # fmt: skip

    def cost(self, w: Workload, params: SharedParams, target: Target) -> float:
        """Return the larger of the seconds for multiply-adds and for memory."""
        product, gpu = product_of(w), gpu_of(target.device)
        blocks, steps = _tiles(product), -(-product.k // DEPTH)
        step = TILE * TILE * DEPTH / (0.6 * gpu.fmas)
        if params.blocks:
            clocks = step * (1 + blocks * steps / params.blocks) + 1000
            size = TILE * TILE * product.accumulator.itemsize
            more = sharing_ns(gpu, params.blocks, size)
            own = gpu.compute_ns(params.blocks, RESIDENT, clocks)
            return seconds(w, own, gpu) + 1e-9 * more
        return seconds(w, gpu.compute_ns(blocks, RESIDENT, step * steps), gpu)


def _tiles(product: Product) -> int:
    return prod(n for _, n in tiles_of(product, TILE, TILE))


class MatMulTiles(ProductTiles):
    """Any MatMul with enough rows and columns."""

    name = "cuda_matmul"
    op = MatMul
    accepts_16_bit_weights = True


class ConvTiles(ProductTiles):
    """A Conv with enough filters and channels, as a product."""

    name = "cuda_conv_tiles"
    op = Conv

    def accepts(self, w: Workload, target: Target) -> bool:
        """Results with enough rows and columns, of sums that are long enough."""
        return not is_dynamic(w.input(1)) and (
            super().accepts(w, target) and product_of(w).k >= SLIM
        )


KERNELS = (MatMulTiles(), ConvTiles())
