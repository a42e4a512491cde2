"""The configuration file: where it lies and what may stand in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atc.errors import OptionError
from atc.options.environment import config_path, parse_config, read_config_environment
from atc.options.resolve import find_model
from atc.options.show import current, env_text

TEXT = """
# for everyday work
op_compiler_cache_mode = enable
--fast-run=1

MXNET_ENFORCE_DETERMINISM=1
input_shape=x:1,3;y:2=3
"""


def test_lines() -> None:
    found = parse_config(TEXT, "my.cfg")
    assert {name: (f.text, f.source) for name, f in found.options.items()} == {
        "op_compiler_cache_mode": ("enable", "my.cfg, line 3"),
        "fast_run": ("1", "my.cfg, line 4"),
        "input_shape": ("x:1,3;y:2=3", "my.cfg, line 7"),
    }
    assert list(found.variables) == ["MXNET_ENFORCE_DETERMINISM"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fast_run", "no '=' in this line: 'fast_run' [f, line 1] (hint: write name=value)"),
        ("fast_runs=1", "no option or variable 'fast_runs' [f, line 1] (hint: did you mean fast_"),
        ("jobs=1\njobs=2", "duplicate setting 'jobs' [f, line 2]"),
        ("help=1", "there is no option or variable 'help'"),
        ("ATC_CONFIG=x", "there is no option or variable 'ATC_CONFIG'"),
        ("\x1b[2J=1", r"there is no option or variable '\x1b[2J'"),
        ("=1", "there is no option or variable ''"),
    ],
)
def test_wrong_lines(line: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_config(line, "f")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.config/atc/atc.cfg"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/atc/atc.cfg"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x", "ATC_CONFIG": "/c"}, "/c"),
        ({}, None),
    ],
)
def test_where_it_lies(environ: dict[str, str], expected: str | None) -> None:
    assert config_path(environ) == (None if expected is None else Path(expected))


def test_reading(tmp_path: Path) -> None:
    assert not read_config_environment({"HOME": str(tmp_path)}).options
    folder = tmp_path / ".config/atc"
    folder.mkdir(parents=True)
    (folder / "atc.cfg").write_text("jobs=2")
    assert read_config_environment({"HOME": str(tmp_path)}).options["jobs"].text == "2"
    (folder / "atc.cfg").write_text("jobs=3", encoding="utf-8-sig")  # as some editors do
    assert read_config_environment({"HOME": str(tmp_path)}).options["jobs"].text == "3"
    assert not read_config_environment({"ATC_CONFIG": os.devnull, "HOME": str(tmp_path)}).options
    with pytest.raises(OptionError, match=r"can't be read.*\[ATC_CONFIG\]"):
        read_config_environment({"ATC_CONFIG": str(tmp_path / "none.cfg")})
    with pytest.raises(OptionError, match="can't be read"):
        read_config_environment({"ATC_CONFIG": str(tmp_path)})
    (folder / "atc.cfg").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="can't be read"):
        read_config_environment({"HOME": str(tmp_path)})


TOO_LONG = "/" + "x" * 5000


@pytest.mark.parametrize("variable", ["HOME", "XDG_CONFIG_HOME"])
def test_a_home_that_cannot_be_looked_at_holds_no_file(variable: str) -> None:
    assert not read_config_environment({variable: TOO_LONG}).options
    assert find_model(Path("net"), TOO_LONG) == Path("net")
    around = read_config_environment({variable: TOO_LONG})
    assert "(not there)" in env_text(current(around), around)


def test_a_user_without_a_home_has_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert find_model(Path("net"), "~/.mxnet") == Path("net")


@pytest.mark.slow
def test_a_home_that_may_not_be_searched_is_no_trouble(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config/atc").mkdir(parents=True)
    (home / ".config/atc/atc.cfg").write_text("no such line")
    command = [sys.executable, "-P", "-m", "atc", "env", "CC"]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root searches any directory, and there is no setpriv to stop it")
        command = [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]
    environment = {**os.environ, "HOME": str(home), "MXNET_HOME": str(home / "models")}
    for name in ("ATC_CONFIG", "XDG_CONFIG_HOME"):
        environment.pop(name, None)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], env=environment, capture_output=True, text=True)

    assert run().returncode == 1
    home.chmod(0)
    try:
        done = run()
        command = command[:-2]
        missing = run("--model=net", f"--output={tmp_path / 'net'}")
    finally:
        home.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(not there)" in done.stdout
    assert missing.returncode == 1
    assert missing.stderr.startswith("E10041: ")
    assert missing.stderr.count("\n") == 1
