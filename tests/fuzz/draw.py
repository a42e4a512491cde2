"""Random choices of one model: values, shapes, and the nodes that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np
import onnx
from fuzz.exact_sums import in_unsigned, restored
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
T = TypeVar("T")

DTYPES: Mapping[str, Any] = {
    "f": np.float32, "d": np.float64, "h": np.float16, "i": np.int32, "l": np.int64,
    "b": np.int8, "B": np.uint8, "s": np.int16, "S": np.uint16, "I": np.uint32, "L": np.uint64,
    "?": np.bool_,
}  # fmt: skip
"""Element types by the letters that `Draw.tensor` takes."""

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8, 9, 13, 16, 17, 33)
MOST = 3000
"""Elements of a drawn tensor."""


class Unsuitable(Exception):
    """These choices make no valid node; others may."""


UNSUITABLE = (Unsuitable, ValueError, IndexError, ZeroDivisionError)
"""What a template raises where a dim of zero or the like leaves it no choice."""


@dataclass(frozen=True)
class Value:
    """A named value of the model with its array, and whether it is an initializer."""

    name: str
    array: Array
    constant: bool = False


@dataclass(frozen=True)
class Made:
    """A drawn node: operator, inputs (None: absent), number of outputs, attributes."""

    op: str
    inputs: Sequence[Value | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""


@dataclass
class Draw:
    """A model being drawn. `pool` are the values that a node may read beside new ones."""

    rng: np.random.Generator
    opset: int = 21
    reuse: float = 0.0
    """How often a node reads a value of the pool rather than a new one."""
    pool: list[Value] = field(default_factory=list)
    given: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)

    # ---- choices --------------------------------------------------------------------------------

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float = 0.5) -> bool:
        """Return True as often as `p` says."""
        return bool(self.rng.random() < p)

    def int(self, low: int, high: int) -> int:
        """Return a whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        """Return whole numbers, both ends included."""
        return [self.int(low, high) for _ in range(count)]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Return a part of the attributes; the others keep their defaults."""
        return {k: v for k, v in attributes.items() if self.chance()}

    def shape(self, low: int = 0, high: int = 4, zero: bool = True) -> tuple[int, ...]:
        """Return a shape of that rank, now and then with a dim of zero."""
        rank = self.int(low, high)
        dims = [self.pick(SIZES) for _ in range(rank)]
        while prod(dims) > MOST:
            k = int(np.argmax(dims))
            dims[k] = max(1, dims[k] // 2)
        if zero and dims and not self.reuse and self.chance(0.03):
            dims[self.int(0, rank - 1)] = 0
        return tuple(dims)

    # ---- values ---------------------------------------------------------------------------------

    def array(self, shape: Sequence[int], kind: str = "f") -> Array:
        """Return random numbers: normal floats, small integers and now and then large ones."""
        dtype = np.dtype(DTYPES[kind])
        if dtype.kind == "f":
            return np.asarray(self.rng.standard_normal(tuple(shape))).astype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.integers(0, 2, tuple(shape))).astype(bool)
        low, high = (0 if dtype.kind == "u" else -9), 9
        if not self.reuse and self.chance(0.2):
            info = np.iinfo(dtype)
            low, high = max(info.min, -(2**62)), min(info.max, 2**62)
        return np.asarray(self.rng.integers(low, high, tuple(shape), endpoint=True)).astype(dtype)

    def new(self, array: Array, constant: bool | None = None) -> Value:
        """Add an input, or an initializer where `constant` says so (by default by chance)."""
        fixed = self.chance(0.3) if constant is None else constant
        value = Value(f"{'c' if fixed else 'x'}{len(self.given)}", np.asarray(array), fixed)
        self.given.append(value)
        return value

    def const(self, array: Any, kind: str = "l") -> Value:
        """Add an initializer, by default of int64."""
        return self.new(np.asarray(array, DTYPES[kind]), True)

    def tensor(
        self, kinds: str = "f", low: int = 0, high: int = 4,
        fits: Callable[[Array], bool] = lambda a: True, zero: bool = True,
    ) -> Value:  # fmt: skip
        """Return a value of one of the types and of a rank, of the pool or new."""
        if self.chance(self.reuse):
            wanted = {np.dtype(DTYPES[k]) for k in kinds}
            known = [
                v for v in self.pool
                if v.array.dtype in wanted and low <= v.array.ndim <= high and fits(v.array)
            ]  # fmt: skip
            if known:
                late = known[-4:] if self.chance(0.7) else known
                return self.pick(late)
        kind = self.pick(kinds)
        for _ in range(20):
            array = self.array(self.shape(low, high, zero), kind)
            if fits(array):
                return self.new(array, False if self.reuse else None)
        raise Unsuitable

    def like(self, shape: Sequence[int], kind: str = "f", constant: bool | None = None) -> Value:
        """Return a value of exactly this shape and type."""
        shape = tuple(shape)
        if prod(shape) > 1 << 16:
            raise Unsuitable
        if constant is None and self.chance(self.reuse):
            known = [
                v for v in self.pool
                if v.array.shape == shape and v.array.dtype == np.dtype(DTYPES[kind])
            ]  # fmt: skip
            if known:
                return self.pick(known)
        return self.new(self.array(shape, kind), constant)

    def partner(self, shape: Sequence[int], kind: str = "f") -> Value:
        """Return a value that broadcasts with this shape."""
        dims = [1 if self.chance(0.25) else n for n in shape]
        drop = self.int(0, len(dims)) if self.chance(0.4) else 0
        if self.chance(0.1):
            dims = [self.pick((2, 3)) if n == 1 else n for n in dims]
        return self.like(dims[drop:], kind)

    def axis(self, rank: int) -> int:
        """Return an axis, often a negative one."""
        if rank == 0:
            raise Unsuitable
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Return distinct axes in any order, some of them negative."""
        count = self.int(min(least, rank), rank)
        found = self.rng.permutation(rank)[:count]
        return [int(a) - (rank if self.chance(0.3) else 0) for a in found]

    # ---- the model ------------------------------------------------------------------------------

    def add(self, made: Made) -> list[Value]:
        """Add a node; returns its results, as the standard's reference computes them."""
        node = self._node(made)
        values = {v.name: v.array for v in made.inputs if v is not None}
        arrays = evaluate(node, values, self.opset)
        if any(a.size > 1 << 16 for a in arrays):
            raise Unsuitable
        self.nodes.append(node)
        self.domains.add(made.domain)
        return [Value(n, a) for n, a in zip(node.output, arrays, strict=True)]

    def put(self, made: Made) -> list[str]:
        """Add a node that isn't computed; returns its results' names."""
        self.nodes.append(self._node(made))
        self.domains.add(made.domain)
        return list(self.nodes[-1].output)

    def _node(self, made: Made) -> onnx.NodeProto:
        index, inputs = len(self.nodes), list(made.inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        return helper.make_node(
            made.op, ["" if v is None else v.name for v in inputs],
            [f"t{index}_{k}" for k in range(made.outputs)], f"n{index}", domain=made.domain,
            **made.attributes,
        )  # fmt: skip

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model with these outputs; only the values that nodes read are in it."""
        read = {name for node in self.nodes for name in node.input}
        used = [v for v in self.given if v.name in read]
        return make_model(self.nodes, used, outputs, self.opset, self.domains)


def evaluate(node: onnx.NodeProto, values: Mapping[str, Array], opset: int) -> list[Array]:
    """Return a node's results by the standard's reference; Unsuitable where it has none."""
    if node.domain:
        return _by_onnxruntime(node, values, opset)
    try:
        onnx.defs.get_schema(node.op_type, opset)  # the reference takes any operator in any opset
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(values))
    except Exception as error:  # the reference raises whatever numpy does
        raise Unsuitable(str(error)) from None
    arrays = [np.asarray(r) for r in results]
    if any(a.dtype == object or a.dtype.kind in "USc" for a in arrays):
        raise Unsuitable("results that aren't numbers")
    if node.op_type.startswith("Reduce") and arrays[0].dtype != values[node.input[0]].dtype:
        raise Unsuitable("a sum that the reference has in a wider type")
    return arrays


def _by_onnxruntime(node: onnx.NodeProto, values: Mapping[str, Array], opset: int) -> list[Array]:
    import onnxruntime

    given = [Value(name, array) for name, array in values.items()]
    model = make_model([node], given, list(node.output), opset, {node.domain})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model, larger = in_unsigned(model, values)
    for code in (1, 2, 3, 7, 12):  # float, uint8, int8, int64, uint32
        model.graph.output[0].type.tensor_type.elem_type = code
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            results = restored(list(node.output), session.run(None, dict(values)), larger)
            return _corrected(node, values, results)
        except Exception as error:  # its errors are of many kinds; here often a wrong type
            reason = str(error)
    raise Unsuitable(reason)


def _corrected(
    node: onnx.NodeProto, values: Mapping[str, Array], results: list[Array]
) -> list[Array]:
    """Return results by the standard's rule where onnxruntime is known to break it.

    QLinearSoftmax of one element: its share is 1, and 1 / scale + zero point saturates. Where that
    rounds to 256, onnxruntime 1.31 wraps it to 0.
    """
    if node.op_type != "QLinearSoftmax":
        return results
    x, _, _, scale, zero = (values[name] for name in node.input)
    axis = next(a.i for a in node.attribute if a.name == "axis")
    if x.shape[axis] != 1:
        return results
    limits = np.iinfo(zero.dtype)
    whole = np.clip(np.round(1 / scale) + zero, limits.min, limits.max)
    return [np.full_like(results[0], whole)]


def make_model(
    nodes: Sequence[onnx.NodeProto], given: Sequence[Value], outputs: Sequence[str], opset: int,
    domains: set[str],
) -> onnx.ModelProto:  # fmt: skip
    """Return a model; the values that are constant are its initializers."""
    inputs = [
        helper.make_tensor_value_info(
            v.name, helper.np_dtype_to_tensor_dtype(v.array.dtype), v.array.shape
        )
        for v in given
        if not v.constant
    ]
    constants = [numpy_helper.from_array(v.array, v.name) for v in given if v.constant]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "fuzz", inputs, results, constants)
    imports = [helper.make_opsetid(d, 1) for d in sorted(domains) if d]
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), *imports], ir_version=10
    )
