"""Blocked convolutions in bfloat16 against numpy, in float64 on operands rounded alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from blocked_convs import DEPTHWISE, DIRECT, LARGE, WINOGRAD, Case, build, from_blocks
from kernel_program import Call, run_calls, vector_target
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.backends.cpu.conv.bf16 import ConvBf16
from atc.backends.cpu.conv.blocked import ConvDirect
from atc.backends.cpu.conv.depthwise import DepthwiseTiles
from atc.backends.cpu.conv.depthwise_looped import DepthwiseLoops
from atc.backends.cpu.conv.first_layer import ConvFirstBf16
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.kernel import AnyKernel, Kernel, workload_of
from atc.backends.render.bfloat16 import rounded_bits
from atc.backends.render.vector_expr import lanes
from atc.ir.graph import Array, DType, TensorType
from atc.passes.layout.store_bf16 import typed

FIRST = {
    "first layer, patches": Case(3, 33, (8, 80), (4, 4), stride=4, pad=0, plain=True),
    "first layer, batch": Case(2, 16, (9, 35), (3, 5), pad=2, plain=True, batch=2),
    "first layer, cut": Case(3, 16, (10, 50), stride=3, pad=0, plain=True, epilogue="residual"),
    "first layer, tall": Case(1, 16, (31, 6), (5, 2), dilation=1, pad=1, plain=True),
}
CASES = DIRECT | WINOGRAD | FIRST
TOLERANCE = 4e-6
BF16 = DType.BFLOAT16


def rounded(x: Array) -> Array:
    """Return floats rounded to bfloat16."""
    return (rounded_bits(x).astype(np.uint32) << 16).view(np.float32)


def calls_of(name: str) -> list[tuple[Call, Array, int]]:
    """Return calls of the kernel with its best parameter sets, results and filters of each."""
    target = vector_target("x86-64-avx512-bf16")
    found = []
    case = CASES[name]
    graph, feeds, expected = build(case, lanes(target), rounded)
    w = workload_of(graph, graph.nodes[0], graph.constants)
    kernel: AnyKernel = ConvFirstBf16() if case.plain else ConvBf16()
    assert kernel.accepts(w, target), name
    given = dict(zip(graph.inputs, feeds, strict=True)) | graph.constants
    operands = [given[i] for i in graph.nodes[0].inputs]
    for params in kernel.parameters(w, target)[:100]:
        found.append((Call(kernel, params, w, operands), expected, case.filters))
    return found


def check(found: list[tuple[Call, Array, int]]) -> None:
    """Run the calls and compare their results."""
    results = run_calls([c for c, _, _ in found], vector_target("x86-64-avx512-bf16"))
    for (call, expected, filters), (got,) in zip(found, results, strict=True):
        error = np.abs(from_blocks(got, filters) - expected).max()
        assert error <= TOLERANCE * max(np.abs(expected).max(), 1), f"{call}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_parameter_set_sums_rounded_products(name: str) -> None:
    check(calls_of(name))


def vectored(cases: Mapping[str, Case]) -> list[Case]:
    """Return the cases with blocked operands and epilogues that vectors can do."""
    return [c for c in cases.values() if not c.plain and c.epilogue != "libm"]


STORED: tuple[tuple[Kernel, Sequence[Case]], ...] = (
    (ConvBf16(), vectored(CASES)), (ConvFirstBf16(), [FIRST["first layer, cut"]]),
    (ConvDirect(), [DIRECT["ragged"], DIRECT["first layer, grey"]]),
    (ConvWinograd(), [WINOGRAD["ragged channels"], WINOGRAD["wide pad"]]),
    (DepthwiseTiles(), vectored(DEPTHWISE)), (DepthwiseLoops(), vectored(LARGE)),
)  # fmt: skip
"""Kernels that read tensors of bfloat16, or store them, and for what."""


def both(kernel: AnyKernel, case: Case) -> list[Call]:
    """Return the calls for floats that are bfloat16, and for these stored as such, where it can."""
    target = vector_target("x86-64-avx512-bf16")
    graph, feeds, _ = build(case, lanes(target))
    (node,), given = graph.nodes, dict(zip(graph.inputs, feeds, strict=True))
    given = {k: rounded(v) for k, v in given.items()} | graph.constants
    before = workload_of(graph, node, graph.constants)
    for names in ({"x", "other", "y"}, {"other", "y"}):  # some kernels read floats only
        half = {k: TensorType(BF16, t.shape) for k, t in graph.types.items() if k in names}
        types = {**graph.types, **half}
        stored = replace(node, op=typed(node, graph.types, types))
        after = workload_of(replace(graph, types=types), stored, graph.constants)
        if kernel.accepts(after, target):
            params = kernel.parameters(before, target)[0]
            halves = {k: given[k].astype(BF16.numpy) for k in given if k in half}
            return [Call(kernel, params, w, [{**given, **own}[k] for k in node.inputs])
                    for w, own in ((before, {}), (after, halves))]  # fmt: skip
    return []


@pytest.mark.slow
def test_stored_operands_and_results_give_the_same_numbers() -> None:
    pairs = [(both(kernel, c), c) for kernel, cases in STORED for c in cases]
    calls = [call for pair, _ in pairs for call in pair]
    assert len(calls) > 60
    results = iter(run_calls(calls, vector_target("x86-64-avx512-bf16")))
    for pair, case in pairs:
        for (floats,), (halves,) in zip(*[islice(results, len(pair))] * 2, strict=True):
            wanted = from_blocks(rounded_bits(floats), case.filters)
            got = from_blocks(halves.view(np.uint16), case.filters)
            np.testing.assert_array_equal(got, wanted, str(pair[1]))


def test_weights_are_rounded_to_nearest_even() -> None:
    given = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -np.inf, np.nan, 3.4e38, 1e-40], np.float32)
    wanted = [1, 1, 1 + 2**-6, -np.inf, np.nan, np.inf, rounded(given)[6]]
    np.testing.assert_array_equal(rounded(given), np.array(wanted, np.float32))
    assert abs(float(rounded(given)[6]) - 1e-40) < 2.0**-134  # half a step of denormals


OPEN = (
    {"kernel": 3, "pads": 1},
    {"kernel": 3, "pads": 1, "strides": 2},
    {"kernel": 5, "pads": 2, "dilations": 2},
    {"kernel": 1, "pads": 0},
    {"kernel": 1, "pads": 0, "strides": 2, "filters": 70},
    {"kernel": 3, "pads": 0, "group": 2, "filters": 96},
)
"""Attributes of convolutions of 40 channels."""


def open_model() -> onnx.ModelProto:
    """Return a model of these, each with a residual or a ReLU behind it where that fits.

    They read channels that a 1x1 convolution has chosen, so that all that they multiply is exact.
    """
    rng = np.random.default_rng(0)
    chosen = np.eye(40, 20, dtype=np.float32)[:, :, None, None]
    nodes = [helper.make_node("Conv", ["x", "chosen"], ["c"])]
    known, outputs = [numpy_helper.from_array(chosen, "chosen")], []
    for k, case in enumerate(OPEN):
        size, filters, group = case["kernel"], case.get("filters", 40), case.get("group", 1)
        weights = rounded(rng.standard_normal((filters, 40 // group, size, size), np.float32))
        known.append(numpy_helper.from_array(weights, f"w{k}"))
        nodes.append(helper.make_node(
            "Conv", ["c", f"w{k}"], [f"s{k}"], pads=[case["pads"]] * 4, group=group,
            strides=[case.get("strides", 1)] * 2, dilations=[case.get("dilations", 1)] * 2,
        ))  # fmt: skip
        same = case.get("strides", 1) == 1 and filters == 40
        after = ("Add", [f"s{k}", "c"]) if same and size != 5 else ("Relu", [f"s{k}"])
        nodes.append(helper.make_node(*after, [f"y{k}"]))
        outputs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20, "h", "w"])
    graph = helper.make_graph(nodes, "net", [x], outputs, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_images_of_any_size_are_multiplied_in_pairs(tmp_path: Path) -> None:
    target, model = vector_target("x86-64-avx512-bf16"), open_model()
    onnx.save(model, tmp_path / "m.onnx")
    done = atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", target=target.name,
        input_shape="x:1~2,20,9~40,9~40", precision_mode="allow_mix_precision_bf16",
    )  # fmt: skip
    kernels = [node["kernel"].split("(")[0] for node in done.report["nodes"]]
    assert kernels.count("conv_dynamic_bf16") == len(OPEN)
    network = atc.load(done.folder)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 20, 9, 9), (2, 20, 17, 40), (1, 20, 33, 15), (1, 20, 40, 39)):
        x = rounded(np.random.default_rng(1).standard_normal(shape, np.float32))
        for got, want in zip(network(x), session.run(None, {"x": x}), strict=True):
            assert np.abs(got - want).max() <= 2 * TOLERANCE * np.abs(want).max()
