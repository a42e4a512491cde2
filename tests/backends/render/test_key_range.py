"""Which keys queries see at most, of masks that positions alone decide."""

from __future__ import annotations

import pytest

from atc.backends.kernel import Workload
from atc.backends.render.key_range import key_range
from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View

SCORE, LENGTH = Input(DType.FLOAT, 0), Input(DType.INT64, 1)
QUERY, KEY, BATCH = (Input(DType.INT64, k) for k in (2, 3, 4))
VIEWS = (View((1, 0, 0)), View((0, 1, 0)), View((0, 0, 1)), View((1, 0, 0)))
"""Of a tensor of lengths, and of three indices."""


def number(value: int) -> Expr:
    return const(value, DType.INT64)


def seen(condition: Expr, hidden: float = float("-inf")) -> tuple[list[str], bool]:
    """Return what bounds the keys of the queries from 8 to 15, as C, and whether it is causal."""
    expr = call("Where", condition, SCORE, const(hidden, DType.FLOAT))
    floats = TensorType(DType.FLOAT, (2, 20, 16))
    plain = Epilogue(Input(DType.FLOAT, 0), ())
    dense = View((320, 16, 1))
    op = Attention((2,), 20, 20, 16, 16, dense, View((320, 1, 16)), dense, dense,
                   Epilogue(expr, VIEWS), plain)  # fmt: skip
    lengths = TensorType(DType.INT64, (2,))
    operands = (floats, floats, floats, lengths, None, None, None)
    op.check(operands, (floats,))
    found = key_range(Workload(op, operands, (floats,), (False,) * 7), ["b0"], "8", "15")
    limits = [line for line in found.lines if line.startswith("const ptrdiff_t")]
    return limits, found.causal


@pytest.mark.parametrize(
    ("condition", "limit", "causal"),
    [
        (call("LessOrEqual", KEY, QUERY), "end0 = (ptrdiff_t)((int64_t)(15)) + 1", True),
        (call("Greater", QUERY, KEY), "end0 = (ptrdiff_t)((int64_t)(15))", True),
        (call("Less", KEY, LENGTH), "end0 = (ptrdiff_t)(x3[b0])", False),
        (call("GreaterOrEqual", KEY, QUERY), "begin0 = (ptrdiff_t)((int64_t)(8))", False),
        (call("Greater", KEY, number(3)), "begin0 = (ptrdiff_t)(INT64_C(3)) + 1", False),
    ],
)
def test_positions_bound_the_keys(condition: Expr, limit: str, causal: bool) -> None:
    assert seen(condition) == ([f"const ptrdiff_t {limit};"], causal)


def test_several_conditions_bound_them_together() -> None:
    shifted = call("Sub", call("Add", QUERY, LENGTH), number(4))
    both = call("And", call("LessOrEqual", KEY, shifted), call("GreaterOrEqual", KEY, QUERY))
    limits, causal = seen(both)
    assert [line.split()[2] for line in limits] == ["end0", "begin1"]
    assert causal


@pytest.mark.parametrize(
    "condition",
    [
        call("LessOrEqual", KEY, call("Sub", number(9), QUERY)),  # later queries see less
        call("LessOrEqual", QUERY, number(3)),  # nothing of keys
        call("LessOrEqual", KEY, call("Add", KEY, QUERY)),
        call("Or", call("LessOrEqual", KEY, QUERY), call("Less", KEY, number(3))),
        call("Equal", KEY, QUERY),
    ],
    ids=["falls", "of queries", "of keys", "either", "one key"],
)
def test_other_conditions_bound_nothing(condition: Expr) -> None:
    assert seen(condition) == ([], False)


def test_a_finite_score_is_no_hidden_key() -> None:
    assert seen(call("LessOrEqual", KEY, QUERY), -10000.0) == ([], False)
