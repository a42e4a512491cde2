"""Lowerings of ai.onnx.ml support vector machines: kernel matrices, then matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import ArgReduce, Reduce, identity_epilogue
from atc.ir.ops.svm import CouplePairs
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.elementwise import like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.ml.features import ML, class_labels, predicted, transformed, two_columns
from atc.lower.registry import lowers

_REAL = DType.FLOAT
Floats = npt.NDArray[np.float32]


def _numbers(ctx: LoweringContext, name: str) -> Floats:
    return np.asarray(ctx.floats(name) or [], np.float32)


def _constant(ctx: LoweringContext, array: Array) -> str:
    return ctx.b.constant(np.asarray(array, np.float32))


def _features(ctx: LoweringContext) -> str:
    """Return x [rows, features] as float."""
    x = ctx.b.cast(ctx.input(0), _REAL)
    shape = ctx.b.shape(x)
    ctx.require(len(shape) in (1, 2), f"x is {ctx.type(0)}")
    return ctx.b.reshape(x, (1, *shape)[-2:])


def _similarity(ctx: LoweringContext, x: str, vectors: Array) -> str:
    """Return the kernel's value [rows, vectors] between each row and each vector."""
    b = ctx.b
    rows, features = b.shape(x)
    kind = ctx.str("kernel_type", "LINEAR")
    gamma, coef0, degree = (*(ctx.floats("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        return _radial(ctx, x, vectors, gamma)
    dots = product(ctx, x, _constant(ctx, vectors.T))

    def affine(v: Expr) -> Expr:
        return call("Add", call("Mul", v, like(v, gamma)), like(v, coef0))

    match kind:
        case "LINEAR":
            return dots
        case "POLY":
            return b.map(lambda v: call("Pow", affine(v), like(v, degree)), dots)
        case "SIGMOID":
            return b.map(lambda v: call("Tanh", affine(v)), dots)
        case _:
            raise ctx.unsupported(f"kernel_type '{kind}' ({rows} rows of {features})")


def _radial(ctx: LoweringContext, x: str, vectors: Array, gamma: float) -> str:
    """Return exp(-gamma |x - v|^2); the difference is taken first, as it may be small."""
    b = ctx.b
    rows, features = b.shape(x)
    gap = call("Sub", Input(_REAL, 0), Input(_REAL, 1))
    views = (View((features, 0, 1)), View((0, features, 1)))
    squares, shape = call("Mul", gap, gap), (rows, len(vectors))
    op = Reduce("Sum", shape, (features,), squares, views, identity_epilogue(_REAL))
    squared_distances = b.emit1(op, [x, _constant(ctx, vectors)], TensorType(_REAL, shape))
    return b.map(lambda d: call("Exp", call("Mul", d, like(d, -gamma))), squared_distances)


def _table(ctx: LoweringContext, numbers: Floats, rows: int, what: str) -> Floats:
    """Return a list of numbers as a matrix of so many rows."""
    ctx.require(rows > 0 and numbers.size > 0, f"the {what} are missing")
    ctx.require(numbers.size % rows == 0, f"{numbers.size} {what} for {rows} rows")
    return numbers.reshape(rows, -1)


def _check_features(ctx: LoweringContext, x: str, count: int) -> None:
    features = ctx.b.shape(x)[1]
    ctx.require(features == count, f"{ctx.type(0)} has {features} features, not {count}")


# ---- regression ---------------------------------------------------------------------------------


@lowers("SVMRegressor", domain=ML)
def svm_regressor(ctx: LoweringContext) -> str:
    """ai.onnx.ml SVMRegressor-1; without support vectors it is linear."""
    x, weights, rho = _features(ctx), _numbers(ctx, "coefficients"), _numbers(ctx, "rho")
    ctx.require(rho.size > 0, "attribute 'rho' is missing")
    supports = ctx.int("n_supports")
    if supports > 0:
        vectors = _table(ctx, _numbers(ctx, "support_vectors"), supports, "support vectors")
        _check_features(ctx, x, vectors.shape[1])
        x = _similarity(ctx, x, vectors)
    ctx.require(weights.size == ctx.b.shape(x)[1], f"{weights.size} coefficients")
    y = product(ctx, x, _constant(ctx, weights[:, None]))
    y = ctx.b.map(lambda s: call("Add", s, like(s, float(rho[0]))), y)
    if ctx.int("one_class"):
        return ctx.b.map(
            lambda s: call("Where", call("Greater", s, like(s, 0)), like(s, 1), like(s, -1)), y
        )
    return transformed(ctx, y, ctx.str("post_transform", "NONE"))


# ---- classification -----------------------------------------------------------------------------


@lowers("SVMClassifier", domain=ML)
def svm_classifier(ctx: LoweringContext) -> tuple[str, ...]:
    """ai.onnx.ml SVMClassifier-1: pairs of classes vote; the scores' rules are onnxruntime's."""
    x, labels = _features(ctx), class_labels(ctx, "classlabels_ints")
    ctx.require(labels is not None, "the labels are missing")
    assert labels is not None
    if not ctx.ints("vectors_per_class"):
        return _linear(ctx, x, labels)
    pairs = _pairs(ctx, len(labels))
    _check_features(ctx, x, pairs.vectors.shape[1])
    kernels = _similarity(ctx, x, pairs.vectors)
    scores = product(ctx, kernels, _constant(ctx, pairs.weights))
    scores = ctx.b.map(lambda s, r: call("Add", s, r), scores, _constant(ctx, pairs.rho))
    label = _elected(ctx, scores, pairs, labels)
    how = ctx.str("post_transform", "NONE")
    if ctx.floats("prob_a"):
        return label, transformed(ctx, _probabilities(ctx, scores, pairs), how)
    if len(labels) > 2:
        return label, transformed(ctx, scores, how)
    return label, _second_class(ctx, scores, how)


@dataclass(frozen=True)
class _Pairs:
    """The classifiers of pairs of classes: pair k is `first[k]` against `second[k]`."""

    vectors: Array
    weights: Array
    """[vectors, pairs]."""
    rho: Array
    first: Array
    second: Array
    classes: int

    @property
    def count(self) -> int:
        return len(self.first)


def _pairs(ctx: LoweringContext, classes: int) -> _Pairs:
    """Split the lists in which class j's vectors have a weight against each other class."""
    counts = ctx.ints("vectors_per_class") or []
    ctx.require(len(counts) == classes > 1, f"{len(counts)} numbers of vectors, {classes} labels")
    ctx.require(min(counts) >= 0, f"vectors_per_class {counts}")
    vectors = _table(ctx, _numbers(ctx, "support_vectors"), sum(counts), "support vectors")
    given = _numbers(ctx, "coefficients")
    ctx.require(given.size == (classes - 1) * sum(counts), f"{given.size} coefficients")
    table = given.reshape(classes - 1, -1)
    owner = np.repeat(np.arange(classes), counts)
    first, second = np.triu_indices(classes, 1)
    columns = [
        np.where(owner == i, table[j - 1], np.where(owner == j, table[i], np.float32(0)))
        for i, j in zip(first, second, strict=True)
    ]
    rho = _numbers(ctx, "rho")
    ctx.require(rho.size == len(first), f"rho has {rho.size} numbers for {len(first)} pairs")
    return _Pairs(vectors, np.stack(columns, 1), rho, first, second, classes)


def _elected(ctx: LoweringContext, scores: str, pairs: _Pairs, labels: Array) -> str:
    """Return [rows], the label of the class that most pairs vote for, the first one of equals."""
    b, rows = ctx.b, ctx.b.shape(scores)[0]
    ayes = b.map(lambda s: cast(call("Greater", s, like(s, 0)), _REAL), scores)
    classes = np.arange(pairs.classes)
    for_first, for_second = (
        (side[:, None] == classes).astype(np.float32) for side in (pairs.first, pairs.second)
    )
    votes = product(ctx, ayes, _constant(ctx, for_first - for_second))
    votes = b.map(lambda v, n: call("Add", v, n), votes, _constant(ctx, for_second.sum(0)))
    op = ArgReduce("Max", rows, pairs.classes, 1)
    which = b.emit1(op, [votes], TensorType(DType.INT64, (rows,)))
    return gather_axis(b, b.constant(labels), 0, which, proven=True)


def _second_class(ctx: LoweringContext, scores: str, how: str) -> str:
    """Return the scores of two classes for that of a pair."""
    match how:
        case "PROBIT":
            raise ctx.unsupported("PROBIT of two classes")
        case "NONE" | "LOGISTIC":
            return transformed(ctx, two_columns(ctx, scores, lambda s: call("Neg", s)), how)
        case _:
            return two_columns(ctx, scores, lambda s: call("Sub", like(s, 1), s))


def _probabilities(ctx: LoweringContext, scores: str, pairs: _Pairs) -> str:
    """Return the classes' probabilities by Platt's sigmoids of the scores."""
    b = ctx.b
    rows, n = b.shape(scores)[0], pairs.classes
    slopes, shifts = _numbers(ctx, "prob_a"), _numbers(ctx, "prob_b")
    ctx.require(slopes.size == shifts.size == pairs.count, f"{slopes.size} sigmoids")

    def sigmoid(s: Expr, slope: Expr, shift: Expr) -> Expr:
        z = call("Add", call("Mul", s, slope), shift)
        p = call("Sub", like(s, 1), call("Sigmoid", z))
        return call("Min", call("Max", p, like(s, 1e-7)), like(s, 1 - 1e-7))

    p = b.map(sigmoid, scores, _constant(ctx, slopes), _constant(ctx, shifts))
    source, mirrored = np.zeros((n, n), np.int64), np.zeros((n, n), np.bool_)
    source[pairs.first, pairs.second] = source[pairs.second, pairs.first] = np.arange(pairs.count)
    mirrored[pairs.second, pairs.first] = True
    square = gather_axis(b, p, 1, b.constant(source), proven=True)
    square = b.map(
        lambda v, m: call("Where", m, call("Sub", like(v, 1), v), v), square, b.constant(mirrored)
    )
    return b.emit1(CouplePairs(rows, n), [square], TensorType(_REAL, (rows, n)))


def _linear(ctx: LoweringContext, x: str, labels: Array) -> tuple[str, ...]:
    """Classify without support vectors: a row of coefficients for each class."""
    table = _table(ctx, _numbers(ctx, "coefficients"), len(labels), "coefficients")
    _check_features(ctx, x, table.shape[1])
    rho = _numbers(ctx, "rho")
    ctx.require(rho.size > 0, "attribute 'rho' is missing")
    scores = product(ctx, x, _constant(ctx, table.T))
    scores = ctx.b.map(lambda s: call("Add", s, like(s, float(rho[0]))), scores)
    if len(labels) == 2:
        label = _above(ctx, scores, labels, 0.5 if (table >= 0).all() else 0.0)
    else:
        label = predicted(ctx, scores, labels)
    return label, transformed(ctx, scores, ctx.str("post_transform", "NONE"))


def _above(ctx: LoweringContext, scores: str, labels: Array, threshold: float) -> str:
    """Return the second label where it, or any score above the threshold, is the greater one."""
    b, rows = ctx.b, ctx.b.shape(scores)[0]
    reaches = "GreaterOrEqual" if threshold else "Greater"

    def second(first: Expr, other: Expr) -> Expr:
        most = call("Max", first, other)
        chosen = call("Or", call(reaches, most, like(most, threshold)), call("Less", first, other))
        return cast(chosen, DType.INT64)

    views = (View((2,)), View((2,), 1))
    which = b.map(second, scores, scores, shape=(rows,), views=views)
    return gather_axis(b, b.constant(labels), 0, which, proven=True)
