"""Softmax and Normalize in vectors against onnxruntime, around the width of a vector."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from ort_cases import Case, compiled, noise

from atc.backends.targets import get_target
from atc.passes import run_passes
from atc.select.select import select
from support import assert_close, compile_graph, run_model, run_models, runnable

TARGETS = ["x86-64-avx2", "x86-64-avx512"]
THREE = (np.float32,) * 3


def _cases() -> dict[str, Case]:
    cases = {}
    for n in (4, 7, 8, 16, 19, 31, 32, 100):
        x, s, t = noise(3, 5, n) * 3 + 5, noise(n, seed=1), noise(n, seed=2)
        per = (noise(5, seed=3), noise(5, seed=4))
        cases |= {
            f"Softmax {n}": Case("Softmax", [x]),
            f"LogSoftmax {n}": Case("LogSoftmax", [x]),
            f"Softmax of columns {n}": Case("Softmax", [x], (), {"axis": 1}),
            f"LogSoftmax of columns {n}": Case("LogSoftmax", [x], (), {"axis": 0}),
            f"LayerNormalization {n}": Case("LayerNormalization", [x, s, t], opset=17),
            f"LayerNormalization of planes {n}": Case(
                "LayerNormalization", [x, noise(5, n)], (), {"axis": 1}, 17, outputs=THREE
            ),
            f"InstanceNormalization {n}": Case("InstanceNormalization", [x, *per]),
            f"LpNormalization 1 {n}": Case("LpNormalization", [x], (), {"p": 1}),
            f"LpNormalization 2 {n}": Case("LpNormalization", [x], (), {"p": 2}),
        }
    return cases


CASES = _cases()
COMPILED = {t: compiled(CASES, t, chunk=80) for t in TARGETS}


@pytest.mark.few(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    got = COMPILED[target][name](CASES[name].feeds)
    assert_close(got, CASES[name].onnxruntime(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization"])
@pytest.mark.parametrize("n", [3, 4, 64])
def test_vectors_are_chosen_where_they_fit(op: str, n: int) -> None:
    case = Case(op, [noise(2, n), *([noise(n)] if op != "Softmax" else [])], opset=17)
    graph = run_passes(compile_graph(case.model))
    (choice,) = select(graph, get_target("x86-64-avx2")).values()
    assert choice.candidate.kernel.portable == (n < 4)


@pytest.mark.parametrize("target", TARGETS)
def test_special_values(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    rows = np.zeros((5, 20), np.float32)
    rows[0, 3], rows[1, 19], rows[2, 0], rows[3] = np.inf, np.nan, -np.inf, -np.inf
    rows[4] = np.linspace(-1e38, 1e38, 20)
    models = [
        Case("Softmax", [rows]).model,
        Case("Softmax", [rows.T.copy()], (), {"axis": 0}).model,
    ]
    by_row, by_column = run_models(models, [[rows], [rows.T.copy()]], target)
    assert not isinstance(by_row, Exception)
    assert not isinstance(by_column, Exception)
    with np.errstate(all="ignore"):
        e = np.exp(rows - rows.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
    assert_close([by_row[0], by_column[0].T], [expected, expected], rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_long_rows_far_from_zero_are_accurate(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    x, ones = noise(2, 60_000) + 1000, np.ones(60_000, np.float32)
    case = Case("LayerNormalization", [x, ones], opset=17)
    (result,) = run_models([case.model], [[x, ones]], target)
    assert not isinstance(result, Exception)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    assert np.abs(result[0] - expected).max() < 2e-4  # the inputs' own spacing is 6e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    "width", [13, 40, *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 16, 31))]
)
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_softmax_over_its_own_operand(target: str, op: str, width: int) -> None:
    if not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node(op, ["e"], ["s"]),
             helper.make_node("Abs", ["s"], ["a"]),
             helper.make_node("Neg", ["s"], ["n"])]  # fmt: skip
    for shape, axis in (((5, width), -1), ((3, 4, width), 1)):
        nodes[1].ClearField("attribute")
        nodes[1].attribute.append(helper.make_attribute("axis", axis))
        x = np.random.default_rng(width).standard_normal(shape).astype(np.float32)
        graph = helper.make_graph(
            nodes, op, [helper.make_tensor_value_info("x", 1, shape)],
            [onnx.ValueInfoProto(name="a"), onnx.ValueInfoProto(name="n")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        expected = ReferenceEvaluator(model).run(None, {"x": x})
        assert_close(run_model(model, [x], target), expected, rtol=1e-5, atol=1e-6)
