from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import archspec.cpu
import archspec.cpu.detect
import pytest

import atc.templates
from atc.backends.cpu.targets import ALIASES, TARGETS
from atc.backends.target import Target, host_arch
from atc.backends.targets import best_target, get_target, host_target
from atc.backends.toolchain.compiler import machine_flags
from atc.backends.toolchain.find_compiler import find_compiler
from atc.errors import OptionError, ToolchainError
from atc.templates import render

EVERY = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def target_by_name(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)


@EVERY
def test_a_target_is_found_by_its_name_in_any_spelling(target: Target) -> None:
    for spelling in (target.name, target.name.upper(), f" {target.name.replace('-', '_')} "):
        found = get_target(spelling)
        assert (found.name, found.cflags, found.simd) == (target.name, target.cflags, target.simd)


@EVERY
def test_a_target_has_a_vector_table_and_checks_what_it_uses(target: Target) -> None:
    assert Path(atc.templates.__file__).with_name("simd").joinpath(f"{target.simd}.h").is_file()
    assert set(target.cpu_checks) <= target.features
    assert target.vector_bytes % 4 == 0
    assert not any("fast-math" in flag or "native" in flag for flag in target.cflags)


@pytest.mark.parametrize("cc", ["own", pytest.param("zig", marks=pytest.mark.slow)])
@EVERY
def test_the_flags_switch_on_just_the_features(target: Target, cc: str) -> None:
    if cc == "zig":
        pytest.importorskip("ziglang", reason="the package ziglang isn't installed")
        compiler = find_compiler(target, {}, [sys.executable, "-m", "ziglang", "cc"])
    elif shutil.which("gcc" if target.arch in ("", host_arch()) else target.compiler) is None:
        pytest.skip(f"no compiler for {target.name}")
    else:
        compiler = find_compiler(target, {"PATH": os.environ["PATH"]})
    command = [*compiler.argv, *machine_flags(compiler, target), "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[1].strip("_").lower() for line in macros.splitlines()}
    spelt = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni", "avx512bf16": "avx512_bf16",
             "avx512fp16": "avx512_fp16"}  # fmt: skip
    names = {spelt.get(name, name) for name in names}
    known = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
             "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
             "amx_int8"}  # fmt: skip
    if target.arch == "x86_64":
        assert names & known == target.features
    elif target.arch == "aarch64":
        assert {"arm_neon", "arm_feature_fma"} <= names
        extras = {"asimddp": "arm_feature_dotprod", "i8mm": "arm_feature_matmul_int8",
                  "asimdhp": "arm_feature_fp16_vector_arithmetic"}  # fmt: skip
        assert {k for k, macro in extras.items() if macro in names} == target.features & set(extras)
    elif target.arch in ("riscv64", "wasm32"):
        extras = {"v": "riscv_v", "simd128": "wasm_simd128"}
        assert {k for k, macro in extras.items() if macro in names} == target.features
    elif target.name.startswith("cortex-m"):
        extras = {"dsp": "arm_feature_dsp", "mve": "arm_feature_mve", "fpu": "arm_fp"}
        assert {k for k, macro in extras.items() if macro in names} == target.features


@pytest.mark.parametrize("target", [t for t in TARGETS if t.bare], ids=lambda t: t.name)
def test_a_target_without_a_system_is_never_the_hosts(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Raspberry Pi with 32 bits is an `arm`, too."""
    assert best_target(TARGETS, target.arch, target.features).name != target.name
    monkeypatch.setattr(platform, "machine", lambda: target.arch)
    assert get_target(target.name).compiler != "cc"


@pytest.mark.parametrize(
    ("machine", "name", "fits"),
    [
        ("arm-none-eabi", "cortex-m4f", True),
        ("arm-linux-gnueabihf", "cortex-m4f", False),
        ("arm-none-eabi", "armv7-neon", False),
        ("thumb-freestanding-eabihf", "cortex-m55", True),
        ("riscv64-unknown-elf", "riscv32", True),
        ("riscv64-linux-gnu", "riscv32", False),
        ("riscv64-unknown-unknown-elf", "riscv32-rvv", True),
        ("riscv64-unknown-linux-gnu", "riscv64-rvv", True),
        ("wasm32-unknown-wasi", "wasm32-simd128", True),
        ("x86_64-elf", "x86-64", False),
        ("arm-none-eabi", "c99", True),
    ],
)
def test_a_compiler_serves_targets_with_and_without_a_system(
    machine: str, name: str, fits: bool, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    answer = f'case "$1" in --version) echo Free Software Foundation;; *) echo {machine};; esac'
    compiler.write_text(f"#!/bin/sh\n{answer}\n")
    compiler.chmod(0o755)
    target = target_by_name(name)
    environ = {"PATH": "/usr/bin:/bin"}
    if fits:
        assert find_compiler(target, environ, [str(compiler)]).machine == machine
    else:
        with pytest.raises(ToolchainError, match=f"builds for {machine}, not for .*{name}"):
            find_compiler(target, environ, [str(compiler)])


def test_a_compiler_without_the_targets_c_library_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "riscv64-unknown-elf-gcc"
    program.write_text(
        "#!/bin/sh\ncase \"$*\" in *specs*) echo cannot read spec file >&2; exit 1;; esac\n"
        "case \"$*\" in *machine*) echo riscv64-unknown-elf;; *) echo Free Software Foundation;;"
        " esac\n"
    )
    program.chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    with pytest.raises(ToolchainError, match="--specs=picolibc.specs") as caught:
        find_compiler(get_target("riscv32"), environ)
    assert "picolibc-riscv64-unknown-elf" in caught.value.hint


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_names_a_target(alias: str, name: str) -> None:
    assert get_target(alias).name == name


def test_an_unknown_name_lists_the_targets() -> None:
    with pytest.raises(OptionError, match="E10001") as caught:
        get_target("x86-64-avx3")
    for target in TARGETS:
        assert target.name in str(caught.value)
    assert "did you mean x86-64-avx" in str(caught.value)


@pytest.mark.parametrize("name", ["", "host", "HOST"])
def test_host_is_resolved_to_a_named_target(name: str) -> None:
    assert get_target(name) == host_target()
    assert host_target().name in {target.name for target in TARGETS}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks x86 CPUs")
def test_the_host_target_is_the_best_that_compiled_libraries_allow_here(tmp_path: Path) -> None:
    """In this process, which may be an emulator's; no more than the real CPU has."""
    text = ""
    for k, target in enumerate(TARGETS):
        if target.arch == "x86_64" and target.cpu_checks:
            check = render("project/cpu_check.c.j2", {"checks": target.cpu_checks, "tiles": False})
            text += f"#define cpu_is_able able_{k}\n{check}#undef cpu_is_able\n"
            text += f"int ask_{k}(void) {{ return able_{k}(); }}\n"
    (tmp_path / "a.c").write_text(text)
    command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "a.so"), str(tmp_path / "a.c")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    able = [
        t.name for k, t in enumerate(TARGETS)
        if t.arch in ("", "x86_64") and (not t.cpu_checks or library[f"ask_{k}"]())
    ]  # fmt: skip
    assert host_target().name == able[-1]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    assert host_target().features <= flags


@pytest.mark.parametrize(
    "names",
    [
        ("x86-64-avx512-bf16", "x86-64-avx2", "x86-64-avx2"),
        ("x86-64-avx512-vnni", "x86-64-avx512", "x86-64-avx512"),
        ("x86-64-avx2", "x86-64-avx512", "x86-64-avx2"),
        ("x86-64-avx2", None, "x86-64-avx2"),
    ],
    ids=["emulated", "without VNNI", "switched off", "not to be asked"],
)
def test_a_feature_counts_that_the_system_lists_and_cpuid_has(
    names: tuple[str, str | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of targets whose features the system lists, and the CPU says it has, and what they give."""
    listed, cpu, name = names

    def cpuid() -> Any:
        if cpu is None:
            raise PermissionError("memory that was written may not be executed")
        return target_by_name(cpu)

    features = target_by_name(listed).features
    shown = SimpleNamespace(features=features, name="own", vendor="own", ancestors=())
    monkeypatch.setattr(archspec.cpu, "host", lambda: shown)
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: shown)
    monkeypatch.setattr(archspec.cpu.detect, "CpuidInfoCollector", cpuid)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert host_target().name == name


@pytest.mark.parametrize(
    ("supported", "name"),
    [(0x602E7, "x86-64-amx"), (0x202E7, "x86-64-avx512-bf16"), (None, "x86-64-avx512-bf16")],
    ids=["kept", "not kept", "not known"],
)
def test_tiles_are_used_where_linux_keeps_them(
    supported: int | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def syscall(number: int, which: int, result: Any) -> int:
        assert (number, which) == (158, 0x1021)
        result._obj.value = supported or 0
        return 0 if supported else -1

    everything = SimpleNamespace(
        features=target_by_name("x86-64-amx").features, name="own", vendor="own", ancestors=()
    )
    monkeypatch.setattr(archspec.cpu, "host", lambda: everything)
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: everything)
    monkeypatch.setattr(archspec.cpu.detect, "CpuidInfoCollector", lambda: everything)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(syscall=syscall))
    assert get_target("host").name == name
    assert get_target("host").cflags == target_by_name(name).cflags


@pytest.mark.parametrize(
    ("arch", "features", "name"),
    [
        ("x86_64", set(), "x86-64-sse2"),
        ("x86_64", {"avx2"}, "x86-64-sse2"),
        ("x86_64", {"avx2", "fma", "f16c", "sse4_2"}, "x86-64-avx2"),
        ("x86_64", {"avx2", "fma", "f16c", "avx512f"}, "x86-64-avx2"),
        ("aarch64", {"neon", "fma"}, "aarch64-neon"),
        ("riscv64", set(), "c99"),
    ],
)
def test_the_best_target_is_the_last_that_the_cpu_can_run(
    arch: str, features: set[str], name: str
) -> None:
    assert best_target(TARGETS, arch, frozenset(features)).name == name


def test_only_a_foreign_target_needs_a_cross_compiler_and_an_emulator() -> None:
    neon = get_target("aarch64")
    if host_arch() == "aarch64":
        assert (neon.compiler, neon.runner) == ("cc", ())
    else:
        assert (neon.compiler, neon.runner) == (neon.compiler, ("qemu-aarch64-static",))
        assert neon == target_by_name("aarch64-neon")
