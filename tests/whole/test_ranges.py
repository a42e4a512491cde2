"""Vector kernels of ranges: networks of the usual kinds at the least, largest and odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import drawn_networks as drawn
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from dynamic_models import attention_of_bytes
from onnx import helper
from projects import build_shared, compile_c, emit_graph, sources, write_project
from whole.test_dynamic import Interface

from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.codegen.emit import emit
from atc.codegen.project_options import ProjectOptions
from atc.importers.onnx import pin_inputs
from atc.ir.graph import Array, Graph
from atc.lower import lower_model
from atc.memory.arena import plan_memory
from atc.options.shapes import shapes
from atc.passes import run_passes
from atc.program.build import build_program
from atc.runtime.network import Network
from atc.select.layout_costs import LayoutCosts
from atc.select.select import ANY, Selection, select
from atc.tools.profile import profile_run
from support import runnable

AVX512, AVX2, AMX = "x86-64-avx512", "x86-64-avx2", "x86-64-amx"
QUICK = ("plain_images",)


@dataclass(frozen=True)
class Case:
    """A network, the range that it is compiled for, and shapes of it."""

    build: Callable[[], onnx.ModelProto]
    ranges: str
    shapes: Sequence[tuple[int, ...]]
    targets: Sequence[str] = (AVX512,)
    tolerance: float = 2e-4


def images(*sizes: tuple[int, int]) -> list[tuple[int, ...]]:
    return [(1, 3, *size) for size in sizes]


def batches(size: int, *counts: int) -> list[tuple[int, ...]]:
    return [(n, 3, size, size) for n in counts]


def products_of_bytes(zero: int = 121, dtype: type = np.uint8) -> onnx.ModelProto:
    """Products as onnxruntime's dynamic quantization writes them."""
    net, random = drawn.Drawn(), np.random.default_rng(0)
    x = "x"
    for inner, outer in ((72, 50), (50, 130)):
        low = 0 if dtype is np.uint8 else -128
        weights = net.constant(random.integers(low, low + 256, (inner, outer)), dtype)
        q = net("DynamicQuantizeLinear", x, outputs=3)
        total = net("MatMulInteger", q, weights, f"{q}_2", net.constant(zero, dtype))
        scale = net("Mul", f"{q}_1", net.constant(0.01, np.float32))
        x = net("Relu", net("Mul", net("Cast", total, to=1), scale))
    return net.model({"x": ("f", ["s", 72])}, {x: "f"})


def nearest_sizes() -> onnx.ModelProto:
    """Images in other sizes by the nearest pixels: multiples, parts, and neither."""
    net, found = drawn.Drawn(), []
    for size in ((12, 24), (18, 8), (3, 4), (6, 5), (7, 8), (2, 16)):
        to = net.joined(net.extent("x", 0), 3, *size)
        y = net("Resize", "x", "", "", to, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
        found.append(net("Flatten", y))
    return net.model({"x": ("f", ["n", 3, 6, 8])}, {net("Concat", *found, axis=1): "f"})


TOKENS = [(n, t, 22) for n, t in ((1, 1), (2, 4), (3, 15), (1, 33), (2, 50))]
ROWS = [(n, 72) for n in (1, 2, 13, 14, 33, 50)]
SIZES = images((33, 32), (32, 47), (61, 64), (64, 64))
LARGER = images((9, 9), (9, 300), (17, 33), (64, 31), (131, 10), (97, 250), (300, 300))
WIDER = "x:1,3,32~100,32~100"
CASES = {
    "residual_batch": Case(lambda: drawn.residual(32, 32), "x:1~5,3,32,32", batches(32, 1, 4, 5)),
    "mobile_batch": Case(lambda: drawn.mobile(32, 32), "x:1~5,3,32,32", batches(32, 1, 4, 5)),
    "int8_batch": Case(
        lambda: drawn.bytes_net(32, 32), "x:1~5,3,32,32", batches(32, 1, 4, 5), (AVX512, AVX2), 0.1
    ),
    "unet_batch": Case(lambda: drawn.unet(32, 32), "x:1~3,3,32,32", batches(32, 1, 3)),
    "recurrent_batch": Case(drawn.recurrent, "x:6,1~5,64", [(6, 1, 64), (6, 4, 64), (6, 5, 64)]),
    "averages_images": Case(drawn.averages, "x:1~2,3,32~64,32~64", SIZES, (AVX512, AVX2)),
    "nearest_sizes": Case(nearest_sizes, "x:1~4,3,6,8", [(n, 3, 6, 8) for n in (1, 3, 4)]),
    "plain_images": Case(drawn.plain, "x:1,3,32~64,32~64", SIZES, (AVX512, AMX)),
    "residual_images": Case(drawn.residual, "x:1~2,3,32~64,32~64", SIZES, (AVX512, AVX2)),
    "residual_planes": Case(drawn.residual, "x:1,3,9~300,9~300", LARGER, (AMX,)),
    "mobile_images": Case(drawn.mobile, "x:1,3,32~64,32~64", SIZES, (AVX512, AMX)),
    "int8_images": Case(drawn.bytes_net, "x:1,3,32~64,32~64", SIZES, (AVX512, AVX2), 0.1),
    "int8_planes": Case(drawn.bytes_net, "x:1,3,9~300,9~300", LARGER, (AMX,), 0.1),
    "moved_bytes_batch": Case(
        lambda: drawn.moved_bytes(32, 32), "x:1~5,3,32,32", batches(32, 1, 4, 5), (AVX512, AVX2), 0
    ),
    "moved_bytes_images": Case(
        drawn.moved_bytes, "x:1~2,3,8~64,8~64",
        [(1, 3, 8, 8), (2, 3, 9, 31), (1, 3, 33, 63), (1, 3, 64, 16), (2, 3, 64, 64)],
        (AVX512, AVX2), 0,
    ),
    "branches_batch": Case(lambda: drawn.branches(16, 16), "x:1~5,3,16,16", batches(16, 1, 4, 5)),
    "branches_images": Case(drawn.branches, "x:1,3,32~64,32~64", SIZES),
    "normalized_batch": Case(
        lambda: drawn.normalized(24, 24), "x:1~5,3,24,24", batches(24, 1, 4, 5)
    ),
    "normalized_images": Case(
        drawn.normalized, "x:1~2,3,8~64,8~64",
        [(1, 3, 8, 8), (2, 3, 9, 31), (1, 3, 33, 63), (1, 3, 64, 16), (2, 3, 64, 64)],
        (AVX512, AVX2),
    ),
    "unet_images": Case(drawn.unet, "x:1,3,32~64,32~64", SIZES, (AVX512, AMX)),
    "unet_multiples": Case(
        drawn.unet, "x:1,3,8*h=32~64,8*w=32~64", images((32, 48), (64, 40), (64, 64))
    ),
    "modulated_batch": Case(
        lambda: drawn.modulated(20, 20), "x:1~5,3,20,20", batches(20, 1, 4, 5)
    ),
    "modulated_images": Case(
        drawn.modulated, "x:1~2,3,8~64,8~64",
        [(1, 3, 8, 8), (2, 3, 9, 31), (1, 3, 33, 63), (1, 3, 64, 16), (2, 3, 64, 64)],
        (AVX512, AVX2),
    ),
    "modulated_blocks": Case(
        drawn.modulated, WIDER, images((32, 32), (33, 47), (66, 52), (100, 99))
    ),
    "text": Case(drawn.text, "x:1~3,1~40", [(1, 1), (3, 17), (2, 33), (3, 40)]),
    "products_of_bytes": Case(products_of_bytes, "x:1~50,72", ROWS, (AVX512, AVX2), 1e-6),
    "products_of_signed_bytes": Case(
        lambda: products_of_bytes(0, np.int8), "x:1~50,72", ROWS, (AVX512, AVX2), 1e-6
    ),
    "attention_of_bytes": Case(
        lambda: attention_of_bytes().model, "x:1~3,1~50,22", TOKENS, (AVX512, AVX2), 1e-6
    ),
    "attention_of_signed_bytes": Case(
        lambda: attention_of_bytes((0, 9), np.int8).model, "x:2,1~50,22", [(2, 4, 22), (2, 50, 22)],
        (AVX512, AVX2), 1e-6,
    ),
    "rows": Case(drawn.rows, "x:1~50,256", [(1, 256), (15, 256), (33, 256), (50, 256)]),
}  # fmt: skip


def laid_out(model: onnx.ModelProto, ranges: str, target: Target) -> tuple[Graph, Selection]:
    """Return the graph of a model for a range in the layouts of a compilation, and its kernels."""
    pinned = pin_inputs(onnx_ir.from_proto(model), shapes(ranges), "test.onnx")
    layouts = LayoutCosts(target, ANY).layouts("auto")
    width = target.vector_bytes // 4
    graph = run_passes(lower_model(pinned, "test.onnx"), width=width, layouts=layouts)
    return graph, select(graph, target)


def network_of(case: Case, folder: Path, target: Target) -> Network:
    """Return the compiled network of a case."""
    graph, selection = laid_out(case.build(), case.ranges, target)
    program = build_program(graph, selection, target, packed_layouts=True)
    options = ProjectOptions(name="net", model="test.onnx")
    emission = emit(program, plan_memory(program), target, options)
    project = write_project(folder, emission)
    flags = ("-O0", "-fPIC", "-shared", "-fvisibility=hidden", *target.cflags)
    compile_c(project, *flags, "-o", "libnet.so", *sources(project), "-lm")
    return Network(project / "libnet.so", emission.name)


def run_guarded(network: Network, x: Array, shape: tuple[int, ...]) -> Array:
    """Run in just as much memory as the shape needs; what lies around it must stay as it is."""
    c = Interface(network)
    size = c.call("arena_size_for")(c.shapes(x.shape))
    assert 0 < size <= c.call("arena_size")()
    assert c.init(size) == 0
    assert c.call("set_input_shapes")(c.context, c.shapes(x.shape)) == 0
    y = np.full(int(np.prod(shape)) + 64, 77, np.float32)
    pointers = [c.ffi.from_buffer(a) for a in (x, y)]
    inputs, outputs = c.ffi.new("void *[]", pointers[:1]), c.ffi.new("void *[]", pointers[1:])
    assert c.call("run_tensors")(c.context, inputs, outputs) == 0
    assert (c.memory[: c.arena] == 0xA5).all()
    assert (c.memory[c.arena + size :] == 0xA5).all()
    assert (y[-64:] == 77).all()
    return y[:-64].reshape(shape)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(n, t, marks=[] if n in QUICK and t == AVX512 else pytest.mark.slow)
        for n, c in CASES.items() for t in c.targets
    ],
)  # fmt: skip
def test_a_network_is_right_at_every_shape(name: str, target: str, tmp_path: Path) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    case = CASES[name]
    network = network_of(case, tmp_path, get_target(target))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(case.build().SerializeToString(), options)
    for shape in case.shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        if "int64" in session.get_inputs()[0].type:
            x = np.abs(100 * x).astype(np.int64)
        (want,) = session.run(None, {"x": x})
        found = run_guarded(network, x, want.shape)
        scale = np.abs(want).max()
        np.testing.assert_allclose(
            found, want, atol=case.tolerance * scale, rtol=0, err_msg=str(shape)
        )


def chosen(model: onnx.ModelProto, ranges: str, target: str = AVX512) -> list[str]:
    """Return the kernels of a network for a range."""
    _, selection = laid_out(model, ranges, get_target(target))
    return [c.candidate.kernel.name for c in selection.values()]


OPEN = {"conv_dynamic_shape", "conv_rows", "conv_depthwise_loops", "conv_depthwise_open",
        "pool_simd_loops", "pool"}  # fmt: skip
"""Kernels of images of any size, and those of plain C."""


@pytest.mark.few(2)
@pytest.mark.parametrize("target", [AVX512, AVX2])
@pytest.mark.parametrize("build", [drawn.residual, drawn.mobile, drawn.bytes_net, drawn.plain])
def test_a_range_of_batches_takes_the_kernels_of_a_known_size(
    build: Callable[..., onnx.ModelProto], target: str
) -> None:
    kernels = chosen(build(32, 32), "x:1~8,3,32,32", target)
    assert OPEN.isdisjoint(kernels)
    of_bytes = {"conv_bytes", "conv_bytes_pairs"} & {*kernels}
    assert bool(of_bytes) == (build is drawn.bytes_net)


@pytest.mark.parametrize("target", [AVX512, AVX2, "aarch64-neon", "aarch64-neon-i8mm"])
def test_a_range_of_rows_takes_the_tiles_of_bytes(target: str) -> None:
    kernels = chosen(products_of_bytes(), "x:1~50,72", target)
    assert kernels.count("matmul_bytes") == 2


@pytest.mark.parametrize("target", [AVX512, AVX2, "aarch64-neon", "aarch64-neon-i8mm"])
def test_attention_over_a_range_of_tokens_takes_the_tiles_of_bytes(target: str) -> None:
    assert chosen(attention_of_bytes().model, "x:1~2,1~50,22", target).count("matmul_bytes") == 2


@pytest.mark.parametrize("target", [AVX512, AVX2])
def test_averages_that_count_padding_are_fast_for_images_of_a_range(target: str) -> None:
    kernels = chosen(drawn.averages(), "x:1,3,32~64,32~64", target)
    assert kernels.count("pool_simd_loops") == 3


def test_tokens_of_a_range_take_the_tiles_of_amx() -> None:
    kernels = chosen(drawn.text(), "x:1~2,1~256", AMX)
    assert kernels.count("attention_amx_bf16x3") == 2
    assert sum(name.startswith("matmul_amx") for name in kernels) >= 12


@pytest.mark.few(1)
@pytest.mark.parametrize("build", [drawn.mobile, drawn.bytes_net, drawn.plain])
def test_a_range_of_batches_takes_the_tiles_of_amx(build: Callable[..., onnx.ModelProto]) -> None:
    kernels = chosen(build(64, 64), "x:1~8,3,64,64", AMX)
    assert any(name.startswith("conv_amx") for name in kernels)


@pytest.mark.few(1)
@pytest.mark.parametrize("build", [drawn.residual, drawn.bytes_net])
def test_a_range_of_images_takes_the_tiles_of_amx(build: Callable[..., onnx.ModelProto]) -> None:
    kernels = chosen(build(), "x:1,3,64~320,64~320", AMX)
    assert OPEN.isdisjoint(k for k in kernels if k.startswith("conv") and "depthwise" not in k)
    assert sum(k.startswith("conv_amx") for k in kernels) >= 4


@pytest.mark.few(1)
@pytest.mark.parametrize("ranges", ["x:1~8,3,32,32", "x:1,3,16~64,8~48"])
@pytest.mark.parametrize("target", ["c99", AVX512])
def test_bytes_that_are_moved_stay_bytes(target: str, ranges: str) -> None:
    graph, _ = laid_out(drawn.moved_bytes(), ranges, get_target(target))
    floats = {n for node in graph.nodes for n in node.outputs if graph.types[n].dtype.is_float}
    assert all(name in graph.outputs or name.endswith(".counts") for name in floats), floats


@pytest.mark.parametrize("ranges", ["x:1~8,3,32,32", "x:1,3,16~64,8~48"])
def test_filters_of_the_run_are_fast_for_a_range(ranges: str) -> None:
    model = drawn.plain()
    known = {t.name: t for t in model.graph.initializer}
    del model.graph.initializer[:]
    model.graph.input.extend(
        helper.make_tensor_value_info(n, t.data_type, t.dims) for n, t in known.items()
    )
    kernels = {*chosen(model, ranges)}
    assert kernels & {"conv_nchw_rows", "conv_direct", "conv_dynamic_shape", "conv_winograd"}
    assert "conv_rows" not in kernels


def test_images_of_known_extents_are_repeated_for_any_batch() -> None:
    assert "gather" not in chosen(drawn.unet(32, 32), "x:1~3,3,32,32")


def test_filters_of_the_run_meet_blocks_of_images_of_a_range() -> None:
    assert "conv_dynamic_shape" in chosen(drawn.modulated(), WIDER)


def test_a_residual_may_be_large_or_not() -> None:
    net = drawn.Drawn()
    x = net.conv("x", 16, 16)
    y = net("Add", net.conv(x, 16, 16, act=""), x)
    model = net.model({"x": ("f", ["n", 16, 32, 32])}, {y: "f"})
    pinned = pin_inputs(onnx_ir.from_proto(model), shapes("x:1~16,16,32,32"), "test.onnx")
    emission = emit_graph(lower_model(pinned, "test.onnx"), target=AVX512)
    assert any("v_prefetch" in str(text) for text in emission.files.values())


def test_a_library_is_profiled_at_any_shape(tmp_path: Path) -> None:
    model = drawn.rows()
    pinned = pin_inputs(onnx_ir.from_proto(model), shapes("x:1~50,256"), "test.onnx")
    emission = emit_graph(lower_model(pinned, "test.onnx"), profile=True)
    library = build_shared(write_project(tmp_path, emission), level="-O0")
    network = Network(library, emission.name)
    found = profile_run(network, {"x": np.zeros((20, 256), np.float32)}, 2, "")
    assert all(call.ns for call in found.calls)
