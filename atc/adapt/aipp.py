"""AIPP: image preprocessing as nodes in front of a model's input.

The order is that of Ascend's documentation: swap channels, crop, convert colours, resize,
normalise, pad. Everything is exact in float32 except the bilinear resize (half-pixel centres) and
the normalisation: out = (in - mean - min) * var_reci. Colours: (matrix x (in - input_bias)) / 256,
rounded down, + output_bias, kept in 0 to 255.

The input takes uint8: [N, H, W, C], or [N, 3/2 H, W] for YUV420SP (NV12: all Y, then rows of
U V pairs; NV21 with rbuv_swap_switch).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from atc.adapt.aipp_config import Aipp
from atc.adapt.editing import Editor, feed
from atc.dims import RANGES
from atc.errors import OptionError


def add_aipp(model: ir.Model, configs: Sequence[Aipp]) -> frozenset[str]:
    """Put preprocessing in front of inputs; returns the names of the inputs that take images now.

    Raises OptionError E10052 where a configuration and the model don't fit together.
    """
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    chosen: dict[str, list[Aipp]] = {}
    for config in configs:
        chosen.setdefault(_input_of(inputs, config).name or "", []).append(config)
    for value in inputs:
        if value.name in chosen:
            _add(model.graph, value, chosen[value.name])
    return frozenset(chosen)


def _input_of(inputs: Sequence[ir.Value], config: Aipp) -> ir.Value:
    for value in inputs:
        if config.name and value.name == config.name:
            return value
    known = ", ".join(f"'{v.name}'" for v in inputs)
    if config.name:
        raise _wrong(config, f"related_input_name '{config.name}' is not an input: {known}")
    if config.rank >= len(inputs):
        raise _wrong(config, f"related_input_rank is {config.rank}, but the inputs are {known}")
    return inputs[config.rank]


def _add(graph: ir.Graph, value: ir.Value, configs: Sequence[Aipp]) -> None:
    """Preprocess one input, for all of its readers or for those that each configuration names."""
    batch, channels, height, width = _image_shape(value, configs[0])
    dtype = value.dtype or ir.DataType.FLOAT
    readers = [(node, index) for node, index in value.uses()]
    readers.sort(key=lambda use: _position(graph, use))
    shares = _shares(readers, configs)
    images = {(c.format, _source(c, (width, height))) for c in configs}
    if len(images) > 1:
        raise _wrong(configs[1], f"input '{value.name}' can't be images of two formats or sizes")
    ((format_, (w, h)),) = images
    value.dtype = ir.DataType.UINT8
    pixels = (h * 3 // 2, w) if format_ == "YUV420SP_U8" else (h, w, configs[0].channels)
    value.shape = ir.Shape((batch, *pixels))
    if RANGES in value.meta:
        value.meta[RANGES] = [value.meta[RANGES][0], *[None] * len(pixels)]
    editor = Editor(graph, f"{value.name}.aipp")
    for config, share in zip(configs, shares, strict=True):
        image = _Image(editor, config, batch, (w, h))
        result = image.preprocessed(value, channels, (width, height), dtype)
        feed(value, share, result)
    editor.put_first()


def _image_shape(value: ir.Value, config: Aipp) -> tuple[Any, int, int, int]:
    """Return the model's N, C, H and W; only the batch may be open."""
    shape = tuple(value.shape) if value.shape is not None else ()
    if len(shape) != 4 or not all(isinstance(d, int) for d in shape[1:]):
        shown = ", ".join(map(str, shape))
        raise _wrong(config, f"input '{value.name}' is [{shown}], no [N, C, H, W] of known sizes",
                     hint="give its shape with --input_shape")  # fmt: skip
    kinds = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.UINT8)
    if value.dtype not in kinds:
        raise _wrong(config, f"input '{value.name}' is {value.dtype}, not float or uint8")
    channels, height, width = (int(d) for d in shape[1:] if isinstance(d, int))
    return shape[0], channels, height, width


def _position(graph: ir.Graph, use: tuple[ir.Node, int]) -> tuple[int, int]:
    nodes = {id(node): k for k, node in enumerate(graph)}
    return nodes.get(id(use[0]), len(nodes)), use[1]


def _shares(
    readers: Sequence[tuple[ir.Node, int]], configs: Sequence[Aipp]
) -> list[list[tuple[ir.Node, int]]]:
    """Return each configuration's readers; those without `input_edge_idx` take what is left."""
    owner: dict[int, int] = {}
    for k, config in enumerate(configs):
        for edge in config.edges:
            if edge >= len(readers):
                raise _wrong(config, f"input_edge_idx is {edge}, the input has {len(readers)}")
            if edge in owner:
                raise _wrong(config, f"input_edge_idx {edge} is given twice")
            owner[edge] = k
    rest = [k for k, config in enumerate(configs) if not config.edges]
    if len(rest) > 1:
        raise _wrong(configs[rest[1]], "a second aipp_op for the same input",
                     hint="distinguish them by input_edge_idx, or name other inputs")  # fmt: skip
    free = [edge for edge in range(len(readers)) if edge not in owner]
    if free and not rest:
        raise _wrong(configs[0], f"no aipp_op is for edge {free[0]} of the input")
    owner |= {edge: rest[0] for edge in free}
    return [[r for e, r in enumerate(readers) if owner[e] == k] for k in range(len(configs))]


# ------------------------------------------------------------------------------------- one image


class _Image:
    """Writes the nodes for one configuration; pixels are [N, C, H, W] in float32 throughout."""

    def __init__(self, editor: Editor, config: Aipp, batch: Any, source: tuple[int, int]) -> None:
        self.editor = editor
        self.config = config
        self.batch = batch
        self.source = source

    def preprocessed(
        self, image: ir.Value, channels: int, size: tuple[int, int], dtype: ir.DataType
    ) -> ir.Value:
        """Return the value that the model reads instead of the image."""
        config, e = self.config, self.editor
        cropped = _cropped(config, size)
        most = 3 if config.matrix is not None else config.channels
        if channels > most:
            raise _wrong(config, f"the model takes {channels} channels, {config.format} "
                         f"{'and csc_switch make' if config.matrix else 'has'} {most}")  # fmt: skip
        if config.format == "YUV420SP_U8":
            x = self._converted(self._yuv_planes(image, cropped), channels)
        else:
            x = self._pixels(image, cropped, channels)
        if config.resize is not None and config.resize != cropped:
            w, h = config.resize
            if not isinstance(self.batch, int):
                raise _wrong(config, "resize needs a known number of images",
                             hint="give the batch one size with --input_shape")  # fmt: skip
            sizes = e.constant([self.batch, channels, h, w], np.int64)
            x = e.add("Resize", x, None, None, sizes, mode="linear")
        x = self._padded(self._normalised(x, channels))
        if dtype is ir.DataType.UINT8:
            x = e.add("Clip", e.add("Round", x), e.constant(0.0), e.constant(255.0))
        return x if dtype is ir.DataType.FLOAT else e.cast(x, dtype)

    def _pixels(self, image: ir.Value, size: tuple[int, int], channels: int) -> ir.Value:
        """Return the cropped image with its channels as the swaps and the colours make them."""
        e, (x, y) = self.editor, self.config.start or (0, 0)
        if size != self.source:
            image = e.slice(image, [1, 2], [y, x], [y + size[1], x + size[0]])
        pixels = e.add("Transpose", e.cast(image, ir.DataType.FLOAT), perm=[0, 3, 1, 2])
        order = [*range(self.config.channels)]
        if self.config.swap_x:
            order = [*order[1:], order[0]]
        if self.config.swap_rb:
            first = order.index(len(order) - 3)  # X comes before R, G and B in memory
            order[first], order[first + 2] = order[first + 2], order[first]
        if self.config.matrix is not None:
            return self._converted([self._channels(pixels, [k]) for k in order[:3]], channels)
        return self._channels(pixels, order[:channels])

    def _channels(self, pixels: ir.Value, order: Sequence[int]) -> ir.Value:
        """Return some channels of interleaved pixels, as one view where that is possible."""
        if [*order] == [*range(self.config.channels)]:
            return pixels
        step = order[1] - order[0] if len(order) > 1 else 1
        if abs(step) == 1 and all(b - a == step for a, b in pairwise(order)):
            end = order[-1] + step if order[-1] + step >= 0 else -1 - self.config.channels
            return self.editor.slice(pixels, [1], [order[0]], [end], [step])
        parts = [self.editor.slice(pixels, [1], [k], [k + 1]) for k in order]
        return self.editor.add("Concat", *parts, axis=1)

    def _yuv_planes(self, image: ir.Value, size: tuple[int, int]) -> list[ir.Value]:
        """Return Y, U and V, cropped; each U and V stands for four pixels."""
        e, (x, y) = self.editor, self.config.start or (0, 0)
        luma = e.slice(image, [1, 2], [y, x], [y + size[1], x + size[0]])
        luma = e.reshape(e.cast(luma, ir.DataType.FLOAT), [0, 1, size[1], size[0]])
        half_w, half_h = -(-size[0] // 2), -(-size[1] // 2)
        rows = self.source[1] + y // 2
        pairs = e.slice(image, [1, 2], [rows, x], [rows + half_h, x + 2 * half_w])
        pairs = e.cast(pairs, ir.DataType.FLOAT)
        pairs = e.reshape(pairs, [0, half_h, 1, half_w, 1, 2])
        wide = e.constant([1, half_h, 2, half_w, 2, 1], np.int64)
        chroma = []
        for k in (1, 0) if self.config.swap_rb else (0, 1):
            plane = e.add("Expand", e.slice(pairs, [5], [k], [k + 1]), wide)
            plane = e.reshape(plane, [0, 1, 2 * half_h, 2 * half_w])
            if (2 * half_w, 2 * half_h) != size:
                plane = e.slice(plane, [2, 3], [0, 0], [size[1], size[0]])
            chroma.append(plane)
        return [luma, *chroma]

    def _converted(self, planes: Sequence[ir.Value], channels: int) -> ir.Value:
        """Return `channels` of three planes, their colours converted if that is asked for."""
        e, config = self.editor, self.config
        if config.matrix is None:
            kept = planes[:channels]
            return kept[0] if len(kept) == 1 else e.add("Concat", *kept, axis=1)
        shape = (1, channels, 1, 1)
        matrix = np.array(config.matrix, np.float32)[:channels]
        # All sums are integers below 2 ** 24: floats hold them exactly, and 1 / 256 too.
        parts = []
        for k, (plane, less) in enumerate(zip(planes, config.input_bias, strict=False)):
            centred = e.add("Sub", plane, e.constant(float(less))) if less else plane
            parts.append(e.add("Mul", centred, e.constant(matrix[:, k].reshape(shape))))
        x = e.add("Add", e.add("Add", parts[0], parts[1]), parts[2])
        x = e.add("Floor", e.add("Mul", x, e.constant(1 / 256)))
        if any(config.output_bias):
            bias = np.array(config.output_bias[:channels], np.float32)
            x = e.add("Add", x, e.constant(bias.reshape(shape)))
        return e.add("Clip", x, e.constant(0.0), e.constant(255.0))

    def _normalised(self, x: ir.Value, channels: int) -> ir.Value:
        e, config = self.editor, self.config
        shape = (1, -1, 1, 1)
        values = (config.mean, config.minimum, config.reciprocal)
        mean, low, scale = (np.array(v[:channels], np.float32).reshape(shape) for v in values)
        if (mean + low).any():
            x = e.add("Sub", x, e.constant(mean + low))
        return x if (scale == 1).all() else e.add("Mul", x, e.constant(scale))

    def _padded(self, x: ir.Value) -> ir.Value:
        left, right, top, bottom = self.config.padding
        if not any(self.config.padding):
            return x
        e = self.editor
        pads = e.constant([0, 0, top, left, 0, 0, bottom, right], np.int64)
        return e.add("Pad", x, pads, e.constant(self.config.padding_value))


# ----------------------------------------------------------------------------------------- sizes


def _inner(config: Aipp, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size that padding brings to the model's."""
    left, right, top, bottom = config.padding
    w, h = size[0] - left - right, size[1] - top - bottom
    if w < 1 or h < 1:
        raise _wrong(config, f"the padding is larger than the model's {size[0]} x {size[1]}")
    return w, h


def _cropped(config: Aipp, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size before resizing, which a crop may leave to the model; all is checked."""
    inner, source = _inner(config, size), _source(config, size)
    if config.start is None:
        cropped = source
    else:
        cropped = (config.crop[0] or inner[0], config.crop[1] or inner[1])
        if any(s + c > whole for s, c, whole in zip(config.start, cropped, source, strict=True)):
            raise _wrong(config, f"the crop of {cropped[0]} x {cropped[1]} at {config.start} is "
                         f"outside the image of {source[0]} x {source[1]}")  # fmt: skip
    result = cropped if config.resize is None else config.resize
    if result != inner:
        raise _wrong(
            config, f"the result is {result[0]} x {result[1]}, the model takes {inner[0]} x "
            f"{inner[1]} (width x height) less its padding",
            hint="correct src_image_size, crop_size, resize_output or padding_size",
        )  # fmt: skip
    return cropped


def _source(config: Aipp, size: tuple[int, int]) -> tuple[int, int]:
    """Return the image's size: as given, else the model's (less padding)."""
    if all(config.source):
        source = config.source
    elif any(config.source):
        raise _wrong(config, "src_image_size_w and src_image_size_h must be given together")
    else:
        source = _inner(config, size)
    if config.format == "YUV420SP_U8" and (source[0] % 2 or source[1] % 2):
        raise _wrong(config, f"a YUV420SP_U8 image of {source[0]} x {source[1]} has odd sides")
    return source


def _wrong(config: Aipp, problem: str, hint: str = "") -> OptionError:
    return OptionError(problem, where=config.where, hint=hint, code="E10052")
