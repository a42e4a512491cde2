"""What vectors store of a value."""

from __future__ import annotations

import numpy as np
import pytest

from atc.backends.render.vector_expr import render_vector, stored
from atc.ir.expr import Call, Const, Expr, Input, call, cast, const, walk
from atc.ir.graph import DType

FUNCTIONS = {"Max": np.maximum, "Min": np.minimum, "Add": np.add, "Round": np.rint}


def evaluate(e: Expr, x: np.ndarray) -> np.ndarray:
    """Compute an expression of one operand in float32."""
    if isinstance(e, Const):
        return np.float32(e.value)
    assert isinstance(e, Call) or e == Input(DType.FLOAT, 0)
    return FUNCTIONS[e.fn](*(evaluate(a, x) for a in e.args)) if isinstance(e, Call) else x


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.UINT16])
@pytest.mark.parametrize("fn", ["Max", "Min"])
@pytest.mark.parametrize("zero", [0, -128, 127, 255, 5, 32768])
@pytest.mark.parametrize("bound", [0, -0.5, 254.5, np.inf, -np.inf, 122.4, 65534.5])
def test_a_clamp_is_left_out_where_storing_does_the_same(
    dtype: DType, fn: str, zero: int, bound: float
) -> None:
    parts = (np.arange(s - 300, s + 300, 0.25) for s in (-65536, -32768, 0, 32768, 65536))
    x = np.array([*np.concatenate([*parts]), np.inf, -np.inf, np.nan], np.float32)
    clamped = call(fn, Input(DType.FLOAT, 0), const(bound, DType.FLOAT))
    whole = call("Add", call("Round", clamped), const(zero, DType.FLOAT))
    found = stored(Call(dtype, "CastSaturate", (whole,)))
    assert found is not None
    limits = np.iinfo(dtype.numpy)
    want, got = (np.clip(evaluate(e, x), limits.min, limits.max) for e in (whole, found))
    np.testing.assert_array_equal(got, want)
    unclamped = np.clip(np.rint(x) + np.float32(zero), limits.min, limits.max)
    assert (clamped in walk(found)) == (not np.array_equal(unclamped, want, equal_nan=True))


def test_16_bit_floats_that_are_read_twice_are_vectors_of_floats() -> None:
    """They become floats when they are loaded: a variable of them isn't one of float16."""
    half = Input(DType.FLOAT16, 0)
    x = cast(half, DType.FLOAT)
    long = "v_load_f16(x0 + 1234567 * a + 1234567 * b + 1234567 * c + 1234567 * d + e)"
    lines, _ = render_vector(call("Mul", x, call("Exp", x)), lambda k: long)
    assert lines[0] == f"const vf32 v0 = {long};"
