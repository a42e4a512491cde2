"""Joined values are computed where they end up, slices are read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from atc.backends.targets import get_target
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.steps import Program, calls
from atc.select.select import select
from support import compile_graph, run_models

TARGET = get_target("c99")

MODELS = {
    "computed": """(float[2,32] x) => (float[4,32] y) {
        a = Exp(x) b = Neg(x) y = Concat<axis=0>(a, b)
    }""",
    "then_used": """(float[2,32] x) => (float[4,32] y, float[2,32] z) {
        a = Exp(x) b = Neg(x) c = Concat<axis=0>(a, b) y = Cos(c) z = MatMul(a, w)
    }""",
    "an_input": "(float[2,32] x) => (float[4,32] y) { a = Exp(x) y = Concat<axis=0>(x, a) }",
    "twice": "(float[2,32] x) => (float[4,32] y) { a = Exp(x) y = Concat<axis=0>(a, a) }",
    "in_two": """(float[2,32] x) => (float[3,32] y, float[4,32] z) {
        a = Exp(x) b = ReduceSum(x, zero) c = Neg(x) y = Concat<axis=0>(a, b)
        z = Concat<axis=0>(c, a)
    }""",
    "an_output": """(float[2,32] x) => (float[4,32] y, float[2,32] a) {
        a = Exp(x) b = Neg(x) y = Concat<axis=0>(a, b)
    }""",
    "a_constant": "(float[2,32] x) => (float[34,32] y) { a = Exp(x) y = Concat<axis=0>(w, a) }",
    "reshaped": """(float[2,32] x) => (float[1,128] y) {
        a = Exp(x) b = Neg(x) c = Reshape(a, row) d = Reshape(b, row) y = Concat<axis=1>(c, d)
    }""",
    "nested": """(float[2,32] x) => (float[8,32] y) {
        a = Exp(x) b = Neg(x) c = Cos(x) d = Sin(x) e = Concat<axis=0>(a, b)
        f = Concat<axis=0>(e, c)
        y = Concat<axis=0>(f, d)
    }""",
    "sliced": """(float[4,32] x) => (float[32,32] y, float[2,32] z) {
        s, t = Split<axis=0>(x, two) a = Exp(s) u = Transpose(t) y = MatMul(u, a) z = MatMul(t, w)
    }""",
    "softmax": """(float[4,32] x) => (float[2,32] y, float[2,32] z) {
        e = MatMul(x, w) s, t = Split<axis=0>(e, two) y = Softmax(s) z = Softmax(t)
    }""",
    "slice_is_output": """(float[4,32] x) => (float[2,32] s, float[2,32] z) {
        e = Exp(x) s, t = Split<axis=0>(e, two) z = MatMul(s, w)
    }""",
    "slice_joined": """(float[4,32] x) => (float[6,32] y) {
        e = MatMul(x, w) s, t = Split<axis=0>(e, two) y = Concat<axis=0>(t, e)
    }""",
    "in_a_branch": """(float[2,32] x, bool b) => (float[4,32] y) {
        y = If(b) <
          then_branch = one () => (float[4,32] p) {
            e = Exp(x) n = Neg(x) p = Concat<axis=0>(e, n)
          },
          else_branch = two () => (float[4,32] q) { f = Cos(x) q = Concat<axis=0>(f, x) }
        >
    }""",
}


def model(name: str) -> onnx.ModelProto:
    graph = MODELS[name].replace("\n", " ")
    head, _, rest = graph.partition(") {")
    initial = "<float[32,32] w, int64[1] zero = {0}, int64[2] row = {1, 64}, int64[2] two = {2, 2}>"
    text = f'<ir_version: 10, opset_import: ["" : 20]> g {head}) {initial} {{{rest}'
    made = onnx.parser.parse_model(text)
    weights = np.random.default_rng(3).standard_normal((32, 32)).astype(np.float32)
    del made.graph.initializer[:]
    values = {"w": weights, "zero": [0], "row": [1, 64], "two": [2, 2]}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v, np.float32 if n == "w" else np.int64), n)
        for n, v in values.items()
    )
    return made


def feeds(made: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        i.name: np.array(i.name == "b")
        if i.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        else rng.standard_normal(
            [d.dim_value for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for i in made.graph.input
    }  # fmt: skip


def test_joined_and_sliced_values_are_right() -> None:
    models = [model(name) for name in MODELS]
    inputs = [feeds(m) for m in models]
    results = run_models(models, [list(i.values()) for i in inputs])
    for name, made, given, found in zip(MODELS, models, inputs, results, strict=True):
        assert not isinstance(found, Exception), (name, found)
        for want, got in zip(ReferenceEvaluator(made).run(None, given), found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


def program(name: str, in_place: bool = True) -> Program:
    graph = run_passes(compile_graph(model(name)))
    return build_program(graph, select(graph, TARGET), TARGET, in_place=in_place)


@pytest.mark.parametrize(
    ("name", "copies"),
    [("computed", 0), ("then_used", 0), ("an_input", 1), ("twice", 1), ("in_two", 1),
     ("an_output", 1), ("a_constant", 1), ("reshaped", 0), ("nested", 0)],
)  # fmt: skip
def test_only_what_cannot_be_made_in_place_is_copied(name: str, copies: int) -> None:
    kinds = [c.node.op.kind for c in calls(program(name).steps) if not c.node.origin]
    assert kinds == ["Map"] * copies
    joins = [c for c in calls(program(name).steps) if c.node.op.kind == "Concat"]
    assert not joins


def test_without_in_place_memory_values_are_joined_by_a_kernel() -> None:
    kinds = [c.node.op.kind for c in calls(program("computed", in_place=False).steps)]
    assert kinds.count("Concat") == 1


def test_a_slice_costs_no_call() -> None:
    sliced = program("softmax")
    assert [c.node.op.kind for c in calls(sliced.steps)] == ["MatMul", "Softmax", "Softmax"]
    assert 64 * 4 in sliced.byte_offsets.values()
