"""One case or more for every MXNet operator that the importer translates, with a numpy truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from importers import mxnet_truth as truth
from importers.mxnet_truth import Array

Truth = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A node on variables x0, x1 ...: its attributes, the variables' values, the true outputs.

    The variables in `weights` are stored as parameters. The truth gets float64 arrays.
    """

    op: str
    inputs: Sequence[Array]
    truth: Truth
    attrs: dict[str, Any] = field(default_factory=dict)
    weights: Sequence[int] = ()
    outputs: Sequence[int] = (0,)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4")


def uniform(*shape: int, low: float = 0.1, high: float = 1.0, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype("f4")


def f4(*values: float) -> Array:
    return np.asarray(values, "f4")


X, Y = normal(2, 3, 4), normal(2, 3, 4, seed=1)
P, Q = uniform(2, 3, 4), uniform(2, 3, 4, seed=1)
IMAGE = normal(2, 4, 6, 5)
ANY = f4(-7, -2.5, -1.5, -0.5, -0.25, 0, 0.3, 0.5, 1.5, 2.5, 3)
Z = np.zeros(1, "f4")

ELEMENTWISE: list[Case] = [
    *(Case(op, [X], fn) for op, fn in {
        "abs": np.abs, "exp": np.exp, "square": np.square, "sin": np.sin, "cos": np.cos,
        "tan": np.tan, "arctan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
        "arcsinh": np.arcsinh, "floor": np.floor, "ceil": np.ceil, "fix": np.trunc,
        "trunc": np.trunc, "sign": np.sign, "erf": truth.erf, "negative": np.negative,
        "degrees": np.degrees, "radians": np.radians, "expm1": np.expm1, "cbrt": np.cbrt,
        "rcbrt": lambda x: 1 / np.cbrt(x), "softsign": lambda x: x / (1 + abs(x)),
        "relu": lambda x: np.maximum(x, 0), "_npx_relu": lambda x: np.maximum(x, 0),
        "sigmoid": truth.sigmoid, "BlockGrad": np.array, "_copy": np.array,
        "MakeLoss": np.array, "make_loss": np.array, "Flatten": lambda x: x.reshape(2, 12),
        "zeros_like": np.zeros_like, "ones_like": np.ones_like,
        "shape_array": lambda x: np.asarray(x.shape), "size_array": lambda x: np.asarray([x.size]),
        "_contrib_div_sqrt_dim": lambda x: x / 2, "cumsum": lambda x: x.cumsum(),
        "transpose": lambda x: x.T,
    }.items()),
    *(Case(op, [P * 0.9], fn) for op, fn in {
        "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
        "rsqrt": lambda x: x**-0.5, "reciprocal": np.reciprocal, "arcsin": np.arcsin,
        "arccos": np.arccos, "arctanh": np.arctanh,
    }.items()),
    Case("arccosh", [f4(1, 1.5, 3)], np.arccosh),
    Case("round", [ANY], lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)),
    Case("rint", [ANY], lambda x: np.ceil(x - 0.5)),
    Case("logical_not", [ANY], lambda x: x == 0),
    Case("clip", [X], lambda x: x.clip(-0.5, 0.5), {"a_min": -0.5, "a_max": 0.5}),
    Case("clip", [X], lambda x: x.clip(0), {"a_min": "0.0", "a_max": "inf"}),
    Case("smooth_l1", [ANY], lambda x: np.where(abs(x) < 0.25, 2 * x * x, abs(x) - 0.125),
         {"scalar": 2}),
    Case("_contrib_quadratic", [X], lambda x: 2 * x * x - x + 0.5, {"a": 2, "b": -1, "c": 0.5}),
    Case("hard_sigmoid", [X], lambda x: (0.3 * x + 0.5).clip(0, 1), {"alpha": 0.3}),
    Case("Cast", [ANY], np.trunc, {"dtype": "int32"}),
    Case("amp_cast", [f4(0.5, 2)], np.array, {"dtype": "float16"}),
    Case("amp_multicast", [X.astype("f2"), Y], lambda x, y: x, {"num_outputs": 2}),
    *(Case(f"broadcast_{op}", [uniform(2, 1, 4), uniform(1, 3, 4, seed=1)], fn) for op, fn in {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "power": np.power, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal,
        "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
        "lesser": np.less, "lesser_equal": np.less_equal, "hypot": np.hypot, "mod": np.mod,
    }.items()),
    *(Case(op, [f4(0, 0, 2, 3), f4(0, 1, 0, 5)], fn) for op, fn in {
        "broadcast_logical_and": np.logical_and, "_logical_or": np.logical_or,
        "_Logical_Xor": np.logical_xor, "_Plus": np.add, "_Greater_Equal": np.greater_equal,
        "elemwise_mul": np.multiply,
    }.items()),
    Case("broadcast_mod", [f4(5, -5, 5, -5, 3, -6, 6), f4(3, 3, -3, -3, 0, 3, -3)],
         lambda x, y: np.asarray([2, 1, -1, -2, 0, 0, 0])),
    *(Case(op, [ANY], fn, {"scalar": 2}) for op, fn in {
        "_plus_scalar": lambda x: x + 2, "_RMinusScalar": lambda x: 2 - x,
        "_mul_scalar": lambda x: x * 2, "_DivScalar": lambda x: x / 2,
        "_mod_scalar": lambda x: np.mod(x, 2), "_greater_equal_scalar": lambda x: x >= 2,
        "_not_equal_scalar": lambda x: x != 2, "_maximum_scalar": lambda x: np.maximum(x, 2),
        "_power_scalar": lambda x: x**2, "_hypot_scalar": lambda x: np.hypot(x, 2),
    }.items()),
    Case("_rdiv_scalar", [P], lambda x: 2 / x, {"scalar": 2}),
    Case("_rpower_scalar", [P], lambda x: 2**x, {"scalar": 2}),
    Case("_RModScalar", [f4(3, -3, 0)], lambda x: np.asarray([2, -1, 0]), {"scalar": 5}),
    Case("_mul_scalar", [np.int32([5, -3])], lambda x: x * 1.5,
         {"scalar": 1.5, "is_int": "False"}),
    Case("_div_scalar", [np.int32([5, -5, 3])], lambda x: np.trunc(x / 2), {"scalar": "2.0"}),
    Case("add_n", [X, Y, X], lambda x, y, z: x + y + z, {"num_args": 3}),
    Case("where", [(X > 0).astype("f4"), X, Y], lambda c, x, y: np.where(c != 0, x, y)),
    Case("where", [f4(1, 0), X, Y], lambda c, x, y: np.stack([x[0], y[1]])),
]  # fmt: skip

ACTIVATIONS: list[Case] = [
    *(Case("Activation", [X], fn, {"act_type": kind}) for kind, fn in {
        "relu": lambda x: np.maximum(x, 0), "sigmoid": truth.sigmoid, "tanh": np.tanh,
        "softrelu": lambda x: np.log1p(np.exp(x)), "softsign": lambda x: x / (1 + abs(x)),
        "log_sigmoid": lambda x: np.log(truth.sigmoid(x)),
        "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    }.items()),
    *(Case("LeakyReLU", [X], fn, {"act_type": kind}) for kind, fn in {
        "leaky": lambda x: np.where(x > 0, x, 0.25 * x),
        "elu": lambda x: np.where(x > 0, x, 0.25 * np.expm1(x)),
        "selu": lambda x: 1.0507009873554805 * np.where(
            x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "gelu": lambda x: x * (1 + truth.erf(x / np.sqrt(2))) / 2,
        "rrelu": lambda x: np.where(x > 0, x, (0.125 + 0.334) / 2 * x),
    }.items()),
    Case("LeakyReLU", [X], lambda x: np.where(x > 0, x, 0.1 * x), {"slope": 0.1}),
    Case("LeakyReLU", [X, f4(0.1, 0.2, 0.3)],
         lambda x, g: np.where(x > 0, x, x * g[:, None]), {"act_type": "prelu"}, weights=[1]),
    Case("LeakyReLU", [X, f4(0.3)], lambda x, g: np.where(x > 0, x, x * g),
         {"act_type": "prelu"}, weights=[1]),
    Case("softmax", [X], truth.softmax),
    Case("softmax", [X], lambda x: truth.softmax(x / 2, 1), {"axis": 1, "temperature": 2}),
    Case("softmax", [X, np.int32([[1, 2, 3, 3], [3, 1, 2, 3]])],
         lambda x, n: truth.softmax(np.where(np.arange(3)[:, None] < n[:, None], x, -1e30), 1),
         {"axis": 1, "use_length": "True"}),
    Case("log_softmax", [X], lambda x: np.log(truth.softmax(x))),
    Case("softmin", [X], lambda x: truth.softmax(-x, 0), {"axis": 0}),
    Case("SoftmaxOutput", [X, Z], lambda x, _: truth.softmax(x.reshape(2, 12)).reshape(x.shape)),
    Case("SoftmaxOutput", [X, Z], lambda x, _: truth.softmax(x, 1), {"multi_output": "True"}),
    Case("Softmax", [X, Z], lambda x, _: truth.softmax(x), {"preserve_shape": 1}),
    Case("SoftmaxActivation", [X], truth.softmax),
    Case("SoftmaxActivation", [X], lambda x: truth.softmax(x, 1), {"mode": "channel"}),
    Case("LogisticRegressionOutput", [X, Z], lambda x, _: truth.sigmoid(x)),
    Case("LinearRegressionOutput", [X, Z], lambda x, _: x),
    Case("Dropout", [X], np.array, {"p": 0.5}),
    Case("softmax_cross_entropy", [normal(3, 4), f4(0, 3, 1)],
         lambda x, c: -np.log(truth.softmax(x))[np.arange(3), c.astype(int)].sum(keepdims=True)),
]  # fmt: skip

W = normal(6, 2, 3, 2)
NORMS = (uniform(3), normal(3), normal(3, seed=2), uniform(3, seed=3))


def batch_norm(x: Array, g: Array, b: Array, m: Array, v: Array, eps: float = 1e-3) -> Array:
    g, b, m, v = (t.reshape(1, -1, *[1] * (x.ndim - 2)) for t in (g, b, m, v))
    return np.asarray((x - m) / np.sqrt(v + eps) * g + b)


def group_norm(x: Array, g: Array, b: Array) -> Array:
    split = x.reshape(2, 2, 2, 6, 5)
    y = truth.normalized(split, (2, 3, 4), 1e-5)
    per = (t.reshape(1, 2, -1, 1, 1) for t in (g, b))
    scale, offset = per
    return np.asarray(y * scale + offset).reshape(x.shape)


LAYERS: list[Case] = [
    Case("Convolution", [IMAGE, W, normal(6)],
         lambda x, w, b: truth.conv(x, w, b, stride=(2, 1), pad=(1, 0), dilate=(1, 2), group=2),
         {"kernel": (3, 2), "num_filter": 6, "num_group": 2, "pad": "(1L, 0L)", "stride": [2, 1],
          "dilate": (1, 2)}, weights=[1, 2]),
    Case("Convolution", [IMAGE.transpose(0, 2, 3, 1), normal(6, 3, 3, 4)],
         lambda x, w: truth.conv(x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2)).transpose(
             0, 2, 3, 1),
         {"kernel": (3, 3), "num_filter": 6, "layout": "NHWC", "no_bias": 1}, weights=[1]),
    Case("Convolution_v1", [normal(1, 2, 9), normal(3, 2, 3)],
         lambda x, w: truth.conv(x, w, stride=[1], pad=[1], dilate=[1]),
         {"kernel": "(3,)", "num_filter": "3", "pad": "1", "no_bias": "true"}, weights=[1]),
    Case("Deconvolution", [normal(1, 4, 5, 4), normal(4, 3, 4, 3)],
         lambda x, w: truth.deconv(x, w, stride=(2, 3), pad=(1, 0), adj=(1, 2), group=2),
         {"kernel": (4, 3), "num_filter": 6, "num_group": 2, "pad": (1, 0), "stride": (2, 3),
          "adj": (1, 2)}, weights=[1]),
    Case("Deconvolution", [normal(1, 2, 5, 5), normal(2, 3, 4, 4), normal(3)],
         lambda x, w, b: truth.deconv(x, w, stride=(2, 2), pad=(2, 1), adj=(1, 0))
         + b.reshape(-1, 1, 1),
         {"kernel": (4, 4), "num_filter": 3, "stride": (2, 2), "target_shape": (9, 10),
          "no_bias": "False", "pad": (0, 0)}, weights=[1, 2]),
    Case("FullyConnected", [X, normal(5, 12), normal(5)],
         lambda x, w, b: x.reshape(2, 12) @ w.T + b, {"num_hidden": 5}, weights=[1, 2]),
    Case("FullyConnected", [X, normal(5, 4)], lambda x, w: x @ w.T,
         {"num_hidden": 5, "flatten": "False", "no_bias": "True"}, weights=[1]),
    Case("_contrib_ModulatedDeformableConvolution",
         [normal(1, 4, 6, 5), normal(1, 18, 6, 5), uniform(1, 9, 6, 5), normal(3, 4, 3, 3)],
         lambda x, o, m, w: truth.deformable(x, o, w, pad=1, mask=m),
         {"kernel": (3, 3), "num_filter": 3, "pad": (1, 1), "no_bias": True}, weights=[3]),
    Case("_contrib_DeformableConvolution",
         [normal(1, 4, 6, 5), normal(1, 18, 6, 5), normal(3, 4, 3, 3)],
         lambda x, o, w: truth.deformable(x, o, w, pad=1),
         {"kernel": (3, 3), "num_filter": 3, "pad": (1, 1), "no_bias": True}, weights=[2]),
    *(Case("Pooling", [IMAGE], fn, {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 0), **attrs})
      for attrs, fn in [
          ({}, lambda x: truth.pool(x, lambda c, _: c.max(), (3, 2), (2, 2), (1, 0))),
          ({"pool_type": "max", "pooling_convention": "full"},
           lambda x: truth.pool(x, lambda c, _: c.max(), (3, 2), (2, 2), (1, 0), True)),
          ({"pool_type": "avg", "pooling_convention": "full"},
           lambda x: truth.pool(x, lambda c, n: c.sum() / n, (3, 2), (2, 2), (1, 0), True)),
          ({"pool_type": "avg", "count_include_pad": "False"},
           lambda x: truth.pool(x, lambda c, n: c.sum() / n, (3, 2), (2, 2), (1, 0), False, False)),
          ({"pool_type": "sum"},
           lambda x: truth.pool(x, lambda c, _: c.sum(), (3, 2), (2, 2), (1, 0))),
          ({"pool_type": "lp", "p_value": 2},
           lambda x: truth.pool(x, lambda c, _: (c**2).sum() ** 0.5, (3, 2), (2, 2), (1, 0))),
          ({"pool_type": "lp", "p_value": 3},
           lambda x: truth.pool(x, lambda c, _: np.cbrt((c**3).sum()), (3, 2), (2, 2), (1, 0))),
      ]),
    *(Case("Pooling_v1", [IMAGE], fn, {"global_pool": "True", "pool_type": kind, "kernel": (1, 1)})
      for kind, fn in {
          "max": lambda x: x.max((2, 3), keepdims=True),
          "avg": lambda x: x.mean((2, 3), keepdims=True),
          "sum": lambda x: x.sum((2, 3), keepdims=True)}.items()),
    Case("_contrib_AdaptiveAvgPooling2D", [normal(1, 2, 5, 7)],
         lambda x: np.stack([np.stack([x[:, :, a:b, c:d].mean((2, 3)) for c, d in
                                       ((0, 3), (2, 5), (4, 7))], -1)
                             for a, b in ((0, 3), (2, 5))], -2), {"output_size": (2, 3)}),
    Case("_contrib_AdaptiveAvgPooling2D", [IMAGE], lambda x: x.mean((2, 3), keepdims=True)),
    Case("_contrib_AdaptiveAvgPooling2D", [normal(1, 2, 4, 4)],
         lambda x: x.reshape(1, 2, 2, 2, 2, 2).mean((3, 5)), {"output_size": 2}),
    Case("BatchNorm", [X, *NORMS], lambda x, g, b, m, v: batch_norm(x, g * 0 + 1, b, m, v),
         weights=[1, 2, 3, 4]),
    Case("BatchNorm", [X, *NORMS], lambda *a: batch_norm(*a, eps=1e-5),
         {"fix_gamma": "False", "eps": "1e-05"}, weights=[1, 2, 3, 4]),
    Case("BatchNorm", [X.transpose(0, 2, 1), *NORMS],
         lambda x, *a: batch_norm(x.transpose(0, 2, 1), *a).transpose(0, 2, 1),
         {"fix_gamma": 0, "axis": -1}, weights=[1, 2, 3, 4]),
    Case("_contrib_SyncBatchNorm", [X, *NORMS], batch_norm,
         {"fix_gamma": "False", "key": "a", "ndev": 2}, weights=[1, 2, 3, 4]),
    Case("_contrib_BatchNormWithReLU", [X, *NORMS], lambda *a: np.maximum(batch_norm(*a), 0),
         {"fix_gamma": "False"}, weights=[1, 2, 3, 4]),
    Case("LayerNorm", [X, uniform(4), normal(4)],
         lambda x, g, b: truth.normalized(x, (2,), 1e-5) * g + b, weights=[1, 2]),
    Case("LayerNorm", [X, uniform(3), normal(3)],
         lambda x, g, b: truth.normalized(x, (1,), 0.1) * g[:, None] + b[:, None],
         {"axis": 1, "eps": 0.1}, weights=[1, 2]),
    Case("InstanceNorm", [IMAGE, uniform(4), normal(4)],
         lambda x, g, b: truth.normalized(x, (2, 3), 1e-3) * g.reshape(-1, 1, 1)
         + b.reshape(-1, 1, 1), weights=[1, 2]),
    Case("GroupNorm", [IMAGE, uniform(2), normal(2)], group_norm, {"num_groups": 2},
         weights=[1, 2]),
    Case("GroupNorm", [IMAGE, uniform(4), normal(4)], group_norm, {"num_groups": 2},
         weights=[1, 2]),
    *(Case("L2Normalization", [IMAGE],
           lambda x, a=axes: x / np.sqrt((x**2).sum(a, keepdims=True) + 0.1),
           {"mode": mode, "eps": 0.1})
      for mode, axes in {"instance": (1, 2, 3), "channel": 1, "spatial": (2, 3)}.items()),
    Case("LRN", [IMAGE], lambda x: truth.lrn(x, 3, 0.5, 0.75, 2), {"nsize": 3, "alpha": 0.5}),
]  # fmt: skip


def reshaped(shape: tuple[int, ...]) -> Truth:
    return lambda x, *_: x.reshape(shape)


SHAPES: list[Case] = [
    *(Case("Reshape", [X], reshaped(out), {"shape": codes}) for codes, out in {
        (-1,): (24,), (0, -1): (2, 12), (-2,): (2, 3, 4), (-3, 0): (6, 4), (-3, -2): (6, 4),
        (-4, 1, 2, -2): (1, 2, 3, 4), (-4, -1, 2, 0, 0): (1, 2, 3, 4), (4, 0, 2): (4, 3, 2),
        (0, 0, -1, 2): (2, 3, 2, 2), (-2, 1, 1): (2, 3, 4, 1, 1), (0, -4, 3, -1, 0): (2, 3, 1, 4),
    }.items()),
    Case("Reshape", [normal(10, 5, 4)], reshaped((50, 4)), {"shape": (-1, 0), "reverse": "True"}),
    Case("Reshape", [normal(10, 5, 4)], reshaped((40, 5)), {"shape": (-1, 0)}),
    Case("Reshape", [X], reshaped((24,)), {"shape": "-1"}),
    Case("Reshape", [X], reshaped((2, 12)), {"target_shape": (9, 0), "keep_highest": "True"}),
    Case("reshape_like", [normal(6, 4), Y], reshaped((2, 3, 4))),
    Case("reshape_like", [normal(6, 4), normal(2, 3, 5)], reshaped((2, 3, 4)),
         {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2}),
    Case("transpose", [X], lambda x: x.transpose(1, 0, 2), {"axes": (1, 0, 2)}),
    Case("SwapAxis", [X], lambda x: x.swapaxes(0, 2), {"dim1": 0, "dim2": 2}),
    Case("expand_dims", [X], lambda x: x[..., None], {"axis": -1}),
    Case("squeeze", [normal(1, 3, 1)], reshaped((3,))),
    Case("squeeze", [normal(1, 3, 1)], reshaped((3, 1)), {"axis": 0}),
    Case("squeeze", [normal(1, 1)], reshaped((1,))),
    Case("depth_to_space", [normal(1, 8, 2, 3)],
         lambda x: x.reshape(1, 2, 2, 2, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6),
         {"block_size": 2}),
    Case("space_to_depth", [normal(1, 2, 4, 6)],
         lambda x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3),
         {"block_size": 2}),
    Case("diag", [normal(3, 4)], lambda x: np.diag(x, 1), {"k": 1}),
    Case("diag", [normal(3)], lambda x: np.diag(x, -2), {"k": -2}),
    Case("diag", [X], lambda x: np.diagonal(x, 0, 0, 2), {"axis1": 0, "axis2": 2}),
    Case("tile", [X], lambda x: np.tile(x, (2, 1, 3)), {"reps": (2, 1, 3)}),
    Case("repeat", [X], lambda x: x.repeat(2, 1), {"repeats": 2, "axis": 1}),
    Case("repeat", [X], lambda x: x.repeat(3), {"repeats": 3, "axis": "None"}),
    Case("broadcast_to", [normal(1, 3, 1)], lambda x: np.broadcast_to(x, (2, 3, 4)),
         {"shape": (2, 0, 4)}),
    Case("broadcast_axis", [normal(1, 3, 1)], lambda x: np.broadcast_to(x, (3, 3, 2)),
         {"axis": (0, 2), "size": (3, 2)}),
    Case("broadcast_like", [normal(1, 3, 1), Y], lambda x, y: np.broadcast_to(x, (2, 3, 4))),
    Case("broadcast_like", [normal(1, 3, 1), Y], lambda x, y: np.broadcast_to(x, (4, 3, 1)),
         {"lhs_axes": (0,), "rhs_axes": (2,)}),
    Case("Concat", [X, Y], lambda x, y: np.concatenate([x, y], 1), {"num_args": 2}),
    Case("stack", [X, Y], lambda x, y: np.stack([x, y], -1), {"axis": -1, "num_args": 2}),
    Case("SliceChannel", [X], lambda x: np.split(x, 3, 1), {"num_outputs": 3}, outputs=(0, 1, 2)),
    Case("SliceChannel", [X], lambda x: [x[..., i] for i in range(4)],
         {"num_outputs": 4, "axis": -1, "squeeze_axis": "True"}, outputs=(0, 1, 2, 3)),
    Case("_split_v2", [X], lambda x: np.split(x, [1, 3], 2),
         {"indices": "[0, 1, 3]", "axis": 2}, outputs=(0, 1, 2)),
    Case("_split_v2", [X], lambda x: np.split(x, 2, 2),
         {"indices": "[]", "axis": 2, "sections": 2}, outputs=(0, 1)),
    *(Case("Pad", [IMAGE], lambda x, m=mode, k=more: np.pad(
        x, [(0, 0), (0, 0), (1, 2), (2, 1)], m, **k),
        {"mode": mode, "pad_width": (0, 0, 0, 0, 1, 2, 2, 1), "constant_value": 3})
      for mode, more in {"constant": {"constant_values": 3}, "edge": {}, "reflect": {}}.items()),
    Case("Crop", [IMAGE], lambda x: x[:, :, 1:3, 2:5], {"h_w": (2, 3), "offset": (1, 2)}),
    Case("Crop", [IMAGE, normal(1, 1, 4, 3)], lambda x, y: x[:, :, 1:5, 1:4],
         {"num_args": 2, "center_crop": "True"}),
    Case("slice", [X], lambda x: x[:, 1:, ::2], {"begin": "(None, 1, 0)", "end": "(2, None, None)",
                                                 "step": "(1, None, 2)"}),
    Case("slice", [X], lambda x: x[::-1, 2:0:-1], {"begin": "(None, 2)", "end": "(None, 0)",
                                                   "step": (-1, -1)}),
    Case("slice_axis", [X], lambda x: x[..., -3:], {"axis": -1, "begin": -3, "end": "None"}),
    Case("slice_like", [X, normal(1, 2)], lambda x, y: x[:1, :2]),
    Case("slice_like", [X, normal(9, 2)], lambda x, y: x[:, :2], {"axes": 1}),
    Case("reverse", [X], lambda x: x[::-1, :, ::-1], {"axis": (0, 2)}),
]  # fmt: skip

REDUCTIONS: list[Case] = [
    *(Case(op, [X], fn, attrs) for op, np_fn in {
        "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod,
        "_square_sum": lambda x, **k: np.sum(x**2, **k)}.items()
      for attrs, fn in [
          ({}, lambda x, f=np_fn: f(x).reshape(1)),
          ({"axis": "()"}, lambda x, f=np_fn: f(x).reshape(1)),
          ({"axis": (0, -1), "keepdims": 1}, lambda x, f=np_fn: f(x, axis=(0, 2), keepdims=True)),
          ({"axis": 1, "exclude": "True"}, lambda x, f=np_fn: f(x, axis=(0, 2))),
      ]),
    Case("nansum", [f4(1, np.nan, 3)], lambda x: np.nansum(x).reshape(1)),
    Case("nanprod", [f4(2, np.nan, 3)], lambda x: np.nanprod(x).reshape(1)),
    Case("norm", [X], lambda x: np.sqrt((x**2).sum()).reshape(1)),
    Case("norm", [X], lambda x: abs(x).sum(1), {"ord": 1, "axis": 1}),
    Case("moments", [X], lambda x: (x.mean((0, 2)), x.var((0, 2))), {"axes": (0, 2)},
         outputs=(0, 1)),
    Case("argmax", [X], lambda x: x.argmax(1), {"axis": 1}),
    Case("argmax", [X], lambda x: x.argmax().reshape(1)),
    Case("argmin", [X], lambda x: x.argmin(0)[None], {"axis": 0, "keepdims": "True"}),
    Case("argmax_channel", [normal(3, 4)], lambda x: x.argmax(1)),
    Case("topk", [X], lambda x: (-x).argsort(-1)[..., :2], {"k": 2}),
    Case("topk", [X], lambda x: (np.sort(x, 1)[:, :2], x.argsort(1)[:, :2]),
         {"k": 2, "axis": 1, "is_ascend": "True", "ret_typ": "both"}, outputs=(0, 1)),
    Case("topk", [X], lambda x: -np.sort(-x.ravel())[:5], {"k": 5, "axis": "None",
                                                          "ret_typ": "value"}),
    Case("topk", [X], lambda x: x >= np.sort(x)[..., -2:-1], {"k": 2, "ret_typ": "mask"}),
    Case("sort", [X], lambda x: np.sort(x, 1), {"axis": 1}),
    Case("argsort", [X], lambda x: (-x.ravel()).argsort(), {"axis": "None", "is_ascend": 0,
                                                           "dtype": "int32"}),
    Case("dot", [X, normal(4, 5)], lambda x, y: x @ y),
    Case("dot", [X, Y], lambda x, y: np.tensordot(x, y, ((2,), (2,))), {"transpose_b": "True"}),
    Case("dot", [X, Y], lambda x, y: np.tensordot(x, y, ((0,), (0,))), {"transpose_a": "True"}),
    Case("dot", [normal(3), normal(3, seed=1)], lambda x, y: (x @ y).reshape(1)),
    Case("batch_dot", [X, normal(2, 4, 5)], np.matmul),
    Case("batch_dot", [X, Y], lambda x, y: x.swapaxes(1, 2) @ y, {"transpose_a": "True"}),
    Case("batch_dot", [X, Y], lambda x, y: x @ y.swapaxes(1, 2), {"transpose_b": "True"}),
    Case("khatri_rao", [normal(2, 3), normal(4, 3)],
         lambda x, y: (x[:, None] * y[None]).reshape(8, 3)),
]  # fmt: skip

QKV = normal(5, 2, 24)  # length, batch, heads (2) x (q, k, v) x 4


def heads(x: Array, part: int, parts: int) -> Array:
    """Return (batch · heads, length, depth) of one part."""
    split = x.reshape(*x.shape[:2], 2, parts, 4)[:, :, :, part]
    return split.transpose(1, 2, 0, 3).reshape(-1, x.shape[0], 4)


def joined(x: Array) -> Array:
    """Return (length, batch, heads · depth)."""
    return x.reshape(2, 2, x.shape[1], 4).transpose(2, 0, 1, 3).reshape(x.shape[1], 2, 8)


INDICES: list[Case] = [
    Case("_contrib_interleaved_matmul_selfatt_qk", [QKV],
         lambda x: heads(x, 0, 3) @ heads(x, 1, 3).swapaxes(1, 2) / 2, {"heads": 2}),
    Case("_contrib_interleaved_matmul_selfatt_valatt", [QKV, normal(4, 5, 5)],
         lambda x, a: joined(a @ heads(x, 2, 3)), {"heads": 2}),
    Case("_contrib_interleaved_matmul_encdec_qk", [normal(3, 2, 8), normal(5, 2, 16)],
         lambda q, kv: heads(q, 0, 1) @ heads(kv, 0, 2).swapaxes(1, 2) / 2, {"heads": 2}),
    Case("_contrib_interleaved_matmul_encdec_valatt", [normal(5, 2, 16), normal(4, 3, 5)],
         lambda kv, a: joined(a @ heads(kv, 1, 2)), {"heads": 2}),
    Case("Embedding", [f4(0, 3, -1, 7, 1.6), normal(4, 3)], lambda i, w: w[[0, 3, 0, 3, 1]],
         {"input_dim": 4, "output_dim": 3}, weights=[1]),
    Case("take", [normal(4, 3), f4(0, 3, -1, 7)], lambda x, i: x[[0, 3, 0, 3]]),
    Case("take", [normal(4, 3), f4(0, -1, 4)], lambda x, i: x[:, [0, 2, 1]],
         {"axis": 1, "mode": "wrap"}),
    Case("pick", [normal(4, 3), f4(0, 5, -1, 1)], lambda x, i: x[range(4), [0, 2, 0, 1]]),
    Case("pick", [normal(4, 3), f4(0, 5, -1)], lambda x, i: x[[0, 1, 3], range(3)][None],
         {"axis": 0, "mode": "wrap", "keepdims": "True"}),
    Case("batch_take", [normal(4, 3), np.int32([0, 2, 1, 1])],
         lambda x, i: x[range(4), [0, 2, 1, 1]]),
    Case("gather_nd", [X, f4(1, 0, 2, 1).reshape(2, 2)], lambda x, i: x[[1, 0], [2, 1]]),
    Case("scatter_nd", [f4(2, 3), f4(1, 0, 2, 1).reshape(2, 2)],
         lambda d, i: np.asarray([[0, 3, 0], [0, 0, 2]]), {"shape": (2, 3)}),
    Case("_scatter_set_nd", [normal(2, 3), f4(5, 6), f4(1, 0, 2, 1).reshape(2, 2)],
         lambda x, d, i: np.asarray([[*x[0, :1], 6, x[0, 2]], [*x[1, :2], 5]]), {"shape": (2, 3)}),
    Case("_contrib_index_copy", [normal(3, 2), np.int32([2, 0]), normal(2, 2)],
         lambda x, i, y: np.stack([y[1], x[1], y[0]])),
    Case("one_hot", [f4(0, 3, -1, 1.7)],
         lambda x: np.asarray([[2, -1, -1], [-1] * 3, [-1] * 3, [-1, 2, -1]]),
         {"depth": 3, "on_value": 2, "off_value": -1}),
    Case("_slice_assign", [normal(3, 4), normal(2, 2)],
         lambda x, y: np.block([[x[:2, :1], y, x[:2, 3:]], [x[2:]]]),
         {"begin": (0, 1), "end": (2, 3)}),
    Case("_slice_assign_scalar", [normal(3, 4)],
         lambda x: np.concatenate([x[:1], np.where(np.arange(4) % 2 == 0, 5, x[1:])]),
         {"begin": "(1, None)", "end": "(3, None)", "step": (1, 2), "scalar": 5}),
    Case("_ravel_multi_index", [f4(1, 0, 2, 2).reshape(2, 2)], lambda x: np.asarray([5, 2]),
         {"shape": (2, 3)}),
    Case("_unravel_index", [f4(5, 3, 0)], lambda x: np.asarray([[1, 1, 0], [2, 0, 0]]),
         {"shape": (2, 3)}),
    Case("_zeros", [], lambda: np.zeros((2, 3)), {"shape": (2, 3)}),
    Case("_full", [], lambda: np.full(3, 2.5), {"shape": "3", "value": 2.5, "dtype": "float64"}),
    Case("_arange", [], lambda: np.asarray([0, 0, 2, 2, 4, 4]),
         {"start": 0, "stop": 5, "step": 2, "repeat": 2}),
    Case("_arange", [], lambda: np.arange(4), {"start": 4, "stop": "None"}),
    Case("_contrib_arange_like", [X], lambda x: 1 + 2 * np.arange(24).reshape(2, 3, 4),
         {"start": 1, "step": 2}),
    Case("_contrib_arange_like", [X], lambda x: np.asarray([0, 0, 1, 1]),
         {"axis": 2, "repeat": 2}),
    Case("_linspace", [], lambda: np.linspace(0, 1, 5), {"start": 0, "stop": 1, "num": 5}),
    Case("_eye", [], lambda: np.eye(2, 3, 1), {"N": 2, "M": 3, "k": 1}),
    Case("_contrib_index_array", [normal(2, 3)],
         lambda x: np.stack(np.indices((2, 3))[::-1], -1), {"axes": (1, 0)}),
    Case("SequenceMask", [X, f4(1, 2, 0)],
         lambda x, n: np.where(np.arange(2)[:, None, None] < n[None, :, None], x, -1),
         {"use_sequence_length": "True", "value": -1}),
    Case("SequenceMask", [X], np.array),
    Case("SequenceLast", [X, f4(1, 2, 1)], lambda x, n: x[[0, 1, 0], range(3)],
         {"use_sequence_length": "True"}),
    Case("SequenceLast", [X], lambda x: x[:, -1], {"axis": 1}),
    Case("SequenceReverse", [X, f4(1, 2, 1)],
         lambda x, n: np.stack([[x[0, 0], x[1, 1], x[0, 2]], [x[1, 0], x[0, 1], x[1, 2]]]),
         {"use_sequence_length": "True"}),
    Case("SequenceReverse", [X], lambda x: x[::-1]),
]  # fmt: skip
