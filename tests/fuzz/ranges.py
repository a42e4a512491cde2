"""Draws networks over ranges of shapes, of many parts one behind another, and runs them at some.

The truth is the same model in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz.choices import Random
from fuzz.draw import Array
from fuzz.texts import parsed, session_of, wrong

import atc

CHANNELS = (1, 4, 8, 12, 17)
"""Channels of all images of a network."""
RANGES: Sequence[Mapping[str, tuple[int, int]]] = (
    {"N": (1, 3), "H": (8, 20), "W": (6, 17)},
    {"N": (2, 2), "H": (8, 24), "W": (8, 12)},
    {"N": (1, 4), "H": (16, 16), "W": (1, 9)},
    {"N": (1, 1), "H": (1, 5), "W": (31, 65)},
)
"""The least and the largest extents of an image."""
BOUND = 3e-4
"""The largest error, as a part of the largest magnitude."""
SHAPES = 5
"""Shapes at which a network runs: the least, the largest, and some between."""


@dataclass(frozen=True)
class Part:
    """Text that makes {y} of {x}, both images [N, C, H, W]; names that end in {n} are its own.

    `weights` are the shapes of normal numbers, in which C stands for the channels.
    """

    text: str
    weights: Mapping[str, Sequence[int | str]] = field(default_factory=dict)


def _layer(text: str, kernel: int, channels: int | str = "C") -> Part:
    return Part(f"{{y}} = {text}({{x}}, w{{n}}, b{{n}})",
                {"w": ("C", channels, kernel, kernel), "b": ("C",)})  # fmt: skip


def _pool(text: str) -> Part:
    return Part(f"{{y}} = {text}({{x}})")


_ROWS = """
    all{n} = Shape({x})
    flat{n} = Reshape({x}, rows)
    row{n} = Transpose<perm = [0, 2, 1]>(flat{n})"""
_IMAGE = """
    turned{n} = Transpose<perm = [0, 2, 1]>(mixed{n})
    {y} = Reshape(turned{n}, all{n})"""
_EXTENT = """
    all{n} = Shape({x})
    extent{n} = Gather(all{n}, axis2)"""

PARTS: Mapping[str, Part] = {
    "convolution": _layer("Conv<pads = [1, 1, 1, 1]>", 3),
    "pointwise": Part("""
        sums{n} = Conv({x}, w{n}, b{n})
        {y} = HardSwish(sums{n})""", {"w": ("C", "C", 1, 1), "b": ("C",)}),
    "depthwise": _layer("Conv<group = GROUPS, strides = [2, 2], pads = [1, 1, 1, 1]>", 3, 1),
    "wide depthwise": _layer("Conv<group = GROUPS, pads = [2, 2, 2, 2]>", 5, 1),
    "dilated": _layer("Conv<dilations = [2, 2], pads = [2, 2, 2, 2]>", 3),
    "same": _layer('Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>', 3),
    "same lower": _layer('Conv<auto_pad = "SAME_LOWER", strides = [2, 1]>', 2),
    "one-sided": _layer("Conv<pads = [0, 1, 1, 0]>", 2),
    "transposed": _layer("ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>", 4),
    "transposed, odd": _layer(
        "ConvTranspose<strides = [2, 1], pads = [1, 1, 1, 1], output_padding = [1, 0]>", 3),
    "largest": _pool("MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>"),
    "largest, rounded up": _pool(
        "MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1, pads = [0, 0, 1, 1]>"),
    "average": _pool("AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"),
    "padded average": _pool("AveragePool<kernel_shape = [3, 3], strides = [1, 2], "
                            "pads = [1, 1, 1, 1], count_include_pad = 1>"),
    "same average": _pool(
        'AveragePool<kernel_shape = [2, 3], strides = [2, 1], auto_pad = "SAME_UPPER">'),
    "squeeze and excite": Part("""
        mean{n} = GlobalAveragePool({x})
        sums{n} = Conv(mean{n}, w{n}, b{n})
        gate{n} = HardSigmoid(sums{n})
        {y} = Mul({x}, gate{n})""", {"w": ("C", "C", 1, 1), "b": ("C",)}),
    "residual": Part("""
        sums{n} = Conv<pads = [1, 1, 1, 1]>({x}, w{n}, b{n})
        some{n} = Relu(sums{n})
        {y} = Add(some{n}, {x})""", {"w": ("C", "C", 3, 3), "b": ("C",)}),
    "instances": Part("{y} = InstanceNormalization({x}, w{n}, b{n})", {"w": ("C",), "b": ("C",)}),
    "layer": Part("""
        last{n} = Transpose<perm = [0, 2, 3, 1]>({x})
        norm{n} = LayerNormalization(last{n}, w{n}, b{n})
        {y} = Transpose<perm = [0, 3, 1, 2]>(norm{n})""", {"w": ("C",), "b": ("C",)}),
    "softmax": _pool("Softmax<axis = -1>"),
    "softmax of rows": _pool("Softmax<axis = 2>"),
    "twice as large": Part(
        '{y} = Resize<mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric">({x}, , twice)'),
    "smaller and back": Part("""
        sums{n} = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>({x}, w{n}, b{n})
        all{n} = Shape({x})
        up{n} = Resize<mode = "linear">(sums{n}, , , all{n})
        {y} = Add(up{n}, {x})""", {"w": ("C", "C", 3, 3), "b": ("C",)}),
    "half as large": Part('{y} = Resize<mode = "linear">({x}, , half)'),
    "edges": Part('{y} = Pad<mode = "edge">({x}, around)'),
    "zeros": Part("{y} = Pad({x}, around)"),
    "transposed image": _pool("Transpose<perm = [0, 1, 3, 2]>"),
    "reversed": Part("{y} = Slice({x}, last, before, axis2, last)"),
    "even and odd rows": Part("""
        even{n} = Slice({x}, zero, end, axis2, two)
        odd{n} = Slice({x}, one, end, axis2, two)
        {y} = Concat<axis = 2>(even{n}, odd{n})"""),
    "twice, side by side": Part("""
        some{n} = Neg({x})
        {y} = Concat<axis = 3>({x}, some{n})"""),
    "halves": Part(_EXTENT + """
        half{n} = Div(extent{n}, two)
        rest{n} = Sub(extent{n}, half{n})
        parts{n} = Concat<axis = 0>(half{n}, rest{n})
        a{n}, b{n} = Split<axis = 2>({x}, parts{n})
        {y} = Concat<axis = 2>(b{n}, a{n})"""),
    "windows": Part(_EXTENT + """
        over{n} = Mod(extent{n}, four)
        under{n} = Sub(four, over{n})
        more{n} = Mod(under{n}, four)
        behind{n} = Concat<axis = 0>(three_zeros, three_zeros, more{n}, zero)
        whole{n} = Pad({x}, behind{n})
        width{n} = Gather(all{n}, axis3)
        to{n} = Concat<axis = 0>(lead, last, four, width{n})
        cut{n} = Reshape(whole{n}, to{n})
        top{n} = ReduceMax<keepdims = 1>(cut{n}, axis3)
        less{n} = Sub(cut{n}, top{n})
        all2{n} = Shape(whole{n})
        back{n} = Reshape(less{n}, all2{n})
        {y} = Slice(back{n}, zero, extent{n}, axis2)"""),
    "attention": Part(_ROWS + """
        q{n} = MatMul(row{n}, q_w{n})
        k{n} = MatMul(row{n}, k_w{n})
        across{n} = Transpose<perm = [0, 2, 1]>(k{n})
        scores{n} = MatMul(q{n}, across{n})
        p{n} = Softmax<axis = -1>(scores{n})
        mixed{n} = MatMul(p{n}, row{n})""" + _IMAGE, {"q_w": ("C", "C"), "k_w": ("C", "C")}),
    "dense": Part(_ROWS + """
        wide{n} = MatMul(row{n}, up{n})
        some{n} = Gelu(wide{n})
        mixed{n} = MatMul(some{n}, down{n})""" + _IMAGE, {"up": ("C", 24), "down": (24, "C")}),
    "recurrent": Part("""
        mean{n} = ReduceMean<keepdims = 0>({x}, axis3)
        steps{n} = Transpose<perm = [2, 0, 1]>(mean{n})
        h{n} = GRU<hidden_size = GROUPS, linear_before_reset = 1>(steps{n}, w{n}, r{n}, b{n})
        h1{n} = Squeeze(h{n}, one)
        column{n} = Transpose<perm = [1, 2, 0]>(h1{n})
        wide{n} = Unsqueeze(column{n}, axis3)
        {y} = Add({x}, wide{n})""",
        {"w": (1, "3C", "C"), "r": (1, "3C", "C"), "b": (1, "6C")}),
    "running sums": Part("""
        sums{n} = CumSum({x}, axis3)
        {y} = Tanh(sums{n})"""),
    "largest of rows": Part("""
        top{n} = ReduceMax<keepdims = 1>({x}, axis3)
        all{n} = Shape({x})
        wide{n} = Expand(top{n}, all{n})
        {y} = Sub({x}, wide{n})"""),
    "sorted": Part("""
        all{n} = Shape({x})
        count{n} = Gather(all{n}, axis3)
        {y}, places{n} = TopK<axis = 3>({x}, count{n})"""),
    "positions": Part(_EXTENT + """
        count{n} = Squeeze(extent{n}, zero)
        places{n} = Range(number0, count{n}, number1)
        real{n} = Cast<to = 1>(places{n})
        small{n} = Mul(real{n}, tenth)
        column{n} = Unsqueeze(small{n}, one)
        {y} = Add({x}, column{n})"""),
    "triangle": Part("{y} = Trilu<upper = 0>({x}, number1)"),
    "gram": Part("""
        across{n} = Transpose<perm = [0, 1, 3, 2]>({x})
        product{n} = MatMul({x}, across{n})
        {y} = Mul(product{n}, tenth)"""),
    "sampled": Part("""
        flow{n} = Conv({x}, w{n})
        last{n} = Transpose<perm = [0, 2, 3, 1]>(flow{n})
        grid{n} = Tanh(last{n})
        {y} = GridSample<mode = "linear", padding_mode = "border">({x}, grid{n})""",
        {"w": (2, "C", 1, 1)}),
    "taken": Part("{y} = Gather<axis = 2>({x}, ends)"),
    "masked": Part("""
        is{n} = Greater({x}, nothing)
        some{n} = Mul({x}, tenth)
        {y} = Where(is{n}, {x}, some{n})"""),
}  # fmt: skip
_CONSTANTS: Mapping[str, Any] = {
    "zero": [0], "one": [1], "two": [2], "four": [4], "last": [-1], "end": [1 << 40],
    "before": [-(1 << 40)], "axis2": [2], "axis3": [3], "number0": 0, "number1": 1, "ends": [0, -1],
    "three_zeros": [0, 0, 0], "around": [0, 0, 1, 0, 0, 0, 0, 2], "nothing": np.float32(0),
    "tenth": np.float32(0.1), "twice": np.float32([1, 1, 2, 2]), "half": np.float32([1, 1, 1, 2]),
}  # fmt: skip
OPTIONS: Sequence[Mapping[str, Any]] = (
    {}, {}, {}, {"num_threads": 2}, {"kernels": "portable"}, {"layout_transform": "nchw"},
    {"deterministic_math": 1}, {"parallel_branches": 2}, {"memory_in_place": 0},
)  # fmt: skip


@dataclass(frozen=True)
class Ranged:
    """A model, the names of its parts, and the least and the largest extents of its input."""

    model: onnx.ModelProto
    parts: Sequence[str]
    channels: int
    ranges: Mapping[str, tuple[int, int]]


def draw_ranged(seed: int) -> Ranged:
    """Return a network of two to five parts."""
    r = Random(seed)
    channels, ranges = r.pick(*CHANNELS), r.pick(*RANGES)
    names = [r.pick(*PARTS) for _ in range(r.pick(2, 3, 4, 5))]
    lines, x = list[str](), "x"
    weights: dict[str, Array] = {}
    known: dict[str, Any] = {**_CONSTANTS, "rows": [0, channels, -1], "lead": [0, channels]}
    for n, name in enumerate(names):
        part, y = PARTS[name], f"x{n}"
        lines.append(part.text.format(x=x, y=y, n=n).replace("GROUPS", str(channels)))
        for weight, shape in part.weights.items():
            sizes = [_extent(k, channels) for k in shape]
            numbers = r.array(*sizes) / np.sqrt(max(1, np.prod(sizes[1:])))
            weights[f"{weight}{n}"] = numbers.astype(np.float32)
        x = y
    lines.append(f"y = Identity({x})")
    body = "\n    ".join(lines)
    signature = f"net (float[N, {channels}, H, W] x) => (float[A, B, D, E] y)"
    model = parsed(f"{signature} {{\n    {body}\n}}", known, weights)
    return Ranged(model, names, channels, ranges)


def _extent(named: int | str, channels: int) -> int:
    """Return the extent of a weight: a number, or a multiple of the channels."""
    return named if isinstance(named, int) else channels * int(named[:-1] or 1)


def outcome(seed: int, target: str, folder: Path) -> str:
    """Return what is wrong about the network of a seed, '' if nothing is."""
    case, r = draw_ranged(seed), Random(seed + 10**6)
    path, output, options = folder / f"range{seed}.onnx", folder / f"range{seed}", r.pick(*OPTIONS)
    onnx.save(case.model, path)
    shape = [f"{a}~{b}" if a < b else f"{a}" for a, b in case.ranges.values()]
    shape.insert(1, str(case.channels))
    atc.compile(
        str(path), str(output), target=target, input_shape=f"x:{','.join(shape)}",
        precision_mode="force_fp32", **options,
    )  # fmt: skip
    session = session_of(case.model)
    with atc.load(output) as network:
        for run in range(SHAPES):
            n, h, w = (
                int(k[run] if run < 2 else r.rng.integers(k[0], k[1] + 1))
                for k in case.ranges.values()
            )
            x = r.array(n, case.channels, h, w).astype(np.float32)
            if found := wrong(network(x), np.asarray(session.run(None, {"x": x})[0]), BOUND):
                return f"{case.parts} with {options}, {x.shape}: {found}"
    return ""
