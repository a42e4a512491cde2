"""Precedence: command line > environment > configuration file > default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from setting_rows import options

import atc
from atc.cli.main import main
from atc.errors import OptionError
from atc.options.environment import ConfigEnvironment, parse_config
from atc.options.resolve import resolve
from atc.options.table import IGNORED_OPTIONS, OPTIONS, VARIABLES, options_of

NEEDED = {"model": "x.onnx", "output": "out/x"}
NAME = "MXNET_ENFORCE_DETERMINISM"


@pytest.mark.parametrize(
    ("given", "environ", "lines", "expected"),
    [
        ("1", "0", "reproducible=0", True),
        ("0", "1", "reproducible=1", False),
        (None, "1", "reproducible=0", True),
        (None, "0", "reproducible=1", False),
        (None, "", "reproducible=1", True),  # an empty variable is as none
        (None, None, f"{NAME}=1", True),
        (None, None, f"reproducible=0\n{NAME}=1", False),  # in the file, options come first
        (None, "0", f"{NAME}=1", False),
        (None, None, "", False),
    ],
)
def test_what_counts(
    given: str | None, environ: str | None, lines: str, expected: bool
) -> None:
    around = parse_config(lines, "f.cfg", {} if environ is None else {NAME: environ})
    named = {**NEEDED, **({} if given is None else {"reproducible": given})}
    assert resolve(named, "compile", around).values["reproducible"] is expected


def test_every_option_that_a_variable_gives_exists() -> None:
    for variable in VARIABLES:
        for name in variable.gives:
            role = OPTIONS[name].role
            assert role in ("compilation", "tool", "train"), f"{variable.name}: {name}"
        assert not (variable.gives and variable.accepted and not variable.works_for)


def test_sources_are_reported() -> None:
    around = parse_config("jobs=3", "f.cfg", {"MGB_JIT_WORKDIR": "/w"})
    resolved = resolve(NEEDED, "compile", around)
    assert resolved.sources == {
        "build_dir": "environment: MGB_JIT_WORKDIR", "jobs": "configuration file",
    }  # fmt: skip


def test_a_wrong_value_names_where_it_stands() -> None:
    with pytest.raises(OptionError, match=r"E10003: 'x' is not .* \[--jobs, configuration file\]"):
        resolve(NEEDED, "compile", parse_config("jobs=x", "f.cfg"))
    with pytest.raises(OptionError, match=rf"E10006.*\[{NAME}\]"):
        resolve(NEEDED, "compile", ConfigEnvironment({NAME: "x"}))
    with pytest.raises(OptionError, match=rf"\[{NAME} of f.cfg, line 2\]"):
        resolve(NEEDED, "compile", parse_config(f"\n{NAME}=x", "f.cfg"))


def test_variables_of_the_file_reach_the_cache_below_the_environment() -> None:
    around = parse_config(
        "ASCEND_CACHE_PATH=/file\nASCEND_MAX_OP_CACHE_SIZE=7", "f", {"ASCEND_CACHE_PATH": "/env"}
    )
    environ = resolve(NEEDED, "compile", around).environ
    assert environ["ASCEND_CACHE_PATH"] == "/env"
    assert environ["ASCEND_MAX_OP_CACHE_SIZE"] == "7"


def test_the_cache_command_asks_for_all_targets_whatever_the_device() -> None:
    values = resolve({}, "cache", ConfigEnvironment({"MGE_DEFAULT_DEVICE": "cpu0"})).values
    assert values["target"] == ""


@pytest.mark.parametrize("name", [s.name for s in IGNORED_OPTIONS])
def test_options_about_chips_change_nothing_but_a_warning(name: str) -> None:
    value = "true" if OPTIONS[name].values == "true|false" else "anything at all"
    chosen = options({}, **{name: value})
    (warning,) = chosen.notes
    assert warning.startswith(f"--{name} has no effect: ")
    assert {**vars(chosen), "notes": ()} == vars(options({}))
    assert OPTIONS[name].row in ("A-19", "A-23", "A-35")


@pytest.mark.parametrize("target", ["x86-64", "x86-64-amx"])
def test_a_warning_is_printed_once(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("MXNET_GLUON_REPO", "4")
    paths = [f"--model={tmp_path / 'none.onnx'}", f"--output={tmp_path / 'net'}"]
    assert main([*paths, f"--target={target}"]) == 1
    said = capsys.readouterr().err
    assert said.count("W10001: MXNET_GLUON_REPO=4 has no effect") == 1
    assert said.count("W10001") == 1


def test_dynamic_variables_count_at_the_next_call_others_as_at_the_start() -> None:
    code = """
import os
from atc.options.resolve import resolve
def now():
    values = resolve({"model": "x", "output": "y"}, "compile").values
    return values["reproducible"], values["fast_run_timeout"]
print(now())
os.environ["MXNET_ENFORCE_DETERMINISM"] = "0"
os.environ["MGB_CONV_PROFILING_TIMEOUT"] = "7"
print(now())
del os.environ["MXNET_ENFORCE_DETERMINISM"], os.environ["MGB_CONV_PROFILING_TIMEOUT"]
print(now())
"""
    environ = {"MXNET_ENFORCE_DETERMINISM": "1", "MGB_CONV_PROFILING_TIMEOUT": "5"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={**os.environ, **environ}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["(True, 5.0)", "(False, 5.0)", "(False, 5.0)"]


def test_keywords_that_are_left_out_are_open_to_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []

    def note(values: dict[str, object]) -> None:
        seen.append(values)
        raise OptionError("enough")

    monkeypatch.setattr("atc.api.make_options", note)
    monkeypatch.setenv(NAME, "1")
    for keywords in ({}, {"reproducible": True}, {"reproducible": False, "kernels": "portable"}):
        with pytest.raises(OptionError, match="enough"):
            atc.compile("x.onnx", tmp_path / "net", **keywords)
    assert [values["reproducible"] for values in seen] == [True, True, False]
    assert [values["kernels"] for values in seen] == ["all", "all", "portable"]


@pytest.mark.parametrize("command", ["compile", "verify", "check"])
def test_commands_that_compile_read_the_surroundings(command: str) -> None:
    needed = {n: v for n, v in NEEDED.items() if n in options_of(command)}
    resolved = resolve(needed, command, ConfigEnvironment({NAME: "1", "MXNET_GLUON_REPO": "9"}))
    assert resolved.values["reproducible"] is True
    assert len(resolved.values["notes"]) == 1  # type: ignore[arg-type]
