"""Transposed convolutions as convolutions: same results, no slow kernel left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from onnx import TensorProto, helper, numpy_helper
from transposed_convs import Transposed

from atc.ir.ops import ConvTranspose
from atc.passes import run_passes
from support import assert_close, compile_graph, run_models, runnable


@dataclass(frozen=True)
class Case(Transposed):
    batch: int = 1
    known: bool = True
    """Whether the weights are, when compiling."""


CASES = (
    Case(2, 2, channels=32), Case(4, 2, 1, channels=20, filters=24), Case(3, 2, 1, 1, filters=32),
    Case(3, 2, 1), Case(4, 4), Case(3, 1, 1), Case(5, 3, 2, 1, channels=8, filters=40), Case(2, 3),
    Case(4, 2, filters=33), Case(2, 2, batch=2), Case(6, 2, 2, size=(1, 9)),
    Case(3, 2, known=False), Case(4, 2, 1, known=False), Case(5, 3, 2, 1, batch=2, known=False),
    Case(3, 1, known=False), Case(1, 1, known=False), Case(1, 2, known=False, batch=2),
    Case(1, 3, more=1, filters=24, known=False), Case(1, 2, more=1, channels=24, known=False),
    Case(3, 1, 1, known=False, group=16), Case(3, 1, 2, filters=48, known=False, group=4),
    Case(2, 1, 3, known=False, dilation=2, batch=2), Case(3, 2, 1, 1, known=False, group=16),
    Case(3, 2, 1, group=16, batch=2), Case(3, 1, 1, group=16), Case(5, 2, 2, filters=48, group=8),
    Case(2, 2, known=False, group=16, size=(5, 1)), Case(3, 2, 1, known=False, dilation=2),
    Case(3, 1, 1, dilation=2), Case(2, 2, 1, dilation=3, filters=24),
    Case(1, 2, dilation=2, channels=2, filters=2),
)  # fmt: skip


def model(case: Case, rank: int) -> onnx.ModelProto:
    """Return ConvTranspose, Relu, and a convolution of the result."""
    rng = np.random.default_rng(case.kernel)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:], dtype=float))
        return numpy_helper.from_array(values.astype(np.float32), name)

    def each(n: int) -> list[int]:
        return [n] * rank

    nodes = [
        helper.make_node(
            "ConvTranspose", ["x", "w", "b"], ["t"], strides=each(case.stride),
            pads=each(case.pad) * 2, output_padding=each(case.more), group=case.group,
            dilations=each(case.dilation),
        ),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], pads=each(1) * 2),
    ]  # fmt: skip
    shapes = {"x": [case.batch, case.channels, *case.size[:rank]]}
    tensors = [weights("b", case.filters), weights("v", 16, case.filters, *each(3))]
    filters = [case.channels, case.filters // case.group, *each(case.kernel)]
    if case.known:
        tensors.append(weights("w", *filters))
    else:
        shapes["w"] = filters
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, n) for k, n in shapes.items()],
        [helper.make_empty_tensor_value_info("y"), helper.make_empty_tensor_value_info("r")],
        tensors,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_results_are_those_of_the_definition(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"{target} doesn't run here")
    ort = pytest.importorskip("onnxruntime")  # the standard's reference can't do groups
    models = [model(c, rank) for c in CASES for rank in (1, 2)]
    inputs = [
        [np.random.default_rng(1).uniform(
            -1, 1, [d.dim_value for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32) for i in m.graph.input] for m in models
    ]  # fmt: skip
    for made, given, found in zip(models, inputs, run_models(models, inputs, target), strict=True):
        assert not isinstance(found, Exception), found
        session = ort.InferenceSession(made.SerializeToString(),
                                       providers=["CPUExecutionProvider"])  # fmt: skip
        want = session.run(None, dict(zip(("x", "w"), given, strict=False)))
        assert_close(found, want, atol=2e-5)


@pytest.mark.few(10)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_none_is_left(case: Case) -> None:
    graph = run_passes(compile_graph(model(case, 2)), width=8)
    assert not any(isinstance(n.op, ConvTranspose) for n in graph.nodes)


def test_shuffled_channels_stay_in_blocks() -> None:
    graph = run_passes(compile_graph(model(CASES[0], 2)), width=8)
    kinds = [n.op.kind for n in graph.nodes]
    assert kinds == ["Block", "ConvBlocked", "Map", "ConvBlocked", "Unblock", "Unblock"]


def test_without_vectors_it_stays() -> None:
    graph = run_passes(compile_graph(model(CASES[0], 2)))
    assert any(isinstance(n.op, ConvTranspose) for n in graph.nodes)
