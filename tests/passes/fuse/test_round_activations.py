"""What is rounded to 16 bits once, and what keeps each of its roundings."""

from __future__ import annotations

import pytest
from graph_text import after, plain_lines

from atc.ir.expr import Call, Const, Expr, Input, call, cast, const, text, walk
from atc.ir.graph import DType
from atc.passes.fuse.round_activations import rounded_once

FLOAT, HALF = DType.FLOAT, DType.FLOAT16
X, Y = Input(FLOAT, 0), Input(FLOAT, 1)


def rounded(e: Expr, half: DType = HALF) -> Expr:
    return cast(cast(e, half), FLOAT)


def number(value: float) -> Expr:
    return const(value, FLOAT)


def by_steps(e: Expr) -> Expr:
    """Return an expression with each of its functions rounded, as nodes in float16 are."""
    if not isinstance(e, Call):
        return e
    return rounded(Call(e.dtype, e.fn, tuple(by_steps(a) for a in e.args)))


def roundings(e: Expr) -> int:
    return sum(isinstance(a, Call) and a.dtype.is_half for a in walk(e))


SUM = call("Add", X, Y)
SIGMOID, CUBE = call("Sigmoid", SUM), call("Mul", SUM, call("Mul", SUM, SUM))
CLAMPED = call("Min", call("Max", call("Add", SUM, number(3)), number(0)), number(6))
ACTIVATIONS = {
    "relu": call("Max", SUM, number(0)),
    "sigmoid": SIGMOID,
    "silu": call("Mul", SUM, SIGMOID),
    "mish": call("Mul", call("Tanh", call("Softplus", SUM)), SUM),
    "hard swish": call("Div", call("Mul", SUM, CLAMPED), number(6)),
    "leaky relu": call(
        "Where", call("Less", SUM, number(0)), call("Mul", SUM, number(0.125)), SUM
    ),
    "gelu by tanh": call("Mul", SUM, call("Add", call("Tanh", call("Add", CUBE, SUM)), number(1))),
    "of an activation": call("Tanh", call("Mul", SUM, SIGMOID)),
}
OTHERS = {
    "a sum": (SUM, 0),
    "what magnifies an error": (call("Exp", SUM), 0),
    "of two tensors": (call("Mul", X, call("Sigmoid", Y)), 0),
    "a square": (call("Mul", call("Max", SUM, number(0)), SUM), 0),
    "what may overflow": (call("Sqrt", call("Mul", SUM, SUM)), 0),
    "a quotient of itself": (call("Div", SUM, call("Add", number(1), call("Tanh", SUM))), 1),
}
"""Functions of which one step at most is an activation, whose own step or operand isn't rounded."""


@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_rounded_once(name: str, half: DType) -> None:
    def steps(e: Expr) -> Expr:
        keep = not isinstance(e, Call) or e.dtype is DType.BOOL
        again = e if not isinstance(e, Call) else Call(e.dtype, e.fn, tuple(map(steps, e.args)))
        return again if keep else rounded(again, half)

    whole = ACTIVATIONS[name]
    assert rounded_once(steps(whole)) == rounded(whole, half)


def test_a_clip_is_rounded_once() -> None:
    def clip(e: Expr) -> Expr:
        return rounded(call("Min", call("Max", e, number(0)), number(6)))

    assert rounded_once(clip(rounded(SUM))) == clip(SUM)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_keep_their_roundings(name: str) -> None:
    whole, activations = OTHERS[name]
    stepwise = by_steps(whole)
    assert roundings(rounded_once(stepwise)) == roundings(stepwise) - activations


def test_a_float_result_keeps_the_rounding_that_was_asked_for() -> None:
    asked = call("Sigmoid", rounded(X))
    assert rounded_once(asked) == asked


def test_types_of_16_bits_are_told_apart() -> None:
    mixed = rounded(call("Sigmoid", rounded(X, DType.BFLOAT16)))
    assert rounded_once(mixed) == mixed


def test_the_root_of_two_is_exact_again() -> None:
    divided = call("Erf", call("Div", SUM, number(1.4140625)))
    gelu = by_steps(call("Mul", SUM, call("Add", divided, number(1))))
    roots = [e.value for e in walk(rounded_once(gelu)) if isinstance(e, Const)]
    assert 2**0.5 in roots
    assert 1.4140625 not in roots


def test_an_epilogue_before_a_narrowing_map() -> None:
    """Kernels of vectors leave narrowing to a Map, behind which nothing reads their floats."""
    graph = """
        graph g(x: f32[2,4], w: f32[4,3])
          h: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<3,1>, epilogue=%s) x, w  # h
          y: f16[2,3] = Map(shape=(6), expr=Cast<f16>(x0), views=(<1>)) h  # y
          return y
        """  # noqa: E501
    steps = text(call("Mul", rounded(X), rounded(call("Sigmoid", rounded(X)))))
    once = text(call("Mul", X, call("Sigmoid", X)))
    given, wanted = (plain_lines(graph % e) for e in (steps, once))
    assert after("round_activations", given) == wanted


def test_an_epilogue_with_a_bias_and_a_residual() -> None:
    graph = """
        graph g(x: f32[2,4], w: f32[4,3], b: f32[3], r: f32[2,3])
          y: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<3,1>, epilogue=%s<0,1><3,1>) x, w, b, r  # y
          return y
        """  # noqa: E501
    bias, residual = Input(FLOAT, 1), Input(FLOAT, 2)
    biased = rounded(call("Add", rounded(X), bias))
    steps = call("Max", rounded(call("Add", residual, biased)), number(0))
    once = call("Max", call("Add", residual, call("Add", X, bias)), number(0))
    given, wanted = (plain_lines(graph % text(rounded(e))) for e in (steps, once))
    assert after("round_activations", given) == wanted


def test_what_is_added_elsewhere_keeps_its_rounding() -> None:
    graph = plain_lines("""
        graph g(x: f32[2,4], w: f32[4,3], r: f32[2,3])
          y: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<3,1>, epilogue=%s<3,1>) x, w, r  # y
          return y
        """ % text(rounded(call("Add", X, rounded(call("Add", Y, Y))))))  # noqa: E501, UP031
    assert after("round_activations", graph) == graph


@pytest.mark.parametrize("expr", ["x0", "Max(x0, 0.5)"])
def test_what_rounded_values_are_chosen_of_is_rounded_no_more(expr: str) -> None:
    graph = """
        graph g(x: f32[2,2])
          h: f32[2,2] = Map(shape=(4), expr=Cast<f32>(Cast<f16>(Exp(x0))), views=(<1>)) x  # h
          y: f32[2,4] = Map(shape=(4, 2), expr=%s, views=(<1,0>)) h  # y
          return y
        """
    given, wanted = (plain_lines(graph % e) for e in (f"Cast<f32>(Cast<f16>({expr}))", expr))
    assert after("round_activations", given) == wanted


@pytest.mark.parametrize("expr", ["Mul(x0, x0)", "Max(x0, 0.1)"])
def test_what_16_bits_do_not_hold_is_rounded(expr: str) -> None:
    graph = plain_lines("""
        graph g(x: f32[2,2])
          h: f32[2,2] = Map(shape=(4), expr=Cast<f32>(Cast<f16>(Exp(x0))), views=(<1>)) x  # h
          y: f32[2,2] = Map(shape=(4), expr=Cast<f32>(Cast<f16>(%s)), views=(<1>)) h  # y
          return y
        """ % expr)  # noqa: UP031
    assert after("round_activations", graph) == graph
