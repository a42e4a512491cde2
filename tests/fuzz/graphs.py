"""Draws whole graphs: many operators, fan-out, shared inputs, and the patterns that passes seek."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fuzz import elementwise, heavy, movement
from fuzz.draw import UNSUITABLE, Draw, Made, Unsuitable, Value
from fuzz.elementwise import Template

CHAINABLE = ("Relu", "Sigmoid", "Tanh", "Add", "Mul", "Sub", "Max", "Min", "Where", "Clip", "Abs",
             "Neg", "LeakyRelu", "HardSwish", "Softmax", "ReduceSum", "ReduceMean", "ReduceMax",
             "LayerNormalization", "BatchNormalization", "Identity", "Exp", "Erf")  # fmt: skip
UNSTEADY = ("Tan", "Round", "Floor", "Ceil", "Sign", "ArgMax", "ArgMin", "TopK", "Hardmax", "Log",
            "Reciprocal", "Div", "Acosh", "Atanh", "LpNormalization", "LRN",
            "GlobalMaxPool")  # fmt: skip
"""Operators that small errors grow in, or whose reference errs; graphs do without."""

TEMPLATES: dict[str, Template] = {
    **elementwise.TEMPLATES, **movement.TEMPLATES, **heavy.TEMPLATES
}  # fmt: skip
_STEADY = {op: t for op, t in TEMPLATES.items() if op not in UNSTEADY}


def draw_graph(seed: int) -> Draw:
    """Return a graph of some nodes; `pool` are all the values that it computes."""
    return _drawn(seed, _one)


def draw_places(seed: int) -> Draw:
    """Return a graph of which most values depend on where they lie."""
    return _drawn(seed, by_place)


def _drawn(seed: int, one: Callable[[Draw], None]) -> Draw:
    rng = np.random.default_rng(seed)
    d = Draw(rng, opset=int(rng.choice([15, 17, 18, 20, 21])), reuse=0.85)
    _take(d, [d.like(d.shape(2, 4)) for _ in range(d.int(1, 3))])
    todo = d.int(2, 16)
    for _ in range(60):
        before = len(d.nodes)
        try:
            one(d)
        except UNSUITABLE:
            del d.nodes[before:]
        if len(d.nodes) >= todo:
            break
    return d


def _one(d: Draw) -> None:
    if d.chance(0.25):
        d.pick(PATTERNS)(d)
        return
    op = d.pick(CHAINABLE if d.chance(0.4) else list(_STEADY))
    _take(d, d.add(TEMPLATES[op](d)))


def _take(d: Draw, values: Sequence[Value]) -> None:
    """Add values to the pool; Unsuitable where numbers grow."""
    for value in values:
        if value.array.dtype.kind == "f" and value.array.size:
            with np.errstate(all="ignore"):
                if not np.abs(value.array).max() < 1e3:
                    raise Unsuitable("large numbers")
    d.pool.extend(v for v in values if v.array.dtype.kind in "fiub")


# ---- patterns -----------------------------------------------------------------------------------


def _apply(d: Draw, op: str, *inputs: Value | None, **attributes: object) -> Value:
    return d.add(Made(op, inputs, attributes))[0]


def _activated(d: Draw, x: Value) -> Value:
    if _kind(x) != "f":
        raise Unsuitable
    op = d.pick(("Relu", "Sigmoid", "HardSigmoid", "LeakyRelu", "Tanh", "Elu", "Softplus"))
    y = _apply(d, op, x)
    return _apply(d, "Mul", x, y) if d.chance(0.3) else y


def convolution_block(d: Draw) -> None:
    """Conv, often BatchNormalization, often a residual, an activation, often another Conv."""
    (x,) = d.add(heavy.conv(d))
    for _ in range(d.int(0, 2)):
        if d.chance():
            c = (x.array.shape[1],)
            inputs = [x, *(d.like(c, constant=True) for _ in range(3))]
            variance = d.new(np.abs(d.array(c)) + np.float32(0.5), True)
            x = d.add(Made("BatchNormalization", [*inputs, variance]))[0]
        if d.chance(0.4):
            x = _apply(d, "Add", x, d.like(x.array.shape))
        x = _activated(d, x)
        if d.chance(0.3):
            x = _apply(d, "Mul", x, d.like((1, x.array.shape[1], *[1] * (x.array.ndim - 2))))
        if d.chance(0.4) and x.array.size < 2000 and x.array.shape[1]:
            c, m = x.array.shape[1], d.pick((1, 4, 7, 16))
            kernel = [1 if n < 3 else d.pick((1, 3)) for n in x.array.shape[2:]]
            w = d.like((m, c, *kernel), constant=True)
            x = _apply(d, "Conv", x, w, d.like((m,), constant=True), kernel_shape=kernel)
    _take(d, [x])


def attention(d: Draw) -> None:
    """Scores of matrices, scaled and masked, softmax, and the weighted sum."""
    heads, rows, keys = d.pick((1, 2, 3)), d.pick((1, 4, 5, 9, 17)), d.pick((1, 8, 9, 16, 19, 33))
    depth, width = d.pick((1, 4, 8, 13)), d.pick((1, 3, 8, 16, 17))
    lead = (heads,) if d.chance() else (d.int(1, 2), heads)
    q, k, v = d.like((*lead, rows, depth)), d.like((*lead, keys, depth)), d.like(
        (*lead, keys, width)
    )  # fmt: skip
    order = [*range(len(lead)), len(lead) + 1, len(lead)]
    s = _apply(d, "MatMul", q, _apply(d, "Transpose", k, perm=order))
    if d.chance(0.8):
        s = _apply(d, d.pick(("Mul", "Div")), s, d.new(np.float32(2.5), True))
    if d.chance(0.6):
        mask = np.where(d.rng.random(d.pick(((rows, keys), (1, keys), (*lead, rows, keys)))) < 0.3,
                        np.float32(d.pick((-1e9, -np.inf, -3.0))), np.float32(0))  # fmt: skip
        mask[..., 0] = 0
        s = _apply(d, "Add", s, d.new(mask.astype(np.float32)))
    y = _apply(d, "MatMul", _apply(d, "Softmax", s, axis=-1), v)
    if d.chance() and len(lead) == 2:
        y = _apply(d, "Transpose", y, perm=[0, 2, 1, 3])
        y = _apply(d, "Reshape", y, d.const([lead[0], rows, heads * width]))
    _take(d, [y])


def layer_normalization(d: Draw) -> None:
    """A layer normalisation of single operators."""
    x = d.tensor("f", low=2, zero=False)
    c = _apply(d, "Sub", x, _mean(d, x))
    square = _apply(d, "Pow", c, d.new(np.float32(2), True)) if d.chance() else _apply(
        d, "Mul", c, c
    )  # fmt: skip
    variance = _apply(d, "Add", _mean(d, square), d.new(np.float32(0.01), True))
    y = _apply(d, "Div", c, _apply(d, "Sqrt", variance))
    y = _apply(d, "Mul", y, d.like(x.array.shape[-1:]))
    _take(d, [_apply(d, "Add", y, d.like(x.array.shape[-1:]))])


def _mean(d: Draw, x: Value) -> Value:
    if d.opset < 18:
        return _apply(d, "ReduceMean", x, axes=[-1])
    return _apply(d, "ReduceMean", x, d.const([-1]))


def gelu(d: Draw) -> None:
    """Gelu of single operators."""
    x = d.tensor("f", low=1)
    e = _apply(d, "Erf", _apply(d, "Div", x, d.new(np.float32(1.4142135), True)))
    y = _apply(d, "Mul", x, _apply(d, "Add", e, d.new(np.float32(1), True)))
    _take(d, [_apply(d, "Mul", y, d.new(np.float32(0.5), True))])


def movements(d: Draw) -> None:
    """Several movements in a row, then arithmetic on both ends of them."""
    x = y = d.tensor("f", low=2)
    for _ in range(d.int(2, 5)):
        inner = Draw(d.rng, d.opset, 1.0, [y], d.given, d.nodes, d.domains)
        moves = ("Transpose", "Reshape", "Slice", "Expand", "Unsqueeze", "Squeeze", "Flatten",
                 "Concat", "Split", "Pad", "Tile", "Trilu", "Gather")  # fmt: skip
        made = movement.TEMPLATES[d.pick(moves)](inner)
        y = d.add(made)[0]
        if y.array.size == 0:
            raise Unsuitable
    if y.array.shape == x.array.shape:
        y = _apply(d, "Add", x, y)
    _take(d, [_activated(d, y)])


def product_block(d: Draw) -> None:
    """A matrix product with bias, activation and residual."""
    (y,) = d.add(d.pick((heavy.matmul, heavy.gemm))(d))
    if y.array.ndim and d.chance(0.7):
        y = _apply(d, "Add", y, d.like(y.array.shape[-1:], _kind(y)))
    if _kind(y) == "f":
        y = _activated(d, y)
    if d.chance():
        y = _apply(d, "Add", d.like(y.array.shape, _kind(y)), y)
    if d.chance(0.3) and y.array.ndim >= 2:
        y = _apply(d, "Transpose", y)
    _take(d, [y])


def _kind(x: Value) -> str:
    return elementwise._letter(x.array.dtype)


def quantized(d: Draw) -> None:
    """A value quantised and dequantised, and a product of such values."""
    x = d.tensor("f", low=2, high=2, zero=False)
    k, n = x.array.shape[1], d.pick((1, 5, 8, 17))
    pairs = []
    for value in (x, d.like((k, n), constant=True)):
        step = np.float32(d.rng.uniform(0.04, 0.06))  # of its own, lest sums lie between two steps
        scale, zero = d.new(step, True), d.new(np.int8(d.pick((0, 0, 7))), True)
        q = _apply(d, "QuantizeLinear", value, scale, zero)
        pairs.append(_apply(d, "DequantizeLinear", q, scale, zero))
    _take(d, [_apply(d, "MatMul", *pairs)])


def by_place(d: Draw) -> None:
    """Values chosen by where they lie, reduced, and joined with what others compute or move."""
    x = _computed(d, d.tensor("f", low=2, high=3, zero=False))
    for _ in range(d.int(1, 2)):
        x = d.pick((_one_hot, _one_hot, _triangle, _reversed))(d, x)
    if d.chance(0.8):
        axes = d.axes(x.array.ndim, 1)
        op = d.pick(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"))
        if d.opset < (13 if op == "ReduceSum" else 18):
            x = _apply(d, op, x, axes=axes, keepdims=d.int(0, 1))
        else:
            x = _apply(d, op, x, d.const(axes), keepdims=d.int(0, 1))
    for _ in range(d.int(1, 3)):
        other = _computed(d, d.like(x.array.shape))
        op = d.pick(("Add", "Mul", "Sub", "Max", "Less"))
        x = _apply(d, op, *((x, other) if d.chance() else (other, x)))
        if op == "Less":
            x = _apply(d, "Cast", x, to=1)
    _take(d, [x])


def _computed(d: Draw, x: Value) -> Value:
    """Return a value of the same shape that some nodes compute and move."""
    for _ in range(d.int(0, 2)):
        if x.array.ndim > 1 and d.chance(0.4):
            order = [int(k) for k in d.rng.permutation(x.array.ndim)]
            back = [order.index(k) for k in range(x.array.ndim)]
            x = _apply(d, "Transpose", x, perm=order)
            x = _apply(d, "Transpose", _activated(d, x), perm=back)
        elif d.chance():  # cheap ones are computed again wherever they are read
            x = _apply(d, d.pick(("Neg", "Abs", "Relu")), x)
        else:
            x = _activated(d, x)
    return x


def _one_hot(d: Draw, x: Value) -> Value:
    """Keep the elements at indices along an axis."""
    axis = d.int(0, x.array.ndim - 1)
    n = x.array.shape[axis]
    shape = [m for k, m in enumerate(x.array.shape) if k != axis]
    indices = d.new(np.asarray(d.rng.integers(-1, n + 1, shape)), False)
    kind = d.pick("fl")
    values = d.const([0, 1], kind) if d.chance() else d.new(d.array((2,), kind), False)
    chosen = _apply(d, "OneHot", indices, d.const(n), values, axis=axis)
    if kind == "l":
        chosen = _apply(d, "Cast", chosen, to=1)
    if d.chance(0.3):
        chosen = _apply(d, "Cast", chosen, to=9)
        return _apply(d, "Where", chosen, x, _computed(d, d.like(x.array.shape)))
    return _apply(d, "Mul", *((x, chosen) if d.chance() else (chosen, x)))


def _triangle(d: Draw, x: Value) -> Value:
    """Keep the elements above or below a diagonal, which may be an input."""
    k = d.new(np.asarray(d.int(-3, 3)), d.chance())
    return _apply(d, "Trilu", x, k, upper=d.int(0, 1))


def _reversed(d: Draw, x: Value) -> Value:
    """Turn the first so many rows of each column round."""
    time, batch = d.pick(((0, 1), (1, 0)))
    steps, columns = x.array.shape[time], x.array.shape[batch]
    lengths = d.new(d.rng.integers(1, steps, (columns,), endpoint=True), False)
    return _apply(d, "ReverseSequence", x, lengths, time_axis=time, batch_axis=batch)


PATTERNS: tuple[Callable[[Draw], None], ...] = (
    convolution_block, convolution_block, attention, attention, layer_normalization, gelu,
    movements, movements, product_block, quantized, by_place, by_place,
)  # fmt: skip
