"""The script of the action for pull requests: what it measures, and its comment."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

CI = Path(__file__).parents[2] / "samples/ci"
DIGITS = CI.parent / "digits.onnx"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_models", CI / "compare_models.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


COMPARE = script()
M = COMPARE.Measured
GOOD = M(2_000_000, 1000, 5000, 0.002)


def test_a_comment_tells_what_changed() -> None:
    base = {"same.onnx": GOOD, "grown.onnx": GOOD, "gone.onnx": GOOD, "broken.onnx": GOOD}
    grown, broken = M(2_200_000, 1000, 4000, 0.002), M(error="E1: no")
    head = {"same.onnx": M(2_000_100, 1000, 5000, 0.002), "new.onnx": GOOD, "grown.onnx": grown,
            "broken.onnx": broken}  # fmt: skip
    text = COMPARE.comment(base, head)
    assert text.startswith("<!-- atc:")
    rows = {r[2:].split(" |")[0].replace("&#46;", "."): r for r in text.splitlines() if "onnx" in r}
    assert set(rows) == {"grown.onnx", "gone.onnx", "broken.onnx", "new.onnx"}
    assert rows["grown.onnx"].endswith("| 2.20 MB (+10.0 %) | 1.0 kB | 4.0 kB (-20.0 %) | 2 ms |")
    assert "doesn't compile:** E1&#58; no" in rows["broken.onnx"]
    assert rows["new.onnx"].endswith("| 2.00 MB | 1.0 kB | 5.0 kB | 2 ms |")
    assert "1 of 5 models are unchanged." in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {6}


@pytest.mark.parametrize(
    ("head", "percent", "is_worse"),
    [
        ({"a": GOOD}, 5, False),
        ({"a": M(2_000_000, 1000, 5000, 0.0021)}, 4, True),
        ({"a": M(2_000_000, 1000, 5000, 0.0021)}, 0, False),
        ({"a": M(error="no")}, 0, True),
        ({}, 5, False),
    ],
)
def test_the_status_says_what_got_worse(
    head: dict[str, object], percent: float, is_worse: bool
) -> None:
    assert COMPARE.worse({"a": GOOD}, head, percent) is is_worse


@pytest.mark.parametrize("name", ["a|b", "<img src=x>", "@all", "a\nb", "[x](http://y)", "`c`"])
def test_names_and_errors_mean_nothing_in_a_comment(name: str) -> None:
    text = COMPARE.comment({}, {name: M(error=name)})
    (row,) = [line for line in text.splitlines() if "compile:" in line]
    body = row.replace("**doesn't compile:**", "")
    assert row.count("|") == 6
    assert not re.search(r"[<>@`\[\]*]", body)


@pytest.mark.slow
def test_the_command_line_measures_and_compares(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(DIGITS, tmp_path / "models/digits.onnx")
    (tmp_path / "models/broken.onnx").write_text("nonsense")
    words = [sys.executable, str(CI / "compare_models.py")]
    measuring = [*words, "measure", "--repeats=1", "--output=head.json", "models/*.onnx", "--",
                 "--target=c99"]  # fmt: skip
    subprocess.run(measuring, cwd=tmp_path, check=True, env={**os.environ})
    told = json.loads((tmp_path / "head.json").read_text())
    good, bad = told["models/digits.onnx"], told["models/broken.onnx"]
    assert min(good["library"], good["weights"], good["arena"], good["run"]) > 0
    assert bad["error"].startswith("E1")
    base = {**told, "models/digits.onnx": {**good, "arena": good["arena"] / 2}}
    (tmp_path / "base.json").write_text(json.dumps(base))
    done = subprocess.run([*words, "comment", "base.json", "head.json", "--fail_above=50"],
                          cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "(+100.0 %)" in done.stdout
    assert "1 of 2 models are unchanged." in done.stdout


def test_the_action_calls_it_so() -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((CI / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    texts = [step.get("run", "") for step in action["runs"]["steps"]]
    assert all("${{" not in text for text in texts)  # what others wrote is no part of a script
    called = [line for text in texts for line in text.splitlines() if '"$SCRIPT"' in line]
    assert [re.findall(r'"\$SCRIPT" (\w+)', line)[0] for line in called] == [
        "measure", "measure", "comment",
    ]  # fmt: skip
    for text in texts:
        subprocess.run(["bash", "-n"], input=text.encode(), check=True)
