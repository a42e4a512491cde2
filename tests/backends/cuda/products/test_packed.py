"""Products with weights of few bits on tensor cores, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from cuda_cases import CASES, TARGET, lowered
from joined_sources import compile_joined
from onnxruntime import InferenceSession

from atc.backends.kernel import workload_of
from atc.backends.target import Target
from atc.ir.graph import Graph
from atc.onnx_backend import compile_networks
from atc.select.select import Limits, Measurement, Selection, consider, select

ROUNDING = {"bf16x3": 3e-5, "tf32": 1e-3, "bf16": 1e-2}


@pytest.mark.slow
def test_packed_weights_are_multiplied_on_tensor_cores() -> None:
    own = lowered(CASES["packed weights"])
    limits = Limits(precisions=frozenset({"float32", *ROUNDING}))
    asked = iter(ROUNDING)

    def choose(graph: Graph, target: Target) -> Selection:
        name = f"cuda_matmul_packed_{next(asked)}"
        (node,) = (n for n in graph.nodes if n.op.kind == "MatMulPacked")
        workload = workload_of(graph, node, graph.constants)
        times = tuple(
            Measurement(c.label, 1.0 if c.kernel.name == name else 1e9)
            for c in consider(workload, target, limits).found
        )
        found = select(graph, target, {workload: times}, limits=limits)
        assert name in {c.candidate.kernel.name for c in found.values()}
        return found

    networks = compile_networks(
        [own.graph] * len(ROUNDING), TARGET, "O0", choose=choose, compile_all=compile_joined
    )
    model = onnx.ModelProto()
    model.CopyFrom(own.model)
    model.ir_version = 10
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (right,) = session.run(None, dict(own.feeds))
    errors = []
    for network, bound in zip(networks, ROUNDING.values(), strict=True):
        (found,) = network.run(own.feeds).values()
        errors.append(np.abs(found - right).max() / np.abs(right).max())
        assert errors[-1] <= bound
    assert errors == sorted(errors)  # what is multiplied is rounded as it says
