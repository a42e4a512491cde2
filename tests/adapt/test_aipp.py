"""Preprocessing compiled into a model, against numpy in float64 and Pillow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.adapt.aipp import add_aipp
from atc.adapt.aipp_config import read_aipp
from atc.dims import RANGES, Range
from atc.errors import OptionError
from atc.ir.graph import Array, Graph
from atc.lower import lower_model
from atc.passes import run_passes
from support import Runner, compile_models

JPEG = [[256, 0, 359], [256, -88, -183], [256, 454, 0]]  # full range BT.601: YUV -> RGB
NARROW = [[298, 0, 409], [298, -100, -208], [298, 516, 0]]  # BT.601 with Y from 16 to 235
TO_YUV = [[77, 150, 29], [-43, -85, 128], [128, -107, -21]]


@dataclass(frozen=True)
class Case:
    """One configuration: sizes are (width, height)."""

    format: str = "RGB888_U8"
    source: tuple[int, int] = (8, 6)
    channels: int = 3
    crop: tuple[int, int, int, int] | None = None
    resize: tuple[int, int] | None = None
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    value: float = 0.0
    swap: bool = False
    swap_x: bool = False
    matrix: list[list[int]] | None = None
    bias_in: tuple[int, int, int] = (0, 0, 0)
    bias_out: tuple[int, int, int] = (0, 0, 0)
    mean: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    batch: int = 1
    type: int = TensorProto.FLOAT

    @property
    def inner(self) -> tuple[int, int]:
        return self.resize or (self.crop[2:] if self.crop else self.source)

    @property
    def size(self) -> tuple[int, int]:
        left, right, top, bottom = self.padding
        return self.inner[0] + left + right, self.inner[1] + top + bottom

    @property
    def image_shape(self) -> tuple[int, ...]:
        w, h = self.source
        if self.format == "YUV420SP_U8":
            return (self.batch, h * 3 // 2, w)
        return (self.batch, h, w, {"XRGB8888_U8": 4, "YUV400_U8": 1}.get(self.format, 3))

    def text(self, name: str) -> str:
        fields: dict[str, object] = {
            "aipp_mode": "static", "related_input_name": f'"{name}"', "input_format": self.format,
            "src_image_size_w": self.source[0], "src_image_size_h": self.source[1],
            "rbuv_swap_switch": str(self.swap).lower(), "ax_swap_switch": str(self.swap_x).lower(),
        }  # fmt: skip
        if self.crop:
            names = ("load_start_pos_w", "load_start_pos_h", "crop_size_w", "crop_size_h")
            fields |= {"crop": "true", **dict(zip(names, self.crop, strict=True))}
        if self.resize:
            w, h = self.resize
            fields |= {"resize": "true", "resize_output_w": w, "resize_output_h": h}
        if any(self.padding):
            sides = ("left", "right", "top", "bottom")
            sizes = zip(sides, self.padding, strict=True)
            fields |= {"padding": "true", "padding_value": self.value}
            fields |= {f"{side}_padding_size": n for side, n in sizes}
        if self.matrix:
            fields["csc_switch"] = "true"
            fields |= {f"matrix_r{r}c{c}": self.matrix[r][c] for r in range(3) for c in range(3)}
            fields |= {f"input_bias_{k}": n for k, n in enumerate(self.bias_in)}
            fields |= {f"output_bias_{k}": n for k, n in enumerate(self.bias_out)}
        for stem, values in (("mean", self.mean), ("min", self.low), ("var_reci", self.scale)):
            fields |= {f"{stem}_chn_{k}": n for k, n in enumerate(values)}
        return "aipp_op {\n" + "".join(f"  {k}: {v}\n" for k, v in fields.items()) + "}\n"


CASES = {
    "nothing": Case(),
    "a batch": Case(batch=2),
    "bgr": Case(swap=True),
    "gray": Case("YUV400_U8", channels=1),
    "gray cropped": Case("YUV400_U8", channels=1, crop=(3, 1, 4, 5)),
    "four channels": Case("XRGB8888_U8", channels=4),
    "x last": Case("XRGB8888_U8", channels=4, swap_x=True),
    "rgb of xrgb": Case("XRGB8888_U8", swap_x=True),
    "bgr of xrgb": Case("XRGB8888_U8", swap_x=True, swap=True),
    "x, then bgr": Case("XRGB8888_U8", channels=4, swap=True),
    "cropped": Case(crop=(1, 2, 5, 3)),
    "padded": Case(padding=(1, 2, 3, 4), value=-0.5),
    "smaller": Case(source=(12, 9), resize=(8, 4)),
    "larger": Case(resize=(12, 15)),
    "mean and variance": Case(mean=(104, 117, 123), low=(0.5, 0, 1.5), scale=(0.017, 0.02, 0.018)),
    "in half": Case(scale=(0.5, 0.25, 2), type=TensorProto.FLOAT16),
    "in bytes": Case(padding=(1, 0, 0, 0), value=300, type=TensorProto.UINT8),
    "rgb to yuv": Case(matrix=TO_YUV, bias_out=(0, 128, 128)),
    "rgb to gray": Case(matrix=TO_YUV, channels=1),
    "yuv444": Case("YUV420SP_U8"),
    "yvu444": Case("YUV420SP_U8", swap=True),
    "jpeg to rgb": Case("YUV420SP_U8", matrix=JPEG, bias_in=(0, 128, 128)),
    "nv21 narrow": Case("YUV420SP_U8", swap=True, matrix=NARROW, bias_in=(16, 128, 128), batch=2),
    "yuv cropped": Case("YUV420SP_U8", crop=(2, 2, 5, 3)),
    "all of it": Case(
        "YUV420SP_U8", source=(16, 12), crop=(4, 2, 10, 9), resize=(7, 6), padding=(1, 2, 0, 3),
        value=1.5, matrix=NARROW, bias_in=(16, 128, 128), mean=(104, 117, 123),
        scale=(0.017, 0.018, 0.0175),
    ),
}  # fmt: skip


def image(case: Case, seed: int = 3) -> Array:
    return np.random.default_rng(seed).integers(0, 256, case.image_shape).astype(np.uint8)


# ------------------------------------------------------------------------------ numpy, in float64


def expected(case: Case, x: Array) -> Array:
    """Return what the documentation says, step by step."""
    if case.format == "YUV420SP_U8":
        w, h = case.source
        pairs = x[:, h:].reshape(-1, h // 2, w // 2, 2).repeat(2, 1).repeat(2, 2)
        planes = np.concatenate([x[:, :h, :, None], pairs], 3)
        planes = planes[..., [0, 2, 1]] if case.swap else planes
    else:
        planes = np.roll(x, -1, 3) if case.swap_x else x
        if case.swap:
            first = planes.shape[3] - 3 if not case.swap_x else 0
            order = [*range(planes.shape[3])]
            order[first], order[first + 2] = order[first + 2], order[first]
            planes = planes[..., order]
    a = planes.astype(np.float64).transpose(0, 3, 1, 2)
    if case.crop:
        left, top, w, h = case.crop
        a = a[:, :, top : top + h, left : left + w]
    if case.matrix:
        centred = a[:, :3] - np.reshape(case.bias_in, (1, 3, 1, 1))
        a = np.floor(np.einsum("rk,nkhw->nrhw", np.array(case.matrix), centred) / 256)
        a = np.clip(a + np.reshape(case.bias_out, (1, 3, 1, 1)), 0, 255)
    a = a[:, : case.channels]
    if case.resize:
        a = bilinear(a, case.resize)
    for c in range(case.channels):
        a[:, c] -= at(case.mean, c, 0) + at(case.low, c, 0)
        a[:, c] *= at(case.scale, c, 1)
    left, right, top, bottom = case.padding
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    return np.pad(a, pads, constant_values=case.value)


def at(values: Sequence[float], k: int, default: float) -> float:
    return values[k] if k < len(values) else default


def bilinear(a: Array, size: tuple[int, int]) -> Array:
    for axis, n in ((3, size[0]), (2, size[1])):
        old = a.shape[axis]
        where = np.clip((np.arange(n) + 0.5) * old / n - 0.5, 0, old - 1)
        low = np.floor(where).astype(int)
        high = np.minimum(low + 1, old - 1)
        part = (where - low).reshape([n if k == axis else 1 for k in range(4)])
        a = a.take(low, axis) * (1 - part) + a.take(high, axis) * part
    return a


# ------------------------------------------------------------------------------------ compiled


def identities(cases: dict[str, Case]) -> onnx_ir.Model:
    """Return a model that gives its inputs, one per case, back."""

    def info(name: str, case: Case) -> object:
        w, h = case.size
        shape = [case.batch, case.channels, h, w]
        return helper.make_tensor_value_info(name, case.type, shape)

    nodes = [helper.make_node("Identity", [n], [f"{n} out"]) for n in cases]
    graph = helper.make_graph(
        nodes, "images", [info(n, c) for n, c in cases.items()],
        [info(f"{n} out", c) for n, c in cases.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 9)]  # older than the operators that are put in
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=opsets))


def preprocessed(model: onnx_ir.Model, text: str, folder: Path) -> Graph:
    path = folder / "aipp.cfg"
    path.write_text(text)
    add_aipp(model, read_aipp(path))
    return lower_model(model, "test.onnx")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Array]:
    """Compile all cases as one model, run it once, and give the result of each."""
    text = "".join(case.text(name) for name, case in CASES.items())
    graph = preprocessed(identities(CASES), text, tmp_path_factory.mktemp("aipp"))
    (net,) = compile_models([graph])
    assert isinstance(net, Runner), net
    done = dict(zip(CASES, net([image(c) for c in CASES.values()]), strict=True))
    return done.__getitem__


@pytest.mark.parametrize("name", CASES)
def test_an_image_is_what_the_documentation_says(
    name: str, results: Callable[[str], Array]
) -> None:
    case = CASES[name]
    wanted = expected(case, image(case))
    if case.type == TensorProto.UINT8:
        wanted = np.clip(np.rint(wanted), 0, 255)
    tolerance = 1e-3 if case.type == TensorProto.FLOAT16 else 2e-6
    np.testing.assert_allclose(
        results(name).astype(np.float64), wanted, rtol=tolerance, atol=255 * tolerance
    )


PILLOW: dict[str, tuple[Callable[[Any, Case], Any], int]] = {
    "bgr": (lambda p, case: merged(p.split()[::-1]), 0),
    "cropped": (lambda p, case: p.crop((1, 2, 6, 5)), 0),
    "larger": (lambda p, case: p.resize(case.size, 2), 1),  # 2 is bilinear
    "rgb to yuv": (lambda p, case: p.convert("YCbCr"), 2),
    "rgb to gray": (lambda p, case: p.convert("L"), 2),
    "rgb of xrgb": (lambda p, case: merged(p.split()[1:]), 0),
    "gray cropped": (lambda p, case: p.crop((3, 1, 7, 6)), 0),
}
"""What Pillow does for a case, and by how much its rounding may differ."""


def merged(bands: Sequence[Any]) -> Any:
    from PIL import Image

    return Image.merge("RGB", [*bands])


@pytest.mark.parametrize("name", PILLOW)
def test_pillow_does_the_same(name: str, results: Callable[[str], Array]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    change, tolerance = PILLOW[name]
    pixels = image(CASES[name])[0]
    picture = pillow.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    wanted = np.asarray(change(picture, CASES[name]), np.float64)
    got = results(name)[0].transpose(1, 2, 0).squeeze()
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= tolerance


def test_preprocessing_is_one_kernel_and_the_convolution_another(tmp_path: Path) -> None:
    case = Case(
        "YUV420SP_U8",
        source=(12, 10),
        crop=(2, 2, 8, 6),
        matrix=NARROW,
        bias_in=(16, 128, 128),
        mean=(104, 117, 123),
        scale=(0.017, 0.018, 0.0175),
    )
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [weights],
    )  # fmt: skip
    model = onnx_ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    )
    lowered = preprocessed(model, case.text("x"), tmp_path)
    assert lowered.types["x"].shape == (1, 15, 12)
    kinds = [n.op.kind for n in run_passes(lowered).nodes if n.op.kind != "Reshape"]
    assert kinds == ["Map", "Conv"]


# -------------------------------------------------------------------------------------- mistakes


def op(**fields: object) -> str:
    """Return the plainest configuration with these fields put in or replaced."""
    lines = Case().text("x").splitlines()
    lines = [line for line in lines if line.split(":")[0].strip() not in fields]
    return "\n".join([*lines[:-1], *(f"  {k}: {v}" for k, v in fields.items()), "}\n"])


WRONG = {
    "line 3": "aipp_op {\n  aipp_mode: static\n  input_format RGB888_U8\n}",
    "line 2: Message type": "aipp_op {\n cropp: true\n}",
    "line 2: ": "aipp_op {\n input_format: RGB\n}",
    "holds no aipp_op": "# nothing\n",
    "line 3]": "# images\n\naipp_op {\n}\n",
    "aipp_mode is missing": "aipp_op {}",
    "dynamic has no counterpart": "aipp_op { aipp_mode: dynamic max_src_image_size: 100 }",
    "RAW16 is not supported": "aipp_op { aipp_mode: static input_format: RAW16 }",
    "src_image_size_w is 5000": op(src_image_size_w=5000),
    "must be even": Case("YUV420SP_U8", source=(9, 8)).text("x"),
    "left_padding_size is 33": op(padding="true", left_padding_size=33),
    "resize_output_h is 0": op(resize="true", resize_output_w=8),
    "matrix_r0c0 is 40000": op(csc_switch="true", matrix_r0c0=40000),
    "input_bias_1 is 256": op(input_bias_1=256),
    "mean_chn_2 is 1e+06": op(mean_chn_2="1e6"),
    "ax_swap_switch is for": Case(swap_x=True).text("x"),
    "nothing to swap": Case("YUV400_U8", swap=True).text("x"),
    "YUV400_U8 has one": Case("YUV400_U8", matrix=JPEG).text("x"),
    "'z' is not an input": Case().text("z"),
    "related_input_rank is 4": "aipp_op { aipp_mode: static input_format: RGB888_U8 "
    "related_input_rank: 4 }",
    "the result is 8 x 7": Case(source=(8, 7)).text("x"),
    "outside the image": Case(source=(8, 8), crop=(0, 4, 8, 6)).text("x"),
    "the padding is larger": Case(padding=(4, 4, 0, 0)).text("x"),
    "must be given together": op(src_image_size_w=0),
    "csc_switch make 3": Case("YUV420SP_U8", matrix=JPEG).text("four"),
    "takes 4 channels": Case().text("four"),
    "no [N, C, H, W]": Case().text("flat"),
    "not float or uint8": Case().text("whole"),
    "a second aipp_op": Case().text("x") * 2,
    "edge 1 of the input": op(input_edge_idx=0),
    "input_edge_idx is 7": op(input_edge_idx=7),
    "given twice": op(input_edge_idx=0) * 2,
    "two formats or sizes": op(input_edge_idx=0)
    + op(input_edge_idx=1, crop="true", src_image_size_h=8),
}


def several_inputs() -> onnx_ir.Model:
    inputs = {"x": [1, 3, 6, 8], "four": [1, 4, 6, 8], "flat": [3, 8], "whole": [1, 3, 6, 8]}
    types = {"whole": TensorProto.INT32}
    infos = [
        helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), s)
        for n, s in inputs.items()
    ]
    nodes = [helper.make_node("Identity", [n], [f"{n} out"]) for n in ("x", *inputs)]
    nodes[0].output[0] = "again"
    outputs = [helper.make_tensor_value_info("x out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "several", infos, outputs)
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_configuration_says_where(problem: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        preprocessed(several_inputs(), WRONG[problem], tmp_path)
    assert caught.value.code == "E10052"
    assert problem in str(caught.value)
    assert "aipp.cfg" in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="E10052.*No such file"):
        read_aipp(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"aipp_op \xff")
    with pytest.raises(OptionError, match="E10052.*byte 8"):
        read_aipp(tmp_path / "bytes")


def test_each_reader_can_have_its_own_picture(tmp_path: Path) -> None:
    text = op(input_edge_idx=0) + op(input_edge_idx=1, mean_chn_0=1, mean_chn_1=2, mean_chn_2=3)
    model = several_inputs()
    model.graph.outputs.append(next(iter(model.graph)).outputs[0])
    graph = preprocessed(model, text, tmp_path)
    (net,) = compile_models([graph])
    assert isinstance(net, Runner), net
    x = image(Case())
    unused = [np.zeros(t.shape, t.dtype.numpy) for t in net.inputs[1:]]
    second, first = net([x, *unused])
    plain = x.transpose(0, 3, 1, 2).astype(np.float32)
    np.testing.assert_array_equal(first, plain)
    np.testing.assert_array_equal(second, plain - np.reshape([1, 2, 3], (1, 3, 1, 1)))


def ranged(case: Case) -> onnx_ir.Model:
    model = identities({"x": case})
    (value,) = model.graph.inputs
    value.shape = onnx_ir.Shape([None, *list(value.shape or ())[1:]])
    value.meta[RANGES] = [Range(1, 4), None, None, None]
    return model


def test_the_number_of_images_may_be_open(tmp_path: Path) -> None:
    case = Case("YUV420SP_U8", crop=(2, 2, 5, 3), matrix=JPEG)
    graph = preprocessed(ranged(case), case.text("x"), tmp_path)
    batch, *pixels = graph.types["x"].shape
    assert pixels == [9, 8]
    assert graph.types["x out"].shape == (batch, 3, 3, 5)
    with pytest.raises(OptionError, match="E10052.*known number of images"):
        preprocessed(ranged(CASES["larger"]), CASES["larger"].text("x"), tmp_path)
