"""Joining, cutting and padding."""

from __future__ import annotations

from collections.abc import Sequence

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor


@translates("Concat", "concat", "_rnn_param_concat")
def concat(s: NodeContext) -> Tensor:
    """Join along `dim`."""
    axis = s.axis(s.integer("dim", 1), s.x.rank)
    return s.b.op("Concat", *s.inputs, axis=axis)


@translates("stack")
def stack(s: NodeContext) -> Tensor:
    """Join along a new axis."""
    axis = s.axis(s.integer("axis", 0), s.x.rank + 1)
    return s.b.op("Concat", *(s.b.unsqueeze(x, axis) for x in s.inputs), axis=axis)


@translates("SliceChannel", "split")
def slice_channel(s: NodeContext) -> list[Tensor]:
    """Cut an axis into equal slices."""
    axis, count = s.axis(s.integer("axis", 1), s.x.rank), s.integer("num_outputs")
    length = s.x.shape[axis]
    s.require(0 < count <= length and length % count == 0, f"{length} in {count} slices")
    return _slices(s, axis, [length // count] * count)


@translates("_split_v2")
def split_v2(s: NodeContext) -> list[Tensor]:
    """Cut an axis at the indices (the first is 0), or into equal sections."""
    axis, sections = s.axis(s.integer("axis", 1), s.x.rank), s.integer("sections", 0)
    length = s.x.shape[axis]
    if sections > 0:
        s.require(length % sections == 0 and sections <= length, f"{length} in {sections} slices")
        return _slices(s, axis, [length // sections] * sections)
    cuts = [*s.integers("indices", ()), length]
    sizes = [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
    s.require(cuts[0] == 0 and min(sizes, default=0) > 0, f"indices {cuts[:-1]} of {length}")
    return _slices(s, axis, sizes)


def _slices(s: NodeContext, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    s.require(len(sizes) <= 4096, f"{len(sizes)} slices are too many")
    slices = s.b.split(s.x, axis, sizes)
    if not s.truth("squeeze_axis", False):
        return list(slices)
    s.require(set(sizes) == {1}, "squeeze_axis with slices longer than one")
    return [s.b.squeeze(p, axis) for p in slices]


@translates("Pad", "pad")
def pad(s: NodeContext) -> Tensor:
    """Pad with a constant, the edge or the reflection."""
    width = s.integers("pad_width")
    s.require(len(width) == 2 * s.x.rank, f"pad_width has {len(width)} numbers")
    s.require(min(width, default=0) >= 0, "pad_width is negative")
    mode = s.word("mode", None, ("constant", "edge", "reflect"))
    if mode == "reflect":
        fits = all(max(width[2 * a : 2 * a + 2]) < d for a, d in enumerate(s.x.shape))
        s.require(fits, f"pad_width {list(width)} reflects more than {list(s.x.shape)}")
    value = s.b.scalar(s.number("constant_value", 0.0), s.x.dtype) if mode == "constant" else None
    return s.b.op("Pad", s.x, [*width[::2], *width[1::2]], value, mode=mode)


@translates("Crop")
def crop(s: NodeContext) -> Tensor:
    """Cut the last two axes to `h_w` or to the second input's, at an offset or in the middle."""
    s.rank(4)
    like = len(s.inputs) > 1
    s.require(not like or s.input(1).rank == 4, "the second input is not an image")
    sizes = s.input(1).shape[2:4] if like else s.spatial("h_w", 2, 0)
    offset = s.spatial("offset", 2, 0)
    if s.truth("center_crop", False):
        offset = tuple((n - size) // 2 for n, size in zip(s.x.shape[2:], sizes, strict=True))
    ends = [o + size for o, size in zip(offset, sizes, strict=True)]
    fits = all(0 <= o < e <= n for o, e, n in zip(offset, ends, s.x.shape[2:], strict=True))
    s.require(fits, f"a window {list(sizes)} at {list(offset)} of {list(s.x.shape)}")
    return s.b.op("Slice", s.x, offset, ends, [2, 3])
