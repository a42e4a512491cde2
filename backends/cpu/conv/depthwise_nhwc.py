"""Depthwise convolution and pooling of tensors with their channels last, [N, 1, *spatial, C].

A vector of channels of one pixel is what it is in channel blocks; only the steps from pixel to
pixel and from block to block differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from atc.backends.cpu.conv.depthwise import (
    DepthwiseTiles,
    Windowed,
    WindowedT,
    channelwise,
    is_bytes,
)
from atc.backends.cpu.conv.depthwise_looped import DepthwiseLoops, LoopParams, PoolLoops
from atc.backends.cpu.conv.window_tiles import WindowParams
from atc.backends.kernel import Kernel, Pack, ParamsT, Workload
from atc.backends.render.epilogue import TileEpilogue, deferred_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import TensorType
from atc.ir.ops import ConvBlocked, Epilogue, Pool, identity_epilogue
from atc.ir.view import View


def has_channels_last(w: Workload, target: Target) -> bool:
    """Return whether one block holds all channels, some whole vectors of them."""
    shape, wide = w.outputs[0].shape, lanes(target)
    if len(shape) < 4 or shape[1] != 1 or is_dynamic(shape[-1]):
        return False
    return shape[-1] > wide > 1 and shape[-1] % wide == 0


def in_blocks(w: Workload[WindowedT], target: Target) -> Workload[WindowedT]:
    """Return the same workload with its channels in blocks as wide as vectors."""
    x, op, wide = w.input(0), w.op, lanes(target)
    if isinstance(op, ConvBlocked):
        op = replace(op, epilogue=Epilogue(op.epilogue.expr, tuple(
            View((v.strides[0], v.strides[-1] * wide, *v.strides[2:]), v.offset)
            for v in op.epilogue.views
        )))  # fmt: skip
    return replace(
        w, op=op, inputs=(_in_blocks(x, wide), *w.inputs[1:]),
        outputs=tuple(_in_blocks(y, wide) for y in w.outputs),
    )  # fmt: skip


def _in_blocks(type_: TensorType, wide: int) -> TensorType:
    batch, _, *spatial, channels = type_.shape
    return TensorType(type_.dtype, (batch, channels // wide, *spatial, wide))


class _ChannelsLast(Kernel[WindowedT, ParamsT]):
    """A kernel of channel blocks whose blocks lie beside each other in every pixel."""

    bitwise_reproducible = True
    channels_last = True

    def accepts(self, w: Workload[WindowedT], target: Target) -> bool:
        """Whole vectors of channels of floats, and what the kernel of channel blocks accepts."""
        x = w.inputs[0]
        if isinstance(w.op, ConvBlocked) and is_bytes(w):
            return False
        alike = x is not None and x.shape[-1] == w.outputs[0].shape[-1] and x.shape[1] == 1
        last = alike and has_channels_last(w, target)
        return last and super().accepts(in_blocks(w, target), target)

    def packs(
        self, w: Workload[WindowedT], params: ParamsT, target: Target
    ) -> Mapping[int, Pack]:
        """Weights as [block][tap][lane]."""
        return super().packs(in_blocks(w, target), params, target)

    def values(
        self, w: Workload[WindowedT], params: ParamsT, target: Target
    ) -> dict[str, object]:
        """Return the values for channel blocks, with the epilogue of this layout."""
        inner = in_blocks(w, target)
        values = super().values(inner, params, target)
        epilogue = cast(TileEpilogue, values["epilogue"])
        if epilogue.deferred and isinstance(w.op, ConvBlocked):
            epilogue = TileEpilogue(identity_epilogue(w.outputs[0].dtype), inner,
                                    channelwise(inner), target)  # fmt: skip
            epilogue.deferred = deferred_epilogue(w.op.epilogue, w)
        return {**values, "epilogue": epilogue}

    def cost(self, w: Workload[WindowedT], params: ParamsT, target: Target) -> float:
        """Estimated cycles."""
        return super().cost(in_blocks(w, target), params, target)


class DepthwiseLast(_ChannelsLast[ConvBlocked, LoopParams], DepthwiseLoops):
    """Depthwise convolution, c outputs of a row at a time."""

    name = "conv_depthwise_last"


class DepthwiseTilesLast(_ChannelsLast[ConvBlocked, WindowParams], DepthwiseTiles):
    """Depthwise convolution, r x c outputs at a time."""

    name = "conv_depthwise_tiles_last"

    def sets(self, w: Workload[Windowed], target: Target) -> list[WindowParams]:
        """Return all parameter sets."""
        return super().sets(in_blocks(w, target), target)

    def cost(self, w: Workload[Windowed], params: WindowParams, target: Target) -> float:
        """Estimated cycles."""
        return DepthwiseTiles.cost(self, in_blocks(w, target), params, target)

    def striped_params(
        self, w: Workload[Windowed], params: WindowParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> WindowParams | None:  # fmt: skip
        """Return None: rows of this layout aren't held in stripes."""
        return None


class PoolLast(_ChannelsLast[Pool, LoopParams], PoolLoops):
    """Pooling, c outputs of a row at a time."""

    name = "pool_last"


KERNELS = (DepthwiseLast(), DepthwiseTilesLast(), PoolLast())
