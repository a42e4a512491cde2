"""CUDA kernels of products by warpgroups: wgmma on tiles that the copy engine (TMA) brings.

Of sm_90a. One warp asks for tiles while the others multiply; blocks stay and take tiles in turn.
Operands lie as the copy engine reads them: rows of 16-byte multiples along the depth, or of 16-bit
numbers along the other axis. Constants that don't are packed so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import ml_dtypes
import numpy as np

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import DeviceKernel, seconds, unravel
from atc.backends.cuda.products import (
    Operand,
    Product,
    epilogue_of,
    multiply_add,
    product_of,
    tiles_of,
)
from atc.backends.kernel import KernelParams, Launch, Pack, TensorMap, Workload
from atc.backends.render.loops import finish
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType, row_major
from atc.ir.ops import MatMul
from atc.ir.view import View, gather_view

ROW, CHUNK = 128, 16
"""Bytes of a tile's row, and those of which tensors' strides are multiples."""

ATOM = 64
"""Rows of a warpgroup, and neighbours in a row of a turned tile."""

ROOM = 227 << 10
"""Bytes of shared memory that a block may ask for."""

STAGED = 40
"""Numbers from one row to the next of 32 results on their way: they meet in no bank."""

LEAST = 16
"""Rows, columns or depth below which most of a tile would be empty."""

REGISTERS = 168
"""Those of a thread at most, where a multiprocessor has two blocks."""

SHARES = {2: (40, 232), 3: (56, 152)}
"""Registers of a thread that asks for tiles, and of one that multiplies, by warpgroups of these.

They begin with as many each, and are handed over by warpgroups: there four warps ask, else one."""

FED, REACHED, ALONE = 48, 0.8, 0.65
"""Bytes a clock that a multiprocessor gets of tiles, the part of tensor cores' rate that two
warpgroups or more reach, and one."""


@dataclass(frozen=True)
class Form:
    """What is multiplied: the function that imitates it, the types as PTX names them, bytes.

    `type` is the driver's number of what the first operand is stored as, of so many `stored` bytes.
    Floats are made bfloat16 on their way through registers, `planes` of them; others are multiplied
    as they are (0).
    """

    function: str
    types: str
    bytes: int
    type: int
    stored: int
    planes: int = 0

    @property
    def deep(self) -> int:
        """The depth of an instruction: 32 bytes."""
        return 32 // self.bytes

    @property
    def depth(self) -> int:
        """The depth of a step: a row of 128 bytes of the second operand, of all planes."""
        return ROW // self.bytes // max(1, self.planes)

    @property
    def instructions(self) -> int:
        """Those of a step, of one plane."""
        return self.depth // self.deep


_BFLOAT16 = 9
"""A type as the driver numbers it."""

_FORMS = {
    (DType.FLOAT16, DType.FLOAT16): Form("t_f16", "f32.f16.f16", 2, 6, 2),
    (DType.BFLOAT16, DType.BFLOAT16): Form("t_bf16", "f32.bf16.bf16", 2, _BFLOAT16, 2),
    (DType.INT8, DType.INT8): Form("t_s8s8", "s32.s8.s8", 1, 0, 1),
    (DType.UINT8, DType.INT8): Form("t_u8s8", "s32.u8.s8", 1, 0, 1),
    (DType.INT8, DType.UINT8): Form("t_s8u8", "s32.s8.u8", 1, 0, 1),
    (DType.UINT8, DType.UINT8): Form("t_u8u8", "s32.u8.u8", 1, 0, 1),
}
"""Products of what is stored."""

SHORTENED = Form("t_tf32", "f32.tf32.tf32", 4, 11, 4)
"""Floats that the copy engine rounds to TF32."""

ROUNDED = Form("t_bf16", "f32.bf16.bf16", 2, 7, 4, planes=1)
HALVES = Form("t_bf16", "f32.bf16.bf16", 2, 7, 4, planes=2)
"""Floats rounded to bfloat16, and as sums of two, of which three products are summed."""


@dataclass(frozen=True, kw_only=True)
class WarpgroupParams(KernelParams):
    """A tile of `m` rows, 64 a warpgroup, and `n` columns; stages; blocks that take turns."""

    m: int
    n: int
    stages: int
    blocks: int


@dataclass(frozen=True)
class Matrix:
    """An operand in memory: rows along the depth, or `turned`; elements of so many bytes.

    `rows` and `step` are strides of rows, or of the depth where it is turned, `batch` those of the
    batches that it has, by the number of the loop.
    """

    argument: int
    rows: int
    depth: int
    step: int
    begin: int
    batch: tuple[tuple[int, int, int], ...]
    turned: bool
    type: int
    bytes: int
    packed: bool = False


@dataclass(frozen=True)
class Side:
    """An operand's part of a stage: which boxes it is made of, and how an instruction finds it."""

    name: str
    bytes: int
    map: TensorMap
    loads: tuple[tuple[int, tuple[str, ...]], ...]
    group: int
    leading: int
    along: int
    turned: bool


def _matrix(
    op: MatMul, argument: int, view: View, rows: int, type_: int, size: int
) -> Matrix | None:
    """Return an operand as the copy engine can read it; None where it can't.

    `view` is over (*batch, rows, depth).
    """
    *outer, across, along = view.strides
    turned = across == 1 and size == 2 and along != 1
    step, unit = (along, across) if turned else (across, along)
    batch = [(k, s, n) for k, (s, n) in enumerate(zip(outer, op.batch, strict=True))
             if s != 0 and n > 1]  # fmt: skip
    steps = [step, *(s for _, s, _ in batch)]
    aligned = all(s * size % CHUNK == 0 for s in (*steps, view.offset))
    if unit != 1 or not aligned or min(steps) <= 0 or len(batch) > 3:
        return None
    return Matrix(
        argument, rows, op.k, step * size, view.offset * size,
        tuple((k, s * size, n) for k, s, n in batch), turned, type_, size,
    )  # fmt: skip


def _turned_view(op: MatMul) -> View:
    """Return the second operand's view over (*batch, columns, depth)."""
    return View((*op.b_view.strides[:-2], *op.b_view.strides[:-3:-1]), op.b_view.offset)


def _packed_depth(op: MatMul, form: Form) -> int:
    """Return the numbers of a row of packed constants."""
    each = {0: CHUNK // form.bytes, 1: 16, 2: 32}[form.planes]
    return -(-op.k // each) * each * max(1, form.planes)


def _packed_batch(op: MatMul) -> list[tuple[int, int]]:
    """Return the batches that packed constants have: loop by loop."""
    outer = zip(op.b_view.strides[:-2], op.batch, strict=True)
    return [(k, n) for k, (s, n) in enumerate(outer) if s != 0 and n > 1]


def _packed(op: MatMul, form: Form) -> Matrix:
    """Return the second operand as `pack` arranges it."""
    row, batch = _packed_depth(op, form), _packed_batch(op)
    depth = row if form.planes else op.k
    steps = row_major((*(n for _, n in batch), op.n, row))
    size, type_ = form.bytes, form.type if not form.planes else _BFLOAT16
    outer = tuple(
        (k, s * size, n) for (k, n), s in zip(batch, steps[:-2], strict=True)
    )
    return Matrix(1, op.n, depth, row * size, 0, outer, False, type_, size, packed=True)


LARGEST = np.float32((2 - 2**-7) * 2.0**127)
"""Of finite bfloat16."""

ORDER = np.array([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15])
"""Which of 16 numbers is at each place; `w_position` in warpgroup.h is the inverse."""


def pack(op: MatMul, form: Form, b: Array) -> Array:
    """Return constant B as [*batch, n, depth]; floats in bfloat16, in the order of registers.

    In planes of halves each 32 numbers' upper halves are followed by the lower ones.
    """
    kept = dict(_packed_batch(op))
    batch = tuple(kept.get(k, 1) for k in range(len(op.batch)))
    full = gather_view(b, (*batch, op.k, op.n), op.b_view).reshape(-1, op.k, op.n)
    row = _packed_depth(op, form) // max(1, form.planes)
    rows = np.zeros((len(full), op.n, row), b.dtype)
    rows[..., : op.k] = full.transpose(0, 2, 1)
    if not form.planes:
        return rows
    upper = _rounded(rows)
    parts = [upper]
    if form.planes > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            rest = rows - upper.astype(np.float32)
        parts.append(_rounded(np.where(np.isfinite(rest), rest, np.float32(0))))
    ordered = [p.reshape(*p.shape[:2], -1, 16)[..., ORDER] for p in parts]
    if form.planes > 1:
        ordered = [p.reshape(*rows.shape[:2], -1, 32) for p in ordered]
    whole = np.stack(ordered, 3).reshape(len(full), op.n, -1)
    return np.ascontiguousarray(whole).view(np.float32)


def _rounded(rows: Array) -> Array:
    """Return floats as bfloat16; what is finite stays so."""
    with np.errstate(over="ignore"):
        found = rows.astype(ml_dtypes.bfloat16)
        over = np.isinf(found.astype(np.float32)) & np.isfinite(rows)
        return np.where(over, np.copysign(LARGEST, rows).astype(found.dtype), found)


class WarpgroupProduct(DeviceKernel[MatMul, WarpgroupParams]):
    """Products of tiles by warpgroups, floats summed in float.

    A sum of floats that isn't finite is computed once more as the op defines it.
    """

    op = MatMul
    template = "cuda/warpgroup.cu.j2"
    barriers = True
    tensor_cores = True

    def form(self, w: Workload[MatMul]) -> Form | None:
        """Return how a product is computed; None where it can't be."""
        raise NotImplementedError

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Products whose operands the copy engine can read, on devices that have one."""
        if gpu_of(target.device).wgmma == 0 or is_dynamic(w):
            return False
        return min(w.op.m, w.op.n, w.op.k) >= LEAST and self._matrices(w) is not None

    def _form(self, w: Workload[MatMul]) -> Form:
        form = self.form(w)
        assert form is not None
        return form

    def _matrices(self, w: Workload[MatMul]) -> tuple[Matrix, Matrix] | None:
        """Return both operands as they lie in memory."""
        op, form = w.op, self.form(w)
        if form is None:
            return None
        a = _matrix(op, 0, op.a_view, op.m, form.type, form.stored)
        if a is None or (form.planes and a.turned):
            return None
        b = _matrix(op, 1, _turned_view(op), op.n, form.type, form.stored)
        if w.constant[1] and (form.planes or b is None):
            return a, _packed(op, form)
        return None if form.planes or b is None else (a, b)

    def packs(
        self, w: Workload[MatMul], params: WarpgroupParams, target: Target
    ) -> Mapping[int, Pack]:
        """Arrange constants that the copy engine couldn't read, or that are made of parts."""
        op, form, found = w.op, self._form(w), self._matrices(w)
        assert found is not None
        return {1: lambda b: pack(op, form, b)} if found[1].packed else {}

    def packing(self, w: Workload[MatMul], params: WarpgroupParams, target: Target) -> str:
        """All tiles of a form read the same."""
        return self.name if self.packs(w, params, target) else ""

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[WarpgroupParams]:
        """Tiles of several sizes, each in up to four stages."""
        gpu, form = gpu_of(target.device), self._form(w)
        found = []
        for m, n in ((128, 256), (128, 192), (192, 128), (128, 128), (128, 64), (64, 256),
                     (64, 128), (64, 64)):  # fmt: skip
            one = WarpgroupParams(m=m, n=n, stages=1, blocks=0)
            each = _shared(replace(one, stages=2), form) - _shared(one, form)
            most = 1 + (ROOM - _shared(one, form)) // each
            own = replace(one, stages=min(4, most))
            room = gpu.multiprocessors * self.resident(w, own, target)
            found.append(replace(own, blocks=min(room, _tiles(w, own))))
        return sorted(found, key=lambda params: self.cost(w, params, target))

    def resident(self, w: Workload[MatMul], params: WarpgroupParams, target: Target) -> int:
        """Return how many blocks a multiprocessor runs at a time: two, where both fit."""
        fits = gpu_of(target.device).shared // (_shared(params, self._form(w)) + 1024)
        return 2 if fits >= 2 and 2 * _threads(params) * REGISTERS <= 1 << 16 else 1

    def launch(self, w: Workload[MatMul], params: WarpgroupParams, target: Target) -> Launch:
        """Return blocks that take tiles in turn, of a warpgroup for each 64 rows and a warp."""
        return Launch(
            params.blocks, _threads(params), shared=_shared(params, self._form(w)),
            maps=tuple(side.map for side in self._sides(w, params)),
        )  # fmt: skip

    def _sides(self, w: Workload[MatMul], params: WarpgroupParams) -> list[Side]:
        form, found = self._form(w), self._matrices(w)
        assert found is not None
        batch = [name for name, _ in product_of(w).batch]
        a, b = found
        return [
            _side("a", f"tile_i * {params.m}", params.m, a, batch, form.depth),
            _side("b", f"tile_j * {params.n}", params.n, b, batch,
                  form.depth * (max(1, form.planes) if b.packed else 1)),
        ]  # fmt: skip

    def values(
        self, w: Workload[MatMul], params: WarpgroupParams, target: Target
    ) -> dict[str, object]:
        """Tiles, how operands are loaded, and what becomes of a sum."""
        form, found = self._form(w), self._matrices(w)
        assert found is not None
        product = product_of(w)
        if found[1].packed:
            product = replace(product, b=_of_packed(w.op, form, product))
        after, value = finish(epilogue_of(w), w, "sum", product.loops, product.first)
        a, b = product.a, product.b
        sides = self._sides(w, params)
        floats = product.accumulator.is_float
        return {
            "product": product, "form": form, "held": form.planes > 0,
            "type": product.accumulator.c, "tile_m": params.m, "tile_n": params.n,
            "stages": params.stages, "shares": SHARES.get(params.m // ATOM), "staged": STAGED,
            "tiles": _tiles(w, params),
            "indices": unravel("at", tiles_of(product, params.m, params.n)),
            "steps": -(-product.k // form.depth), "after": after, "value": value, "sides": sides,
            "exactly": multiply_add(product.accumulator, "sum", a.value, b.value) if floats else "",
            "brought": " ".join(c for side in sides for _, where in side.loads for c in where),
            "used": " ".join((*((a.text, b.text) if floats else ()), product.text, *after, value,
                              "tile_i", "tile_j")),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: WarpgroupParams, target: Target) -> float:
        """Return the seconds that tensor cores take, or what brings them tiles."""
        gpu, form, m, n = gpu_of(target.device), self._form(w), params.m, params.n
        steps, products = -(-w.op.k // form.depth), (1, 1, 3)[form.planes]
        rate = (REACHED if m > ATOM else ALONE) * gpu.wgmma * 2 / form.bytes
        resident = self.resident(w, params, target)
        step = max(products * m * n * form.depth / rate, _stage(params, form) / FED)
        own = steps * step + 600 + m * n / 32  # results pass through shared memory
        turns = -(-_tiles(w, params) // (gpu.multiprocessors * resident))
        spread = min(resident, -(-_tiles(w, params) // gpu.multiprocessors))
        return seconds(w, (turns * spread * own + 1000) / gpu.clock, gpu)


def _of_packed(op: MatMul, form: Form, product: Product) -> Operand:
    """Return the packed second operand as C of row j and depth p."""
    row, batch = _packed_depth(op, form), _packed_batch(op)
    steps = row_major((*(n for _, n in batch), op.n, row))
    outer = [
        f"{product.batch[k][0]} * {s}" for (k, _), s in zip(batch, steps[:-2], strict=True)
    ]
    begin = " + ".join((*outer, f"j * {row}"))
    if not form.planes:
        return replace(product.b, place=f"{begin} + p", indices=(), chunks=1)
    words = "((const uint16_t *)(const void *)x1)"
    within = "w_position(p)" if form.planes == 1 else "p / 32 * 64 + w_position(p % 32)"
    value = f"k_load_bf16({words}[{begin} + {within}])"
    if form.planes > 1:
        value = f"({value} + k_load_bf16({words}[{begin} + {within} + 32]))"
    return replace(product.b, place="j", computed=value)


def _side(
    name: str, first: str, rows: int, own: Matrix, batch: Sequence[str], depth: int
) -> Side:  # fmt: skip
    """Return how a tile of so many rows of an operand is brought, a depth of a step."""
    each = ROW // own.bytes
    outer = tuple(f"(int){batch[k]}" for k, _, _ in own.batch)
    strides = (own.step, *(s for _, s, _ in own.batch))
    extents = tuple(n for _, _, n in own.batch)
    ones = (1,) * len(extents)
    if own.turned:
        box = depth * ROW
        loads = [(k * box, (f"(int)({_plus(first, k * ATOM)})", f"step * {depth}", *outer))
                 for k in range(rows // ATOM)]  # fmt: skip
        shape, size = (own.rows, own.depth, *extents), (ATOM, depth, *ones)
    else:
        box = rows * ROW
        loads = [(k * box, (_plus(f"step * {depth}", k * each), f"(int)({first})", *outer))
                 for k in range(depth // each)]  # fmt: skip
        shape, size = (own.depth, own.rows, *extents), (each, rows, *ones)
    map_ = TensorMap(name, own.argument, own.begin, own.type, shape, strides, size)
    return Side(
        name, len(loads) * box, map_, tuple(loads), box if own.turned else ATOM * ROW,
        box if own.turned else 0, 16 * ROW if own.turned else 32, own.turned,
    )  # fmt: skip


def _plus(text: str, more: int) -> str:
    """Return C of a sum."""
    return f"{text} + {more}" if more else text


def _tiles(w: Workload[MatMul], params: WarpgroupParams) -> int:
    return prod(n for _, n in tiles_of(product_of(w), params.m, params.n))


def _threads(params: WarpgroupParams) -> int:
    groups = params.m // ATOM
    return 128 * groups + (128 if groups in SHARES else 32)


def _stage(params: WarpgroupParams, form: Form) -> int:
    """Return the bytes of a stage: floats are twice as long as what is made of them."""
    return params.m * form.depth * form.stored + params.n * ROW


def _shared(params: WarpgroupParams, form: Form) -> int:
    """Return the bytes of stages, of results on their way, and of two barriers for each stage."""
    return params.stages * (_stage(params, form) + 16) + params.m * STAGED * 4


class MatMulWarpgroup(WarpgroupProduct):
    """MatMul of what tensor cores multiply as it is: 16-bit floats, bytes without zero points."""

    name = "cuda_matmul_wgmma"

    def form(self, w: Workload[MatMul]) -> Form | None:
        """Return the form for the operands' types; bytes lie along the depth."""
        form = _FORMS.get((w.input(0).dtype, w.input(1).dtype))
        summed = w.op.accumulator is (DType.FLOAT if form and form.bytes > 1 else DType.INT32)
        return form if summed and not w.op.a_zero and not w.op.b_zero else None


def _are_floats(w: Workload[MatMul]) -> bool:
    return {w.input(0).dtype, w.input(1).dtype, w.op.accumulator} == {DType.FLOAT}


class MatMulWarpgroupSplit(WarpgroupProduct):
    """MatMul of floats in halves by constants."""

    name = "cuda_matmul_wgmma_bf16x3"
    precision = "bf16x3"

    def form(self, w: Workload[MatMul]) -> Form | None:
        """Return the form, where operands are floats."""
        return HALVES if _are_floats(w) else None


class MatMulWarpgroupRounded(WarpgroupProduct):
    """MatMul of floats as bfloat16 by constants."""

    name = "cuda_matmul_wgmma_bf16"
    precision = "bf16"

    def form(self, w: Workload[MatMul]) -> Form | None:
        """Return the form, where operands are floats."""
        return ROUNDED if _are_floats(w) else None


class MatMulWarpgroupShortened(WarpgroupProduct):
    """MatMul of floats as TF32."""

    name = "cuda_matmul_wgmma_tf32"
    precision = "tf32"

    def form(self, w: Workload[MatMul]) -> Form | None:
        """Return the form, where operands are floats."""
        return SHORTENED if _are_floats(w) else None


KERNELS = (
    MatMulWarpgroup(), MatMulWarpgroupSplit(), MatMulWarpgroupRounded(), MatMulWarpgroupShortened(),
)
