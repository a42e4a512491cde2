"""Partitions of calls: the same bits for any number of threads, whoever runs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from builds import Builds, bits
from caller_threads import Run, run_with
from networks import check_contexts_with_threads, check_forks_with_threads
from onnx import TensorProto, helper, numpy_helper
from stages import project_of

import atc
from atc.options.options import Options

BUILDS = (("c99", 3), ("host", 3), ("c99", 2))
"""Targets and numbers of threads."""


def model() -> onnx.ModelProto:
    """Return a model that holds a node for every way of cutting."""
    rng = np.random.default_rng(5)
    inputs: dict[str, Sequence[int]] = {
        "image": (1, 3, 20, 23), "deep": (1, 48, 9, 10), "thin": (1, 16, 12, 10),
        "batch": (3, 20, 6, 5), "rows": (37, 70), "vector": (1, 300),
        "cache": (1, 40, 64), "heads": (1, 8, 64),  # three threads have less than four rows each
    }  # fmt: skip
    weights: dict[str, Sequence[int]] = {
        "w_first": (40, 3, 3, 3), "w_deep": (56, 48, 3, 3), "w_one": (40, 48, 1, 1),
        "w_each": (48, 1, 3, 3), "w_thin": (16, 16, 3, 3), "w_stride": (16, 16, 5, 3),
        "w_batch": (24, 20, 3, 3), "w_rows": (70, 130), "w_vector": (300, 333), "bias": (333,),
        "gamma": (70,), "beta": (70,), "w_parts": (3, 70, 40), "w_left": (150, 40),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "w_first"], ["first"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["deep", "w_deep"], ["three"], pads=[1, 1, 1, 1]),
        node("Relu", ["three"], ["relu"]),
        node("Conv", ["deep", "w_one"], ["one"]),
        node("Conv", ["deep", "w_each"], ["each"], group=48, pads=[1, 1, 1, 1]),
        node("Conv", ["thin", "w_thin"], ["spatial"], pads=[1, 1, 1, 1]),
        node("Conv", ["thin", "w_stride"], ["strided"], pads=[2, 0, 2, 1], strides=[2, 1],
             dilations=[1, 2]),
        node("Conv", ["batch", "w_batch"], ["images"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["deep"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2]),
        node("AveragePool", ["batch"], ["averaged"], kernel_shape=[2, 2]),
        node("MatMul", ["rows", "w_rows"], ["product"]),
        node("Gemm", ["vector", "w_vector", "bias"], ["gemv"]),
        node("Softmax", ["rows"], ["softmax"]),
        node("LayerNormalization", ["rows", "gamma", "beta"], ["normal"]),
        node("Tanh", ["rows"], ["mapped"]),
        node("ReduceMean", ["deep"], ["mean"], axes=[3]),
        node("MatMul", ["heads", "turned"], ["scores"]),
        node("Transpose", ["cache"], ["turned"], perm=[0, 2, 1]),
        node("Softmax", ["scores"], ["weighted"]),
        node("MatMul", ["weighted", "cache"], ["attended"]),
        node("Softmax", ["batch"], ["shares"]),
        node("Mul", ["shares", "thousand"], ["larger"]),
        node("Cast", ["larger"], ["whole"], to=TensorProto.INT16),  # in the Softmax's epilogue
        node("MatMul", ["rows", "w_parts"], ["parts"]),
        node("MatMul", ["w_left", "cache"], ["left"]),
        node("Resize", ["batch", "", "", "sizes"], ["resized"], mode="linear"),
    ]  # fmt: skip
    nodes[16], nodes[17] = nodes[17], nodes[16]
    inner = {"three", "turned", "scores", "weighted", "shares", "larger"}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for n in nodes for o in n.output if o not in inner],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 9, k)
         for k, s in weights.items()]
        + [numpy_helper.from_array(np.array(1000, np.float32), "thousand"),
           numpy_helper.from_array(np.array([3, 20, 17, 16]), "sizes")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("threads"), model(), parallel_branches=1)


def feeds(net: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(11)
    return [(rng.standard_normal(t.shape) / 4).astype(np.float32) for t in net.inputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "threads"), [*BUILDS[:2], pytest.param(*BUILDS[2], marks=pytest.mark.slow)]
)
def test_results_are_the_same_bits_for_any_number_of_threads(
    networks: Builds, target: str, threads: int
) -> None:
    folders = networks[target, 1, False], networks[target, threads, False]
    with atc.load(folders[0]) as one, atc.load(folders[1]) as many:
        want = one(*feeds(one))
        for _ in range(20):
            got = many(*feeds(many))
            for name, a, b in zip([t.name for t in one.outputs], want, got, strict=True):
                np.testing.assert_array_equal(b, a, err_msg=name)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
def test_every_way_of_cutting_is_used(target: str, tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    options = Options(
        tmp_path / "model.onnx", tmp_path / "net", target=target, num_threads=3,
        parallel_branches=1, thread_tuning=False,
    )
    text = project_of(options).emission.files["src/net.c"].decode()
    lines = (line for line in text.splitlines() if "partitions */" in line)
    kinds = {line.split(": ")[1].split(" ")[0] for line in lines}
    conv = {"Conv"} if target == "c99" else {"Conv", "ConvBlocked"}
    assert {"Map", "Reduce", "MatMul", "Pool", "Softmax", "Normalize", "Attention", "Resample"} <= (
        kinds
    )
    assert kinds & conv
    by_rows = re.search(r"\(at\[0\].*, \d+, \d+\);", text)
    assert bool(by_rows) == (target == "host")


def test_contexts_run_at_the_same_time(networks: Builds) -> None:
    net = atc.load(networks["c99", 3, False])
    given = feeds(net)
    want = bits(net(*given))
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda _: bits(net(*given)), range(12)))
    assert found == [want] * 12


def test_threads_of_the_caller_run_the_partitions_in_any_order(networks: Builds) -> None:
    net = atc.load(networks["c99", 1, False])
    given = feeds(net)
    want = bits(net(*given))
    ran: list[int] = []

    def backwards(run: Run, partitions: int) -> None:
        for partition in reversed(range(partitions)):
            run(partition)
            ran.append(partition)

    outputs = run_with(networks["c99", 3, False], given, net(*given), backwards)
    assert bits(outputs) == want
    assert set(ran) == {0, 1, 2}


def test_a_context_is_not_prepared_again_while_its_threads_run(networks: Builds) -> None:
    check_contexts_with_threads(networks["c99", 3, False] / "libnet.so", 3)


def test_a_fork_may_stop_and_start_threads(networks: Builds) -> None:
    check_forks_with_threads(networks["c99", 3, False] / "libnet.so", 3)


@pytest.mark.slow
def test_a_network_of_short_calls_has_no_threads(tmp_path: Path) -> None:
    relu = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])],
    )  # fmt: skip
    onnx.save(helper.make_model(relu, ir_version=10), tmp_path / "relu.onnx")
    for threads in (1, 4):
        atc.compile(tmp_path / "relu.onnx", tmp_path / f"t{threads}" / "net", num_threads=threads)
    sources = [tmp_path / f"t{t}" / "net" / "src" / "net.c" for t in (1, 4)]
    assert sources[0].read_bytes() == sources[1].read_bytes()
