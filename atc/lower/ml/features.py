"""Lowerings of ai.onnx.ml: preprocessing, labels and linear models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops import ArgReduce, Epilogue, Reduce
from atc.ir.view import View
from atc.lower.concat_pad import crop, join, pad
from atc.lower.context import LoweringContext
from atc.lower.elementwise import compute, like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import softmax
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers
from atc.lower.strings import attribute_cells

ML = "ai.onnx.ml"

# ---- preprocessing ------------------------------------------------------------------------------


def _real(ctx: LoweringContext, x: str) -> str:
    """Return a value as float, or as double where it is that."""
    return x if ctx.b.type(x).dtype.is_float else ctx.b.cast(x, DType.FLOAT)


@lowers("Binarizer", domain=ML)
def binarizer(ctx: LoweringContext) -> str:
    """ai.onnx.ml Binarizer-1: x > threshold ? 1 : 0."""
    threshold = ctx.float("threshold", 0.0)
    above = lambda x: cast(call("Greater", x, like(x, threshold)), x.dtype)  # noqa: E731
    return compute(ctx, above, ctx.input(0))


@lowers("Scaler", domain=ML)
def scaler(ctx: LoweringContext) -> str:
    """ai.onnx.ml Scaler-1: (x - offset) * scale, one number or one per feature."""
    x = _real(ctx, ctx.input(0))
    dtype = ctx.b.type(x).dtype.numpy
    offset, scale = (
        ctx.b.constant(np.asarray(ctx.floats(name) or default, dtype))
        for name, default in (("offset", [0.0]), ("scale", [1.0]))
    )
    y = ctx.b.map(lambda v, o, s: call("Mul", call("Sub", v, o), s), x, offset, scale)
    return ctx.b.cast(y, DType.FLOAT)


@lowers("Normalizer", domain=ML)
def normalizer(ctx: LoweringContext) -> str:
    """ai.onnx.ml Normalizer-1: rows divided by their maximum, or their L1 or L2 norm."""
    norm, x = ctx.str("norm", "MAX"), _real(ctx, ctx.input(0))
    ctx.require(norm in ("MAX", "L1", "L2"), f"norm is '{norm}'")
    axes = (len(ctx.shape(0)) - 1,)
    total = reduce_axes(ctx, x, axes, True, {"MAX": "Max"}.get(norm, norm))

    def divided(v: Expr, n: Expr) -> Expr:
        return call("Div", v, call("Where", call("Equal", n, like(n, 0)), like(n, 1), n))

    return ctx.b.cast(ctx.b.map(divided, x, total), DType.FLOAT)


@lowers("Imputer", domain=ML)
def imputer(ctx: LoweringContext) -> str:
    """ai.onnx.ml Imputer-1: one number (or NaN) is replaced, by one number or one per feature."""
    dtype = ctx.type(0).dtype
    old: float = ctx.int("replaced_value_int64")
    given: list[int] | list[float] | None = ctx.ints("imputed_value_int64s")
    if dtype.is_float:
        old, given = ctx.float("replaced_value_float"), ctx.floats("imputed_value_floats")
    ctx.require(bool(given), "the imputed values are missing")
    new = ctx.b.constant(np.asarray(given, dtype.numpy))

    def replaced(x: Expr, y: Expr) -> Expr:
        found = call("IsNaN", x) if old != old else call("Equal", x, like(x, old))
        return call("Where", found, y, x)

    return ctx.b.map(replaced, ctx.input(0), new)


@lowers("FeatureVectorizer", domain=ML)
def feature_vectorizer(ctx: LoweringContext) -> str:
    """ai.onnx.ml FeatureVectorizer-1: columns side by side, cut or padded with zeros."""
    b, parts = ctx.b, []
    widths = ctx.ints("inputdimensions")
    for i in range(len(ctx.inputs)):
        shape = ctx.shape(i)
        columns = b.reshape(_real(ctx, ctx.input(i)), shape if len(shape) == 2 else (shape[0], 1))
        width = b.shape(columns)[1] if widths is None else widths[i]
        extra = width - b.shape(columns)[1]
        columns = crop(b, columns, [0, 0], [0, max(0, -extra)])
        parts.append(b.cast(pad(b, columns, [0, 0], [0, max(0, extra)]), DType.FLOAT))
    return join(b, parts, 1)


@lowers("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(ctx: LoweringContext) -> str:
    """ai.onnx.ml ArrayFeatureExtractor-1: elements of the last axis."""
    shape, count = ctx.shape(0), ctx.type(1).size
    places = ctx.b.reshape(ctx.input(1), (count,))
    y = gather_axis(ctx.b, ctx.input(0), len(shape) - 1, places, proven=False)
    return ctx.b.reshape(y, (1, count) if len(shape) == 1 else (*shape[:-1], count))


# ---- labels -------------------------------------------------------------------------------------


def _table(ctx: LoweringContext, side: str) -> Array:
    """Return the keys or values of a LabelEncoder as an array."""
    tensor = ctx.tensor(f"{side}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    if ctx.floats(f"{side}_floats") is not None:
        return np.asarray(ctx.floats(f"{side}_floats"), np.float32)
    if ctx.ints(f"{side}_int64s") is not None:
        return np.asarray(ctx.ints(f"{side}_int64s"), np.int64)
    strings = ctx.attribute(f"{side}_strings")
    ctx.require(strings is not None, f"the {side} are missing")
    return attribute_cells(strings)


def _default(ctx: LoweringContext, values: Array) -> Array:
    tensor = ctx.tensor("default_tensor")
    if tensor is not None:
        return np.asarray(tensor, values.dtype).reshape(-1)[:1]
    if values.dtype == DType.STRING.numpy:
        text = ctx.attribute("default_string")
        return attribute_cells("_Unused" if text is None else text)
    number = (
        ctx.float("default_float", -0.0)
        if values.dtype.kind == "f"
        else ctx.int("default_int64", -1)
    )
    return np.asarray([number], values.dtype)


@lowers("LabelEncoder", domain=ML)
def label_encoder(ctx: LoweringContext) -> str:
    """ai.onnx.ml LabelEncoder-4: the value of the key that x equals."""
    keys, values = _table(ctx, "keys"), _table(ctx, "values")
    ctx.require(len(keys) == len(values), f"{len(keys)} keys, {len(values)} values")
    which = match_keys(ctx, ctx.input(0), keys)
    table = ctx.b.constant(np.concatenate([_default(ctx, values), values]))
    return gather_axis(ctx.b, table, 0, which, proven=True)


@lowers("CategoryMapper", domain=ML)
def category_mapper(ctx: LoweringContext) -> str:
    """ai.onnx.ml CategoryMapper-1: from strings to integers or back."""
    names = attribute_cells(ctx.attribute("cats_strings") or [])
    numbers = np.asarray(ctx.ints("cats_int64s") or [], np.int64)
    ctx.require(len(names) == len(numbers), f"{len(names)} strings, {len(numbers)} integers")
    default = np.asarray([ctx.int("default_int64", -1)], np.int64)
    keys: Array = names
    values: Array = np.concatenate([default, numbers])
    if ctx.type(0).dtype is not DType.STRING:
        text = ctx.attribute("default_string")
        unknown = attribute_cells("_Unused" if text is None else text)
        keys, values = numbers, np.concatenate([unknown, names])
    which = match_keys(ctx, ctx.input(0), keys)
    return gather_axis(ctx.b, ctx.b.constant(values), 0, which, proven=True)


def match_keys(ctx: LoweringContext, values: str, keys: Array) -> str:
    """Return INT64, one more than the index of the last key that each value equals, 0 for none."""
    x = ctx.b.type(values)
    texts = keys.dtype == DType.STRING.numpy
    ctx.require((x.dtype is DType.STRING) == texts, f"{x} and keys of {keys.dtype}")
    return match_values(ctx, values, ctx.b.constant(keys.astype(x.dtype.numpy)))


def match_values(ctx: LoweringContext, values: str, keys: str) -> str:
    """Look up keys that may be computed at run time; both have one type."""
    x, count = ctx.b.type(values), ctx.b.type(keys).size
    ctx.require(x.dtype is ctx.b.type(keys).dtype, f"{x} and keys {ctx.b.type(keys)}")
    value, key = Input(x.dtype, 0), Input(x.dtype, 1)
    found = call("Equal", value, key)
    if x.dtype.is_float:
        found = call("Or", found, call("And", call("IsNaN", value), call("IsNaN", key)))
    zero = const(0, DType.INT64)
    place = call("Where", found, Input(DType.INT64, 2), zero)
    views, number = (View((1, 0)), View((0, 1))), View((0, 1), 1)
    at_least = Epilogue(call("Max", Input(DType.INT64, 0), zero))  # there may be no keys
    op = Reduce("Max", (x.size,), (count,), place, views, at_least, (number,))
    return ctx.b.emit1(op, [values, keys], TensorType(DType.INT64, x.shape))


@lowers("OneHotEncoder", domain=ML)
def one_hot_encoder(ctx: LoweringContext) -> str:
    """ai.onnx.ml OneHotEncoder-1: all zeros where a value is no category."""
    x = ctx.input(0)
    if ctx.type(0).dtype is DType.STRING:
        categories = attribute_cells(ctx.attribute("cats_strings") or [])
    else:
        categories = np.asarray(ctx.ints("cats_int64s") or [], np.int64)
        x = ctx.b.cast(x, DType.INT64)
    ctx.require(len(categories) > 0, f"there are no categories for {ctx.type(0)}")
    shape = (*ctx.shape(0), len(categories))
    names = ctx.b.constant(categories)
    views = [View((*row_major(ctx.shape(0)), 0)), View((*[0] * len(ctx.shape(0)), 1))]
    hot = lambda v, c: cast(call("Equal", v, c), DType.FLOAT)  # noqa: E731
    return ctx.b.map(hot, x, names, shape=shape, views=views)


# ---- scores -------------------------------------------------------------------------------------


def transformed(ctx: LoweringContext, scores: str, how: str) -> str:
    """Apply a post_transform to scores [rows, classes]."""
    match how:
        case "NONE" | "":
            return scores
        case "LOGISTIC":
            return ctx.b.map(lambda s: call("Sigmoid", s), scores)
        case "SOFTMAX":
            return softmax(ctx, scores, 1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(ctx, scores)
        case "PROBIT":
            return ctx.b.map(_probit, scores)
        case _:
            raise ctx.unsupported(f"post_transform '{how}'")


def _softmax_zero(ctx: LoweringContext, scores: str) -> str:
    """Softmax over the scores that aren't 0; those stay near 0."""
    b = ctx.b
    most = reduce_axes(ctx, scores, (1,), True, "Max")

    def share(s: Expr, m: Expr) -> Expr:
        small = call("LessOrEqual", call("Abs", s), like(s, 1e-7))
        return call(
            "Where",
            small,
            call("Mul", s, call("Exp", call("Neg", m))),
            call("Exp", call("Sub", s, m)),
        )

    parts = b.map(share, scores, most)
    total = reduce_axes(ctx, parts, (1,), True, "Sum")
    half = lambda p, t: call("Where", call("Equal", t, like(t, 0)), like(p, 0.5), call("Div", p, t))  # noqa: E731
    return b.map(half, parts, total)


def _probit(x: Expr) -> Expr:
    """Invert the normal distribution, by Winitzki's approximation of the inverse of erf."""
    t = call("Sub", call("Mul", x, like(x, 2)), like(x, 1))
    log = call("Log", call("Mul", call("Sub", like(x, 1), t), call("Add", like(x, 1), t)))
    v = call("Add", like(x, 2 / (np.pi * 0.147)), call("Mul", like(x, 0.5), log))
    root = call("Sqrt", call("Sub", call("Mul", v, v), call("Mul", like(x, 1 / 0.147), log)))
    size = call("Mul", like(x, 1.41421356), call("Sqrt", call("Sub", root, v)))
    return call("Where", call("Less", t, like(x, 0)), call("Neg", size), size)


def linear_scores(ctx: LoweringContext, rows: int) -> str:
    """Return x coefficients' + intercepts for `rows` rows of coefficients."""
    b = ctx.b
    x = b.cast(ctx.input(0), DType.FLOAT)
    features = b.shape(x)[-1]
    if len(b.shape(x)) == 1:
        x = b.reshape(x, (1, features))
    weights = np.asarray(ctx.floats("coefficients") or [], np.float32)
    ctx.require(
        weights.size == rows * features,
        f"has {weights.size} coefficients, not {rows} (scores) x {features} (features)",
    )
    y = product(ctx, x, b.constant(np.ascontiguousarray(weights.reshape(rows, features).T)))
    intercepts = ctx.floats("intercepts")
    if not intercepts:
        return y
    ctx.require(len(intercepts) == rows, f"{len(intercepts)} intercepts for {rows}")
    return b.map(lambda s, i: call("Add", s, i), y, b.constant(np.asarray(intercepts, np.float32)))


@lowers("LinearRegressor", domain=ML)
def linear_regressor(ctx: LoweringContext) -> str:
    """ai.onnx.ml LinearRegressor-1."""
    scores = linear_scores(ctx, ctx.int("targets", 1))
    return transformed(ctx, scores, ctx.str("post_transform", "NONE"))


@lowers("LinearClassifier", domain=ML)
def linear_classifier(ctx: LoweringContext) -> tuple[str, ...]:
    """ai.onnx.ml LinearClassifier-1.

    Labels follow the scores before their transform, which may make several of them equal or NaN. A
    single score is that of the second class, the first gets what is left of 1 (onnxruntime).
    """
    labels, how = class_labels(ctx, "classlabels_ints"), ctx.str("post_transform", "NONE")
    rows = len(ctx.floats("intercepts") or [])
    scores = linear_scores(ctx, rows)
    if rows != 1:
        return (predicted(ctx, scores, labels), transformed(ctx, scores, how))
    labels = np.arange(2) if labels is None else labels
    ctx.require(len(labels) == 2, f"{len(labels)} labels for one score")
    chosen = either(ctx, scores, labels, 0.0)
    if how == "LOGISTIC":
        scores = transformed(ctx, scores, how)
    scores = two_columns(ctx, scores, rest_of_one)
    return (chosen, transformed(ctx, scores, how) if how == "PROBIT" else scores)


def rest_of_one(s: Expr) -> Expr:
    """Return the probability of one of two classes by that of the other."""
    return call("Sub", like(s, 1), s)


def two_columns(ctx: LoweringContext, scores: str, first: Callable[[Expr], Expr]) -> str:
    """Return [rows, 1] scores as [rows, 2], `first` of them before them."""
    b, shape = ctx.b, (*ctx.b.shape(scores)[:1], 2)

    def column(s: Expr, k: Expr) -> Expr:
        return call("Where", call("Equal", k, const(0, DType.INT64)), first(s), s)

    return b.map(column, scores, shape=shape, views=[View((1, 0))], coordinates=[View((0, 1))])


def class_labels(ctx: LoweringContext, integers: str) -> Array | None:
    """Return the labels of a classifier, integers or strings; None where it lists none."""
    texts, numbers = ctx.attribute("classlabels_strings"), ctx.ints(integers)
    if texts:
        return attribute_cells(texts)
    return np.asarray(numbers, np.int64) if numbers else None


def either(ctx: LoweringContext, scores: str, labels: Array, threshold: float) -> str:
    """Return [rows], the second label where a [rows, 1] score is above the threshold."""
    b = ctx.b
    above = b.map(lambda s: cast(call("Greater", s, like(s, threshold)), DType.INT64), scores)
    which = b.reshape(above, b.shape(scores)[:1])
    return gather_axis(b, b.constant(labels), 0, which, proven=True)


def predicted(ctx: LoweringContext, scores: str, labels: Array | None) -> str:
    """Return [rows], the label of each row's greatest score."""
    b = ctx.b
    rows, classes = b.shape(scores)
    which = b.emit1(ArgReduce("Max", rows, classes, 1), [scores], TensorType(DType.INT64, (rows,)))
    if labels is None or np.array_equal(labels, np.arange(classes)):
        return which
    ctx.require(len(labels) == classes, f"{len(labels)} labels for {classes} scores")
    return gather_axis(b, b.constant(labels), 0, which, proven=True)
