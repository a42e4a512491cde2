"""Lowerings of what onnxruntime lays out for one processor (com.microsoft.nchwc).

Values are [N, C up to a multiple of the block, h, w]; filters are plain ones (importers/nchwc.py).
"""

from __future__ import annotations

import numpy as np

from atc.lower.concat_pad import crop, pad
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import fused_conv, standard
from atc.lower.registry import lowers

DOMAIN = "com.microsoft.nchwc"
INWARD, OUTWARD = (0, 3, 1, 2), (0, 2, 3, 1)

lowers("Conv", domain=DOMAIN)(fused_conv)


@lowers("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", domain=DOMAIN)
def nchwc_pool(ctx: LoweringContext) -> str:
    """com.microsoft.nchwc MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool."""
    return standard(ctx, ctx.node.op_type, *ctx.inputs)


@lowers("Upsample", domain=DOMAIN)
def nchwc_upsample(ctx: LoweringContext) -> str:
    """com.microsoft.nchwc Upsample: whole scales, repeated or interpolated."""
    scales = ctx.b.constant(np.array(ctx.ints("scales"), np.float32))
    return standard(ctx, "Resize", ctx.inputs[0], "", scales, nearest_mode="floor")


@lowers("ReorderInput", domain=DOMAIN)
def reorder_input(ctx: LoweringContext) -> str:
    """com.microsoft.nchwc ReorderInput: zeros up to whole blocks, whose size the importer tells."""
    x = ctx.input(0)
    ctx.require(len(ctx.shape(0)) == 4, f"the input is {ctx.type(0)}")
    if ctx.int("channels_last"):
        x = ctx.b.transpose(x, INWARD)
    return pad(ctx.b, x, [0] * 4, [0, -ctx.b.shape(x)[1] % ctx.int("block", 1), 0, 0])


@lowers("ReorderOutput", domain=DOMAIN)
def reorder_output(ctx: LoweringContext) -> str:
    """com.microsoft.nchwc ReorderOutput: the first `channels` channels."""
    shape, channels = ctx.shape(0), ctx.int("channels")
    ctx.require(len(shape) == 4 and 0 < channels <= shape[1], f"{channels} channels of {shape}")
    x = crop(ctx.b, ctx.input(0), [0] * 4, [0, shape[1] - channels, 0, 0])
    return ctx.b.transpose(x, OUTWARD) if ctx.int("channels_last") else x
