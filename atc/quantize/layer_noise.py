"""Quantization noise layer by layer: values of a float model beside those of its QDQ form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from atc.ir.graph import Array
from atc.quantize.calibration import Feeds

MOST = 64
"""Inputs that layers are compared on."""

_QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Layer:
    """The difference of a node's result in the quantised model from that in the float one.

    `noise` is the energy of the difference as a part of the float values' energy, summed over all
    inputs; `added` is how much of it the node's own operands don't have yet.
    """

    node: str
    op: str
    value: str
    quantised: bool
    noise: float
    added: float
    cosine: float

    @property
    def sqnr(self) -> float:
        """The signal-to-quantisation-noise ratio in dB; infinite where nothing differs."""
        return -10 * log10(self.noise) if self.noise > 0 else inf


@dataclass(frozen=True)
class _Sums:
    """Energies over all inputs so far: signal, noise, the quantised values', the product's."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0

    def and_of(self, wide: Array, narrow: Array) -> _Sums:
        a, b = (x.astype(np.float64).ravel() for x in (wide, narrow))
        return _Sums(
            self.signal + float(a @ a), self.noise + float((a - b) @ (a - b)),
            self.other + float(b @ b), self.product + float(a @ b),
        )  # fmt: skip

    @property
    def ratio(self) -> float:
        if self.noise == 0:
            return 0.0
        return self.noise / self.signal if self.signal else inf

    @property
    def cosine(self) -> float:
        lengths = (self.signal * self.other) ** 0.5
        return self.product / lengths if lengths else float(self.signal == self.other)


def measure_layers(wide: Path, narrow: Path, samples: Sequence[Feeds]) -> tuple[Layer, ...]:
    """Return the layers of a quantised model in its order, compared on up to MOST inputs."""
    models = [onnx.load(path) for path in (wide, narrow)]
    pairs = dict(_pairs(models[0].graph, models[1].graph))
    given = {v.name for v in models[0].graph.input}
    names = [[n for n in pairs if n not in given], list(dict.fromkeys(pairs.values()))]
    sums = {name: _Sums() for name in pairs}
    with_outputs = [_session(model, own) for model, own in zip(models, names, strict=True)]
    for feeds in samples[:MOST]:
        a, b = (
            dict(zip(own, session.run(own, dict(feeds)), strict=True))
            for own, session in zip(names, with_outputs, strict=True)
        )
        a, b = {**feeds, **a}, {**feeds, **b}
        for name, other in pairs.items():
            if a[name].shape == b[other].shape and a[name].dtype.kind == "f":
                sums[name] = sums[name].and_of(a[name], b[other])
    return tuple(_layers(models[1].graph, pairs, sums))


def _pairs(wide: onnx.GraphProto, narrow: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield float values by name, with the name of what stands for them once quantised."""
    restored = _restored(narrow)
    made = {o for node in narrow.node for o in node.output}
    constants = {t.name for t in narrow.initializer}
    for name in (*(v.name for v in wide.input), *(o for n in wide.node for o in n.output if o)):
        if name in restored:
            yield name, restored[name]
        elif name in made and name not in constants:
            yield name, name


def _restored(graph: onnx.GraphProto) -> dict[str, str]:
    """Return what DequantizeLinear makes of a quantised value, by the value's name."""
    whole = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    return {
        whole[n.input[0]]: n.output[0]
        for n in graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in whole
    }


def _session(model: onnx.ModelProto, values: Sequence[str]) -> Any:
    """Return a session of onnxruntime whose outputs are these values."""
    import onnxruntime

    known = {v.name for v in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in values if v not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Its optimisations would fuse what is to be looked at.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _layers(
    graph: onnx.GraphProto, pairs: Mapping[str, str], sums: Mapping[str, _Sums]
) -> Iterator[Layer]:
    restored = _restored(graph)
    sources = {v: k for k, v in pairs.items()}
    dequantised = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    wide = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type in _QDQ or not node.output:
            continue
        value = sources.get(restored.get(node.output[0], node.output[0]), "")
        if value not in sums or not (sums[value].signal or sums[value].noise):
            continue
        before = max((sums[sources[i]].ratio for i in node.input if i in sources), default=0.0)
        noise = sums[value].ratio
        quantised = node.input[0] in dequantised and wide.isdisjoint(node.input)
        yield Layer(
            node.name, node.op_type, value, quantised, noise, max(0.0, noise - before),
            sums[value].cosine,
        )  # fmt: skip
