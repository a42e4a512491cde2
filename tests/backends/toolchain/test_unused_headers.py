"""Headers that a target can't use are left out, and nothing of an object changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from atc.backends.cpu.targets import TARGETS
from atc.backends.target import Target, host_arch
from atc.backends.toolchain.compiler import Compiler, compile_flags
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.unused_headers import without_unused_headers
from atc.templates import verbatim

OF_X86 = [t for t in TARGETS if t.arch == "x86_64" and t.simd not in ("", "scalar")]
SOURCE = b"""\
#include "simd.h"
#include "simd_math.h"

void kernel(const float *x, float *y);
void kernel(const float *x, float *y)
{
  v_store(y, v_exp(v_add(v_load(x), v_set1(1.5f))));
}
"""


def gcc_of(target: Target) -> Compiler:
    compiler = find_compiler(target, os.environ)
    if compiler.kind != "gcc" or host_arch() != "x86_64":
        pytest.skip("only GCC's headers for x86 are known")
    return compiler


@pytest.mark.parametrize("target", OF_X86, ids=lambda t: t.name)
def test_objects_are_the_same_from_fewer_headers(target: Target, tmp_path: Path) -> None:
    compiler = gcc_of(target)
    (tmp_path / "kernel.h").write_text(verbatim("cpu/kernel.h"))
    (tmp_path / "simd.h").write_text(verbatim(f"simd/{target.simd}.h"))
    (tmp_path / "simd_math.h").write_text(verbatim("simd/math.h"))
    (tmp_path / "a.c").write_bytes(SOURCE)
    flags = compile_flags(compiler, target)
    fewer = without_unused_headers(compiler, flags)
    whole = compile_object(compiler, flags, "a.c", tmp_path)
    assert compile_object(compiler, (*flags, *fewer), "a.c", tmp_path) == whole


def test_only_what_a_target_lacks_is_left_out() -> None:
    names = ("x86-64-sse2", "x86-64-avx2", "x86-64-avx512")
    targets = {t.name: t for t in OF_X86 if t.name in names}
    out = {}
    for name, target in targets.items():
        compiler = gcc_of(target)
        out[name] = {*without_unused_headers(compiler, compile_flags(compiler, target))}
    sse2, avx2, avx512 = (out[name] for name in names)
    assert avx512
    assert "-D_AVX2INTRIN_H_INCLUDED" in sse2 - avx2
    assert "-D_AVX512FINTRIN_H_INCLUDED" in avx2 - avx512


def test_other_compilers_read_their_headers_whole() -> None:
    for name, arch in (("clang", "x86_64"), ("aarch64-linux-gnu-gcc", "aarch64")):
        if shutil.which(name) is None:
            continue
        target = next(t for t in TARGETS if t.arch == arch)
        compiler = find_compiler(target, {**os.environ, "CC": name})
        assert without_unused_headers(compiler, compile_flags(compiler, target)) == ()
