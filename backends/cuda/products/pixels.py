"""CUDA kernels of 1x1 Conv by warpgroups: products of images' pixels with filters."""

from __future__ import annotations

from math import prod

from atc.backends.cuda.kernel import unravel
from atc.backends.cuda.products.tiles import Operand, Product, index_type
from atc.backends.cuda.products.warpgroup import (
    RoundedProduct,
    SplitProduct,
    StoredProduct,
    WarpgroupProduct,
)
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops import Conv, MatMul
from atc.ir.view import View


class _Pixels(WarpgroupProduct):
    """A Conv with 1x1 filters and no strides or padding: a product for each image.

    The rows are pixels, so that the filters are the constants that are packed.
    """

    op = Conv
    along_rows = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept 1x1 filters without groups, strides, padding or zero points."""
        op = w.op
        assert isinstance(op, Conv)
        window, plain = op.window, op.group == 1 and not op.zero_points
        if is_dynamic(w) or not plain or {*window.kernel, *window.strides} != {1}:
            return False
        same = w.input(0).shape[2:] == w.outputs[0].shape[2:]
        return same and not any(window.pads) and super().accepts(w, target)

    def matmul(self, w: Workload) -> MatMul:
        """Return the product of each image's pixels with the filters."""
        assert isinstance(w.op, Conv)
        (images, channels, *size), filters = w.input(0).shape, w.input(1).shape[0]
        pixels = prod(size)
        return MatMul(
            (images,), pixels, filters, channels, View((channels * pixels, 1, pixels)),
            View((0, 1, channels)), w.op.epilogue, w.op.accumulator,
        )  # fmt: skip

    def product(self, w: Workload) -> Product:
        """Return that product as C; the epilogue's indices are those of a Conv."""
        assert isinstance(w.op, Conv)
        op, size = self.matmul(w), w.outputs[0].shape[2:]
        outputs = [(f"o{d}", n) for d, n in enumerate(size)]
        return Product(
            (("n", op.batch[0]),), op.m, op.n, op.k,
            Operand("x0", w.input(0).dtype, f"(n * {op.k} + p) * {op.m} + i"),
            Operand("x1", w.input(1).dtype, f"j * {op.k} + p"),
            op.accumulator, ("n", "m", *(v for v, _ in outputs)), w.op.operands,
            f"(n * {op.n} + j) * {op.m} + i", (("m", "j"), *unravel("i", outputs)),
            index_type(w),
        )  # fmt: skip


class ConvWarpgroup(_Pixels, StoredProduct):
    """1x1 Conv of 16-bit floats."""

    name = "cuda_conv_wgmma"


class ConvWarpgroupSplit(_Pixels, SplitProduct):
    """1x1 Conv of floats split in two bfloat16."""

    name = "cuda_conv_wgmma_bf16x3"


class ConvWarpgroupRounded(_Pixels, RoundedProduct):
    """1x1 Conv of floats as bfloat16."""

    name = "cuda_conv_wgmma_bf16"


KERNELS = (ConvWarpgroup(), ConvWarpgroupSplit(), ConvWarpgroupRounded())
