"""Convolutions of bytes of images whose extents the run decides: exact on all instruction sets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_program import VECTOR_TARGETS, vector_target
from onnx import TensorProto, helper, numpy_helper
from projects import joined_sources, write_project
from whole.test_ranges import laid_out

from atc.backends.cpu.conv import dynamic_shape, winograd_int8
from atc.backends.cpu.conv.dynamic_shape import ConvDynamicBytes, ConvDynamicShape
from atc.backends.cpu.conv.filter_panels import PanelParams
from atc.backends.cpu.conv.winograd_int8 import ConvWinogradBytes
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.codegen.emit import emit
from atc.codegen.project_options import ProjectOptions
from atc.ir.graph import Array
from atc.memory.arena import plan_memory
from atc.program.build import build_program
from atc.select.select import Selection, _considered

TARGETS = (
    *(t for t in VECTOR_TARGETS if t != "wasm32-simd128"),  # which multiplies as SSE2 does
    "x86-64-sse2", "x86-64-avx512-vnni", "aarch64-neon-dotprod", "aarch64-neon-i8mm",
)  # fmt: skip
SUM_PAIRS = ("x86-64-avx2", "x86-64-avx512")
"""Those with instructions that sum two products of bytes, and none of four."""
RANGE = "x:1~2,20,3~40,3~40"
SHAPES = ((1, 20, 3, 3), (2, 20, 17, 40), (1, 20, 33, 15), (1, 20, 40, 40))
KERNELS = {"conv_dynamic_bytes", "conv_dynamic_bytes_pairs", "conv_depthwise_loops",
           "conv_winograd_bytes", "conv_depthwise_open"}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A convolution of a quantized image of 20 channels."""

    filters: int = 40
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    pad: int = 1
    group: int = 1
    dtype: type = np.uint8
    zero: int = 0
    largest: int = 90
    """The greatest magnitude of a weight."""


CASES = (
    Case(),
    Case(dtype=np.int8, zero=-128),
    Case(zero=117),  # padded in memory
    Case(kernel=5, stride=2, pad=2, zero=3),
    Case(kernel=1, pad=0, zero=7),
    Case(filters=17, stride=2, dtype=np.int8, zero=-128),
    Case(dilation=2, pad=2),
    Case(filters=24, zero=5, pad=0, largest=127),
    Case(kernel=1, stride=2, pad=0, largest=127),
    Case(filters=20, group=5),
    Case(filters=20, group=20, zero=31),
    Case(filters=20, group=20, stride=2, dtype=np.int8, zero=-5),
)


def model_of(*cases: Case) -> onnx.ModelProto:
    """Return a model in QDQ form, an output for each case of one image.

    Scales are powers of two: all floats in it are exact.
    """
    nodes, outputs, constants = [], [], []
    for k, c in enumerate(cases):
        random = np.random.default_rng(k)
        weights = random.integers(
            -c.largest, c.largest + 1, (c.filters, 20 // c.group, c.kernel, c.kernel)
        )
        kind = TensorProto.UINT8 if c.dtype is np.uint8 else TensorProto.INT8
        known = {
            "xs": np.float32(1 / 8), "xz": c.dtype(c.zero), "ws": np.float32(1 / 64),
            "wz": np.int8(0), "w": weights.astype(np.int8), "ys": np.float32(4), "yz": c.dtype(9),
            "b": random.integers(-999, 999, c.filters).astype(np.int32),
            "bs": np.float32(1 / 512), "bz": np.int32(0),
        }  # fmt: skip
        steps = (
            ("QuantizeLinear", ["x", "xs", "xz"], "q", {}),
            ("DequantizeLinear", ["q", "xs", "xz"], "d", {}),
            ("DequantizeLinear", ["w", "ws", "wz"], "f", {}),
            ("DequantizeLinear", ["b", "bs", "bz"], "bias", {}),
            ("Conv", ["d", "f", "bias"], "c",
             {"pads": [c.pad] * 4, "group": c.group, "strides": [c.stride] * 2,
              "dilations": [c.dilation] * 2}),
            ("QuantizeLinear", ["c", "ys", "yz"], "y", {}),
        )  # fmt: skip
        for op, given, made, attributes in steps:
            names = [name if name == "x" else f"{name}{k}" for name in given]
            nodes.append(helper.make_node(op, names, [f"{made}{k}"], **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{k}", kind, None))
        constants += [numpy_helper.from_array(np.asarray(v), f"{n}{k}") for n, v in known.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20, "h", "w"])
    graph = helper.make_graph(nodes, "net", [x], outputs, constants)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


MAIN = """#include <stdio.h>
#include "net.h"

static {upper}_ALIGNED unsigned char arena[{upper}_ARENA_SIZE];
static float x[{inputs}];
static unsigned char y[{outputs}][{results}];

int main(int argc, char **argv)
{{
  static const int64_t shapes[][4] = {{{shapes}}};
  FILE *from = argc == 3 ? fopen(argv[1], "rb") : NULL, *to = from ? fopen(argv[2], "wb") : NULL;

  for (int k = 0; to != NULL && k < {count}; k++) {{
    net_context ctx;
    const int64_t *const given[] = {{shapes[k]}}, *s = shapes[k];
    const void *const inputs[] = {{x}};
    void *outputs[{outputs}];
    int64_t out[4];
    size_t size = (size_t)(s[0] * s[1] * s[2] * s[3]);
    if (fread(x, sizeof x[0], size, from) != size || net_init(&ctx, arena, sizeof arena)) return 2;
    for (size_t n = 0; n < {outputs}; n++) outputs[n] = y[n];
    if (net_set_input_shapes(&ctx, given) || net_run_tensors(&ctx, inputs, outputs)) return 3;
    for (size_t n = 0; n < {outputs}; n++) {{
      if (net_output_shape(&ctx, n, out)) return 4;
      size = (size_t)(out[0] * out[1] * out[2] * out[3]);
      if (fwrite(y[n], 1, size, to) != size) return 5;
    }}
  }}
  return to == NULL || fclose(to);
}}
"""


def results(target: Target, images: list[Array], folder: Path) -> tuple[bytes, Selection]:
    """Return what a program for a target writes of all images and cases, and the kernels."""
    graph, selection = laid_out(model_of(*CASES), RANGE, target)
    program = build_program(graph, selection, target)
    emission = emit(program, plan_memory(program), target, ProjectOptions(name="net", model="m"))
    project = write_project(folder, emission)
    shapes = ", ".join(f"{{{', '.join(map(str, x.shape))}}}" for x in images)
    text = MAIN.format(
        upper="NET", shapes=shapes, count=len(images), inputs=max(x.size for x in images),
        outputs=len(CASES), results=2 * 40 * 40 * 40,
    )  # fmt: skip
    (project / "main.c").write_text(text)
    (project / "x").write_bytes(b"".join(x.tobytes() for x in images))
    static = ["-static"] * bool(target.runner)
    level = "-O1" if target.runner else "-O0"  # emulators take long over what isn't optimised
    command = [target.compiler, *target.compiler_words, level, "-Wall", "-Werror", *target.cflags]
    files = ["-Iinclude", "-Isrc/kernels", "main.c", *joined_sources(project), "-lm", "-o", "run"]
    subprocess.run([*command, *static, *files], cwd=project, check=True)
    subprocess.run([*target.runner, "./run", "x", "y"], cwd=project, check=True, timeout=180)
    return (project / "y").read_bytes(), selection


def check_integers(target: Target, folder: Path) -> list[str]:
    """Compare all cases with onnxruntime; return the kernels' names."""
    random = np.random.default_rng(1)
    images = [random.uniform(-20, 25, shape).astype(np.float32) for shape in SHAPES]
    got, selection = results(target, images, folder)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model_of(*CASES).SerializeToString(), options)
    at = 0
    for x in images:
        for case, want in zip(CASES, session.run(None, {"x": x}), strict=True):
            found = np.frombuffer(got, case.dtype, want.size, at).reshape(want.shape)
            np.testing.assert_array_equal(found, want, str(case))
            at += want.size
    assert at == len(got)
    return [c.candidate.kernel.name for c in selection.values()]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_images_of_any_size_give_the_integers_of_onnxruntime(target: str, tmp_path: Path) -> None:
    kernels = check_integers(vector_target(target), tmp_path)
    assert sum(kernels.count(name) for name in KERNELS) == len(CASES)
    assert ("conv_dynamic_bytes_pairs" in kernels) == (target in SUM_PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512-vnni", "aarch64-neon-dotprod"])
def test_images_may_be_copied_to_planes_of_taps(
    target: str, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def either(kernel: object, sets: Sequence[PanelParams], *_: object) -> list[PanelParams]:
        wanted = [s for s in sets if getattr(s, "copied", False) == copied]
        return [(wanted or [*sets])[-1]]

    monkeypatch.setattr(dynamic_shape, "cheapest", either)
    _considered.cache_clear()
    check_integers(vector_target(target), tmp_path)
    _considered.cache_clear()
    kernels = [path.read_text("utf-8") for path in (tmp_path / "src/kernels").glob("*bytes*.c")]
    assert any("copy_planes" in text for text in kernels) == copied


@pytest.mark.slow
@pytest.mark.parametrize("m", winograd_int8.SIZES)
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512-vnni"])
def test_tiles_of_winograds_products_are_exact(
    target: str, m: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_int8, "SIZES", (m,))
    monkeypatch.setattr(ConvWinogradBytes, "cost", lambda *_: 0.0)
    _considered.cache_clear()
    kernels = check_integers(vector_target(target), tmp_path)
    _considered.cache_clear()
    able = [c for c in CASES if (c.kernel, c.stride, c.dilation, c.group) == (3, 1, 1, 1)]
    assert kernels.count("conv_winograd_bytes") == len(able)


@pytest.mark.slow
def test_where_memory_is_scarce_convolutions_pad_with_the_zero_point(tmp_path: Path) -> None:
    kernels = check_integers(replace(get_target("c99"), saves_memory=True), tmp_path)
    assert not any("pad" in name for name in kernels)


@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512-vnni", "aarch64-neon"])
def test_tiles_of_several_pixels_are_chosen(target: str) -> None:
    """As for images of known extents: a pixel at a time reads all weights for each."""
    record = get_target(target)
    _, selection = laid_out(model_of(Case(filters=64, kernel=5, pad=2)), RANGE, record)
    params = [
        c.candidate.params for c in selection.values()
        if isinstance(c.candidate.kernel, ConvDynamicBytes | ConvDynamicShape)
    ]  # fmt: skip
    assert params
    assert all(p.p > 1 for p in params)
