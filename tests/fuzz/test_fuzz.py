"""Drawn models: compiled, run and compared, a few by default, two thousand of a kind with -m fuzz.

`python tests/fuzz/run.py` runs more of them and shrinks what fails.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest
from default_run import level
from fuzz.compare import Case, Failure, check, shrink, text
from fuzz.converted import MODELS, PACKAGES
from fuzz.draw import DTYPES, Draw, Made, Value, make_model
from fuzz.exact_sums import in_unsigned
from fuzz.run import draw, run, slices
from onnx import helper


def assert_clean(failures: list[Failure]) -> None:
    reported = [f"{f.case.name}: {f.reason}\n{text(f.case.model)}" for f in failures]
    assert not reported, "\n".join(reported)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("graph", "host"),
        ("place", "c99"),
        ("op", "c99"),
        ("rare", "c99"),
        pytest.param("graph", "c99", marks=pytest.mark.slow),
        pytest.param("place", "host", marks=pytest.mark.slow),
        pytest.param("op", "host", marks=pytest.mark.slow),
        pytest.param("rare", "host", marks=pytest.mark.slow),
    ],
)
def test_some_models(kind: str, target: str) -> None:
    assert_clean(run(kind, range(6 if level() == "-O0" else 40), target))


@pytest.mark.slow
def test_some_of_onnxruntimes_own_operators() -> None:
    pytest.importorskip("onnxruntime")
    assert_clean(run("contrib", range(40), "c99"))


def need_converters() -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="needs the extra 'converters'")


@pytest.mark.slow
def test_a_model_of_every_kind_that_converters_write() -> None:
    need_converters()
    assert_clean(run("converted", range(len(MODELS)), "c99"))


@pytest.mark.fuzz
@pytest.mark.parametrize("target", ["c99", "host"])
def test_three_hundred_converted_models(target: str) -> None:
    need_converters()
    assert_clean([f for part in slices(range(100, 400)) for f in run("converted", part, target)])


EXPORTERS = {
    "torch": ("torch", "onnxscript"),
    "keras": ("tensorflow", "tf2onnx"),
    "paddle": ("paddle", "paddle2onnx"),
}
"""The packages by which each kind of models is made and written."""


@pytest.mark.parametrize(
    ("count", "target"),
    [
        pytest.param(20, "c99", marks=pytest.mark.slow),
        pytest.param(300, "c99", marks=pytest.mark.fuzz),
        pytest.param(300, "host", marks=pytest.mark.fuzz),
    ],
)
@pytest.mark.parametrize("kind", EXPORTERS)
def test_exported_models(kind: str, count: int, target: str) -> None:
    for package in EXPORTERS[kind]:
        extra = "paddle" if kind == "paddle" else "exporters"
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}, of the extra '{extra}'")
    assert_clean([f for part in slices(range(count)) for f in run(kind, part, target)])


def test_some_damaged_models() -> None:
    assert_clean(run("mutant", range(90, 130), "c99"))


@pytest.mark.fuzz
@pytest.mark.parametrize("target", ["c99", "host"])
@pytest.mark.parametrize("kind", ["graph", "place", "op", "rare", "contrib"])
def test_two_thousand_models(kind: str, target: str) -> None:
    assert_clean([f for part in slices(range(10_000, 12_000)) for f in run(kind, part, target)])


@pytest.mark.parametrize(
    "count", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.fuzz)]
)
@pytest.mark.parametrize("framework", ["tflite", "torch"])
def test_damaged_files_of_other_packages(framework: str, count: int) -> None:
    for package in EXPORTERS["keras" if framework == "tflite" else framework]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}, of the extra '{framework}'")
    assert_clean([f for p in slices(range(count)) for f in run(f"mutant-{framework}", p, "c99")])


@pytest.mark.fuzz
def test_two_thousand_damaged_models() -> None:
    parts = slices(range(10_000, 12_000))
    assert_clean([f for part in parts for f in run("mutant", part, "host")])


def test_a_seed_draws_the_same_model_again() -> None:
    for kind in ("graph", "place", "op", "rare"):
        first, second = draw(kind, 7), draw(kind, 7)
        assert first.model == second.model
        assert all(np.array_equal(a, second.feeds[n], True) for n, a in first.feeds.items())


def chain(*ops: str) -> Case:
    names = ["x", *(f"t{k}" for k in range(len(ops)))]
    nodes = [helper.make_node(op, [names[k]], [names[k + 1]]) for k, op in enumerate(ops)]
    x = np.array([0.5, -2, 3], np.float32)
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    graph = helper.make_graph(nodes, "chain", given, [onnx.ValueInfoProto(name=names[-1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return Case("chain", model, {"x": x})


def test_a_wrong_result_is_found_and_shrunk_to_the_node() -> None:
    case = chain("Abs", "Exp", "Neg", "Sigmoid", "Tanh")
    assert check([case]) == []
    wrong = Case(case.name, case.model, case.feeds, (np.zeros(3, np.float32),))
    assert check([wrong]) == []  # onnxruntime agrees with the result
    node = case.model.graph.node[2]

    def fails(smaller: Case) -> str:
        return "" if all(n.name != node.name for n in smaller.model.graph.node) else "fails"

    for k, each in enumerate(case.model.graph.node):
        each.name = f"n{k}"
    small = shrink(Failure(case, "fails"), fails).case.model
    assert [n.op_type for n in small.graph.node] == ["Neg"]


@pytest.mark.parametrize("kinds", ["Bb", "bb", "BB"])
@pytest.mark.parametrize("quantized", [False, True], ids=["real", "quantized"])
def test_onnxruntime_sums_products_of_bytes_exactly_on_every_cpu(
    kinds: str, quantized: bool
) -> None:
    pytest.importorskip("onnxruntime")
    a, b = (np.full((4, 4), np.iinfo(DTYPES[k]).max, DTYPES[k]) for k in kinds)
    a[1], b[:, 1] = np.iinfo(a.dtype).min, np.iinfo(b.dtype).min
    sums = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 2)
    scale, points = np.float32(0.5), (a.dtype.type(3), b.dtype.type(2))
    operands = [a, scale, points[0], b, scale, points[1]]
    expected = (sums / 4).astype(np.float32)
    if quantized:
        operands += [None, np.float32(500), a.dtype.type(5)]
        limits = np.iinfo(a.dtype)
        expected = np.clip(np.round(sums / 2000) + 5, limits.min, limits.max).astype(a.dtype)
    given = [None if x is None else Value(f"x{k}", np.asarray(x)) for k, x in enumerate(operands)]
    d = Draw(np.random.default_rng(0))
    (y,) = d.add(Made("QGemm", given, domain="com.microsoft"))
    np.testing.assert_array_equal(y.array, expected)
    model = make_model(d.nodes, [v for v in given if v], [y.name], d.opset, d.domains)
    read, _ = in_unsigned(model, {v.name: v.array for v in given if v})
    types = {t.name: t.data_type for t in read.graph.initializer}
    types |= {i.name: i.type.tensor_type.elem_type for i in read.graph.input}
    assert onnx.TensorProto.INT8 not in [types[n] for n in read.graph.node[0].input if n]


def test_a_crash_is_a_failure_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import fuzz.run

    def die(cases: list[Case], target: str) -> list[Failure]:
        os._exit(11)

    monkeypatch.setattr(fuzz.run, "check", die)
    assert [f.reason for f in run("op", [3, 4], "c99")] == ["the process died"] * 2
