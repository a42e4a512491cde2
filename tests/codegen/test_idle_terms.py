"""Generated C has no terms that change nothing, times 1, plus 0, modulo 1, nor `a + -1`."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from dynamic_models import CASES
from networks import conv_net, training_net
from stages import project_of

from atc.options.options import Options
from atc.options.shapes import shapes, value_ranges

SAMPLES = Path(__file__).parents[2] / "samples"
IDLE = re.compile(
    r"(?<![\w.])[01] \* (?!\()|\* [01](?![\w.])|[-+] 0(?![\w.])|(?<![\w.])0 \+ |[/%] 1(?![\w.])"
    r"|[-+] -\d+(?![\w.])"
)
"""A factor 0 or 1, a summand 0 or one with a sign of its own, a divisor 1."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def assert_no_idle_terms(options: Options) -> None:
    files = project_of(options).emission.files
    names = [n for n in files if n.endswith((".c", ".cu")) and n.startswith("src/")]
    assert names
    found = {
        f"{name}: {line.strip()}"
        for name in names
        for line in _COMMENT.sub("", files[name].decode()).splitlines()
        if IDLE.search(line)
    }
    assert not found


@pytest.mark.parametrize(
    "target",
    ["c99", "x86-64-avx2", "cuda-emulated",
     *(pytest.param(t, marks=pytest.mark.slow) for t in ("x86-64-avx512", "aarch64-neon"))],
)  # fmt: skip
@pytest.mark.parametrize("name", ["digits", "keywords", "convolutions", "training"])
def test_networks(name: str, target: str, tmp_path: Path) -> None:
    own = {"convolutions": conv_net, "training": training_net}
    model = own[name](tmp_path / "net.onnx") if name in own else SAMPLES / f"{name}.onnx"
    assert_no_idle_terms(Options(model, tmp_path, target=target))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["detector", "greedy_decode", "masked_rows", "pyramid"])
def test_run_time_extents(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    onnx.save(case.model, tmp_path / "net.onnx")
    ranges = value_ranges(case.values) if case.values else {}
    options = Options(
        tmp_path / "net.onnx", tmp_path, target="x86-64-avx2", input_shape=shapes(case.shapes),
        value_range=ranges,
    )  # fmt: skip
    assert_no_idle_terms(options)
