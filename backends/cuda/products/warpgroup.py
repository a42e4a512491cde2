"""CUDA kernels of MatMul by warpgroups: wgmma on tiles that TMA loads.

For sm_90a. One warp requests tiles while the others multiply; blocks are persistent and loop over
tiles. Operands have a layout that the copy engine can read: rows of 16-byte multiples along the
depth, or of 16-bit numbers along the other axis. Other constants are packed into that layout;
second operands that aren't constant are arranged so by a launch before the product's, which also
sums the rows that zero points multiply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.cuda.gpus import LAUNCH_NS, gpu_of
from atc.backends.cuda.kernel import DeviceKernel, seconds, unravel
from atc.backends.cuda.products.boxes import (
    ATOM,
    ROUNDED,
    ROW,
    SHORTENED,
    SPLIT,
    STORED,
    Form,
    Matrix,
    Side,
    matrix_of,
    pack,
    packed_matrix,
    packed_operand,
    side_of,
)
from atc.backends.cuda.products.constants import (
    less_zeros,
    packed_batch,
    packed_row,
    sum_of,
    with_sums,
)
from atc.backends.cuda.products.prepared import (
    Prepared,
    RowSums,
    arrangement,
    prepared,
    row_sums,
    scratch_argument,
    size_of,
)
from atc.backends.cuda.products.tiles import (
    Product,
    epilogue_of,
    multiply_add,
    product_of,
    sharing_blocks,
    sharing_ns,
    tiles_of,
)
from atc.backends.cuda.products.views import transposed
from atc.backends.kernel import KernelParams, Launch, Pack, Workload
from atc.backends.render.loops import epilogue_lines
from atc.backends.render.reduction import accumulate
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType, Op
from atc.ir.ops import Conv, MatMul

ROOM = 227 << 10
"""Bytes of shared memory that a block may ask for."""

STAGED = 40
"""Row stride, in numbers, of 32 results in shared memory: free of bank conflicts."""

LEAST = 16
"""Rows, columns or depth below which most of a tile would be empty."""

MOST_BATCHES = 3
"""Batch loops beside rows and depth in what the copy engine reads, which has five axes."""

SHARES = {2: (40, 232), 3: (56, 152)}
"""Registers of a thread that requests tiles, and of one that multiplies, by the number of
warpgroups that multiply.

All threads start with the same number, and only whole warpgroups can reallocate registers: for
these numbers of warpgroups four warps are reserved for requests, else one."""

FED, REACHED, ALONE = 48, 0.8, 0.65
"""Bytes of tiles that a multiprocessor receives per clock, and the fraction of the tensor cores'
rate that two or more warpgroups reach, and that one reaches."""


@dataclass(frozen=True, kw_only=True)
class WarpgroupParams(KernelParams):
    """A tile of `m` rows, 64 per warpgroup, and `n` columns; stages; persistent blocks.

    If `shared`, the blocks share all steps of all tiles, and parts of tiles are added at the end.
    """

    m: int
    n: int
    stages: int
    blocks: int
    shared: bool = False


class WarpgroupProduct(DeviceKernel[Op, WarpgroupParams]):
    """Products of tiles by warpgroups, floats summed in float.

    A float sum that isn't finite is recomputed as the op defines it.
    """

    template = "cuda/products/warpgroup.cu.j2"
    barriers = True
    tensor_cores = True
    operands: tuple[int, int] = (0, 1)
    """The indices of the inputs that are multiplied, that of the rows first."""
    along_rows = False
    """Whether neighbouring rows of results are contiguous in memory, not columns."""

    def product(self, w: Workload) -> Product:
        """Return the product as C."""
        return product_of(w)

    def matmul(self, w: Workload) -> MatMul:
        """Return the product as a MatMul of the operands."""
        raise NotImplementedError

    def form(self, w: Workload) -> Form | None:
        """Return how a product is computed; None if it can't be."""
        raise NotImplementedError

    def accepts(self, w: Workload, target: Target) -> bool:
        """Products of operands that the copy engine can read, on devices with wgmma."""
        if gpu_of(target.device).wgmma == 0 or is_dynamic(w):
            return False
        op = self.matmul(w)
        return min(op.m, op.n, op.k) >= LEAST and self._matrices(w) is not None

    def _are_floats(self, w: Workload) -> bool:
        assert isinstance(w.op, MatMul | Conv)
        types = {w.input(k).dtype for k in self.operands}
        return types | {w.op.accumulator} == {DType.FLOAT}

    def _form(self, w: Workload) -> Form:
        form = self.form(w)
        assert form is not None
        return form

    def _matrices(self, w: Workload) -> tuple[Matrix, Matrix] | None:
        """Return both operands' layouts in memory; None if one can't be read."""
        op, form, (first, second) = self.matmul(w), self.form(w), self.operands
        if form is None:
            return None
        a = matrix_of(op, first, op.a_view, op.m, form)
        if a is None:
            return None
        b = matrix_of(op, second, transposed(op.b_view), op.n, form)
        if form.planes or b is None or (w.constant[second] and self.product(w).a.zero):
            if len(packed_batch(op)) > MOST_BATCHES:
                return None
            own = packed_matrix(op, second, form)
            b = own if w.constant[second] else replace(own, argument=scratch_argument(w))
        return a, b

    def _arranged(self, w: Workload) -> Matrix | None:
        """Return the second operand, if it is arranged in scratch before the product."""
        found = self._matrices(w)
        own = found is not None and found[1].argument == scratch_argument(w)
        return found[1] if found is not None and own else None

    def _row_sums(self, w: Workload) -> list[RowSums]:
        arranged = self._arranged(w)
        begin = size_of(arranged) if arranged else 0
        return row_sums(self.matmul(w), self.product(w), w.constant[self.operands[1]], begin)

    def prepared(self, w: Workload) -> Prepared | None:
        """Return what a launch before the product's makes in scratch; None: there is none."""
        return prepared(w, self.operands, self._form(w), self._arranged(w), self._row_sums(w))

    def packs(
        self, w: Workload, params: WarpgroupParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack constants that the copy engine can't read, are split or rounded, or need sums."""
        op, form, found = self.matmul(w), self._form(w), self._matrices(w)
        assert found is not None
        summed = bool(self.product(w).a.zero)

        def packed(b: Array) -> Array:
            rows = pack(op, form, b)
            return with_sums(rows) if summed else rows

        own = self.operands[1]
        return {own: packed} if found[1].packed and w.constant[own] else {}

    def packing(self, w: Workload, params: WarpgroupParams, target: Target) -> str:
        """Return one name for all tiles of a kernel, which read the same layout."""
        own = self.name + ", sums" * bool(self.product(w).a.zero)
        return own if self.packs(w, params, target) else ""

    def parameters(self, w: Workload, target: Target) -> Sequence[WarpgroupParams]:
        """Tiles of several sizes, each with up to four stages."""
        gpu, form = gpu_of(target.device), self._form(w)
        found = []
        for m, n in ((128, 256), (128, 192), (192, 128), (128, 128), (128, 64), (64, 256),
                     (64, 128), (64, 64)):  # fmt: skip
            one = WarpgroupParams(m=m, n=n, stages=1, blocks=0)
            each = _shared(replace(one, stages=2), form) - _shared(one, form)
            most = 1 + (ROOM - _shared(one, form)) // each
            own = replace(one, stages=min(4, most))
            room = gpu.multiprocessors * self.resident(w, own, target)
            own = replace(own, blocks=min(room, _tiles(self.product(w), own)))
            found += [own, *self._sharing(w, own, target)]
        return sorted(found, key=lambda params: self.cost(w, params, target))

    def _sharing(
        self, w: Workload, params: WarpgroupParams, target: Target
    ) -> Iterator[WarpgroupParams]:
        """Yield the same tile with blocks that share steps, where estimated to be faster."""
        product = self.product(w)
        tiles, steps = _tiles(product, params), -(-product.k // self._form(w).depth)
        room = gpu_of(target.device).multiprocessors * self.resident(w, params, target)
        least = self.cost(w, params, target)
        for blocks in sharing_blocks(tiles, steps, room, _size(params)):
            own = replace(params, blocks=blocks, shared=True)
            if self.cost(w, own, target) < least:
                yield own

    def resident(self, w: Workload, params: WarpgroupParams, target: Target) -> int:
        """Return how many blocks a multiprocessor runs at a time: two small ones, or one."""
        fits = gpu_of(target.device).shared // (_shared(params, self._form(w)) + 1024)
        return 2 if fits >= 2 and params.m == ATOM else 1

    def launch(self, w: Workload, params: WarpgroupParams, target: Target) -> Launch:
        """Return persistent blocks: a warpgroup for each 64 rows, and the warps that load."""
        joining = (min(params.blocks, _tiles(self.product(w), params)),) if params.shared else ()
        found = Launch(
            params.blocks, _threads(params), later=joining, shared=_shared(params, self._form(w)),
            maps=tuple(side.map for side in self._sides(w, params)),
        )  # fmt: skip
        prepared = self.prepared(w)
        if prepared is None:
            return found
        room = gpu_of(target.device).multiprocessors * self.resident(w, params, target)
        first = max(min(room, -(-prepared.threads // found.threads)), params.blocks)
        return replace(found, blocks=first, later=(params.blocks, *joining))

    def scratch(self, w: Workload, params: WarpgroupParams, target: Target) -> int:
        """Return the bytes of parts of tiles, and of what is made before the product."""
        prepared = self.prepared(w)
        return parts_size(params) + (prepared.bytes if prepared else 0)

    def _sides(self, w: Workload, params: WarpgroupParams) -> list[Side]:
        form, found = self._form(w), self._matrices(w)
        assert found is not None
        batch = [name for name, _ in self.product(w).batch]
        a, b = found
        if b.argument == scratch_argument(w):
            b = replace(b, begin=parts_size(params))
        return [
            side_of("a", f"tile_i * {params.m}", params.m, a, batch, form.depth),
            side_of("b", f"tile_j * {params.n}", params.n, b, batch,
                  form.depth * (max(1, form.planes) if b.packed else 1)),
        ]  # fmt: skip

    def values(
        self, w: Workload, params: WarpgroupParams, target: Target
    ) -> dict[str, object]:
        """Tiles, how operands are loaded, and the epilogue of a sum."""
        form, found = self._form(w), self._matrices(w)
        assert found is not None
        product, matmul, own = self.product(w), self.matmul(w), found[1]
        after, value = epilogue_lines(epilogue_of(w), w, "sum", product.loops, product.first)
        begin, second = parts_size(params), self.operands[1]
        sums = self._row_sums(w)
        elements = {s.operand: s.element(begin) for s in sums}
        of_a, of_b = (elements.get(o, "") for o in (product.a, product.b))
        arranged = None
        if self._arranged(w):
            arranged = arrangement(w, second, matmul, form, product, own.step, begin)
        if own.packed and w.constant[second]:
            product = replace(product, b=packed_operand(matmul, form, product))
            if product.a.zero:
                of_b = sum_of(size_of(own), packed_row(matmul, product))
        after = [*less_zeros(product, of_a, of_b), *after]
        a, b = product.a, product.b
        sides = self._sides(w, params)
        floats = product.accumulator.is_float
        return {
            "product": product, "form": form, "held": form.planes > 0,
            "along_rows": self.along_rows, "resident": self.resident(w, params, target),
            "type": product.accumulator.c, "tile_m": params.m, "tile_n": params.n,
            "stages": params.stages, "shares": SHARES.get(params.m // ATOM), "staged": STAGED,
            "tiles": _tiles(product, params),
            "indices": unravel("at", tiles_of(product, params.m, params.n)),
            "steps": -(-product.k // form.depth), "share": params.shared,
            "prepared": self.prepared(w) is not None, "arranged": arranged,
            "row_sums": [each.values(begin) for each in sums],
            "join": accumulate("Sum", product.accumulator, "other"),
            "after": after, "value": value, "sides": sides,
            "exactly": multiply_add(product.accumulator, "sum", a.value, b.value) if floats else "",
            "brought": " ".join(side.text for side in sides),
            "used": " ".join((*((a.text, b.text) if floats else ()), product.text, *after, value,
                              "tile_i", "tile_j")),
        }  # fmt: skip

    def cost(self, w: Workload, params: WarpgroupParams, target: Target) -> float:
        """Return the seconds of the product, and of what is made before it."""
        prepared, gpu = self.prepared(w), gpu_of(target.device)
        alone = self._cost_alone(w, params, target)
        if prepared is None:
            return alone
        return alone + 1e-9 * (gpu.memory_ns(prepared.bytes + prepared.read) + LAUNCH_NS)

    def _cost_alone(self, w: Workload, params: WarpgroupParams, target: Target) -> float:
        """Return the larger of the seconds for tensor cores and for loading tiles."""
        gpu, form, m, n = gpu_of(target.device), self._form(w), params.m, params.n
        product = self.product(w)
        steps, products = -(-product.k // form.depth), (1, 1, 3)[form.planes]
        rate = (REACHED if m > ATOM else ALONE) * gpu.wgmma * 2 / form.bytes
        resident = self.resident(w, params, target)
        step = max(products * m * n * form.depth / rate, _stage(params, form) / FED)
        ends = 600 + m * n / 32  # results pass through shared memory
        tiles = _tiles(product, params)
        if params.shared:
            own = tiles * steps / params.blocks
            clocks = own * step + (1 + own / steps) * ends
            spread = min(resident, -(-params.blocks // gpu.multiprocessors))
            more = sharing_ns(gpu, params.blocks, _size(params))
            return seconds(w, (spread * clocks + 1000) / gpu.clock, gpu) + 1e-9 * more
        waves = -(-tiles // (gpu.multiprocessors * resident))
        spread = min(resident, -(-tiles // gpu.multiprocessors))
        return seconds(w, (waves * spread * (steps * step + ends) + 1000) / gpu.clock, gpu)


def _tiles(product: Product, params: WarpgroupParams) -> int:
    return prod(n for _, n in tiles_of(product, params.m, params.n))


def parts_size(params: WarpgroupParams) -> int:
    """Return the bytes of the parts of tiles that blocks leave which share steps."""
    return 2 * params.blocks * _size(params) if params.shared else 0


def _size(params: WarpgroupParams) -> int:
    """Return the bytes of a tile's sums."""
    return 4 * params.m * params.n


def _threads(params: WarpgroupParams) -> int:
    groups = params.m // ATOM
    return 128 * groups + (128 if groups in SHARES else 32)


def _stage(params: WarpgroupParams, form: Form) -> int:
    """Return the bytes of a stage: the first operand as stored, rows of 128 bytes of the second."""
    return params.m * form.depth * form.stored + params.n * ROW


def _shared(params: WarpgroupParams, form: Form) -> int:
    """Return the bytes of stages, of two barriers for each, and of results in shared memory."""
    return params.stages * (_stage(params, form) + 16) + params.m * STAGED * 4


class StoredProduct(WarpgroupProduct):
    """Operands multiplied as they are stored: 16-bit floats, bytes.

    Bytes may have zero points, of a Conv only the input.
    """

    def form(self, w: Workload) -> Form | None:
        """Return the form for the operands' types."""
        op, (first, second) = w.op, self.operands
        assert isinstance(op, MatMul | Conv)
        form = STORED.get((w.input(first).dtype, w.input(second).dtype))
        summed = op.accumulator is (DType.FLOAT if form and form.bytes > 1 else DType.INT32)
        able = isinstance(op, MatMul) or not op.zero_points or w.inputs[3] is None
        return form if summed and able else None


class _MatMul(WarpgroupProduct):
    """A MatMul as it is."""

    op = MatMul

    def matmul(self, w: Workload) -> MatMul:
        """Return the op."""
        assert isinstance(w.op, MatMul)
        return w.op


class MatMulWarpgroup(_MatMul, StoredProduct):
    """MatMul of types that tensor cores multiply as they are."""

    name = "cuda_matmul_wgmma"


class _OfFloats(WarpgroupProduct):
    """Floats, which `floats` makes the operands of tensor cores of."""

    floats: Form

    def form(self, w: Workload) -> Form | None:
        """Return the form if the operands are floats."""
        return self.floats if self._are_floats(w) else None


class SplitProduct(_OfFloats):
    """Floats split in two bfloat16."""

    precision = "bf16x3"
    floats = SPLIT


class RoundedProduct(_OfFloats):
    """Floats as bfloat16."""

    precision = "bf16"
    floats = ROUNDED


class ShortenedProduct(_OfFloats):
    """Floats as TF32."""

    precision = "tf32"
    floats = SHORTENED


class MatMulWarpgroupSplit(_MatMul, SplitProduct):
    """MatMul of floats split in two bfloat16."""

    name = "cuda_matmul_wgmma_bf16x3"


class MatMulWarpgroupRounded(_MatMul, RoundedProduct):
    """MatMul of floats as bfloat16."""

    name = "cuda_matmul_wgmma_bf16"


class MatMulWarpgroupShortened(_MatMul, ShortenedProduct):
    """MatMul of floats as TF32."""

    name = "cuda_matmul_wgmma_tf32"


KERNELS = (
    MatMulWarpgroup(), MatMulWarpgroupSplit(), MatMulWarpgroupRounded(), MatMulWarpgroupShortened(),
)
