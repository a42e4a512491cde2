"""Weights of 16 bits: the kernels that read them, and which networks store them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from blocked_convs import Case, build
from default_run import unoptimised
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from matmul_workloads import operands, workload
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.backends.cpu.conv.blocked import ConvDirect
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.cpu.matmul.tile import MatMulTile
from atc.backends.kernel import workload_of
from atc.backends.target import Target, host_arch
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.view import View
from support import runnable

HALVES = (DType.FLOAT16, DType.BFLOAT16)
CONVS = (
    Case(16, 32, (5, 28)),
    Case(40, 24, (9, 17), epilogue="residual"),
    Case(24, 40, (14, 12), (1, 1), pad=0, epilogue="residual"),
    Case(3, 24, (16, 15), stride=2, plain=True),
)
SPECIAL = {
    DType.FLOAT16: (-0.0, 2.0**-24, -(2.0**-15), 65504.0, 2.0**-14),
    DType.BFLOAT16: (-0.0, 2.0**-130, -(2.0**-126), 3e30, 1.0),
}
"""What is at an end of a type: a signed zero, denormals, its largest numbers."""


def calls(target: Target) -> Iterator[tuple[Call, Call]]:
    """Yield calls with weights in floats, and with the same weights in 16 bits."""
    for turn, case in enumerate(CONVS):
        graph, feeds, _ = build(case, target.vector_bytes // 4)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        names = graph.nodes[0].inputs
        given = dict(zip(graph.inputs, feeds, strict=True)) | graph.constants
        for kernel in (ConvDirect(), ConvWinograd()):
            if not kernel.accepts(w, target):
                continue
            for dtype in HALVES[turn % 2 :][:1]:
                weights = given["w"].astype(dtype.numpy)
                weights.reshape(-1)[: len(SPECIAL[dtype])] = SPECIAL[dtype]
                half = replace(w, inputs=(w.inputs[0], type_of(weights), *w.inputs[2:]))
                params = kernel.parameters(half, target)
                inputs = [given[n] for n in names]
                wide = [inputs[0], weights.astype(np.float32), *inputs[2:]]
                chosen = params[turn % len(params)]
                sets = [chosen]
                if isinstance(kernel, ConvDirect):
                    chosen = replace(chosen, copy=False)
                    sets = [chosen, replace(chosen, copy=True)]
                for own in sets:
                    yield (
                        Call(kernel, chosen, w, wide),
                        Call(kernel, own, half, [inputs[0], weights, *inputs[2:]]),
                    )
    for m, n, k in ((1, 600, 400), (31, 100, 20)):
        w = workload((), m, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
        arrays = operands(w, m)
        for dtype in HALVES:
            weights = arrays[1].astype(dtype.numpy)
            half = replace(w, inputs=(w.inputs[0], TensorType(dtype, (k * n,)), *w.inputs[2:]))
            for params in MatMulTile().parameters(half, target)[::5]:
                yield (
                    Call(MatMulTile(), params, w,
                         [arrays[0], weights.astype(np.float32), *arrays[2:]]),
                    Call(MatMulTile(), params, half, [arrays[0], weights, *arrays[2:]]),
                )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "step"),
    [("x86-64-avx512", 3),
     *(pytest.param(n, 1, marks=pytest.mark.slow) for n in ("x86-64-sse2", *VECTOR_TARGETS))],
)  # fmt: skip
def test_results_are_the_bits_that_floats_give(name: str, step: int) -> None:
    target = vector_target(name)
    both = [*calls(target)][::step]
    results = run_calls([each for pair in both for each in pair], target)
    for (wide, _), (want,), (got,) in zip(both, results[::2], results[1::2], strict=True):
        assert np.isfinite(want).any()
        assert got.tobytes() == want.tobytes(), wide


def net(path: Path, dtype: type) -> Path:
    """Write a model of two convolutions and a product, of weights of a type."""
    rng = np.random.default_rng(3)

    def known(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(dtype), name)

    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["s"]),
        helper.make_node("Flatten", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "c"], ["y"]),
    ]
    kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", kind, [1, 16, 12, 12])
    y = helper.make_tensor_value_info("y", kind, [1, 200])
    weights = [known("a", 48, 16, 3, 3), known("b", 96, 48, 1, 1), known("c", 96, 200)]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


COUNT = 48 * 16 * 9 + 96 * 48 + 96 * 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype", "mode", "most"),
    [
        ("x86-64-avx512", np.float32, "force_fp16", 2.5),  # panels are filled up
        ("x86-64-avx2", np.float32, "force_fp16", 2.8),  # convolutions are faster with floats
        ("aarch64-neon", np.float32, "force_fp16", 3.0),
        # What stores 16 bits itself is left to portable kernels, with weights of 32.
        pytest.param("x86-64-avx512", np.float16, "", 3.7, marks=pytest.mark.slow),
    ],
)
def test_a_mode_of_16_bits_and_a_model_of_them_store_weights_so(
    target: str, dtype: type, mode: str, most: float, tmp_path: Path
) -> None:
    """About half the size; the results are those of kernels that read floats."""
    if get_target(target).arch != host_arch():
        pytest.skip(f"no network is loaded that was built for {target}")
    x = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)
    model = net(tmp_path / "net.onnx", dtype)
    sizes, results = [], []
    for name in (target, "c99"):
        given: dict[str, Any] = {"precision_mode": mode, "workspace_limit": 0}  # no Winograd
        atc.compile(model, tmp_path / name, target=name, build_config=unoptimised(), **given)
        sizes.append(_weights(tmp_path / name))
        if name == "c99" or runnable(name):
            results.append(atc.load(tmp_path / name)(x.astype(dtype)).astype(np.float32))
    assert 2 * COUNT <= sizes[0] < most * COUNT
    assert sizes[1] >= 4 * COUNT
    most_off = 4e-3 * np.abs(results[-1]).max()
    np.testing.assert_allclose(results[0], results[-1], rtol=0, atol=most_off)


@pytest.mark.parametrize("words", [5, "1~5"], ids=["fixed", "range"])
def test_tables_of_16_bit_numbers_are_gathered_from_as_such(
    words: int | str, tmp_path: Path
) -> None:
    table = np.random.default_rng(0).standard_normal((300, 24)).astype(np.float32)
    ids = np.array([3, 299, 0, 7, 3])
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    given = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])
    known = [numpy_helper.from_array(table, "table")]
    graph = helper.make_graph([node], "net", [given], [result], known)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", precision_mode="force_fp16",
        input_shape=f"ids:{words}",
    )  # fmt: skip
    assert table.nbytes / 2 <= _weights(tmp_path / "net") < table.nbytes * 0.6
    got = atc.load(tmp_path / "net")(ids)
    np.testing.assert_array_equal(got, table.astype(np.float16).astype(np.float32)[ids])


def _weights(folder: Path) -> int:
    (path,) = folder.glob("*_weights.bin")
    return path.stat().st_size
