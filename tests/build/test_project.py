"""The CMake project, built by cmake and ninja as its user does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from projects import (
    affine_model,
    cmake,
    emit_model,
    reference,
    require,
    run_example,
    write_project,
)

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)

USER = """\
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES {language})
find_package(net 1 REQUIRED)
add_executable(dynamic main.{suffix})
target_link_libraries(dynamic PRIVATE net::net)
add_executable(fixed main.{suffix})
target_link_libraries(fixed PRIVATE net::net_static)
"""

MAIN = """\
#include <stdio.h>
#include "net.h"
int main(void)
{
  printf("%u %d\\n", (unsigned)net_abi_version(), (int)net_output_count());
  return 0;
}
"""


def project(folder: Path, name: str = "net", seed: int = 0, external: bool = False) -> Path:
    emission = emit_model(affine_model(seed=seed), name, external=external)
    return write_project(folder, emission, external)


def assert_right(program: Path, folder: Path, *before: Path, seed: int = 0) -> None:
    """Run an example and compare with the reference."""
    X.tofile(folder / "x.bin")
    printed = run_example(program, *before, folder / "x.bin")
    y, hidden = reference(affine_model(seed=seed), X)
    np.testing.assert_allclose(printed["y"], y.ravel(), rtol=1e-4)
    np.testing.assert_allclose(printed["hidden"], hidden.ravel(), rtol=1e-4)


def test_project_builds_installs_and_is_found(tmp_path: Path) -> None:
    build = cmake(project(tmp_path / "net"), f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}")
    assert_right(build / "net_example", tmp_path)
    subprocess.run([require("cmake"), "--install", build], check=True, capture_output=True)
    moved = (tmp_path / "there").rename(tmp_path / "elsewhere")  # packages must not know where
    user = tmp_path / "user"
    user.mkdir()
    (user / "CMakeLists.txt").write_text(USER.format(language="C", suffix="c"))
    (user / "main.c").write_text(MAIN)
    built = cmake(user, f"-DCMAKE_PREFIX_PATH={moved}")
    for program in ("dynamic", "fixed"):
        said = subprocess.run([built / program], capture_output=True, text=True, check=True)
        assert said.stdout == "1 2\n"


def test_static_libraries_of_two_networks_meet_in_one_program(tmp_path: Path) -> None:
    for seed, name in enumerate(("first", "second")):
        project(tmp_path / name, name, seed)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(both LANGUAGES C)\n"
        "add_subdirectory(first)\n"
        "add_subdirectory(second)\n"
        "add_executable(both main.c)\n"
        "target_link_libraries(both PRIVATE first::first_static second::second_static)\n"
    )
    values = ", ".join(map(str, X.ravel()))
    run = """
  {{
    static char odd[3];
    static {0}_arena arena;
    {0}_context ctx;
    if (odd[0] || {0}_init(&ctx, &arena, sizeof arena) || {0}_run(&ctx, x, y, hidden)) return 1;
    for (int i = 0; i < 6; ++i) printf("%.9g ", y[i]);
  }}"""
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "first.h"\n#include "second.h"\n'
        f"int main(void)\n{{\n  static const float x[] = {{{values}}};\n"
        "  float y[6], hidden[16];\n"
        + run.format("first", "FIRST") + run.format("second", "SECOND") + "\n  return 0;\n}\n"
    )  # fmt: skip
    program = cmake(tmp_path) / "both"
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    expected = [reference(affine_model(seed=seed), X)[0].ravel() for seed in (0, 1)]
    np.testing.assert_allclose([float(v) for v in said.split()], np.concatenate(expected), 1e-4)


@pytest.mark.slow
def test_weights_as_text_and_a_change_of_the_weights(tmp_path: Path) -> None:
    folder = project(tmp_path / "net")
    build = cmake(folder, "-DNET_WEIGHTS_AS_TEXT=ON")
    assert (build / "net_weights.c").is_file()
    assert_right(build / "net_example", tmp_path)
    build = cmake(folder, "-DNET_WEIGHTS_AS_TEXT=OFF")
    assert_right(build / "net_example", tmp_path)
    other = emit_model(affine_model(seed=1)).weights
    (folder / "net_weights.bin").write_bytes(other)
    os.utime(folder / "net_weights.bin", (2e9, 2e9))
    subprocess.run([require("cmake"), "--build", build], check=True, capture_output=True)
    assert_right(build / "net_example", tmp_path, seed=1)


@pytest.mark.slow
def test_folders_with_odd_names_are_built_in(tmp_path: Path) -> None:
    odd = tmp_path / "a b $c [e] 'f' #g @h@ (i) & % é" / "net"
    odd.parent.mkdir()
    for generator in ("Ninja", "Unix Makefiles"):
        tool = require("ninja" if generator == "Ninja" else "make")
        folder = project(odd.with_name(generator))
        configure = [
            require("cmake"), "-S", folder, "-B", folder / "build", "-G", generator,
            f"-DCMAKE_MAKE_PROGRAM={tool}",
        ]  # fmt: skip
        for command in (configure, [require("cmake"), "--build", folder / "build"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert_right(folder / "build/net_example", tmp_path)


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "generator", "said"), [
    ('a"b', "Ninja", 'has ",'), ("a;b", "Ninja", ";,"), ("a${b}", "Ninja", "${ or"),
    ("a[b", "Ninja", "lone ["),
    ("a:b", "Unix Makefiles", "has : or"), ("a$(b", "Unix Makefiles", "or $(:"),
])  # fmt: skip
@pytest.mark.parametrize("source", [True, False])
def test_where_cmake_or_make_cant_build_is_told_of(
    name: str, generator: str, said: str, source: bool, tmp_path: Path
) -> None:
    odd = tmp_path / name
    folder = project((odd if source else tmp_path) / "net")
    build = (tmp_path if source else odd) / "build"
    done = subprocess.run(
        [require("cmake"), "-S", folder, "-B", build, "-G", generator],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = " ".join(done.stderr.split())
    assert done.returncode
    assert said in errors
    assert errors.count("CMake Error") == 1, errors


@pytest.mark.slow
def test_external_weights_are_the_programs_to_read(tmp_path: Path) -> None:
    folder = project(tmp_path / "net", external=True)
    build = cmake(folder, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}")
    assert_right(build / "net_example", tmp_path, folder / "net_weights.bin")
    subprocess.run([require("cmake"), "--install", build], check=True, capture_output=True)
    assert (tmp_path / "there/share/net/net_weights.bin").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test", "install", "all", "help"])
def test_a_network_may_be_called_like_a_target_of_cmake(name: str, tmp_path: Path) -> None:
    build = cmake(project(tmp_path / "net", name))
    assert_right(build / f"{name}_example", tmp_path)


@pytest.mark.slow
def test_cpp_projects_find_it_and_clang_builds_it(tmp_path: Path) -> None:
    install = tmp_path / "there"
    build = cmake(
        project(tmp_path / "net"), f"-DCMAKE_INSTALL_PREFIX={install}",
        f"-DCMAKE_C_COMPILER={require('clang-19')}", "-DCMAKE_BUILD_TYPE=Debug",
    )  # fmt: skip
    assert_right(build / "net_example", tmp_path)
    subprocess.run([require("cmake"), "--install", build], check=True, capture_output=True)
    user = tmp_path / "user"
    user.mkdir()
    require("g++")
    (user / "CMakeLists.txt").write_text(USER.format(language="CXX", suffix="cpp"))
    (user / "main.cpp").write_text(MAIN)
    built = cmake(user, f"-DCMAKE_PREFIX_PATH={install}")
    said = subprocess.run([built / "dynamic"], capture_output=True, text=True, check=True)
    assert said.stdout == "1 2\n"


@pytest.mark.parametrize(
    "libdir", ["lib", pytest.param("lib/x86_64-linux-gnu", marks=pytest.mark.slow)]
)
def test_pkg_config_finds_an_installed_network_that_was_moved(libdir: str, tmp_path: Path) -> None:
    pkg_config = require("pkg-config")
    build = cmake(
        project(tmp_path / "net"), f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}",
        f"-DCMAKE_INSTALL_LIBDIR={libdir}", "-DNET_EXAMPLE=OFF",
    )  # fmt: skip
    subprocess.run([require("cmake"), "--install", build], check=True, capture_output=True)
    moved = (tmp_path / "there").rename(tmp_path / "moved")
    (tmp_path / "main.c").write_text(MAIN)
    environ = {**os.environ, "PKG_CONFIG_PATH": str(moved / libdir / "pkgconfig")}
    for more in ((), ("--static",)):
        reported = subprocess.run(
            [pkg_config, "--cflags", "--libs", *more, "net"], env=environ, check=True,
            capture_output=True, text=True,
        ).stdout.split()  # fmt: skip
        assert ("-lm" in reported) == bool(more)
        subprocess.run(
            [require("cc"), "main.c", *reported, f"-Wl,-rpath,{moved / libdir}", "-o", "main"],
            cwd=tmp_path, check=True,
        )  # fmt: skip
        done = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True)
        assert done.stdout == "1 2\n"
    reported = subprocess.run(
        [pkg_config, "--modversion", "net"], env=environ, check=True, capture_output=True,
    ).stdout  # fmt: skip
    assert reported == b"1\n"
