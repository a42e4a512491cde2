"""Lowerings of ai.onnx.ml: preprocessing, labels and linear models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops import ArgReduce, Epilogue, Reduce
from atc.ir.view import View
from atc.lower.concat_pad import crop, join, pad
from atc.lower.context import Site
from atc.lower.elementwise import compute, like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import softmax
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers
from atc.lower.strings import attribute_cells

ML = "ai.onnx.ml"

# ---- preprocessing ------------------------------------------------------------------------------


def _real(site: Site, x: str) -> str:
    """Return a value as float, or as double where it is that."""
    return x if site.b.type(x).dtype.is_float else site.b.cast(x, DType.FLOAT)


@lowers("Binarizer", domain=ML)
def binarizer(site: Site) -> str:
    """ai.onnx.ml Binarizer-1: x > threshold ? 1 : 0."""
    threshold = site.float("threshold", 0.0)
    above = lambda x: cast(call("Greater", x, like(x, threshold)), x.dtype)  # noqa: E731
    return compute(site, above, site.input(0))


@lowers("Scaler", domain=ML)
def scaler(site: Site) -> str:
    """ai.onnx.ml Scaler-1: (x - offset) * scale, one number or one per feature."""
    x = _real(site, site.input(0))
    dtype = site.b.type(x).dtype.numpy
    offset, scale = (
        site.b.constant(np.asarray(site.floats(name) or default, dtype))
        for name, default in (("offset", [0.0]), ("scale", [1.0]))
    )
    y = site.b.map(lambda v, o, s: call("Mul", call("Sub", v, o), s), x, offset, scale)
    return site.b.cast(y, DType.FLOAT)


@lowers("Normalizer", domain=ML)
def normalizer(site: Site) -> str:
    """ai.onnx.ml Normalizer-1: rows divided by their maximum, or their L1 or L2 norm."""
    norm, x = site.str("norm", "MAX"), _real(site, site.input(0))
    site.require(norm in ("MAX", "L1", "L2"), f"norm is '{norm}'")
    axes = (len(site.shape(0)) - 1,)
    total = reduce_axes(site, x, axes, True, {"MAX": "Max"}.get(norm, norm))

    def divided(v: Expr, n: Expr) -> Expr:
        return call("Div", v, call("Where", call("Equal", n, like(n, 0)), like(n, 1), n))

    return site.b.cast(site.b.map(divided, x, total), DType.FLOAT)


@lowers("Imputer", domain=ML)
def imputer(site: Site) -> str:
    """ai.onnx.ml Imputer-1: one number (or NaN) is replaced, by one number or one per feature."""
    dtype = site.type(0).dtype
    old: float = site.int("replaced_value_int64")
    given: list[int] | list[float] | None = site.ints("imputed_value_int64s")
    if dtype.is_float:
        old, given = site.float("replaced_value_float"), site.floats("imputed_value_floats")
    site.require(bool(given), "the imputed values are missing")
    new = site.b.constant(np.asarray(given, dtype.numpy))

    def replaced(x: Expr, y: Expr) -> Expr:
        found = call("IsNaN", x) if old != old else call("Equal", x, like(x, old))
        return call("Where", found, y, x)

    return site.b.map(replaced, site.input(0), new)


@lowers("FeatureVectorizer", domain=ML)
def feature_vectorizer(site: Site) -> str:
    """ai.onnx.ml FeatureVectorizer-1: columns side by side, cut or padded with zeros."""
    b, parts = site.b, []
    widths = site.ints("inputdimensions")
    for i in range(len(site.inputs)):
        shape = site.shape(i)
        columns = b.reshape(_real(site, site.input(i)), shape if len(shape) == 2 else (shape[0], 1))
        width = b.shape(columns)[1] if widths is None else widths[i]
        extra = width - b.shape(columns)[1]
        columns = crop(b, columns, [0, 0], [0, max(0, -extra)])
        parts.append(b.cast(pad(b, columns, [0, 0], [0, max(0, extra)]), DType.FLOAT))
    return join(b, parts, 1)


@lowers("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(site: Site) -> str:
    """ai.onnx.ml ArrayFeatureExtractor-1: elements of the last axis."""
    shape, count = site.shape(0), site.type(1).size
    places = site.b.reshape(site.input(1), (count,))
    y = gather_axis(site.b, site.input(0), len(shape) - 1, places, proven=False)
    return site.b.reshape(y, (1, count) if len(shape) == 1 else (*shape[:-1], count))


# ---- labels -------------------------------------------------------------------------------------


def _table(site: Site, side: str) -> Array:
    """Return the keys or values of a LabelEncoder as an array."""
    tensor = site.tensor(f"{side}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    if site.floats(f"{side}_floats") is not None:
        return np.asarray(site.floats(f"{side}_floats"), np.float32)
    if site.ints(f"{side}_int64s") is not None:
        return np.asarray(site.ints(f"{side}_int64s"), np.int64)
    strings = site.attribute(f"{side}_strings")
    site.require(strings is not None, f"the {side} are missing")
    return attribute_cells(strings)


def _default(site: Site, values: Array) -> Array:
    tensor = site.tensor("default_tensor")
    if tensor is not None:
        return np.asarray(tensor, values.dtype).reshape(-1)[:1]
    if values.dtype == DType.STRING.numpy:
        text = site.attribute("default_string")
        return attribute_cells("_Unused" if text is None else text)
    number = (
        site.float("default_float", -0.0)
        if values.dtype.kind == "f"
        else site.int("default_int64", -1)
    )
    return np.asarray([number], values.dtype)


@lowers("LabelEncoder", domain=ML)
def label_encoder(site: Site) -> str:
    """ai.onnx.ml LabelEncoder-4: the value of the key that x equals."""
    keys, values = _table(site, "keys"), _table(site, "values")
    site.require(len(keys) == len(values), f"{len(keys)} keys, {len(values)} values")
    which = match_keys(site, site.input(0), keys)
    table = site.b.constant(np.concatenate([_default(site, values), values]))
    return gather_axis(site.b, table, 0, which, proven=True)


@lowers("CategoryMapper", domain=ML)
def category_mapper(site: Site) -> str:
    """ai.onnx.ml CategoryMapper-1: from strings to integers or back."""
    names = attribute_cells(site.attribute("cats_strings") or [])
    numbers = np.asarray(site.ints("cats_int64s") or [], np.int64)
    site.require(len(names) == len(numbers), f"{len(names)} strings, {len(numbers)} integers")
    default = np.asarray([site.int("default_int64", -1)], np.int64)
    keys: Array = names
    values: Array = np.concatenate([default, numbers])
    if site.type(0).dtype is not DType.STRING:
        text = site.attribute("default_string")
        unknown = attribute_cells("_Unused" if text is None else text)
        keys, values = numbers, np.concatenate([unknown, names])
    which = match_keys(site, site.input(0), keys)
    return gather_axis(site.b, site.b.constant(values), 0, which, proven=True)


def match_keys(site: Site, values: str, keys: Array) -> str:
    """Return INT64, one more than the index of the last key that each value equals, 0 for none."""
    x = site.b.type(values)
    texts = keys.dtype == DType.STRING.numpy
    site.require((x.dtype is DType.STRING) == texts, f"{x} and keys of {keys.dtype}")
    return match_values(site, values, site.b.constant(keys.astype(x.dtype.numpy)))


def match_values(site: Site, values: str, keys: str) -> str:
    """Look up keys that may be computed at run time; both have one type."""
    x, count = site.b.type(values), site.b.type(keys).size
    site.require(x.dtype is site.b.type(keys).dtype, f"{x} and keys {site.b.type(keys)}")
    value, key = Input(x.dtype, 0), Input(x.dtype, 1)
    found = call("Equal", value, key)
    if x.dtype.is_float:
        found = call("Or", found, call("And", call("IsNaN", value), call("IsNaN", key)))
    zero = const(0, DType.INT64)
    place = call("Where", found, Input(DType.INT64, 2), zero)
    views, number = (View((1, 0)), View((0, 1))), View((0, 1), 1)
    at_least = Epilogue(call("Max", Input(DType.INT64, 0), zero))  # there may be no keys
    op = Reduce("Max", (x.size,), (count,), place, views, at_least, (number,))
    return site.b.emit1(op, [values, keys], TensorType(DType.INT64, x.shape))


@lowers("OneHotEncoder", domain=ML)
def one_hot_encoder(site: Site) -> str:
    """ai.onnx.ml OneHotEncoder-1: all zeros where a value is no category."""
    x = site.input(0)
    if site.type(0).dtype is DType.STRING:
        categories = attribute_cells(site.attribute("cats_strings") or [])
    else:
        categories = np.asarray(site.ints("cats_int64s") or [], np.int64)
        x = site.b.cast(x, DType.INT64)
    site.require(len(categories) > 0, f"there are no categories for {site.type(0)}")
    shape = (*site.shape(0), len(categories))
    names = site.b.constant(categories)
    views = [View((*row_major(site.shape(0)), 0)), View((*[0] * len(site.shape(0)), 1))]
    hot = lambda v, c: cast(call("Equal", v, c), DType.FLOAT)  # noqa: E731
    return site.b.map(hot, x, names, shape=shape, views=views)


# ---- scores -------------------------------------------------------------------------------------


def transformed(site: Site, scores: str, how: str) -> str:
    """Apply a post_transform to scores [rows, classes]."""
    match how:
        case "NONE" | "":
            return scores
        case "LOGISTIC":
            return site.b.map(lambda s: call("Sigmoid", s), scores)
        case "SOFTMAX":
            return softmax(site, scores, 1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(site, scores)
        case "PROBIT":
            return site.b.map(_probit, scores)
        case _:
            raise site.unsupported(f"post_transform '{how}'")


def _softmax_zero(site: Site, scores: str) -> str:
    """Softmax over the scores that aren't 0; those stay near 0."""
    b = site.b
    most = reduce_axes(site, scores, (1,), True, "Max")

    def share(s: Expr, m: Expr) -> Expr:
        small = call("LessOrEqual", call("Abs", s), like(s, 1e-7))
        return call(
            "Where",
            small,
            call("Mul", s, call("Exp", call("Neg", m))),
            call("Exp", call("Sub", s, m)),
        )

    parts = b.map(share, scores, most)
    total = reduce_axes(site, parts, (1,), True, "Sum")
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


def linear_scores(site: Site, rows: int) -> str:
    """Return x coefficients' + intercepts for `rows` rows of coefficients."""
    b = site.b
    x = b.cast(site.input(0), DType.FLOAT)
    features = b.shape(x)[-1]
    if len(b.shape(x)) == 1:
        x = b.reshape(x, (1, features))
    weights = np.asarray(site.floats("coefficients") or [], np.float32)
    site.require(
        weights.size == rows * features, f"{weights.size} coefficients for {rows} x {features}"
    )
    y = product(site, x, b.constant(np.ascontiguousarray(weights.reshape(rows, features).T)))
    intercepts = site.floats("intercepts")
    if not intercepts:
        return y
    site.require(len(intercepts) == rows, f"{len(intercepts)} intercepts for {rows}")
    return b.map(lambda s, i: call("Add", s, i), y, b.constant(np.asarray(intercepts, np.float32)))


@lowers("LinearRegressor", domain=ML)
def linear_regressor(site: Site) -> str:
    """ai.onnx.ml LinearRegressor-1."""
    scores = linear_scores(site, site.int("targets", 1))
    return transformed(site, scores, site.str("post_transform", "NONE"))


@lowers("LinearClassifier", domain=ML)
def linear_classifier(site: Site) -> tuple[str, ...]:
    """ai.onnx.ml LinearClassifier-1.

    A single score is that of the second class, the first gets what is left of 1 (onnxruntime).
    """
    labels, how = class_labels(site, "classlabels_ints"), site.str("post_transform", "NONE")
    rows = len(site.floats("intercepts") or [])
    scores = linear_scores(site, rows)
    if rows != 1:
        scores = transformed(site, scores, how)
        return (predicted(site, scores, labels), scores)
    labels = np.arange(2) if labels is None else labels
    site.require(len(labels) == 2, f"{len(labels)} labels for one score")
    chosen = either(site, scores, labels, 0.0)
    if how in ("LOGISTIC", "PROBIT"):
        scores = transformed(site, scores, how)
    return (chosen, two_columns(site, scores, lambda s: call("Sub", like(s, 1), s)))


def two_columns(site: Site, scores: str, first: Callable[[Expr], Expr]) -> str:
    """Return [rows, 1] scores as [rows, 2], `first` of them before them."""
    b, shape = site.b, (*site.b.shape(scores)[:1], 2)

    def column(s: Expr, k: Expr) -> Expr:
        return call("Where", call("Equal", k, const(0, DType.INT64)), first(s), s)

    return b.map(column, scores, shape=shape, views=[View((1, 0))], coordinates=[View((0, 1))])


def class_labels(site: Site, integers: str) -> Array | None:
    """Return the labels of a classifier, integers or strings; None where it lists none."""
    texts, numbers = site.attribute("classlabels_strings"), site.ints(integers)
    if texts:
        return attribute_cells(texts)
    return np.asarray(numbers, np.int64) if numbers else None


def either(site: Site, scores: str, labels: Array, threshold: float) -> str:
    """Return [rows], the second label where a [rows, 1] score is above the threshold."""
    b = site.b
    above = b.map(lambda s: cast(call("Greater", s, like(s, threshold)), DType.INT64), scores)
    which = b.reshape(above, b.shape(scores)[:1])
    return gather_axis(b, b.constant(labels), 0, which, proven=True)


def predicted(site: Site, scores: str, labels: Array | None) -> str:
    """Return [rows], the label of each row's greatest score."""
    b = site.b
    rows, classes = b.shape(scores)
    which = b.emit1(ArgReduce("Max", rows, classes, 1), [scores], TensorType(DType.INT64, (rows,)))
    if labels is None or np.array_equal(labels, np.arange(classes)):
        return which
    site.require(len(labels) == classes, f"{len(labels)} labels for {classes} scores")
    return gather_axis(b, b.constant(labels), 0, which, proven=True)
