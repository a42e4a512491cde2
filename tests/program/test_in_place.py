"""Which inputs a result may replace where they lie."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

import atc
from atc.program.in_place import in_place


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("nodes", "source", "may"),
    [
        ("n = Sub(w, x) z = Neg(x)", "w", True),
        ("n = Sub(w, x) z = MatMul(n, w)", "w", False),  # is read later
        ("n = MatMul(w, x) z = Neg(x)", "w", False),  # elements are read more than once
        ("t = Transpose(w) n = Sub(t, x) z = Neg(x)", "w", False),  # in another order
        ("t = Transpose(w) n = Sub(w, t) z = Neg(x)", "w", False),  # in both orders
        ("n = Sub(x, x) z = Neg(w)", "w", False),  # isn't an operand at all
        ("z = MatMul(w, x) n = Sub(w, z)", "w", True),  # is read before and by the last
    ],
)
def test_only_the_last_reader_replaces_its_operand(
    nodes: str, source: str, may: bool, tmp_path: Path
) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[4,4] w, float[4,4] x) => (float[4,4] n, float[4,4] z) {{ {nodes} }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "out", target="c99")
    assert in_place(done.program, [(source, "n")]) == ({source} if may else set())
