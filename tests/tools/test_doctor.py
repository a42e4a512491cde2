"""`atc doctor`: what it finds on machines that have much, little, or broken things."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from atc.backends.target import host_arch
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.probe import find_runner, probe
from atc.cli.main import main
from atc.errors import OptionError
from atc.tools.doctor import NEEDED, OPTIONAL, Diagnosis, Finding, diagnose, doctor_text

ROOT = Path(__file__).parents[2]
CROSS = "cortex-m4f"
Machine = Callable[..., dict[str, str]]


@pytest.fixture
def machine(tmp_path: Path, without_zig: None) -> Machine:
    """Return a function that makes the environment of a machine with some programs alone."""

    def make(*links: str, **scripts: str) -> dict[str, str]:
        place = tmp_path / "bin"
        place.mkdir()
        for name in links:
            path = shutil.which(name)
            assert path
            (place / name).symlink_to(path)
        for name, text in scripts.items():
            file = place / name.replace("_", "-")
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)
        return {"PATH": str(place), "HOME": str(tmp_path)}

    return make


def named(diagnosis: Diagnosis, name: str, area: str = "targets") -> Finding:
    (found,) = [f for f in diagnosis.findings if (f.area, f.name) == (area, name)]
    return found


@pytest.mark.slow
def test_a_machine_with_the_hosts_compiler_alone(machine: Machine) -> None:
    found = diagnose(machine("gcc", "as", "ld"))
    assert found.exit_status == 0
    assert named(found, host_target().name).state == "ok"
    missing = named(found, CROSS)
    assert (missing.state, missing.healthy) == ("absent", True)
    assert "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi" in missing.advice
    assert named(found, "qemu-system-arm", "programs").advice.startswith("apt install qemu-system")
    assert doctor_text(found).endswith("all that is needed works\n")


@pytest.mark.slow
def test_what_is_asked_for_is_needed(machine: Machine) -> None:
    found = diagnose(machine("gcc", "as", "ld"), [CROSS])
    assert found.exit_status == 1
    last = doctor_text(found).splitlines()[-1]
    assert last.startswith(f"in the way: {CROSS}: no C compiler for the target")
    assert "apt install gcc-arm-none-eabi" in last


def test_nothing_compiles_without_a_compiler(machine: Machine) -> None:
    found = diagnose(machine())
    assert found.exit_status == 1
    host = named(found, host_target().name)
    assert (host.state, host.healthy) == ("absent", False)
    assert "install gcc" in host.advice


def test_a_compiler_without_a_library_is_found_out(machine: Machine) -> None:
    text = (
        'case "$*" in *--version*) echo "gcc; Free Software Foundation";; '
        "*-dumpmachine*) echo arm-none-eabi;; *-dM*) ;; "
        '*) echo "probe.c:1:10: fatal error: math.h: \033[1mNo such file" >&2; exit 1;; esac'
    )
    tools = probe(get_target(CROSS), machine(arm_none_eabi_gcc=text))
    assert tools.compiler is None
    assert "math.h" in tools.trouble
    assert tools.advice == "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi"


def test_a_compiler_that_links_nothing_is_found_out(machine: Machine) -> None:
    text = (
        'case "$*" in *--version*) echo "gcc; Free Software Foundation";; '
        "*-dumpmachine*) echo arm-none-eabi;; *-dM*) ;; "
        '*" -c "*) while [ "$1" != -o ]; do shift; done; : > "$2";; '
        '*) echo "ld: cannot find -lc: No such file" >&2; exit 1;; esac'
    )
    tools = probe(get_target(CROSS), machine(arm_none_eabi_gcc=text))
    assert tools.compiler is None
    assert "cannot find -lc" in tools.trouble
    assert tools.advice == "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi"


def test_a_wrong_cc_is_in_the_way_and_reported_on_one_line(machine: Machine) -> None:
    environ = machine("gcc", "as", "ld", odd='printf "\\033[1mhello\\n"; exit 0')
    found = diagnose({**environ, "CC": "odd"})
    assert found.exit_status == 1
    assert "odd is not a compiler that atc knows" in named(found, host_target().name).found
    text = doctor_text(found)
    assert "\033" not in text
    assert "\\x1b[1mhello" in text


def test_an_emulator_that_is_missing_names_its_package(machine: Machine) -> None:
    if host_arch() == "aarch64":
        pytest.skip("needs no emulator here")
    command, advice = find_runner(get_target("aarch64-neon"), machine())
    assert (command, advice) == ((), "apt install qemu-user-static")
    here = shutil.which("qemu-aarch64-static")
    if here is not None:
        assert find_runner(get_target("aarch64-neon"), os.environ) == ((here,), "")


@pytest.mark.parametrize("place", ["file", "a folder with spaces"])
def test_a_cache_that_cannot_be_used_is_in_the_way(
    place: str, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    found = diagnose({**machine(), "ASCEND_CACHE_PATH": str(tmp_path / place)})
    cache = named(found, "op compiler cache", "caches")
    assert (cache.state, found.exit_status) == ("wrong", 1)
    assert cache.advice


def test_packages_are_those_that_pyproject_lists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split("[>=<]", text)[0] for text in project["dependencies"]]
    assert sorted(names) == sorted(NEEDED)
    for package, (extra, _) in OPTIONAL.items():
        listed = " ".join(project["optional-dependencies"][extra])
        assert package in listed


@pytest.mark.slow
def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    reported = json.loads(capsys.readouterr().out)
    assert reported["healthy"] is (status == 0) is True
    states = {f["name"]: f["state"] for f in reported["findings"] if f["area"] == "targets"}
    assert states[host_target().name] == "ok"
    assert {"cuda", "cortex-m0plus", "wasm32-simd128"} <= states.keys()


def test_an_unknown_target_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="unknown target"):
        diagnose(os.environ, ["z80"])
    assert main(["doctor", "--target=z80"]) == 1
    assert "unknown target 'z80'" in capsys.readouterr().err
