"""`atc machine` and `--machine`: what is shown, kept, and counted on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from atc.backends.machine import Machine, machine_json
from atc.backends.machines import MACHINES
from atc.backends.targets import get_target
from atc.cli.main import main
from atc.errors import OptionError, ToolchainError
from atc.fast_run import machine as measuring
from atc.fast_run.machine import Measured, doubt
from atc.options.environment import ConfigEnvironment
from atc.options.machine import keep, kept_path
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.pipeline.pipeline import Diagnostics
from atc.pipeline.request import resolve_request
from atc.tools.machine import machine_text, shown_machine

OWN = replace(MACHINES["zen4"], name="own", memory=3.5, measured=True)


def options(environ: dict[str, str], **given: object) -> Options:
    values = {"model": "x.onnx", "output": "out/x", **given}
    return make_options(resolve(values, "compile", ConfigEnvironment(environ)).values)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which this machine was measured."""
    environ = {"HOME": str(tmp_path)}
    path = kept_path(environ)
    assert path is not None
    assert path.is_relative_to(tmp_path / ".config" / "atc" / "machines")
    keep(OWN, path)
    return environ


@pytest.mark.parametrize(
    "given", [{}, {"target": "host"}, {"machine": "host"},
              {"target": "x86-64-avx2", "machine": "host"}],
)  # fmt: skip
def test_what_was_measured_counts_for_the_host(home: dict[str, str], given: dict[str, str]) -> None:
    assert resolve_request(options(home, **given)).target.machine == OWN


@pytest.mark.parametrize("name", ["x86-64-avx2", "c99", "aarch64-neon"])
def test_a_named_target_knows_nothing_of_this_machine(home: dict[str, str], name: str) -> None:
    own = options(home, target=name)
    assert own == options({}, target=name)
    assert resolve_request(own).target.machine == get_target(name).machine


def test_a_machine_may_be_named_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(machine_json(OWN))
    for given, machine in (("neoverse-v1", MACHINES["neoverse_v1"]), (str(path), OWN)):
        own = resolve_request(options({}, target="aarch64-neon", machine=given)).target
        assert (own.name, own.machine) == ("aarch64-neon", machine)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "a machine has the fields"), ("{}", "a machine has the fields")],
)  # fmt: skip
def test_a_wrong_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as caught:
        options({}, machine=str(path))
    assert "wrong.json" in str(caught.value)
    with pytest.raises(OptionError, match="unknown machine 'pentium'"):
        options({}, machine="pentium")


def test_measuring_keeps_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATC_CONFIG", str(tmp_path / "atc.cfg"))
    (tmp_path / "atc.cfg").write_text("")
    monkeypatch.setattr("atc.tools.machine.measure_machine", lambda known, environ: Measured(OWN))
    assert main(["machine", "--measure"]) == 0
    assert "machine         own, measured, kept in" in capsys.readouterr().out
    assert main(["machine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] == 3.5
    assert not list(tmp_path.rglob("*.part"))


def test_nothing_is_kept_where_nothing_could_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(known: Machine, environ: dict[str, str]) -> Machine:
        raise ToolchainError("no C compiler")

    monkeypatch.setattr("atc.tools.machine.measure_machine", fails)
    with pytest.raises(ToolchainError):
        shown_machine("host", True, {"HOME": str(tmp_path)}, Diagnostics())
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(OptionError, match="only the host"):
        shown_machine("zen3", True, {}, Diagnostics())


def test_nothing_is_kept_of_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATC_CONFIG", str(tmp_path / "atc.cfg"))
    (tmp_path / "atc.cfg").write_text("")
    busy = Measured(OWN, "other programs had the core for 40% of the time")
    monkeypatch.setattr("atc.tools.machine.measure_machine", lambda known, environ: busy)
    assert main(["machine", "--measure"]) != 0
    lines = capsys.readouterr().err.strip().splitlines()
    (line,) = (line for line in lines if "busy" in line)
    assert "--measure" in line
    assert "40%" in line
    assert "measure again while nothing else runs" in line
    assert not list(tmp_path.rglob("*.json"))


def test_measurements_that_differ_are_doubted() -> None:
    l2 = replace(OWN.l2, rate=OWN.l2.rate * 0.7)
    assert doubt(OWN, OWN, 0.98) == ""
    assert doubt(OWN, replace(OWN, memory=OWN.memory * 1.2), 0.98) == ""
    assert "memory" in doubt(OWN, replace(OWN, memory=OWN.memory * 0.6), 0.98)
    assert "memory" in doubt(replace(OWN, memory=OWN.memory * 0.6), OWN, 0.98)
    assert "L2 cache per cycle" in doubt(OWN, replace(OWN, l2=l2), 0.98)
    assert "multiply-adds" in doubt(OWN, replace(OWN, fmas=OWN.fmas + 0.5 + OWN.fmas), 0.98)
    assert "had the core for 40%" in doubt(OWN, OWN, 0.6)


def test_the_table_says_what_there_is() -> None:
    text = machine_text(shown_machine("cortex_a72", False, {}, Diagnostics()))
    assert "2 per cycle on vectors of 16 bytes, 3 cycles each" in text
    assert "L2 cache        512 KiB" in text
    assert "L3 cache        none" in text


@pytest.mark.slow
def test_this_machine_can_be_measured() -> None:
    try:
        measuring.vector_targets()
    except ToolchainError:
        pytest.skip("no vectors with multiply-adds here")
    sizes = [k << 10 for k in (8, 16, 32, 512, 4096, 32768)]
    environ = {"PATH": "/usr/bin:/bin"}
    found = measuring.measure_machine(MACHINES["zen3"], environ, sizes, seconds=0.005)
    machine = found.machine
    assert machine.measured
    assert 1 <= machine.fmas <= 8
    assert 1 <= machine.fma_latency <= 10
    assert machine.l1.rate > machine.memory
