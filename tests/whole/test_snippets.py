"""The first calls that the README and every header show compile and run with any compiler."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, emit_model, make_model, require, sources, write_project

ROOT = Path(__file__).parents[2]
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-variable", "-O0")
COMPILERS: dict[str, tuple[str, ...]] = {
    "gcc, C99": ("gcc", "-std=c99"),
    "gcc, C11": ("gcc", "-std=c11"),
    "gcc, C++98": ("g++", "-std=c++98", "-Wno-long-long", "-Wno-variadic-macros"),
    "gcc, C++11": ("g++", "-std=c++11"),
    "clang, C99": ("clang", "-std=c99"),
    "clang, C11": ("clang", "-std=c11"),
    "clang, C++17": ("clang++", "-std=c++17"),
    "clang-19, C99": ("clang-19", "-std=c99"),
    "aarch64, C99": ("aarch64-linux-gnu-gcc", "-std=c99", "-static"),
    "ARM, C99": ("arm-linux-gnueabihf-gcc", "-std=c99", "-static"),
}
RUNNERS = {"aarch64": ("qemu-aarch64-static",), "ARM": ("qemu-arm-static",)}
MAIN = r"""
/* Memory at an odd place moves what follows it. */
{includes}
static char odd[3];
static char more[1];
int main(void)
{{
  (void)odd; (void)more;
{values}
{snippet}
  return status;
}}
"""


def write_program(folder: Path, name: str, snippet: str, values: str) -> None:
    """Write a program around lines of C that end with a variable `status`."""
    found = re.findall(r"^#include .*\n", snippet, re.M) or [f'#include "{name}.h"\n']
    own = re.sub(r"^#include .*\n", "", snippet, flags=re.M)
    text = MAIN.format(includes="".join(found), values=values, snippet=own)
    (folder / "use.c").write_text(text)


def build_and_run(folder: Path, compiler: str, code: list[str]) -> None:
    """Compile a program as the compiler's language, all else as C, and run it."""
    words = COMPILERS[compiler]
    runner = [require(word) for word in RUNNERS.get(compiler.partition(",")[0], ())]
    cc = require(words[0])
    plain = require({"g++": "gcc", "clang++": "clang"}.get(words[0], words[0]))
    static = [w for w in words if w == "-static"]
    objects = [f"{path}.o" for path in code]
    language = ["-x", "c++" if "++" in words[0] else "c"]
    commands = [
        *([plain, "-O0", "-Iinclude", "-I.", "-c", path, "-o", f"{path}.o"] for path in code),
        [cc, *words[1:], *STRICT, "-Iinclude", *language, "use.c", "-c", "-o", "use.o"],
        [cc, *static, "use.o", *objects, "-o", "use.exe", "-lm"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
    done = subprocess.run([*runner, "./use.exe"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}"


@pytest.mark.few(1)
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("target", ["c99", "x86-64-avx512"])  # the alignments that there are
def test_what_a_header_shows(compiler: str, target: str, tmp_path: Path) -> None:
    emission = emit_model(affine_model(), target="c99")
    write_project(tmp_path, emission)
    header = emission.files["include/net.h"].decode()
    if target != "c99":  # the calls are the same; other processors can't run its kernels
        header = re.sub(r"(NET_ALIGNMENT) 16", r"\1 64", header)
        (tmp_path / "include/net.h").write_text(header)
    lines = re.search(r"Do this:\n((?: \*     .*\n)+)", header)
    assert lines is not None
    snippet = re.sub(r"^ \*     |//.*$", "", lines[1], flags=re.M)
    assert "net_arena arena" in snippet
    write_program(tmp_path, "net", snippet, "  float x[10] = {0}, y[6], hidden[16];")
    build_and_run(tmp_path, compiler, sources(tmp_path))


def test_a_header_without_an_arena_shows_none(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    emission = emit_model(make_model([relu], [("x", F32, (3,))], [("y", F32, (3,))]))
    write_project(tmp_path, emission)
    header = emission.files["include/net.h"].decode()
    lines = re.search(r"Do this:\n((?: \*     .*\n)+)", header)
    assert lines is not None
    assert "arena" not in lines[1]
    write_program(
        tmp_path, "net", re.sub(r"^ \*     ", "", lines[1], flags=re.M),
        "  float x[3] = {0}, y[3];",
    )  # fmt: skip
    build_and_run(tmp_path, "gcc, C99", sources(tmp_path))


@pytest.mark.few(2)
@pytest.mark.parametrize("compiler", ["gcc, C99", "clang, C11", "gcc, C++11", "aarch64, C99"])
def test_what_the_readme_shows(compiler: str, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (snippet,) = re.findall(r"```c\n(.*?)```", text, re.S)
    assert snippet in (ROOT / "atc/docs/c.md").read_text("utf-8")
    emission = emit_model(onnx.load(ROOT / "samples/digits.onnx"), "digits")
    write_project(tmp_path, emission)
    write_program(tmp_path, "digits", snippet, "  static float image[28 * 28]; float scores[10];")
    build_and_run(tmp_path, compiler, sources(tmp_path))


@pytest.mark.parametrize("version", ["c11", "c++11"])
def test_alignment_by_the_languages_own_words(version: str, tmp_path: Path) -> None:
    """Compilers that aren't GNU's: the macro takes what the standard has."""
    write_project(tmp_path, emit_model(affine_model()))
    header = (tmp_path / "include/net.h").read_text().replace("__GNUC__", "NOT_GNU")
    (tmp_path / "include/net.h").write_text(header.replace("NET_ALIGNMENT 16", "NET_ALIGNMENT 64"))
    word = "alignof" if "+" in version else "_Alignof"
    (tmp_path / "use.c").write_text(
        '#include "net.h"\n'
        f"int main(void) {{ return {word}(net_arena) == 64 ? 0 : 1; }}\n"
    )
    cc = require("g++" if "+" in version else "gcc")
    flags = [f"-std={version}", "-Wpedantic", "-Werror", "-Iinclude", "-x", "c++" if "+" in version
             else "c"]  # fmt: skip
    subprocess.run([cc, *flags, "use.c", "-o", "use.exe"], cwd=tmp_path, check=True)
    subprocess.run(["./use.exe"], cwd=tmp_path, check=True)
