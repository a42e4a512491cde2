"""Models inside of a trace: their nodes are recorded, their weights become parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
from onnx import helper, numpy_helper
from onnx.version_converter import ConvertError, convert_version

from atc.convert import load_model
from atc.errors import ModelError, UnsupportedError, one_line
from atc.importers.domains import PARAMETERS, STOPS_GRADIENT
from atc.options.options import Options
from atc.tracing.parameter import Parameter
from atc.tracing.recording import OPSET, OWN, RANDOM, Array
from atc.tracing.tape import current_tape
from atc.tracing.tensor import Tensor, astype, node, nodes

_FAULTS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ConvertError)
_SETTINGS: Mapping[str, frozenset[int]] = {
    "BatchNormalization": frozenset({3, 4}), "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}), "Clip": frozenset({1, 2}), "Pad": frozenset({2}),
    "Dropout": frozenset({1}), "OneHot": frozenset({2}), "Range": frozenset({0, 1, 2}),
}  # fmt: skip
"""Operands that are settings or statistics of a layer, not weights."""
_DRAWN = frozenset({"RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike",
                    "Bernoulli"})  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model to train: in the opset of traces, with inputs of fixed shapes.

    `weights` are its initializers, `inputs` the inputs that aren't any of these, `trainable` the
    names of the weights that can have a gradient, `halves` of those that are too short to be
    updated by small steps, `parameters` of those that the model says are no settings.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, Array]
    inputs: tuple[onnx.ValueInfoProto, ...]
    trainable: tuple[str, ...]
    halves: tuple[str, ...]
    parameters: tuple[str, ...]


def read_for_training(options: Options) -> Model:
    """Read a model of any format.

    Raises ModelError, and UnsupportedError for operators that aren't ONNX's.
    """
    where = str(options.model)
    shapes = {n: s for n, s in options.input_shape.items()}
    read = load_model(options.model, options.framework, shapes, options.weight)
    try:
        model = onnx_ir.to_proto(onnx_ir.external_data.load_to_model(read))
        stops = _without_stops(model)
        for value in model.graph.input:  # the reader has resolved them: no names are left
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
        if read.opset_imports.get("", OPSET) != OPSET:
            model = convert_version(model, OPSET)
        del model.graph.value_info[:]  # of shapes that may be open
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (OSError, ValueError, RuntimeError, *_FAULTS) as error:
        raise ModelError(one_line(f"can't be read: {error}", 300), where=where) from None
    for each in model.graph.node:
        if stops.intersection(each.output):
            each.op_type, each.domain = "StopGradient", OWN
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    inputs = tuple(v for v in model.graph.input if v.name not in weights)
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if not all(d.HasField("dim_value") for d in dims):
            raise ModelError(f"the shape of input '{value.name}' is open", where=where,
                             hint="give it in input_shape")  # fmt: skip
    foreign = sorted({n.domain for n in model.graph.node} - {"", "ai.onnx", OWN})
    if foreign:
        raise UnsupportedError(f"operators of {', '.join(foreign)} aren't trained", where=where)
    floats = _floats(model, weights)
    halves = tuple(n for n in floats if weights[n].dtype.itemsize == 2)
    parameters = tuple(read.metadata_props.get(PARAMETERS, "").splitlines())
    trainable = tuple(n for n in floats if n not in halves)
    return Model(model, weights, inputs, trainable, halves, parameters)


def _without_stops(model: onnx.ModelProto) -> set[str]:
    """Make nodes through which no gradient goes ones that type inference knows.

    Returns their results.
    """
    found = set()
    others = [i for i in model.opset_import if i.domain != OWN]
    del model.opset_import[:]
    model.opset_import.extend(others)
    for each in model.graph.node:
        marked = any((p.key, p.value) == STOPS_GRADIENT for p in each.metadata_props)
        if marked or (each.domain, each.op_type) == (OWN, "StopGradient"):
            each.op_type, each.domain = "Identity", ""
            found.add(each.output[0])
    return found


def _floats(model: onnx.ModelProto, weights: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the names of the weights that gradients go to."""
    kinds = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    settings = {
        name for n in model.graph.node for k, name in enumerate(n.input)
        if k in _SETTINGS.get(n.op_type, ())
    }  # fmt: skip
    return tuple(
        n for n, a in weights.items()
        if a.dtype in kinds and a.size and n not in settings
    )  # fmt: skip


def applied(
    model: Model, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor], seed: Tensor
) -> list[Tensor]:
    """Record a model's nodes on tensors for its inputs and parameters; returns the outputs.

    All other weights are constants, but for the running statistics of a BatchNormalization in
    training, which become parameters of their own. Random numbers follow the seed.
    """
    tape = current_tape()
    recording = tape.recording
    graph = model.proto.graph
    statistics = {n: Parameter(model.weights[n], name=n) for n in _running(model)}
    fixed = {n: constant(a) for n, a in model.weights.items()} | statistics | {**parameters}
    names = {v.name: tape.value(t) for v, t in zip(model.inputs, inputs, strict=True)}
    names |= {name: tape.value(tensor) for name, tensor in fixed.items()}

    def renamed(name: str) -> str:
        return names.setdefault(name, recording.fresh("m")) if name else ""

    types = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    known = {**model.weights, **_constants(graph)}
    for each in graph.node:
        if each.op_type == "Dropout" and _is_on(known, each, 2):
            found = _dropped(each, [_tensor(names[i]) if i else None for i in each.input], seed)
            names |= {o: tape.value(t) for o, t in zip(each.output, found, strict=False) if o}
            continue
        made = _renamed(each, renamed)
        if made.op_type in _DRAWN:
            _draw_by(made, tape.value(seed))
        made.name = each.name or next(filter(None, each.output), "")  # for errors behind
        for old, new in zip(each.output, made.output, strict=True):
            if old and old not in types:
                raise UnsupportedError(f"the type of '{one_line(old, 60)}' isn't known",
                                       where=one_line(each.name or each.op_type, 60))  # fmt: skip
            if old:
                recording.types[new] = types[old]
        recording.nodes.append(made)
        for old, new in zip(each.input[3:], made.output[1:], strict=False):
            if each.op_type == "BatchNormalization" and old in statistics and new:
                statistics[old].assign(_tensor(new))
    return [_tensor(names[o.name]) for o in graph.output]


def constant(array: Array) -> Tensor:
    """Return a tensor that traces record as a constant."""
    made = Tensor(array)
    made.constant = True
    return made


def _tensor(value: str) -> Tensor:
    return Tensor.recorded(current_tape(), value)


def _running(model: Model) -> list[str]:
    """Return the weights that are running statistics of layers in training mode."""
    return [
        name for n in model.proto.graph.node
        if n.op_type == "BatchNormalization"
        and any(a.name == "training_mode" and a.i for a in n.attribute)
        for name, new in zip(n.input[3:], n.output[1:], strict=False)
        if name in model.weights and new
    ]  # fmt: skip


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the values of a graph's Constant nodes."""
    return {
        n.output[0]: numpy_helper.to_array(a.t)
        for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    }  # fmt: skip


def _is_on(known: Mapping[str, Array], node_: onnx.NodeProto, k: int) -> bool:
    """Return whether a boolean operand of a node is a constant true."""
    name = node_.input[k] if len(node_.input) > k else ""
    return name in known and bool(known[name].all())


def _seed_of(node_: onnx.NodeProto) -> float:
    """Return a node's own offset of the seed of its random numbers."""
    given = next((a.f or a.i for a in node_.attribute if a.name == "seed"), None)
    own = crc32("/".join([node_.name, *node_.output]).encode()) % 2**24  # exact in a float
    return float(own if given is None else given)


def _dropped(
    node_: onnx.NodeProto, operands: Sequence[Tensor | None], seed: Tensor
) -> tuple[Tensor, Tensor]:
    """Record a Dropout in training mode, and return its results."""
    x, *more = operands
    assert x is not None
    ratio = more[0] if more and more[0] is not None else constant(np.array(0.5, np.float32))
    share = astype(ratio, x.dtype)
    drawn = nodes("RandomUniform", [seed], {"shape": [*x.shape], "seed": _seed_of(node_)}, 1,
                  domain=RANDOM)[0]  # fmt: skip
    mask = node("GreaterOrEqual", drawn, astype(ratio, np.float32))
    return node("Where", mask, x / (1.0 - share), x * 0.0), mask


def _draw_by(made: onnx.NodeProto, seed: str) -> None:
    """Derive a node's random numbers from a seed, its last operand."""
    own = _seed_of(made)
    kept = [a for a in made.attribute if a.name != "seed"]
    del made.attribute[:]
    made.attribute.extend([*kept, helper.make_attribute("seed", own)])
    made.input.append(seed)
    made.domain = RANDOM


def _renamed(node_: onnx.NodeProto, renamed: Callable[[str], str]) -> onnx.NodeProto:
    """Return a node with its values, and those of graphs inside of it, renamed."""
    made = onnx.NodeProto()
    made.CopyFrom(node_)
    made.input[:] = [renamed(n) for n in node_.input]
    made.output[:] = [renamed(n) for n in node_.output]
    graphs = [g for a in made.attribute for g in ([a.g] if a.HasField("g") else [*a.graphs])]
    for graph in graphs:
        for info in (*graph.input, *graph.output, *graph.value_info):
            info.name = renamed(info.name)
        for tensor in graph.initializer:
            tensor.name = renamed(tensor.name)
        inner = [_renamed(n, renamed) for n in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return made
