"""One-node models whose expected results onnxruntime computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import pytest

from atc.ir.graph import DType
from support import Batch, node_model, pinned

WEIGHTS = {
    "DynamicQuantizeMatMul": (1, 3), "MatMulIntegerToFloat": (1, 5), "QGemm": (3, 5),
    "QLinearConv": (3, 5), "QLinearMatMul": (3, 5),
}  # fmt: skip
"""Positions of an operator's quantized weights and of their zero points."""


@dataclass(frozen=True)
class Case:
    """A node, its inputs (None: absent), which of them are constant, and its attributes.

    `outputs` are the results' dtypes, None for one that isn't asked for.
    """

    op: str
    inputs: list[Any]
    constant: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    domain: str = ""
    outputs: tuple[Any, ...] = (np.float32,)
    domain_version: int = 1

    @property
    def model(self) -> onnx.ModelProto:
        """The model, as new as onnxruntime reads."""
        fixed = [i for i in self.constant if self.inputs[i] is not None]
        model = node_model(
            self.op, self.inputs, len(self.outputs), constant=fixed, opset=self.opset,
            domain=self.domain,
        )  # fmt: skip
        made = [onnx.helper.make_attribute(k, v) for k, v in self.attributes.items()]
        model.graph.node[0].attribute.extend(made)
        model.ir_version = 10
        for each in model.opset_import:
            each.version = each.version if each.domain == "" else self.domain_version
        wanted = []
        for k, (result, dtype) in enumerate(zip(model.graph.output, self.outputs, strict=True)):
            if dtype is None:
                model.graph.node[0].output[k] = ""
                continue
            result.type.tensor_type.elem_type = DType.from_numpy(np.dtype(dtype)).code
            wanted.append(onnx.ValueInfoProto.FromString(result.SerializeToString()))
        del model.graph.output[:]
        model.graph.output.extend(wanted)
        return model

    @property
    def feeds(self) -> list[Any]:
        """The arrays of the inputs that aren't constant."""
        kept = enumerate(self.inputs)
        return [np.asarray(a) for i, a in kept if a is not None and i not in self.constant]

    def exact(self) -> Case:
        """Return the same case, of whose products onnxruntime gives exact sums on every CPU.

        Where x86-64 has no VNNI it adds pairs of products of uint8 and int8 in 16 bits, which
        saturate. So int8 weights are uint8 instead, with zero points that are as much larger.
        """
        if self.op not in WEIGHTS or np.asarray(self.inputs[0]).dtype == np.int8:
            return self
        weights, zero = WEIGHTS[self.op]
        inputs = [*self.inputs, *[None] * (zero + 1 - len(self.inputs))]
        if inputs[weights].dtype != np.int8:
            return self
        for k in (weights, zero):
            values = np.int8(0) if inputs[k] is None else inputs[k]
            inputs[k] = (np.asarray(values, np.int16) + 128).astype(np.uint8)
        return replace(self, inputs=inputs)

    def onnxruntime(self) -> list[Any]:
        """Return what onnxruntime makes of it, without its optimizer, by exact sums."""
        onnxruntime = pytest.importorskip("onnxruntime")
        case = self.exact()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [i.name for i in session.get_inputs()]
        results: list[Any] = session.run(None, dict(zip(names, case.feeds, strict=True)))
        return results


def compiled(cases: Mapping[str, Case], target: str = "c99", chunk: int = 48) -> Batch:
    """Return the cases' models, compiled many at a time."""
    return Batch(_Models(cases), target=target, chunk=chunk)


@dataclass(frozen=True)
class _Models(Mapping[str, onnx.ModelProto]):
    """The cases' models, each made when it is asked for: collecting tests makes none."""

    cases: Mapping[str, Case]

    def __getitem__(self, name: str) -> onnx.ModelProto:
        case = self.cases[name]
        return pinned(case.model, case.feeds)

    def __iter__(self) -> Iterator[str]:
        return iter(self.cases)

    def __len__(self) -> int:
        return len(self.cases)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normally distributed floats."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Return integers of the type's whole range."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def scales(*shape: int, seed: int = 0) -> np.ndarray:
    """Return quantization scales."""
    return np.random.default_rng(seed).uniform(0.005, 0.05, shape).astype(np.float32)
