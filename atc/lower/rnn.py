"""Lowerings of the recurrent layers: the product with the input is taken out of the time loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Cell, Epilogue, MatMul, Recurrent, identity_epilogue
from atc.ir.view import View, dense
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.conv import widen
from atc.lower.elementwise import hard_sigmoid, like, negative, prelu, relu
from atc.lower.fitting import fitted
from atc.lower.quantize import dynamic_quantize, integer_product
from atc.lower.registry import lowers

Function = Callable[[Expr], Expr]
Scales = npt.NDArray[np.float32]

# ---- activations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Activation:
    """A function of ONNX's list with the defaults of its parameters; None is one it hasn't."""

    build: Callable[[Expr, float, float], Expr]
    alpha: float | None = None
    beta: float | None = None


def _affine(x: Expr, alpha: float, beta: float) -> Expr:
    return call("Add", call("Mul", like(x, alpha), x), like(x, beta))


def _scaled_tanh(x: Expr, alpha: float, beta: float) -> Expr:
    return call("Mul", like(x, alpha), call("Tanh", call("Mul", like(x, beta), x)))


def _thresholded(x: Expr, alpha: float, _: float) -> Expr:
    return call("Where", call("Greater", x, like(x, alpha)), x, like(x, 0))


def _elu(x: Expr, alpha: float, _: float) -> Expr:
    return negative(x, call("Mul", like(x, alpha), call("Expm1", x)))


def _softsign(x: Expr, _: float, __: float) -> Expr:
    return call("Div", x, call("Add", like(x, 1), call("Abs", x)))


ACTIVATIONS = {
    "relu": _Activation(lambda x, a, b: relu(x)),
    "tanh": _Activation(lambda x, a, b: call("Tanh", x)),
    "sigmoid": _Activation(lambda x, a, b: call("Sigmoid", x)),
    "softsign": _Activation(_softsign),
    "softplus": _Activation(lambda x, a, b: call("Softplus", x)),
    "affine": _Activation(_affine, 1.0, 0.0),
    "leakyrelu": _Activation(lambda x, a, b: prelu(x, like(x, a)), 0.01),
    "thresholdedrelu": _Activation(_thresholded, 1.0),
    "scaledtanh": _Activation(_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": _Activation(hard_sigmoid, 0.2, 0.5),
    "elu": _Activation(_elu, 1.0),
}
"""By name in lower case; ONNX LSTM-22 lists them."""


def _activations(
    ctx: LoweringContext, defaults: list[str], directions: int
) -> list[list[Function]]:
    """Return each direction's functions, with the input of gates clipped where `clip` says so.

    Functions that have an alpha (a beta) take the next of activation_alpha (activation_beta).
    LSTM's third, of c, isn't clipped: the standard leaves that open, onnxruntime does so.
    """
    names = ctx.strs("activations") or defaults * directions
    count = len(defaults)
    ctx.require(
        len(names) == count * directions,
        f"{len(names)} activations for {directions} directions of {count}",
    )
    alphas = iter(ctx.floats("activation_alpha") or [])
    betas = iter(ctx.floats("activation_beta") or [])
    clips = [ctx.float("clip", 0.0)] * min(count, 2) + [0.0] * (count - 2)
    functions = [
        _function(ctx, name, alphas, betas, clips[k % count]) for k, name in enumerate(names)
    ]
    return [functions[d * count : (d + 1) * count] for d in range(directions)]


def _function(
    ctx: LoweringContext, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float
) -> Function:
    kind = ACTIVATIONS.get(name.lower())
    ctx.require(kind is not None, f"the activation '{name}' is unknown")
    assert kind is not None
    alpha = 0.0 if kind.alpha is None else next(alphas, kind.alpha)
    beta = 0.0 if kind.beta is None else next(betas, kind.beta)

    def apply(x: Expr) -> Expr:
        if clip > 0:
            x = call("Max", call("Min", x, like(x, clip)), like(x, -clip))
        return kind.build(x, float(np.float32(alpha)), float(np.float32(beta)))

    return apply


# ---- cells --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reads:
    """Names for the Input(k) of a Recurrent op's expressions."""

    dtype: DType
    gates: int
    scales: int | None = None
    """The first of the vectors that the recurrent shares are multiplied by, if there are such."""

    def _input(self, k: int) -> Expr:
        return Input(self.dtype, k)

    def given(self, gate: int) -> Expr:
        return self._input(gate)

    def recurrent(self, gate: int) -> Expr:
        share = self._input(self.gates + gate)
        if self.scales is None:
            return share
        return call("Mul", share, self.vector(self.scales + gate))

    def gate(self, gate: int) -> Expr:
        return call("Add", self.given(gate), self.recurrent(gate))

    @property
    def h(self) -> Expr:
        return self._input(2 * self.gates)

    @property
    def c(self) -> Expr:
        return self._input(2 * self.gates + 1)

    @property
    def new_c(self) -> Expr:
        return self._input(2 * self.gates + 2)

    def vector(self, v: int) -> Expr:
        return self._input(2 * self.gates + 3 + v)


def _rnn_cell(
    ctx: LoweringContext, reads: _Reads, functions: list[Function], reverse: bool
) -> Cell:
    """h = f(W x + R h + b)."""
    return Cell(functions[0](reads.gate(0)), reverse=reverse)


def _lstm_cell(
    ctx: LoweringContext, reads: _Reads, functions: list[Function], reverse: bool
) -> Cell:
    """c = f o c + i o g(..), h = o o h(c); gates in ONNX's order i, o, f, c; peepholes i, o, f."""
    f, g, h = functions
    peephole = ctx.has(7)

    def gate(k: int, memory: Expr) -> Expr:
        x = reads.gate(k)
        return f(call("Add", x, call("Mul", reads.vector(k), memory)) if peephole else x)

    i = gate(0, reads.c)
    forget = call("Sub", const(1, i.dtype), i) if ctx.int("input_forget") else gate(2, reads.c)
    memory = call("Add", call("Mul", forget, reads.c), call("Mul", i, g(reads.gate(3))))
    return Cell(call("Mul", gate(1, reads.new_c), h(reads.new_c)), memory, reverse=reverse)


def _gru_cell(
    ctx: LoweringContext, reads: _Reads, functions: list[Function], reverse: bool
) -> Cell:
    """h = (1 - z) o g(..) + z o h; gates in ONNX's order z, r, h."""
    f, g = functions
    z, r = f(reads.gate(0)), f(reads.gate(1))
    reset = None
    if ctx.int("linear_before_reset"):
        recurrent = reads.recurrent(2)
        if ctx.has(3):
            recurrent = call("Add", recurrent, reads.vector(0))
        candidate = g(call("Add", reads.given(2), call("Mul", r, recurrent)))
    else:
        reset = call("Mul", r, reads.h)
        candidate = g(reads.gate(2))
    fresh = call("Mul", call("Sub", const(1, z.dtype), z), candidate)
    return Cell(call("Add", fresh, call("Mul", z, reads.h)), reset=reset, reverse=reverse)


# ---- layers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    gates: int
    functions: list[str]
    cell: Callable[[LoweringContext, _Reads, list[Function], bool], Cell]


KINDS = {
    "RNN": _Kind(1, ["Tanh"], _rnn_cell),
    "GRU": _Kind(3, ["Sigmoid", "Tanh"], _gru_cell),
    "LSTM": _Kind(4, ["Sigmoid", "Tanh", "Tanh"], _lstm_cell),
}


@dataclass(frozen=True)
class IntegerWeights:
    """Weights of a layer that quantizes x and h itself: INT8 `w` [inputs, D * G * H], its scale per
    column, INT8 `r` [D, H, G * H] and its scale per direction [D, 1] or column [D, G * H]."""

    w: str
    w_scale: str
    r: str
    r_scale: Scales

    @property
    def r_scales(self) -> tuple[float, ...]:
        """The scale of a direction; 1 where the cells multiply by those of columns."""
        return tuple(1.0 if self.of_columns else float(s[0]) for s in self.r_scale)

    @property
    def of_columns(self) -> bool:
        """Whether each column of `r` has a scale."""
        return bool(self.r_scale.shape[1] > 1)


@lowers("RNN", "GRU", "LSTM")
def recurrent(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX RNN-22, GRU-22, LSTM-22, in all directions and layouts."""
    return recurrent_layer(ctx)


def recurrent_layer(ctx: LoweringContext, given: IntegerWeights | None = None) -> tuple[str, ...]:
    """Lower a layer, whose products are those of integers where such weights are given."""
    b, kind = ctx.b, KINDS[ctx.node.op_type]
    reverse = _directions(ctx)
    directions, layout = len(reverse), ctx.int("layout")
    shape = ctx.shape(0)
    ctx.require(len(shape) == 3 and layout in (0, 1), f"x is {ctx.type(0)}, layout {layout}")
    steps, batch = shape[:2] if layout == 0 else shape[1::-1]
    units = ctx.shape(2)[-1]
    _check_weights(ctx, directions, kind.gates, units, shape[2])
    state = (batch, directions, units) if layout else (directions, batch, units)
    lengths, *states = (
        _fitted(ctx, i, wanted) for i, wanted in ((4, (batch,)), (5, state), (6, state))
    )
    x, r = widen(ctx, ctx.input(0)), widen(ctx, ctx.input(2))
    dtype = b.type(x).dtype
    bias, vectors = _biases(ctx, kind.gates, directions, units)
    functions = _activations(ctx, kind.functions, directions)
    reads = _Reads(dtype, kind.gates)
    if given and given.of_columns:
        reads = replace(reads, scales=_rows(ctx, vectors))
        scales = b.constant(given.r_scale.reshape(directions, kind.gates, units), ctx.input(2))
        vectors = join(b, [*([vectors] if vectors else []), scales], 1)
    cells = tuple(kind.cell(ctx, reads, f, r) for f, r in zip(functions, reverse, strict=True))
    op = Recurrent(
        steps, batch, units, kind.gates, cells, _rows(ctx, vectors), layout == 1, ctx.wants(0),
        given.r_scales if given else (),
    )  # fmt: skip
    share = _integer_input_product(ctx, x, bias, given) if given else _input_product(ctx, x, bias)
    weights = given.r if given else b.transpose(r, [0, 2, 1])
    operands = [
        share, weights, vectors, _lengths(ctx, lengths, steps),
        *(widen(ctx, name) if name else "" for name in states),
    ]  # fmt: skip
    if not op.has_memory:
        operands[5] = ""
    types = [TensorType(dtype, state)] * (2 if op.has_memory else 1)
    if op.sequence:
        types.append(TensorType(dtype, (batch, steps, *state[1:]) if layout else (steps, *state)))
    results = [b.cast(y, ctx.type(0).dtype) for y in b.emit(op, operands, *types)]
    last = results[: 2 if op.has_memory else 1]
    if operands[3] and any(operands[4:]):
        last = [_of_rows(ctx, y, operands[3], 0 if layout else 1) for y in last]
    return (results[-1] if op.sequence else "", *last)


def _of_rows(ctx: LoweringContext, last: str, lengths: str, axis: int) -> str:
    """Return a last state with 0 for rows of no steps, as onnxruntime; the standard is silent."""
    known = ctx.b.value(lengths)
    if known is not None and bool((np.asarray(known, np.int32) > 0).all()):
        return last

    def kept(y: Expr, n: Expr) -> Expr:
        return call("Where", call("Greater", n, like(n, 0)), y, like(y, 0))

    shape = ctx.b.shape(last)
    views = [dense(shape), View(tuple(int(d == axis) for d in range(3)))]
    return ctx.b.map(kept, last, lengths, shape=shape, views=views)


def _directions(ctx: LoweringContext) -> list[bool]:
    """Return, per direction, whether it runs backwards."""
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    direction = ctx.str("direction", "forward").lower()
    ctx.require(direction in known, f"direction is '{direction}'")
    return known[direction]


def _fitted(ctx: LoweringContext, index: int, shape: Sequence[int]) -> str:
    """Return an optional input of the layer in the shape that it must have."""
    if not ctx.has(index):
        return ""
    message = f"input {index} is {ctx.type(index)}, not {list(shape)}"
    return fitted(ctx, ctx.input(index), shape, message)


def _check_weights(
    ctx: LoweringContext, directions: int, gates: int, units: int, features: int
) -> None:
    rows = gates * units
    wanted = {
        1: (directions, rows, features), 2: (directions, rows, units), 3: (directions, 2 * rows),
    }  # fmt: skip
    if ctx.node.op_type == "LSTM":
        wanted[7] = (directions, 3 * units)
    for i, shape in wanted.items():
        fits = not ctx.has(i) or ctx.shape(i) == shape
        ctx.require(fits, f"input {i} is {ctx.optional(i) and ctx.type(i)}, not {list(shape)}")
    hidden = ctx.int("hidden_size", units)
    ctx.require(hidden == units, f"hidden_size is {hidden}, but R is {ctx.type(2)}")


def _biases(ctx: LoweringContext, gates: int, directions: int, units: int) -> tuple[str, str]:
    """Return the bias of the hoisted product [D * G * H] and the vectors that the cells read.

    ONNX's B holds the biases of W, then those of R; they are added, but for the last of a GRU that
    is linear before the reset.
    """
    b = ctx.b
    vectors = b.reshape(widen(ctx, ctx.input(7)), (directions, 3, units)) if ctx.has(7) else ""
    if not ctx.has(3):
        return "", vectors
    both = b.reshape(widen(ctx, ctx.input(3)), (directions, 2, gates, units))
    dtype = b.type(both).dtype
    separate = ctx.node.op_type == "GRU" and bool(ctx.int("linear_before_reset"))
    if separate:
        vectors = _part(ctx, both, 1, gates - 1, gates)
    shared = gates - 1 if separate else gates
    known = b.value(both)
    if known is not None:
        total = np.array(known[:, 0], dtype.numpy)
        np.add(total[:, :shared], known[:, 1, :shared], out=total[:, :shared])
        return b.constant(total.reshape(-1), ctx.name), vectors
    added = View((2 * gates * units, units, 1), gates * units)
    kept = View((2 * gates * units, units, 1))

    def add(x: Expr, y: Expr, gate: Expr) -> Expr:
        whole = call("Add", x, y)
        return whole if not separate else call(
            "Where", call("Less", gate, const(shared, DType.INT64)), whole, x
        )  # fmt: skip

    shape = (directions, gates, units)
    total_name = b.map(
        add, both, both, shape=shape, views=[kept, added], coordinates=[View((0, 1, 0))]
    )
    return b.reshape(total_name, (directions * gates * units,)), vectors


def _part(ctx: LoweringContext, both: str, half: int, first: int, end: int) -> str:
    """Return gates [first, end) of one half of the biases [D, 2, G, H]."""
    directions, _, gates, units = ctx.b.shape(both)
    view = View((2 * gates * units, units, 1), (half * gates + first) * units)
    return ctx.b.view(both, (directions, end - first, units), view)


def _rows(ctx: LoweringContext, vectors: str) -> int:
    return ctx.b.shape(vectors)[1] if vectors else 0


def _input_product(ctx: LoweringContext, x: str, bias: str) -> str:
    """Return W x + b for every step, row, direction and gate: one matrix product."""
    b = ctx.b
    first, second, features = b.shape(x)
    w = widen(ctx, ctx.input(1))
    n, dtype = b.type(w).size // features, b.type(x).dtype
    epilogue = identity_epilogue(dtype)
    if bias:
        sum_ = call("Add", Input(dtype, 0), Input(dtype, 1))
        epilogue = Epilogue(sum_, (View((0, 1)),))
    op = MatMul(
        (), first * second, n, features, View((features, 1)), View((1, features)), epilogue, dtype
    )
    operands = [x, w, *([bias] if bias else [])]
    return b.emit1(op, operands, TensorType(dtype, (first, second, n)))


def _integer_input_product(ctx: LoweringContext, x: str, bias: str, given: IntegerWeights) -> str:
    """Return W x + b of x quantized by its own range."""
    b = ctx.b
    first, second, features = b.shape(x)
    q, scale, zero = dynamic_quantize(ctx, b.reshape(x, (first * second, features)))
    total = integer_product(ctx, q, given.w, zero, "")

    def real(t: Expr, s: Expr, f: Expr, c: Expr | None = None) -> Expr:
        y = call("Mul", cast(t, DType.FLOAT), call("Mul", s, f))
        return y if c is None else call("Add", y, c)

    y = b.map(real, total, scale, given.w_scale, *([bias] if bias else []))
    return b.reshape(y, (first, second, b.shape(given.w)[1]))


def _lengths(ctx: LoweringContext, given: str, steps: int) -> str:
    """Return the rows' lengths, '' where they are known to be all the steps."""
    known = ctx.const(4)
    if not given or (known is not None and bool((known == steps).all())):
        return ""
    return ctx.b.cast(given, DType.INT32)
