"""Transposed convolutions on GPUs: ordinary ones of all phases, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from cuda_cases import ORDERS, TARGET
from joined_sources import compile_joined
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from product_cases import BF16, F16, F32, LIMITS
from projects import make_model

from atc.backends.kernel import workload_of
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import consider
from support import node_model


@dataclass(frozen=True, eq=False)
class Case:
    """A node, and the kernel that is among those for it."""

    kernel: str
    dtype: Any
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    constant: tuple[int, ...] = (1, 2)


UPSAMPLING = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES = {
    "of halves": Case("cuda_conv_bf16x3", F32, ((2, 16, 5, 6), (16, 8, 4, 4), (8,)), UPSAMPLING),
    "cut off": Case("cuda_conv_bf16x3", F32, ((1, 16, 4, 5), (16, 4, 3, 3), (4,)),
                    {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
    "of float16": Case("cuda_conv_tensor", F16, ((1, 16, 5, 6), (16, 9, 4, 4), (9,)), UPSAMPLING),
    "of bfloat16": Case("cuda_conv_tensor", BF16, ((1, 24, 9), (24, 8, 2)), {"strides": [2]},
                        (1,)),
    "of volumes": Case("cuda_conv_bf16x3", F32, ((1, 8, 3, 4, 3), (8, 3, 2, 2, 2), (3,)),
                       {"strides": [2, 2, 2]}),
    "of groups": Case("cuda_conv_bf16x3", F32, ((1, 32, 9), (32, 8, 4)),
                      {"group": 2, "strides": [2]}, (1,)),
    "of the run": Case("cuda_conv_bf16x3", F32, ((1, 16, 5, 5), (16, 8, 3, 3), (8,)),
                       {"strides": [2, 2]}, ()),
    "dilated, of float16": Case("cuda_conv_tensor", F16, ((1, 16, 7, 6), (16, 8, 3, 3)),
                                {"dilations": [2, 1]}, (1,)),
}  # fmt: skip
QUICK = "of float16"


@dataclass(frozen=True)
class Lowered:
    feeds: dict[str, Any]
    right: Any
    graph: Graph


@cache
def lowered(name: str) -> Lowered:
    """Return a case's network, and what onnxruntime gives in floats."""
    case, rng = CASES[name], np.random.default_rng(4)
    arrays = [rng.normal(size=s).astype(case.dtype) for s in case.shapes]

    def model_of(arrays: list[Any]) -> onnx.ModelProto:
        return node_model(
            "ConvTranspose", arrays, opset=22, constant=case.constant, **case.attributes
        )

    model, wide = model_of(arrays), model_of([a.astype(F32) for a in arrays])
    wide.ir_version = 10  # that onnxruntime knows
    feeds = {f"x{k}": a for k, a in enumerate(arrays) if k not in case.constant}
    session = InferenceSession(wide.SerializeToString(), providers=["CPUExecutionProvider"])
    (right,) = session.run(None, {n: a.astype(F32) for n, a in feeds.items()})
    return Lowered(feeds, right, AtcBackendRep(model, TARGET.name).lower(feeds))


@cache
def compiled(quick: bool) -> dict[str, Network]:
    names = [n for n in CASES if (n == QUICK) == quick]
    graphs = [lowered(n).graph for n in names]
    networks = compile_networks(graphs, TARGET, "O1", compile_all=compile_joined)
    return dict(zip(names, networks, strict=True))


@pytest.mark.parametrize(
    "name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_all_phases_are_one_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, own, results = compiled(name == QUICK)[name], lowered(name), []
    for order in ORDERS:
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        (result,) = network.run(own.feeds).values()
        results.append(result)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    stored = {2: 2**-10, 4: 0.0}[results[0].dtype.itemsize] * (8 if results[0].dtype == BF16 else 1)
    error = np.abs(results[0].astype(np.float64) - own.right).max() / np.abs(own.right).max()
    assert error <= 3e-5 + stored


@pytest.mark.parametrize("name", CASES)
def test_tensor_cores_may_compute_it(name: str) -> None:
    done = run_passes(lowered(name).graph, width=1, device=True)
    assert "ConvTranspose" not in {n.op.kind for n in done.nodes}
    (conv,) = (n for n in done.nodes if n.op.kind == "Conv")
    found = consider(workload_of(done, conv, done.constants), TARGET, LIMITS).found
    assert CASES[name].kernel in {c.kernel.name for c in found}


@pytest.mark.parametrize("shapes", [((1, 4, 5, 6), (4, 16, 3, 3)), ((1, 16, 8), (16, 1, 4))])
def test_slim_ones_gather_what_lands_on_a_result(shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [np.ones(s, F32) for s in shapes]
    strides = [1] * (len(shapes[0]) - 2)
    model = node_model("ConvTranspose", arrays, opset=22, constant=(1,), strides=strides)
    graph = AtcBackendRep(model, TARGET.name).lower({"x0": arrays[0]})
    (node,) = run_passes(graph, width=1, device=True).nodes
    assert node.op.kind == "ConvTranspose"


def test_what_is_rounded_is_moved_and_multiplied_in_16_bits() -> None:
    rng = np.random.default_rng(1)
    weights = {"w": (16, 8, 4, 4), "b": (8,), "v": (8, 8, 3, 3)}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["t"], **UPSAMPLING),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    model = make_model(
        nodes, [("x", TensorProto.FLOAT16, (1, 16, 5, 6))],
        [("y", TensorProto.FLOAT16, (1, 8, 10, 12))],
        {n: rng.normal(size=s).astype(F16) for n, s in weights.items()},
    )  # fmt: skip
    graph = AtcBackendRep(model, TARGET.name).lower({"x": np.zeros((1, 16, 5, 6), F16)})
    done = run_passes(graph, width=1, device=True)
    kinds = [n.op.kind for n in done.nodes]
    assert kinds == ["Conv", "Map", "Conv"]
    for node in done.nodes:
        assert {done.types[n].dtype.label for n in (node.inputs[0], *node.outputs)} == {"f16"}
