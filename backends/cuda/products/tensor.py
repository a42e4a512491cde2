"""CUDA kernels of products on tensor cores: 16-bit floats, bytes, floats as TF32 or bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.products.constants import (
    less_zeros,
    pack_rows,
    packed_row,
    packed_rows,
    pitch_of,
    row_count,
    sum_of,
    with_sums,
)
from atc.backends.cuda.products.sides import ROUNDED, ROW, SHORTENED, SPLIT, Form, side_of
from atc.backends.cuda.products.tiles import (
    Product,
    SharedParams,
    by_taps,
    channel_runs,
    epilogue_of,
    multiply_add,
    product_of,
    sharing_blocks,
    sharing_ns,
    tiles_of,
)
from atc.backends.kernel import Launch, Pack, Workload
from atc.backends.render.loops import epilogue_lines
from atc.backends.render.reduction import accumulate
from atc.backends.target import Target
from atc.dims import concrete, upper_bound
from atc.ir.graph import Array, DType, Op
from atc.ir.ops import Conv, MatMul

SHARED = 48 << 10
"""Bytes of shared memory that any block may use."""


STORED = {DType.FLOAT16: "t_f16", DType.BFLOAT16: "t_bf16"}
"""Functions that multiply 16-bit floats."""

_BYTES = {DType.INT8: "s8", DType.UINT8: "u8"}


@dataclass(frozen=True, kw_only=True)
class TileParams(SharedParams):
    """A block's tile of `m` rows and `n` columns, its warps along each, stages of shared memory."""

    m: int
    n: int
    warps_m: int
    warps_n: int
    stages: int

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return self.warps_m * self.warps_n

    @property
    def sums(self) -> int:
        """The sums of a thread."""
        return self.m * self.n // (32 * self.warps)

    def sums_of(self, side: int) -> int:
        """Return those that it has of an operand over the depth, if these are counted."""
        return self.m // self.warps_m // 4 if side == 0 else self.n // self.warps_n // 2


class TensorProduct(DeviceKernel[Op, TileParams]):
    """Products on tensor cores: tiles in several stages of shared memory, floats summed in float.

    A float sum that isn't finite is recomputed as the op defines it.
    """

    template = "cuda/products/tensor.cu.j2"
    dynamic = True
    barriers = True
    tensor_cores = True

    def form(self, product: Product) -> Form | None:
        """Return how a product is computed; None if it can't be."""
        raise NotImplementedError

    def accepts(self, w: Workload, target: Target) -> bool:
        """Products that fill enough of a tile, on devices with tensor cores."""
        product = product_of(w)
        least = min(map(upper_bound, (product.m, product.n, product.k)))
        if gpu_of(target.device).tensor == 0 or least < 8:
            return False
        return self.form(product) is not None

    def _form(self, product: Product) -> Form:
        form = self.form(product)
        assert form is not None
        return form

    def parameters(self, w: Workload, target: Target) -> Sequence[TileParams]:
        """Tiles of several sizes, each with as many stages as fit in memory, up to four."""
        planes = self._form(product_of(w)).planes
        found = []
        for m, n, warps_m, warps_n in (
            (128, 128, 2, 4), (128, 64, 4, 2), (64, 128, 2, 4), (64, 64, 2, 2), (32, 64, 1, 4),
            (32, 32, 1, 2),
        ):  # fmt: skip
            stages = min(4, SHARED // (planes * (m + n) * ROW))
            if stages >= 2:
                found.append(
                    TileParams(m=m, n=n, warps_m=warps_m, warps_n=warps_n, stages=stages)
                )
        largest = concrete(w)
        found += [each for own in found for each in self._sharing(largest, own, target)]
        return sorted(found, key=lambda params: self.cost(largest, params, target))

    def packs(self, w: Workload, params: TileParams, target: Target) -> Mapping[int, Pack]:
        """Pack constants whose rows can't be copied as they are."""
        op, product = w.op, product_of(w)
        if not isinstance(op, MatMul | Conv) or not self._is_packed(w):
            return {}
        form = self._form(product)
        by_taps = channel_runs(w) > 1

        def pack(constant: Array) -> Array:
            rows = pack_rows(op, product, form.depth, form.packed, by_taps, constant)
            return with_sums(rows) if _has_sums(w) else rows

        return {1: pack}

    def _is_packed(self, w: Workload) -> bool:
        if not isinstance(w.op, MatMul | Conv) or not w.constant[1]:
            return False
        product = product_of(w)
        form, own = self._form(product), product.b if isinstance(w.op, MatMul) else product.a
        copied = form.stored and own.chunks >= form.chunk
        return not copied or channel_runs(w) > 1 or _has_sums(w)

    def _is_copied(self, w: Workload) -> bool:
        """Return whether both operands are copied to shared memory, through no registers."""
        product, _ = self._packed(w)
        form, chunks = self._form(product), min(product.a.chunks, product.b.chunks)
        return form.stored and chunks >= form.chunk

    def packing(self, w: Workload, params: TileParams, target: Target) -> str:
        """Return one name for all tiles and kernels of a form, which read the same layout."""
        form = self._form(product_of(w))
        own = f"rows of {form.depth}, {form.packed} planes" + ", by taps" * (channel_runs(w) > 1)
        own += ", sums" * _has_sums(w)
        return own if self.packs(w, params, target) else ""

    def packing_overhead(self, w: Workload, params: TileParams, target: Target) -> int:
        """Return the bytes of the zeros at the ends of rows."""
        if not self.packs(w, params, target):
            return 0
        product, constant = product_of(w), w.input(1)
        rows = constant.size // product.k
        pitch = pitch_of(product, self._form(product).depth)
        size = 2 * self._form(product).packed or constant.dtype.itemsize
        return rows * (pitch * size + 4 * _has_sums(w)) - constant.nbytes

    def _packed(self, w: Workload) -> tuple[Product, tuple[tuple[str, str], ...]]:
        """Return the product with a packed constant, and where its chunks are."""
        op, product = w.op, product_of(w)
        if not isinstance(op, MatMul | Conv) or not self._is_packed(w):
            return product, ()
        form = self._form(product)
        if channel_runs(w) > 1:
            product = by_taps(w)
        own, copies = packed_rows(op, product, form.depth, form.packed, w.input(1).size)
        is_matmul = isinstance(op, MatMul)
        return (replace(product, b=own) if is_matmul else replace(product, a=own)), copies

    def row_sum(self, w: Workload) -> str:
        """Return the C of the sum of a packed row; '' where no zero point takes it."""
        op = w.op
        if not _has_sums(w) or not isinstance(op, MatMul | Conv):
            return ""
        product = product_of(w)
        pitch = pitch_of(product, self._form(product).depth)
        rows = row_count(op, product, w.input(1).size)
        return sum_of(rows * pitch, packed_row(op, product))

    def _sums(self, w: Workload) -> tuple[str, str]:
        """Return the C of sums of both operands' rows, '' where they aren't packed."""
        packed = self.row_sum(w)
        return ("", packed) if isinstance(w.op, MatMul) else (packed, "")

    def _counted(self, w: Workload) -> tuple[bool, bool]:
        """Return which operands the kernel sums over the depth: for the other one's zero point."""
        product, (a, b) = product_of(w), self._sums(w)
        return bool(product.b.zero) and not a, bool(product.a.zero) and not b

    def _sharing(self, w: Workload, params: TileParams, target: Target) -> Iterator[TileParams]:
        """Yield the same tiles with blocks that share their steps, where estimated to be faster."""
        gpu, steps = gpu_of(target.device), self._steps(product_of(w))
        room = gpu.multiprocessors * self.resident(w, params, target)
        least = self.cost(w, params, target)
        for blocks in sharing_blocks(_tiles(w, params), steps, room, _size(params)):
            shared = replace(params, blocks=blocks)
            if self.cost(w, shared, target) < least:
                yield shared

    def _steps(self, product: Product) -> int:
        return -(-product.k // self._form(product).depth)

    def resident(self, w: Workload, params: TileParams, target: Target) -> int:
        """Return the estimated number of blocks that a multiprocessor runs at a time."""
        gpu, planes = gpu_of(target.device), self._form(product_of(w)).planes
        shared = params.stages * planes * (params.m + params.n) * ROW + 1024
        sums, held = params.sums, 0 if self._is_copied(w) else 16
        sums += sum(params.sums_of(side) for side, own in enumerate(self._counted(w)) if own)
        registers = sums + 32 + 32 * planes + held
        most = (1 << 16) // (32 * params.warps * registers)
        return max(1, min(gpu.shared // shared, gpu.blocks, most))

    def launch(self, w: Workload, params: TileParams, target: Target) -> Launch:
        """Return a block for each tile, up to a limit, or as many as share all steps."""
        tiles = _tiles(w, params)
        if params.blocks:
            joining = min(upper_bound(tiles), params.blocks)
            return Launch(params.blocks, 32 * params.warps, later=(joining,))
        return grid(tiles, MOST_BLOCKS, 32 * params.warps)

    def scratch(self, w: Workload, params: TileParams, target: Target) -> int:
        """Return the bytes of two tiles for each block that shares steps with others."""
        return 2 * params.blocks * _size(params)

    def values(self, w: Workload, params: TileParams, target: Target) -> dict[str, object]:
        """Tiles, how operands are loaded, and the epilogue of a sum."""
        product, packed = self._packed(w)
        form, rows, columns = self._form(product), params.m, params.n
        after, value = epilogue_lines(epilogue_of(w), w, "sum", product.loops, product.first)
        a, b = product.a, product.b
        floats, is_matmul = product.accumulator.is_float, isinstance(w.op, MatMul)
        after = [*less_zeros(product, *self._sums(w)), *after]
        counted = self._counted(w)
        return {
            "product": product, "form": form, "type": product.accumulator.c,
            "tile_m": rows, "tile_n": columns, "warps_m": params.warps_m,
            "warps_n": params.warps_n, "stages": params.stages,
            "tiles": _tiles(w, params), "indices": unravel("at", tiles_of(product, rows, columns)),
            "steps": self._steps(product), "blocks": params.blocks,
            "join": accumulate("Sum", product.accumulator, "other"), "after": after, "value": value,
            "sides": [
                side_of("a", "i", rows, product.m, a, form, () if is_matmul else packed,
                        counted[0]),
                side_of("b", "j", columns, product.n, b, form, packed if is_matmul else (),
                        counted[1]),
            ],
            "resident": self.resident(w, params, target) if self._is_copied(w) else 1,
            "exactly": multiply_add(product.accumulator, "sum", a.value, b.value) if floats else "",
            "used": " ".join((a.text, b.text, product.text, *after, value, "tile_i", "tile_j")),
        }  # fmt: skip

    def cost(self, w: Workload, params: TileParams, target: Target) -> float:
        """Return the larger of the seconds for tensor cores and for shared memory."""
        product, gpu = product_of(w), gpu_of(target.device)
        form, m, n = self._form(product), params.m, params.n
        steps, products = -(-product.k // form.depth), float((1, 3)[form.planes - 1])
        counted = enumerate(self._counted(w))
        products += sum(params.sums_of(k) / params.sums for k, own in counted if own)
        rate = 0.7 * gpu.tensor * 2 / form.bytes
        warp_m, warp_n = m // params.warps_m, n // params.warps_n
        read = form.planes * ROW * params.warps * (warp_m + warp_n)  # bytes, 128 of them in a clock
        filled = form.planes * ROW * (m + n)
        step = max(products * m * n * form.depth / rate, (read + 2 * filled) / 128)
        resident = self.resident(w, params, target)
        if params.blocks:
            own = _tiles(w, params) * steps / params.blocks
            clocks = step * (own + (1 + own / steps) * params.stages) + 1000
            more = sharing_ns(gpu, params.blocks, _size(params))
            return seconds(w, gpu.compute_ns(params.blocks, resident, clocks), gpu) + 1e-9 * more
        clocks = step * (steps + params.stages) + 500
        return seconds(w, gpu.compute_ns(_tiles(w, params), resident, clocks), gpu)


def _has_sums(w: Workload) -> bool:
    """Return whether sums lie behind packed input 1: what it is multiplied by has a zero point."""
    product = product_of(w)
    other = product.a if isinstance(w.op, MatMul) else product.b
    return w.constant[1] and bool(other.zero)


def _tiles(w: Workload, params: TileParams) -> int:
    return prod(n for _, n in tiles_of(product_of(w), params.m, params.n))


def _size(params: TileParams) -> int:
    """Return the bytes of a tile's sums."""
    return 4 * params.m * params.n


class _Stored(TensorProduct):
    """Operands multiplied as they are stored: float16, bfloat16, bytes less their zero points."""

    def form(self, product: Product) -> Form | None:
        """Return the function for the operands' types."""
        a, b = product.a, product.b
        if a.dtype is b.dtype and a.dtype in STORED and product.accumulator is DType.FLOAT:
            return Form(STORED[a.dtype], 2)
        if product.accumulator is DType.INT32 and a.dtype in _BYTES and b.dtype in _BYTES:
            return Form(f"t_{_BYTES[a.dtype]}{_BYTES[b.dtype]}", 1)
        return None


class _OfFloats(TensorProduct):
    """Floats, which `floats` makes the operands of tensor cores of."""

    floats: Form

    def form(self, product: Product) -> Form | None:
        """Return the form if the operands are floats."""
        types = {product.a.dtype, product.b.dtype, product.accumulator}
        return self.floats if types == {DType.FLOAT} else None


class ProductsOfSplit(_OfFloats):
    """Floats as sums of two bfloat16; three of the four products are summed."""

    precision = "bf16x3"
    floats = SPLIT


class ProductsOfRounded(_OfFloats):
    """Floats rounded to bfloat16."""

    precision = "bf16"
    floats = ROUNDED


class ProductsOfShortened(_OfFloats):
    """Floats rounded to TF32."""

    precision = "tf32"
    floats = SHORTENED


class MatMulTensor(_Stored):
    """MatMul of types that tensor cores multiply as they are."""

    name = "cuda_matmul_tensor"
    op = MatMul


class MatMulSplit(ProductsOfSplit):
    """MatMul of floats split in two bfloat16."""

    name = "cuda_matmul_bf16x3"
    op = MatMul


class MatMulRounded(ProductsOfRounded):
    """MatMul of floats as bfloat16."""

    name = "cuda_matmul_bf16"
    op = MatMul


class MatMulShortened(ProductsOfShortened):
    """MatMul of floats as TF32."""

    name = "cuda_matmul_tf32"
    op = MatMul


class ConvTensor(_Stored):
    """Conv of types that tensor cores multiply as they are."""

    name = "cuda_conv_tensor"
    op = Conv


class ConvSplit(ProductsOfSplit):
    """Conv of floats split in two bfloat16."""

    name = "cuda_conv_bf16x3"
    op = Conv


class ConvRounded(ProductsOfRounded):
    """Conv of floats as bfloat16."""

    name = "cuda_conv_bf16"
    op = Conv


class ConvShortened(ProductsOfShortened):
    """Conv of floats as TF32."""

    name = "cuda_conv_tf32"
    op = Conv


KERNELS = (
    MatMulTensor(), MatMulSplit(), MatMulRounded(), MatMulShortened(), ConvTensor(), ConvSplit(),
    ConvRounded(), ConvShortened(),
)  # fmt: skip
