"""The dry run: it lists all that can't be compiled, and says what compiling does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from stages import project_of
from suite import case_names, load_cases

from atc.cli.main import main
from atc.errors import AtcError
from atc.options.options import Options
from atc.pipeline.request import resolve_request
from atc.tools.check import Check, check_json, check_model, check_text

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.onnx"))
F32 = TensorProto.FLOAT


def check(model: onnx.ModelProto, folder: Path, target: str = "c99") -> Check:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return check_model(resolve_request(Options(path, folder / "net", target=target)))


def compiling_fails_with(path: Path, target: str = "c99") -> AtcError | None:
    """Return the error of a compilation up to the C compiler."""
    options = Options(path, path.with_name("net"), target=target)
    try:
        project_of(options)
    except AtcError as error:
        return error
    return None


def assert_agrees(model: onnx.ModelProto, folder: Path, name: str) -> Check:
    """Compare a dry run with a compilation: both succeed or both fail, with the same words."""
    result = check(model, folder)
    error = compiling_fails_with(folder / "model.onnx")
    if error is None:
        assert not result.errors, f"{name}: {result.errors}"
        assert all(f.status in ("tuned", "portable", "none") for f in result.findings), name
    else:
        assert result.errors, f"{name} fails with {error}"
        assert str(result.errors[0]) == str(error), name
        assert result.exit_status == error.exit_status
    return result


def check_cases(names: Iterable[str], folder: Path) -> tuple[int, int]:
    """Check the standard's tests; return how many compile and how many don't."""
    passed = failed = 0
    for case in load_cases(names):
        result = assert_agrees(case.model, folder, case.name)
        passed, failed = passed + (not result.errors), failed + bool(result.errors)
        inner = {n.op_type for n in case.model.graph.node}
        if result.findings:
            assert inner <= {f.op_type for f in result.findings}
    return passed, failed


@pytest.mark.slow
def test_it_says_what_compiling_does_for_all_of_the_standards_tests(tmp_path: Path) -> None:
    passed, failed = check_cases((*case_names("node"), *case_names("simple")), tmp_path)
    assert passed > 1000
    assert failed > 50


# ---- several unsupported nodes ------------------------------------------------------------------


def doctored(path: Path, every: int) -> tuple[onnx.ModelProto, list[str]]:
    """Put an operator nobody knows before every so many nodes of a model; return their names."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    nodes, strange = [], []
    for k, node in enumerate(model.graph.node):
        if k % every == 0:
            strange.append(f"strange {k}")
            wild = helper.make_node(
                "Strange", [node.input[0]], [f"w{k}"], strange[-1], domain="acme"
            )
            nodes.append(wild)
            node.input[0] = f"w{k}"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    return model, strange


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_all_unsupported_nodes_are_listed_at_once(path: Path, every: int, tmp_path: Path) -> None:
    model, strange = doctored(path, every)
    result = assert_agrees(model, tmp_path, path.stem)
    failing = [f.node for f in result.findings if f.status == "fails"]
    assert failing == strange
    assert len(result.findings) == len(model.graph.node)
    assert [e.where for e in result.errors] == [
        f"model.onnx, node '{name}' (Strange)" for name in strange
    ]


def typed_graph(nodes: list[onnx.NodeProto], inner: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Return a model from x [2,3] to y with declared inner values."""
    infos = [helper.make_tensor_value_info(n, F32, s) for n, s in inner.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", F32, (2, 3))],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.array([3, 2]), "shape")], value_info=infos,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def statuses(result: Check) -> dict[str, str]:
    return {f.node: f.status for f in result.findings}


def test_nodes_after_a_refused_one_have_tiers_where_its_shape_is_declared(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("A", ["x"], ["a"], "first", domain="acme"),
        helper.make_node("Exp", ["a"], ["e"], "exp"),
        helper.make_node("Reshape", ["e", "shape"], ["r"], "reshape"),
        helper.make_node("B", ["r"], ["b"], "second", domain="acme"),
        helper.make_node("Neg", ["b"], ["y"], "neg"),
        helper.make_node("Exp", ["x"], ["unused"], "unused"),
    ]
    result = assert_agrees(typed_graph(nodes, {"a": (2, 3), "e": (2, 3)}), tmp_path, "declared")
    assert statuses(result) == {
        "first": "fails", "exp": "none", "reshape": "none", "second": "fails", "neg": "unknown",
        "unused": "none",
    }  # fmt: skip
    result = check(typed_graph(nodes, {"a": (2, 3), "b": (3, 2)}), tmp_path)
    assert statuses(result)["neg"] == "portable"


def test_a_refused_node_of_the_standard_has_a_known_shape(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"], "sum"),
        helper.make_node("MatMul", ["sum", "sum"], ["wrong"], "wrong"),
        helper.make_node("Softmax", ["x"], ["s"], "softmax", axis=7),
        helper.make_node("Mul", ["s", "sum"], ["y"], "product"),
    ]
    result = assert_agrees(typed_graph(nodes, {"s": (2, 3)}), tmp_path, "standard")
    assert statuses(result) == {
        "sum": "portable", "wrong": "fails", "softmax": "fails", "product": "portable"
    }  # fmt: skip


def test_a_shape_that_a_refused_node_computes_is_no_reason_of_its_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("A", ["x"], ["s"], "shape maker", domain="acme"),
        helper.make_node("Cast", ["s"], ["i"], "cast", to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "i"], ["y"], "reshape"),
    ]
    result = assert_agrees(typed_graph(nodes, {"s": (2,)}), tmp_path, "shape")
    assert statuses(result)["reshape"] == "unknown"
    assert len(result.errors) == 1


def test_nodes_in_branches_and_loops_are_listed(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node(op, ["x"], [f"{name}a"], f"{name} {op}", domain="acme"),
            helper.make_node("Neg", [f"{name}a"], [f"{name}b"], f"{name} neg"),
        ]
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=f"{name}b")])

    condition = helper.make_node(
        "Constant", [], ["c"], "c", value=numpy_helper.from_array(np.array(True))
    )
    choice = helper.make_node(
        "If", ["flag"], ["y"], "choice", then_branch=branch("then", "P"),
        else_branch=branch("else", "Q"),
    )  # fmt: skip
    model = typed_graph([condition, choice], {})
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, ()))
    result = assert_agrees(model, tmp_path, "branches")
    assert [f.node for f in result.findings if f.status == "fails"] == ["then P", "else Q"]
    assert statuses(result)["choice"] == "unknown"


def test_what_concerns_no_node_is_an_error_of_the_model(tmp_path: Path) -> None:
    model = typed_graph([helper.make_node("Neg", ["x"], ["y"], "neg")], {})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    result = assert_agrees(model, tmp_path, "model")
    assert result.findings == ()
    assert "dynamic" in result.errors[0].message
    assert "--input_shape" in check_text(result)


# ---- how it is reported -------------------------------------------------------------------------


def test_the_command_prints_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, strange = doctored(SAMPLES[0], 2)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert main(["check", f"--model={path}", "--target=c99"]) == 1
    text, err = capsys.readouterr()
    assert err == ""
    assert text.startswith(f"model.onnx for c99: can't be compiled, {len(strange)} reasons")
    assert text.count("    fix: ") == len(strange)
    assert main(["check", f"--model={path}", "--target=c99", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["compiles"] is False
    assert [n["name"] for n in content["nodes"] if n["status"] == "fails"] == strange
    assert all(e["fix"] and e["code"] == "E10055" for e in content["errors"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_samples_compile(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = "points:4,2" if path.stem == "spiral" else ""
    assert main(["check", f"--model={path}", "--json", f"--input_shape={shape}"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["compiles"] is True
    assert {n["status"] for n in content["nodes"]} <= {"tuned", "portable", "none"}
    assert not list(tmp_path.iterdir())


def test_hostile_names_stay_on_their_line(tmp_path: Path) -> None:
    node = helper.make_node("A\n", ["x"], ["y"], "evil\n  fix: rm\x1b[2J", domain="acme")
    result = check(typed_graph([node], {}), tmp_path)
    text = check_text(result)
    assert len(text.splitlines()) == 5
    assert "\x1b" not in text
    assert json.loads(check_json(result))["nodes"][0]["name"].startswith("evil\n")


def test_wrong_options_are_reported_as_by_compiling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 1
    assert capsys.readouterr().err.startswith("E10007")
    assert main(["check", "--model=none.onnx", "--target=c99"]) == 1
    assert "none.onnx" in capsys.readouterr().out
