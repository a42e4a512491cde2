from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from atc.backends.cpu.targets import TARGETS
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.processes import run_binary
from atc.templates import TemplateRuleError, render

CHECKED = [t for t in TARGETS if t.cpu_checks and t.arch == "x86_64"]
MAIN = "int main(void)\n{\n  return cpu_is_able();\n}\n"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="asks x86 CPUs")


def program(target: Target, folder: Path, cc: str, tiles: bool = False) -> str:
    """Build a program whose exit status is what `cpu_is_able` says; baseline code only."""
    environ = {**os.environ, "CC": cc}
    if cc == "zig":
        pytest.importorskip("ziglang", reason="the package ziglang isn't installed")
        environ = {"PATH": "/nonexistent"}
    elif shutil.which(cc) is None:
        pytest.skip(f"{cc} isn't installed")
    baseline = get_target("c99")
    compiler = find_compiler(baseline, environ)
    flags = compile_flags(compiler, baseline)
    (folder / "a.c").write_text(
        render("project/cpu_check.c.j2", {"checks": target.cpu_checks, "tiles": tiles})
        + "\n" + MAIN
    )
    compile_object(compiler, flags, "a.c", folder)
    return str(link_program(compiler, flags, ["a.c.o"], "a", folder, static=cc != "zig"))


@pytest.mark.few(2)
@pytest.mark.parametrize("cc", ["gcc", "clang-19", pytest.param("zig", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", CHECKED, ids=lambda target: target.name)
def test_it_agrees_with_the_kernel(target: Target, cc: str, tmp_path: Path) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    assert run_binary([program(target, tmp_path, cc)], 60).status == (target.features <= flags)


def test_tiles_are_allowed_only_where_there_are_some(tmp_path: Path) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    target = get_target("x86-64-amx")
    able = run_binary([program(target, tmp_path, "gcc", tiles=True)], 60).status
    assert able == (target.features <= flags)
    alone = render("project/tiles.c.j2", {})
    (tmp_path / "a.c").write_text(f"{alone}\nint main(void) {{ return tiles_are_allowed(); }}\n")
    baseline = get_target("c99")
    compiler = find_compiler(baseline, {**os.environ, "CC": "gcc"})
    compile_object(compiler, compile_flags(compiler, baseline), "a.c", tmp_path)
    path = link_program(compiler, compile_flags(compiler, baseline), ["a.c.o"], "b", tmp_path)
    asked = run_binary([str(path)], 60).status
    assert asked == 0 or "amx_tile" in flags


@pytest.mark.skipif(shutil.which("qemu-x86_64-static") is None, reason="needs qemu-x86_64-static")
@pytest.mark.parametrize(
    ("name", "cpu", "able"),
    [
        ("x86-64-avx2", "Nehalem", 0),
        ("x86-64-avx2", "max,-fma", 0),
        ("x86-64-avx2", "max,-avx2", 0),
        ("x86-64-avx2", "max,-xsave", 0),
        ("x86-64-avx2", "max", 1),
        ("x86-64-avx512", "max", 0),
    ],
)
def test_it_refuses_a_lesser_cpu(name: str, cpu: str, able: int, tmp_path: Path) -> None:
    path = program(get_target(name), tmp_path, "gcc")
    assert run_binary(["qemu-x86_64-static", "-cpu", cpu, path], 60).status == able


@pytest.mark.parametrize(
    ("name", "cpu", "able"),
    [
        ("aarch64-neon-dotprod", "cortex-a53", 0),
        ("aarch64-neon-dotprod", "neoverse-n1", 1),
        ("aarch64-neon-i8mm", "neoverse-n1", 0),
        ("aarch64-neon-i8mm", "max", 1),
    ],
)
def test_it_asks_linux_on_arm(name: str, cpu: str, able: int, tmp_path: Path) -> None:
    target = get_target(name)
    for tool in (target.compiler, target.runner[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    text = render("project/cpu_check.c.j2", {"checks": target.cpu_checks, "tiles": False})
    (tmp_path / "a.c").write_text(f"{text}\n{MAIN}")
    command = [target.compiler, "-static", "-Wall", "-Werror", "a.c", "-o", "a"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([target.runner[0], "-cpu", cpu, str(tmp_path / "a")], check=False)
    assert done.returncode == able


def test_a_feature_without_a_known_bit_is_not_left_out() -> None:
    with pytest.raises(TemplateRuleError, match="no CPUID bit is known for sse9"):
        render("project/cpu_check.c.j2", {"checks": ("avx2", "sse9"), "tiles": False})
