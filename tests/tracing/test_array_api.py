"""The array API's functions against numpy's: what is recorded of them, and what is compiled."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from atc import Tensor, array_api, trace
from atc.tracing import ArgumentError, OperandError

RNG = np.random.default_rng(3)
A = RNG.normal(size=(3, 4)).astype(np.float32)
B = RNG.normal(size=(3, 4)).astype(np.float32)
IN = RNG.uniform(-0.9, 0.9, size=(3, 4)).astype(np.float32)
POS = RNG.uniform(0.1, 5, size=(3, 4)).astype(np.float32)
ODD = np.float32([-np.inf, -2.5, -1e-9, -0.0, 0.0, 1e-9, 0.5, 1.5, 2.5, 1e30, np.inf, np.nan])
I = RNG.integers(-9, 9, size=(3, 4))  # noqa: E741
J = RNG.integers(1, 5, size=(3, 4)) * RNG.choice([-1, 1], size=(3, 4))
P = I > 0
Q = J > 0

UNARY = [
    *[(n, A) for n in ("abs", "asinh", "atan", "ceil", "cos", "cosh", "exp", "expm1", "floor",
                       "negative", "positive", "round", "sign", "signbit", "sin", "sinh", "square",
                       "tan", "tanh", "trunc", "isfinite", "isinf", "isnan", "reciprocal")],
    *[(n, IN) for n in ("acos", "asin", "atanh", "log1p")],
    *[(n, POS) for n in ("log", "log2", "log10", "sqrt")],
    *[(n, ODD) for n in ("expm1", "isfinite", "isinf", "isnan", "signbit", "trunc", "round")],
    ("log1p", ODD[2:]), ("acosh", POS + 1), ("abs", I), ("floor", I), ("negative", I),
    ("bitwise_invert", I), ("logical_not", P), ("isfinite", I),
]  # fmt: skip
BINARY = [
    *[(n, A, B) for n in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "less",
                          "less_equal", "greater", "greater_equal", "equal", "not_equal", "atan2",
                          "hypot", "logaddexp", "copysign", "floor_divide", "remainder")],
    *[(n, I, J) for n in ("add", "floor_divide", "remainder", "bitwise_and", "bitwise_or",
                          "bitwise_xor", "less", "equal")],
    *[(n, P, Q) for n in ("logical_and", "logical_or", "logical_xor")],
    ("pow", POS, B), ("matmul", A, B.T), ("vecdot", A, B),
    ("atan2", np.float32([0.0, -0.0, 0.0, -0.0, 1, -1]), np.float32([1, 1, -1, -1, 0, 0])),
]  # fmt: skip
OTHERS: list[tuple[str, Any]] = [
    ("sum", lambda xp, a: xp.sum(a, axis=1)), ("sum all", lambda xp, a: xp.sum(a)),
    ("prod", lambda xp, a: xp.prod(a, axis=0, keepdims=True)),
    ("mean", lambda xp, a: xp.mean(a, axis=(0, 1))), ("max", lambda xp, a: xp.max(a, axis=-1)),
    ("min", lambda xp, a: xp.min(a)), ("var", lambda xp, a: xp.var(a, axis=1, correction=1)),
    ("std", lambda xp, a: xp.std(a)), ("all", lambda xp, a: xp.all(a > -1, axis=0)),
    ("any", lambda xp, a: xp.any(a > 1, axis=1)), ("argmax", lambda xp, a: xp.argmax(a)),
    ("argmin", lambda xp, a: xp.argmin(a, axis=1)), ("sort", lambda xp, a: xp.sort(a, axis=0)),
    ("argsort", lambda xp, a: xp.argsort(a)), ("clip", lambda xp, a: xp.clip(a, -0.5, 0.5)),
    ("where", lambda xp, a: xp.where(a > 0, a, 0.0)),
    ("count_nonzero", lambda xp, a: xp.count_nonzero(a > 0, axis=0)),
    ("cumulative_sum", lambda xp, a: xp.cumulative_sum(a, axis=1, include_initial=True)),
    ("reshape", lambda xp, a: xp.reshape(a, (2, -1))), ("flip", lambda xp, a: xp.flip(a)),
    ("permute_dims", lambda xp, a: xp.permute_dims(a, (1, 0))),
    ("moveaxis", lambda xp, a: xp.moveaxis(xp.expand_dims(a, axis=0), 0, -1)),
    ("squeeze", lambda xp, a: xp.squeeze(xp.expand_dims(a, axis=1), axis=1)),
    ("broadcast_to", lambda xp, a: xp.broadcast_to(a, (2, 3, 4))),
    ("concat", lambda xp, a: xp.concat([a, a + 1], axis=1)),
    ("concat flat", lambda xp, a: xp.concat([a, a], axis=None)),
    ("stack", lambda xp, a: xp.stack([a, a * 2], axis=1)),
    ("unstack", lambda xp, a: xp.unstack(a, axis=1)[2]),
    ("roll", lambda xp, a: xp.roll(a, (1, -2), axis=(0, 1))),
    ("roll flat", lambda xp, a: xp.roll(a, 5)), ("tile", lambda xp, a: xp.tile(a, (2, 1, 2))),
    ("repeat", lambda xp, a: xp.repeat(a, 2, axis=0)),
    ("repeat flat", lambda xp, a: xp.repeat(a, 3)),
    ("take", lambda xp, a: xp.take(a, xp.asarray(np.array([2, 0])), axis=0)),
    ("take_along_axis", lambda xp, a: xp.take_along_axis(a, xp.argsort(a, axis=1), axis=1)),
    ("tril", lambda xp, a: xp.tril(a, k=-1)), ("triu", lambda xp, a: xp.triu(a, k=1)),
    ("arange", lambda xp, a: a + xp.astype(xp.arange(4), a.dtype)),
    ("linspace", lambda xp, a: a + xp.astype(xp.linspace(0, 1, 4), a.dtype)),
    ("eye", lambda xp, a: a @ xp.eye(4, dtype=a.dtype)),
    ("full", lambda xp, a: a + xp.full((4,), 2.0, dtype=a.dtype)),
    ("zeros_like", lambda xp, a: a + xp.zeros_like(a)), ("ones", lambda xp, a: a + xp.ones_like(a)),
    ("meshgrid", lambda xp, a: xp.meshgrid(a[0], a[:, 1])[1]),
    ("slice", lambda xp, a: a[1:, ::-2]), ("integer", lambda xp, a: a[-1]),
    ("new axis", lambda xp, a: a[None, 1, ..., None]), ("empty", lambda xp, a: a[3:, :]),
    ("gather", lambda xp, a: a[:, xp.asarray(np.array([3, 0, 3]))]),
    ("operators", lambda xp, a: 1.0 / (2.0 - a) ** 2 + abs(-a) % 0.7 - 3.0 // (a * a + 1.0)),
    ("bits", lambda xp, a: ~(a > 0) & (a < 1) | (a > 2) ^ (a != 0)),
    ("matrix_transpose", lambda xp, a: xp.matrix_transpose(a) @ a), ("T", lambda xp, a: a.T),
    ("tensordot", lambda xp, a: xp.tensordot(a, xp.stack([a, a], axis=1), axes=([0], [0]))),
]  # fmt: skip


def check(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-7)


def results(function: Any, arrays: list[Any], compiled: bool) -> list[Any]:
    """Return what a function gives: by its library, or by the standard's reference of its graph."""
    traced = trace(symbolic=not compiled, record_only=not compiled)(function)
    if compiled:
        return [t.numpy() for t in traced(*arrays)]
    traced(*arrays)
    model = ReferenceEvaluator(traced.model())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return model.run(None, dict(zip(model.input_names, arrays, strict=True)))


def in_one_network(cases: list[Any], compiled: bool) -> list[Any]:
    """Return the results of many functions, traced together."""
    arrays = [a for case in cases for a in case[1:]]
    counts = [len(case) - 1 for case in cases]

    def together(*operands: Tensor) -> list[Tensor]:
        rest, found = [*operands], []
        for case, count in zip(cases, counts, strict=True):
            mine, rest = rest[:count], rest[count:]
            found.append(getattr(array_api, case[0])(*mine))
        return found

    return results(together, arrays, compiled)


GROUPS = [*(UNARY[k : k + 15] for k in range(0, len(UNARY), 15)), BINARY[:17], BINARY[17:]]
WAYS = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("compiled", WAYS, ids=["recorded", "compiled"])
@pytest.mark.parametrize("cases", GROUPS, ids=lambda group: f"{group[0][0]} and others")
def test_functions_of_elements(cases: list[Any], compiled: bool) -> None:
    for case, found in zip(cases, in_one_network(cases, compiled), strict=True):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            wanted = getattr(np, case[0])(*case[1:])
        try:
            check(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"{case[0]} of {case[1].dtype}: {error}") from None


@pytest.mark.parametrize("compiled", WAYS, ids=["recorded", "compiled"])
def test_other_functions(compiled: bool) -> None:
    every = results(lambda a: [make(array_api, a) for _, make in OTHERS], [A], compiled)
    for (name, make), found in zip(OTHERS, every, strict=True):
        try:
            check(found, make(np, A))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + np.arange(4), lambda x: x @ np.ones((3, 3), np.float32),
        lambda x: x[x > 0], lambda x: x & x,
    ],
)  # fmt: skip
def test_operands_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(OperandError) as error:
        wrong(Tensor(A))
    assert "test_array_api.py" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [lambda x: x[5], lambda x: x[0, 0, 0], lambda x: x[None].T,
    *(lambda x, f=f: f(x, axis=2) for f in (array_api.sum, array_api.sort, array_api.argmax))])
def test_parts_that_are_not_there_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        wrong(Tensor(A))


@pytest.mark.parametrize("operand", [np.int64(3), True, 2, 1.5])
def test_numbers_take_the_type_of_the_tensor(operand: Any) -> None:
    x = Tensor(A)
    if isinstance(operand, (np.int64, bool)):
        with pytest.raises(OperandError, match="no common type"):
            x + operand
    else:
        assert (x + operand).dtype == np.float32
