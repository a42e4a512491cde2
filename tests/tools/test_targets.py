"""`atc targets`: all targets, the tools found for them, what to install for the others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from projects import require

from atc.backends.cpu.targets import ALIASES, TARGETS
from atc.backends.cuda.targets import CUDA_TARGETS
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.cli.main import main
from atc.starter.boards import BOARDS
from atc.tools.targets import target_rows, targets_text


def test_every_target_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["targets"]
    assert [row["name"] for row in rows] == [each.name for each in (*TARGETS, *CUDA_TARGETS)]
    assert [row["name"] for row in rows if row["is_host"]] == [host_target().name]
    assert {a: row["name"] for row in rows for a in row["aliases"]} == ALIASES
    boards = {row["name"]: tuple(row["boards"]) for row in rows if row["boards"]}
    assert boards == {name: tuple(b.name for b in own) for name, own in BOARDS.items()}
    for row in rows:
        for tool in (row["compiler"], row["runner"]):
            assert not tool["path"] or os.access(tool["path"], os.X_OK)
    assert main(["targets"]) == 0
    names = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[1 : len(rows) + 1] == [row["name"] for row in rows]


def test_the_compiler_is_the_one_that_compiles() -> None:
    require("gcc")
    rows = {row.name: row for row in target_rows(os.environ)}
    assert rows["c99"].here
    found = find_compiler(get_target("c99"), os.environ)
    assert (rows["c99"].compiler.path, rows["c99"].compiler.about) == (found.argv[0], found.version)


@pytest.mark.usefixtures("without_zig")
def test_what_is_missing_is_reported_once_with_its_package(tmp_path: Path) -> None:
    gcc = require("gcc")
    for program in ("gcc", "as", "ld"):
        (tmp_path / program).symlink_to(shutil.which(program) or gcc)
    rows = target_rows({"PATH": str(tmp_path)})
    by_name = {row.name: row for row in rows}
    m4f = by_name["cortex-m4f"]
    assert (m4f.compiler.path, m4f.runner.path) == ("", "")
    assert "no C compiler for the target cortex-m4f" in m4f.compiler.about
    text = targets_text(rows)
    assert text.count("apt install qemu-system-arm") == 1
    line = next(x for x in text.splitlines() if "gcc-arm-none-eabi" in x)
    assert all(name in line for name in BOARDS if name.startswith("cortex"))
    assert by_name["c99"].compiler.path == str(tmp_path / "gcc")


def test_an_emulator_makes_the_row(tmp_path: Path) -> None:
    program = tmp_path / "qemu-system-arm"
    program.write_text("")
    program.chmod(0o755)
    rows = {row.name: row for row in target_rows({"PATH": str(tmp_path)})}
    assert rows["cortex-m55"].runner.path == str(program)
    assert rows["wasm32-simd128"].runner.install == "apt install nodejs"
