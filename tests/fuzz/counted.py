"""Draws graphs whose extents the data say: vectors that are cut, joined, counted and filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fuzz.draw import UNSUITABLE, Draw, Made, Unsuitable, Value
from onnx import TensorProto, numpy_helper

LONGEST = 400
"""Elements of a vector."""
END = 1 << 60


def draw_counted(seed: int) -> Draw:
    """Return a graph of vectors; `pool` are all of them."""
    rng = np.random.default_rng(seed)
    d = Draw(rng, opset=int(rng.choice([17, 18, 20, 21])))
    d.pool += [d.new(d.array((d.int(2, 9),)), False) for _ in range(d.int(1, 3))]
    todo = d.int(4, 14)
    for _ in range(80):
        before = len(d.nodes)
        try:
            d.pool += _small(d.pick(STEPS)(d))
        except UNSUITABLE:
            del d.nodes[before:]
        if len(d.nodes) >= todo:
            break
    return d


def _small(values: Sequence[Value]) -> Sequence[Value]:
    """Return the values; Unsuitable where vectors or numbers grow."""
    for array in (value.array for value in values):
        if array.size > LONGEST or not (np.abs(array) < 1e4).all():
            raise Unsuitable("large")
    return values


def _one(d: Draw, op: str, *inputs: Value | None, **attributes: object) -> Value:
    return d.add(Made(op, inputs, attributes))[0]


def _vector(d: Draw) -> Value:
    return d.pick(d.pool[-4:] if d.chance(0.6) else d.pool)


def _mask(d: Draw, x: Value) -> Value:
    limit = d.const(np.float32(d.rng.normal() / 2), "f")
    return _one(d, d.pick(("Greater", "Less")), x, limit)


def _count(d: Draw) -> Value:
    """Return how many elements a vector has, or about so many."""
    count = _one(d, "Shape", _vector(d))
    if d.chance(0.4):
        count = _one(d, d.pick(("Add", "Sub")), count, d.const([d.int(1, 2)]))
    if d.chance(0.3):
        count = _one(d, "Div", count, d.const([2]))
    return _one(d, "Max", count, d.const([0]))


def _flat(d: Draw, x: Value) -> Value:
    return _one(d, "Reshape", x, d.const([-1]))


def _real(d: Draw, x: Value) -> Value:
    return _one(d, "Cast", x, to=TensorProto.FLOAT)


def _slice(d: Draw, x: Value, begin: Value, end: Value, step: int = 1) -> Value:
    return _one(d, "Slice", x, begin, end, d.const([0]), d.const([step]))


# ---- steps --------------------------------------------------------------------------------------


def _kept(d: Draw) -> list[Value]:
    x = _vector(d)
    return [_one(d, "Compress", x, _mask(d, x), axis=0)]


def _found(d: Draw) -> list[Value]:
    x = _vector(d)
    places = _one(d, "Transpose", _one(d, "NonZero", _mask(d, x)), perm=[1, 0])
    return [_one(d, "GatherND", x, places)]


def _distinct(d: Draw) -> list[Value]:
    x = _one(d, "Round", _vector(d))
    values, _, _, counts = d.add(Made("Unique", [x], {"sorted": d.int(0, 1)}, 4))
    return [values, _real(d, counts)]


def _mapped(d: Draw) -> list[Value]:
    return [_one(d, d.pick(("Tanh", "Neg", "Abs", "Sigmoid", "Relu")), _vector(d))]


def _joined(d: Draw) -> list[Value]:
    parts = [_vector(d) for _ in range(d.int(2, 4))]
    if d.chance(0.5):  # what was computed last comes first
        parts.sort(key=d.pool.index, reverse=True)
    return [_one(d, "Concat", *parts, axis=0)]


def _cut(d: Draw) -> list[Value]:
    x, count = _vector(d), _count(d)
    begin = d.pick((d.const([0]), d.const([d.int(-3, 3)]), count))
    end = d.pick((count, d.const([d.int(-2, 6)]), d.const([END])))
    return [_slice(d, x, begin, end, d.pick((1, 1, 1, 2)))]


def _reversed(d: Draw) -> list[Value]:
    return [_slice(d, _vector(d), d.const([-1]), d.const([-END]), -1)]


def _halves(d: Draw) -> list[Value]:
    x = _vector(d)
    whole = _one(d, "Shape", x)
    half = _one(d, "Div", whole, d.const([2]))
    return [_slice(d, x, d.const([0]), half), _slice(d, x, half, whole)]


def _filled(d: Draw) -> list[Value]:
    number = numpy_helper.from_array(np.array([d.int(-2, 2)], np.float32))
    return [_one(d, "ConstantOfShape", _count(d), value=number)]


def _counted(d: Draw) -> list[Value]:
    count = _one(d, "Squeeze", _count(d), d.const([0]))
    return [_real(d, _one(d, "Range", d.const(0), count, d.const(1)))]


def _summed(d: Draw) -> list[Value]:
    x = _vector(d)
    total = _one(d, "ReduceSum", x, keepdims=1)
    return [_one(d, "Tanh", total), _one(d, "Mul", x, _one(d, "Sigmoid", total))]


def _crossed(d: Draw) -> list[Value]:
    rows, columns = (_one(d, "Unsqueeze", _vector(d), d.const([k])) for k in (1, 0))
    table = _one(d, d.pick(("MatMul", "Add")), rows, columns)
    sums = _one(d, "ReduceSum", table, d.const([d.int(0, 1)]), keepdims=0)
    return [_flat(d, table), sums]


def _cumulated(d: Draw) -> list[Value]:
    how = {"reverse": d.int(0, 1), "exclusive": d.int(0, 1)}
    return [_one(d, "CumSum", _vector(d), d.const(0), **how)]


def _repeated(d: Draw) -> list[Value]:
    return [_one(d, "Tile", _vector(d), d.const([d.int(1, 3)]))]


def _largest(d: Draw) -> list[Value]:
    x = _vector(d)
    most = _one(d, "Min", _one(d, "Shape", x), d.const([d.int(1, 4)]))
    return [d.add(Made("TopK", [x, most], {"axis": 0}, 2))[0]]


def _padded(d: Draw) -> list[Value]:
    count = _count(d)
    ends = d.pick(((count, d.const([0])), (d.const([1]), count), (count, count)))
    return [_one(d, "Pad", _vector(d), _one(d, "Concat", *ends, axis=0))]


def _added(d: Draw) -> list[Value]:
    """Return the sum of two vectors as far as both go."""
    both = _vector(d), _vector(d)
    most = _one(d, "Min", *(_one(d, "Shape", x) for x in both))
    return [_one(d, "Add", *(_slice(d, x, d.const([0]), most) for x in both))]


def _resized(d: Draw) -> list[Value]:
    x = _one(d, "Concat", _vector(d), d.const([0.5], "f"), axis=0)  # of nothing there is no Resize
    count = _one(d, "Max", _count(d), d.const([1]))
    sizes = _one(d, "Concat", d.const([1, 1]), count, axis=0)
    x = _one(d, "Unsqueeze", x, d.const([0, 1]))
    mode = d.pick(("linear", "nearest"))
    return [_flat(d, _one(d, "Resize", x, None, None, sizes, mode=mode))]


def _scattered(d: Draw) -> list[Value]:
    x = _vector(d)
    places = _one(d, "NonZero", _mask(d, x))
    count = _slice(d, _one(d, "Shape", places), d.const([1]), d.const([2]))
    places = _one(d, "Transpose", places, perm=[1, 0])
    return [_one(d, "ScatterND", x, places, _one(d, "ConstantOfShape", count))]


def _chosen(d: Draw) -> list[Value]:
    x = _vector(d)
    return [_one(d, "Where", _mask(d, x), x, d.const([0.25], "f"))]


STEPS: Sequence[Callable[[Draw], Sequence[Value]]] = (
    _kept, _kept, _found, _distinct, _mapped, _mapped, _joined, _joined, _joined, _cut, _cut,
    _reversed, _halves, _filled, _counted, _summed, _crossed, _cumulated, _repeated, _largest,
    _padded, _added, _resized, _scattered, _chosen,
)  # fmt: skip
