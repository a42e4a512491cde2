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


def test_a_comment_says_what_changed() -> None:
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
    reported = json.loads((tmp_path / "head.json").read_text())
    good, bad = reported["models/digits.onnx"], reported["models/broken.onnx"]
    assert min(good["library"], good["weights"], good["arena"], good["run"]) > 0
    assert bad["error"].startswith("E1")
    base = {**reported, "models/digits.onnx": {**good, "arena": good["arena"] / 2}}
    (tmp_path / "base.json").write_text(json.dumps(base))
    done = subprocess.run([*words, "comment", "base.json", "head.json", "--fail_above=50"],
                          cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "(+100.0 %)" in done.stdout
    assert "1 of 2 models are unchanged." in done.stdout


GH = """#!/bin/sh
printf '%s\n' "$*" >> "$CALLS"
case "$*" in *--paginate*) echo "$KNOWN_COMMENT" ;; *) [ -z "$READ_ONLY" ] ;; esac
"""
"""A `gh` that writes its arguments down, knows a comment or none, and may only be able to read."""


def steps() -> list[dict[str, object]]:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((CI / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    return list(action["runs"]["steps"])


def test_what_others_wrote_is_no_part_of_the_actions_scripts() -> None:
    assert all("${{" not in str(step.get("run")) for step in steps())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "read_only", "called"),
    [("", "", r"pr comment 7 --body-file \S+"),
     ("42", "", r"api -X PATCH repos/us/nets/issues/comments/42 -F body=@\S+"),
     ("", "1", "pr comment")],
)  # fmt: skip
def test_the_steps_of_the_action_as_a_runner_runs_them(
    tmp_path: Path, known: str, read_only: str, called: str
) -> None:
    """A pull request makes a model refused; `pip` and `gh` only write down what they are asked."""

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=nets, check=True, capture_output=True, text=True).stdout

    nets, tools = tmp_path / "nets", tmp_path / "tools"
    nets.mkdir()
    tools.mkdir()
    git("init", "-q")
    shutil.copy(DIGITS, nets / "one.onnx")
    shutil.copy(DIGITS, nets / "two.onnx")
    git("add", ".")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD").strip()
    (nets / "two.onnx").write_text("nonsense")
    git("commit", "-qam", "head")
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    asked = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> \"$CALLS\"\n"
    for name, text in {"gh": GH, "pip": asked, "atc": asked, "python": python}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    values = {
        "inputs.models": "*.onnx", "inputs.options": "--target=c99", "inputs.atc": "",
        "inputs.fail_above": "0", "github.event.pull_request.base.sha": base, "github.token": "t",
        "github.event.pull_request.number": "7", "github.action_path": str(CI),
    }  # fmt: skip
    calls, summary = tmp_path / "calls", tmp_path / "summary"
    runner = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_REPOSITORY": "us/nets", "CALLS": str(calls),
        "KNOWN_COMMENT": known, "READ_ONLY": read_only,
    }  # fmt: skip
    statuses, said = [], ""
    for step in steps():
        if "run" not in step:
            continue
        env = step.get("env", {})
        assert isinstance(env, dict)
        env = {
            name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda m: values[m[1]], str(text))
            for name, text in env.items()
        }
        file = tmp_path / "step.sh"
        file.write_text(str(step["run"]))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)], cwd=nets,
            env={**runner, **env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        statuses.append(done.returncode)
        said += done.stdout + done.stderr
    assert statuses == [0, 0, 1], said  # a model that was compiled before is refused
    asked_for = calls.read_text()
    assert f"install {CI}/../.." in asked_for
    assert re.search(called, asked_for)
    assert ("::warning::" in said) == bool(read_only)
    (row,) = [line for line in summary.read_text().splitlines() if "doesn't compile" in line]
    assert "two" in row
