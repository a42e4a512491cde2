"""`atc env`: all variables with their values and where those come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atc.cli.main import main
from atc.errors import OptionError
from atc.options.environment import ConfigEnvironment, parse_config
from atc.options.show import HEADINGS, current, env_json, env_text
from atc.options.table import VARIABLES


def test_values_and_sources() -> None:
    around = parse_config(
        "MXNET_HOME=/models\nMGE_FASTRUN_CACHE_TYPE=FILE", "a.cfg",
        {"MGE_FASTRUN_CACHE_TYPE": "MEMORY", "MXNET_ONEDNN_ENABLED": "0"},
    )  # fmt: skip
    rows = {row.name: (row.value, row.source) for row in current(around)}
    assert list(rows) == [v.name for v in VARIABLES]
    assert rows["MXNET_HOME"] == ("/models", "a.cfg, line 1")
    assert rows["MGE_FASTRUN_CACHE_TYPE"] == ("MEMORY", "environment")
    assert rows["MXNET_MKLDNN_ENABLED"] == ("0", "environment")
    assert rows["NNVM_EXEC_MATCH_RANGE"] == ("16", "default")


def test_the_caches_own_order(tmp_path: Path) -> None:
    environ = {"ASCEND_CACHE_PATH": str(tmp_path), "ASCEND_MAX_OP_CACHE_SIZE": "7"}
    name = "ASCEND_MAX_OP_CACHE_SIZE"
    (row,) = current(ConfigEnvironment(environ), [name])
    assert (row.value, row.source) == ("7", "environment")
    ini = tmp_path / "kernel_cache/op_cache.ini"
    ini.parent.mkdir()
    ini.write_text("[op_compiler_cache]\nmax_op_cache_size=9\nremain_cache_size_ratio=80\n")
    (row,) = current(ConfigEnvironment(environ), [name])
    assert row.value == "9"
    assert "op_cache.ini" in row.source


def test_a_secret_is_never_shown() -> None:
    set_here = ConfigEnvironment({"ATC_CACHE_KEY": "hush"})
    for around in (set_here, parse_config("ATC_CACHE_KEY=hush", "a.cfg")):
        rows = current(around, ["ATC_CACHE_KEY"])
        assert [row.value for row in rows] == ["(set)"]
        assert "hush" not in env_text(rows, around) + env_json(rows, around)
    assert current(ConfigEnvironment(), ["ATC_CACHE_KEY"])[0].value == ""


def test_text_and_json_hold_the_same() -> None:
    around = ConfigEnvironment({"MXNET_HOME": "/m\x1b[2J"})
    rows = current(around, ["MXNET_HOME", "CC"])
    text, data = env_text(rows, around), json.loads(env_json(rows, around))
    assert text.splitlines()[0].split() == list(HEADINGS[:5])
    assert "\x1b" not in text
    assert [v["name"] for v in data["variables"]] == ["CC", "MXNET_HOME"]
    assert data["variables"][1]["row"] == "X-35"
    assert data["config"] is None


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_HOME", "/somewhere")
    assert main(["env", "MXNET_HOME", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["variables"]
    assert (row["value"], row["source"]) == ("/somewhere", "environment")
    assert main(["env"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= len(VARIABLES) + 1
    assert main(["env", "NONE"]) == 1
    assert "E10001: there is no variable 'NONE'" in capsys.readouterr().err
    with pytest.raises(OptionError):
        current(ConfigEnvironment(), ["NONE"])


def test_a_terminal_shows_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["env", "MXNET_HOME"]) == 0
    out = capsys.readouterr().out
    assert "│ MXNET_HOME" in out
    assert "meaning" in out
