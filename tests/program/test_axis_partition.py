"""Calls over ranges of shapes, whose partitions a run makes: the same bits as in one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builds import Build, Builds, bits
from default_run import unoptimised
from dynamic_models import CASES
from onnx import TensorProto, helper, numpy_helper
from setting_rows import options
from stages import project_of

import atc
from atc.ir.graph import Array

SHAPES = "rows:r=1~40,70;batch:1~3,20,6,5;heads:1,6,t=1~33,16;image:1,8,1~20,3~20;steps:t,1,12"
EXTENTS = ((1, 1, 1, 1, 3), (7, 2, 5, 2, 20), (17, 3, 16, 20, 7), (40, 1, 33, 13, 13))
"""Of the rows, the batch, the heads and steps, and the image."""


def model() -> onnx.ModelProto:
    """Return a model that holds a node for every way of cutting."""
    rng = np.random.default_rng(5)
    inputs: dict[str, Sequence[int | str]] = {
        "rows": ("r", 70), "batch": ("b", 20, 6, 5), "heads": (1, 6, "t", 16),
        "image": (1, 8, "h", "w"), "steps": ("t", 1, 12),
    }  # fmt: skip
    weights: dict[str, Sequence[int]] = {
        "w_rows": (70, 330), "w_batch": (24, 20, 3, 3), "w_image": (40, 8, 3, 3), "gamma": (70,),
        "beta": (70,), "w_in": (1, 256, 12), "w_state": (1, 256, 64), "scales": (320 * 3,),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("MatMul", ["rows", "w_rows"], ["product"]),
        node("MatMulNBits", ["rows", "nibbles", "scales"], ["packed"], K=70, N=320, bits=4,
             block_size=32, domain="com.microsoft"),
        node("MatMulNBits", ["rows", "nibbles", "scales"], ["rounded"], K=70, N=320, bits=4,
             block_size=32, accuracy_level=4, domain="com.microsoft"),
        node("Tanh", ["rows"], ["mapped"]),
        node("Softmax", ["rows"], ["softmax"]),
        node("LayerNormalization", ["rows", "gamma", "beta"], ["normal"]),
        node("ReduceMean", ["rows"], ["mean"], axes=[1]),
        node("Conv", ["batch", "w_batch"], ["images"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["batch"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Conv", ["image", "w_image"], ["channels"], pads=[1, 1, 1, 1]),
        node("Transpose", ["heads"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["heads", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["weighted"]),
        node("MatMul", ["weighted", "heads"], ["attended"]),
        node("Transpose", ["attended"], ["beside"], perm=[0, 2, 1, 3]),
        node("Exp", ["heads"], ["powers"]),
        node("MatMul", ["powers", "turned"], ["plain"]),
        node("Transpose", ["rows"], ["columns"], perm=[1, 0]),
        node("MatMul", ["rows", "columns"], ["similar"]),
        node("Softmax", ["similar"], ["weights"]),
        node("MatMul", ["weights", "rows"], ["mixed"]),  # of one head: rows alone could be cut
        node("LSTM", ["steps", "w_in", "w_state"], ["states"], hidden_size=64),
    ]  # fmt: skip
    inner = {"turned", "scores", "weighted", "attended", "powers", "columns", "similar", "weights"}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in inputs.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None)
         for n in nodes for o in n.output if o not in inner],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 9, k)
         for k, s in weights.items()]
        + [numpy_helper.from_array(rng.integers(0, 256, (320, 3, 16), np.uint8), "nibbles")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("axes"), model(), input_shape=SHAPES)


def feeds() -> list[list[Array]]:
    """Return the inputs at several shapes, so small that queries weigh more than one key."""
    rng = np.random.default_rng(11)
    return [
        [(rng.standard_normal(s) / 4).astype(np.float32)
         for s in ((r, 70), (b, 20, 6, 5), (1, 6, t, 16), (1, 8, h, w), (t, 1, 12))]
        for r, b, t, h, w in EXTENTS
    ]  # fmt: skip


QUICK = (("c99", 3, False), ("host", 3, False))
MORE = (("host", 3, True), ("host", 2, False), ("x86-64-avx2", 4, False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [*(pytest.param(b) for b in QUICK), *(pytest.param(b, marks=pytest.mark.slow) for b in MORE)],
    ids=str,
)
def test_results_are_the_same_bits_for_any_number_of_threads(
    networks: Builds, build: Build
) -> None:
    target, _, _ = build
    with atc.load(networks[target, 1, False]) as one, atc.load(networks[build]) as many:
        for given in [*feeds(), *reversed(feeds())]:
            for name, a, b in zip([t.name for t in one.outputs], one(*given), many(*given),
                                  strict=True):  # fmt: skip
                np.testing.assert_array_equal(b, a, err_msg=f"{name} {[x.shape for x in given]}")


@pytest.mark.parametrize("target", ["c99", pytest.param("host", marks=pytest.mark.slow)])
def test_results_are_right(networks: Builds, target: str) -> None:
    session = onnxruntime.InferenceSession(model().SerializeToString())
    names = [t.name for t in session.get_inputs()]
    with atc.load(networks[target, 3, False]) as net:
        for given in feeds():
            feed: Mapping[str, Any] = dict(zip(names, given, strict=True))
            wanted = session.run(None, feed)
            for port, got, want in zip(net.outputs, net(*given), wanted, strict=True):
                rough = 0.05 if port.name == "rounded" else 1e-4
                np.testing.assert_allclose(got, want, rtol=rough, atol=rough, err_msg=port.name)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
def test_every_way_of_cutting_is_used(target: str, tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    chosen = options(
        {}, tmp_path / "model.onnx", target=target, num_threads="3", thread_tuning="0",
        input_shape=SHAPES,
    )
    text = project_of(chosen).emission.files["src/net.c"].decode()
    heads = [line for line in text.splitlines() if line.startswith(("  /* ", "/* "))]
    numbers = {line.split("partitions_")[1].split(",")[0] for line in text.splitlines()
               if "run_partitions(ctx, partitions_" in line}  # fmt: skip
    kinds = {h.split(": ")[1].split(" ")[0] for h in heads
             if h.strip().lstrip("/* ").split(":")[0] in numbers}  # fmt: skip
    assert {"Map", "Reduce", "MatMul", "Pool", "Softmax", "Normalize", "Attention"} <= kinds
    assert kinds & {"Conv", "ConvBlocked"}
    assert "MatMulPacked" in kinds


def test_contexts_run_at_the_same_time(networks: Builds) -> None:
    net = atc.load(networks["c99", 3, False])
    given = feeds()[2]
    want = bits(net(*given))
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda _: bits(net(*given)), range(12)))
    assert found == [want] * 12


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted({*CASES} - {"voxels"}))  # which has none at some shapes
def test_models_of_many_shapes_give_the_same_bits(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    onnx.save(case.model, tmp_path / "model.onnx")
    for threads in (1, 3):
        atc.compile(
            tmp_path / "model.onnx", tmp_path / str(threads) / "net", num_threads=threads,
            thread_tuning=False, input_shape=case.shapes, value_range=case.values,
            build_config=unoptimised(),
        )  # fmt: skip
    folders = [tmp_path / str(threads) / "net" for threads in (1, 3)]
    with atc.load(folders[0]) as one, atc.load(folders[1]) as many:
        for feed in case.feeds:
            shown = str({k: v.shape for k, v in feed.items()})
            wanted, found = (net.run(dict(feed)).values() for net in (one, many))
            for a, b in zip(wanted, found, strict=True):
                np.testing.assert_array_equal(b, a, err_msg=shown)


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", ["-1", "1~9"])
def test_listed_shapes_have_threads_beside_ranges_and_without(batch: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((12, 8, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c"], ["y"])]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ("n", c, 9, 7))
            for n, c in (("x", 8), ("y", 12)))  # fmt: skip
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(net, tmp_path / "net.onnx")
    atc.compile(
        tmp_path / "net.onnx", tmp_path / "net", target="c99", num_threads=2,
        thread_tuning=False, input_shape=f"x:{batch},8,9,7", dynamic_dims="1;4",
        build_config=unoptimised(),
    )  # fmt: skip
    for profile in (0, 1):
        text = (tmp_path / "net" / "src" / f"net_shape{profile}.c").read_text()
        assert "run_partitions(ctx, partitions_0, operands, 2);" in text
    session = onnxruntime.InferenceSession(net.SerializeToString())
    with atc.load(tmp_path / "net") as loaded:
        for images in (4, 1, *((6, 4) if "~" in batch else (4,))):
            given = rng.standard_normal((images, 8, 9, 7)).astype(np.float32)
            (want,) = session.run(None, {"x": given})
            np.testing.assert_allclose(loaded(given), want, rtol=1e-4, atol=1e-4)
