"""Explanations list every candidate of a node: estimate, time, reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc.cli.main import main
from atc.errors import OptionError
from atc.tools.explain import explain, read_report
from support import node_model

NODE = {
    "origin": ["/conv1/Conv", "relu1"],
    "op": "Conv",
    "kernel": "quick(a=1, rows=4)",
    "candidate": "quick(a=1)",
    "operands": ["f32[1,3]", None],
    "results": ["f32[1,2]"],
    "estimates": [
        {"kernel": "plain", "cost": 100.4},
        {"kernel": "quick(a=1)", "cost": 30.0},
        {"kernel": "quick(a=2)", "cost": 20.0},
        {"kernel": "quick(a=3)", "cost": 90.0},
    ],
    "measurements": [
        {"kernel": "plain", "ns": 5000.0, "reason": ""},
        {"kernel": "quick(a=1)", "ns": 1234.0, "reason": ""},
        {"kernel": "quick(a=2)", "ns": None, "reason": "crashed\nbadly"},
    ],
    "excluded": [{"kernel": "rough", "reason": "needs 9 bytes of workspace"}],
}


def report(**changes: Any) -> dict[str, Any]:
    return {"nodes": [{**NODE, **changes}, {**NODE, "origin": ["other"]}]}


def test_every_candidate_has_its_line() -> None:
    lines = explain(report(), "relu1").splitlines()
    assert lines[0] == "/conv1/Conv + relu1: Conv f32[1,3], - -> f32[1,2]"
    assert [line.split() for line in lines[2:]] == [
        ["plain", "100", "5.00", "us"],
        ["*", "quick(a=1)", "30", "1.23", "us"],
        ["quick(a=2)", "20", "crashed\\nbadly"],
        ["quick(a=3)", "90"],
        ["rough", "left", "out:", "needs", "9", "bytes", "of", "workspace"],
        ["*", "the", "least", "time"],
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"measurements": []}, "the least estimate; nothing was measured"),
        ({"estimates": NODE["estimates"][:1]}, "the only candidate"),
    ],
)
def test_reasons(changes: dict[str, Any], reason: str) -> None:
    assert explain(report(**changes), "relu1").endswith(f"* {reason}\n")


def test_a_wrong_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="node 'relu'.*relu1"):
        explain(report(), "relu")


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": [{}]}', '{"nodes": 3}', "\udcff"])
def test_what_is_no_report_is_reported_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.report.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(OptionError, match=r"x\.report\.json is not a report"):
        read_report(tmp_path)
    with pytest.raises(OptionError, match="holds no report"):
        read_report(tmp_path / "nowhere")


def test_both_commands_print_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = tmp_path / "exp.onnx", tmp_path / "out" / "net"
    onnx_model = node_model("Exp", [np.zeros(100, np.float32)])
    onnx_model.graph.node[0].name = "the exp"
    model.write_bytes(onnx_model.SerializeToString())
    command = [f"--model={model}", f"--output={folder}", "--target=c99", "--explain=the exp"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert main(["explain", str(folder), "the exp"]) == 0
    explanation = capsys.readouterr().out
    assert explanation.startswith("the exp: Map f32[100] -> f32[100]\n")
    assert explanation in printed
    assert json.loads((folder / "net.report.json").read_text())["nodes"][0]["origin"] == ["the exp"]
    assert main(["explain", str(folder)]) != 0
    assert main(["explain", str(folder), "a", "b"]) != 0
