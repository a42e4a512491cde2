"""What cppcheck's addon for MISRA C:2012 finds in generated projects, and what the record says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import onnx
import pytest
from projects import require, write_project
from stages import project_of
from tiny_networks import keyword_spotting

from atc.options.options import Options

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "atc/docs/misra.md"
MODELS = ("digits", "keywords", "quantized")


def recorded() -> set[str]:
    """Return the rules that the record says aren't kept."""
    return set(re.findall(r"^\| (\d+\.\d+) \|", RECORD.read_text(), re.MULTILINE))


@pytest.mark.slow
def test_the_record_names_the_rules_that_are_broken(tmp_path: Path) -> None:
    require("cppcheck")
    onnx.save(keyword_spotting(True), tmp_path / "quantized.onnx")
    found: set[str] = set()
    for name in MODELS:
        model = tmp_path / f"{name}.onnx"
        model = model if model.exists() else ROOT / f"samples/{name}.onnx"
        emission = project_of(
            Options(model=model, output=tmp_path / name, target="cortex-m4f")
        ).emission
        write_project(tmp_path / name, emission)
        sources = [*sorted((tmp_path / name / "src").rglob("*.c"))]
        command = [
            "cppcheck", "--addon=misra", "--std=c99", "--enable=style", "--quiet", "-Iinclude",
            "-I.", "-D__GNUC__=12", "--template={id} {file}:{line}", *map(str, sources),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path / name, capture_output=True, text=True, check=True
        )
        found |= set(re.findall(r"^misra-c2012-(\d+\.\d+) ", done.stderr, re.MULTILINE))
    assert found == recorded()
