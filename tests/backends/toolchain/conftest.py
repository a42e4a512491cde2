"""Compilers of C: each kind that is installed, and the first."""

from __future__ import annotations

import pytest
from small_libraries import environ, first_of

from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.find_compiler import find_compiler


@pytest.fixture(
    params=["gcc", "clang", pytest.param("zig", marks=pytest.mark.slow)], scope="module"
)
def compiler(request: pytest.FixtureRequest) -> Compiler:
    if request.param == "zig":
        pytest.importorskip("ziglang", reason="the package ziglang isn't installed")
        return find_compiler(get_target("c99"), {"PATH": "/nonexistent"})
    name = first_of("gcc") if request.param == "gcc" else first_of("clang", "clang-19", "clang-14")
    if name is None:
        pytest.skip(f"{request.param} isn't installed")
    return find_compiler(get_target("c99"), environ(CC=name))


@pytest.fixture(scope="module")
def host() -> Compiler:
    return find_compiler(get_target("c99"), environ())
