"""Scalar expressions as C: comparisons that the range of a type decides."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.backends.render.expr import literal, render_expr
from atc.ir.expr import Input, call
from atc.ir.graph import DType
from support import compile_models

OPS = ("Max", "Min", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
TYPES = (np.uint8, np.int8, np.int16, np.uint32, np.int64, np.uint64)


def comparison(op: str, dtype: type, end: str, swapped: bool) -> onnx.ModelProto:
    """Return an operator of x and an end of x's range."""
    c = np.array([getattr(np.iinfo(dtype), end)], dtype)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["c", "x"] if swapped else ["x", "c"]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"])], op,
        [helper.make_tensor_value_info("x", code, (4,))], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(c, "c")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_the_ends_of_a_range_compile_without_warnings(swapped: bool) -> None:
    cases = [(op, t, end) for op in OPS for t in TYPES for end in ("min", "max")]
    models = [comparison(*case, swapped) for case in cases]
    for (_, dtype, _), model, run in zip(cases, models, compile_models(models), strict=True):
        if isinstance(run, Exception):
            raise run
        info = np.iinfo(dtype)
        x = np.array([info.min, info.max, 1, 5], dtype)
        np.testing.assert_array_equal(run([x])[0], ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_zeros_keep_their_signs_whichever_is_asked_for_first() -> None:
    for dtype, end in ((DType.FLOAT, "f"), (DType.DOUBLE, "")):
        for value in (0.0, -0.0, 0.0):
            plain = f"0.0{end}"
            assert literal(value, dtype) == (f"(-{plain})" if np.signbit(value) else plain)


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.FLOAT16, DType.BFLOAT16])
def test_the_function_that_rounds_floats_is_a_choice(dtype: DType) -> None:
    twice = call("Round", call("Exp", call("Round", Input(dtype, 0))))
    assert render_expr(twice, lambda k: "x") == ([], "rintf(expf(rintf(x)))")
    assert render_expr(twice, lambda k: "x", rounding="f") == ([], "f(expf(f(x)))")


def test_doubles_are_rounded_as_doubles() -> None:
    rounded = call("Round", Input(DType.DOUBLE, 0))
    assert render_expr(rounded, lambda k: "x", rounding="f") == ([], "rint(x)")
