"""Error prediction for products in bf16x3, in float64; float32 is taken where it is too large.

How far a network carries an error of its layers is its own: trained ones err by 1e-6 to 5e-5 of
their output's scale, ones of random weights by ten times as much. So the model is evaluated in
float64, once as it is and once with the operands of those products rounded to the bits that two
bfloat16 hold. What the first layers err goes through all others: they are the first to lose it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import onnx_ir

from atc import __version__
from atc.accuracy.float64 import INTEGER_OPS, run_in_double
from atc.accuracy.inputs import model_types, random_inputs
from atc.backends.kernel import workload_of
from atc.backends.target import Target
from atc.build.compilers import check_compilers
from atc.cache import ERRORS, ContentStore
from atc.diagnostics import Diagnostics, remembering
from atc.dims import lower_bound, max_value
from atc.errors import UnsupportedError
from atc.ir.graph import Array, Graph, Node, TensorType
from atc.lower.context import node_name
from atc.pipeline.caches import file_store
from atc.pipeline.contract import DEFAULT_BOUND
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.pipeline import Compilation, Compile, check
from atc.pipeline.precision import HEAVY
from atc.pipeline.request import Request
from atc.select.select import Limits, candidates

SPLIT = "bf16x3"
ALLOWED = 0.5 * DEFAULT_BOUND
"""What is left to split products of the bound: sums in float32 and other kernels err, too."""
SHARES = (0.0, 1 / 8, 1 / 4, 1 / 2)
"""Parts of the products, the first of the network, that are tried in float32."""
HALVINGS = 2
"""How often what lies between the part that is enough and the one before it is halved."""
SEED = 0
MIDDLE = 64
"""What an extent of a range is taken for, where the range has it."""


_Types = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""Shapes and types of inputs."""
_Predicted = tuple[tuple[str, ...], float]
"""The nodes to compute in float32, and the error that is left."""


@dataclass(frozen=True)
class _Products:
    """The nodes of the model that have products in bf16x3, in order, and those to keep anyway."""

    nodes: tuple[str, ...]
    unknown: frozenset[str]
    """Nodes of such products that a reference in float64 can't distinguish."""


def bf16x3_decided(inner: Compile) -> Compile:
    """Wrap a compilation: on targets with AMX it gets the products that may be in bf16x3."""

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        if "amx_bf16" in request.target.features and request.decisions.float32_nodes is None:
            diagnostics = remembering(diagnostics, [])  # `inner` checks and reads once more
            check(request, diagnostics, diagnostics)  # before anything long begins
            check_compilers(request.options, request.environ)
            store = file_store(request, ERRORS)
            request = with_bf16x3_decided(request, diagnostics, store)
        return inner(request, diagnostics)

    return compile


def with_bf16x3_decided(
    request: Request, diagnostics: Diagnostics, store: ContentStore | None = None
) -> Request:
    """Return a request that decides which nodes' products are in float32 (`float32_nodes`).

    Predictions are kept in `store`, by the whole model.
    """
    shown = request.smallest.with_options(dump=None).decide(float32_nodes=frozenset())
    quiet = replace(diagnostics, warn=lambda text: None)
    model = read_model(shown, quiet)
    limits = shown.limits(model)
    if SPLIT not in limits.precisions or request.policy.epsilon:
        return request.decide(float32_nodes=frozenset())
    graph = optimise(model, shown, quiet).graph
    products = _products(graph, model, request.target, limits)
    if not products.nodes:
        return request.decide(float32_nodes=products.unknown)
    if any(n.op_type in INTEGER_OPS for n in model.graph):  # a last bit decides what they give
        return request.decide(float32_nodes=products.unknown)
    feeds = {name: _sized(type_) for name, type_ in model_types(graph, model).items()}
    key = _digest(model, feeds, products) if store else b""
    found = _kept(store, key)
    if found is None:
        diagnostics.stage(f"foreseeing the error of {len(products.nodes)} products in {SPLIT}")
        try:
            found = _least_plain(model, feeds, products)
        except UnsupportedError as no:
            diagnostics.warn(
                f"{no}, so that the error of {SPLIT} is unknown: products are in float32"
            )
            return request.decide(float32_nodes=products.unknown | {*products.nodes})
        _keep(store, key, found)
    plain, error = found
    return request.decide(float32_nodes=products.unknown | {*plain}, predicted_error=error)


def _kept(store: ContentStore | None, key: bytes) -> _Predicted | None:
    """Return what was predicted before."""
    data = store.get(key.hex(), key) if store else None
    if data is None:
        return None
    found = json.loads(data)  # our own: `get` has proved it
    return tuple(found["plain"]), float(found["error"])


def _keep(store: ContentStore | None, key: bytes, found: _Predicted) -> None:
    if store:
        store.put(key.hex(), key, json.dumps({"plain": found[0], "error": found[1]}).encode())


def _digest(model: onnx_ir.Model, feeds: _Types, products: _Products) -> bytes:
    """Return the SHA-256 of all that decides the prediction."""
    outputs = [v.name for v in model.graph.outputs]
    asked = (__version__, ALLOWED, outputs, products.nodes, feeds)
    digest = hashlib.sha256(repr(asked).encode())
    for graph in (model.graph, *model.functions.values()):
        for node in graph:
            digest.update(onnx_ir.to_proto(node).SerializeToString(deterministic=True))
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        digest.update(repr((name, tensor and (tensor.dtype, tensor.shape))).encode())
        if tensor is not None:
            text = tensor.dtype is onnx_ir.DataType.STRING
            digest.update(repr(tensor.numpy().tolist()).encode() if text else tensor.tobytes())
    return digest.digest()


def _products(graph: Graph, model: onnx_ir.Model, target: Target, limits: Limits) -> _Products:
    """Return what may have products in bf16x3."""
    graphs = (model.graph, *model.graph.subgraphs())
    heavy = {node_name(n) for g in graphs for n in g if n.op_type in HEAVY}
    nodes: dict[str, None] = {}
    unknown: set[str] = set()
    for around, node, constants in _nodes(graph, {}):
        able = candidates(workload_of(around, node, constants), target, limits.of(node))
        if not any(c.kernel.precision == SPLIT for c in able):
            continue
        own = [name for name in node.origin if name in heavy]
        if own and (limits.bf16_nodes or frozenset()).issuperset(own):
            continue  # less precise kernels may be taken, and operands may be bfloat16 anyway
        nodes.update(dict.fromkeys(own))
        unknown.update(() if own else node.origin)
    return _Products(tuple(nodes), frozenset(unknown))


def _nodes(
    graph: Graph, outer: Mapping[str, Array]
) -> Iterator[tuple[Graph, Node, Mapping[str, Array]]]:
    """Yield the nodes of a graph and its subgraphs, with theirs and the constants that they see."""
    constants = {**outer, **graph.constants}
    for node in graph.nodes:
        yield graph, node, constants
        for inner in node.op.subgraphs():
            yield from _nodes(inner, constants)


def _least_plain(model: onnx_ir.Model, types: _Types, products: _Products) -> _Predicted:
    """Return the nodes to compute in float32, as few as will do, and the error that is left."""
    outputs = [str(v.name) for v in model.graph.outputs]
    feeds = random_inputs(types, SEED)
    _, wanted = run_in_double(model, outputs, feeds)
    count = len(products.nodes)

    def error_without(kept: int) -> float:
        split = frozenset(products.nodes[kept:])
        _, got = run_in_double(model, outputs, feeds, split)
        pairs = zip(got, wanted, strict=True)
        return max((relative_error(a, b) for a, b in pairs), default=0.0)

    few = 0  # too few, where a share was tried
    for kept in (ceil(count * share) for share in SHARES):
        error = error_without(kept)
        if error <= ALLOWED:
            break
        few = kept
    else:
        return products.nodes, 0.0
    for _ in range(HALVINGS):
        middle = (few + kept) // 2
        if middle in (few, kept):
            break
        tried = error_without(middle)
        if tried <= ALLOWED:
            kept, error = middle, tried
        else:
            few = middle
    return products.nodes[:kept], error


def _sized(type_: TensorType) -> tuple[tuple[int, ...], np.dtype]:
    shape = tuple(min(max_value(n), max(lower_bound(n), MIDDLE)) for n in type_.shape)
    return shape, np.dtype(type_.dtype.numpy)


def relative_error(got: object, wanted: object) -> float:
    """Return the largest difference of floats as a part of what is wanted; NaN counts as equal."""
    if isinstance(wanted, list) and isinstance(got, list):
        return max((relative_error(a, b) for a, b in zip(got, wanted, strict=False)), default=0.0)
    a, b = np.asarray(got), np.asarray(wanted)
    if b.dtype.kind != "f" or a.shape != b.shape or not b.size:
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    scale = float(np.abs(b).max(initial=0.0))
    return float(np.abs(a - b).max(initial=0.0)) / (scale or 1.0)
