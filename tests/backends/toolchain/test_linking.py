from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from small_libraries import network, objects_of, write

from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import Compiler, compile_flags
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import (
    archive_static,
    link_program,
    link_shared,
    section_sizes,
)
from atc.backends.toolchain.processes import run_binary
from atc.errors import ToolchainError


def test_a_shared_library_exports_the_public_names_only(compiler: Compiler, tmp_path: Path) -> None:
    flags = compile_flags(compiler, get_target("c99"))
    objects_of(compiler, flags, network(tmp_path, "entry", 2))
    path = link_shared(compiler, flags, ["src/a.c.o", "src/b.c.o"], "libnet.so", tmp_path)
    library = ctypes.CDLL(str(path))
    assert library.entry(21) == 42
    assert not hasattr(library, "twice")


def test_an_undefined_symbol_fails_the_link(host: Compiler, tmp_path: Path) -> None:
    flags = compile_flags(host, get_target("c99"))
    compile_object(host, flags, "src/a.c", network(tmp_path, "entry", 2))
    with pytest.raises(ToolchainError, match="twice") as caught:
        link_shared(host, flags, ["src/a.c.o"], "libnet.so", tmp_path)
    assert caught.value.where == "libnet.so"


@pytest.mark.few(1)
@pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs objcopy")
def test_two_static_libraries_with_the_same_kernel_live_in_one_program(
    compiler: Compiler, tmp_path: Path
) -> None:
    flags = compile_flags(compiler, get_target("c99"))
    for name, factor in (("one", 2), ("two", 5)):
        place = network(tmp_path / name, name, factor)
        objects_of(compiler, flags, place)
        archive_static(compiler, ["src/a.c.o", "src/b.c.o"], f"lib{name}.a", place)
    text = "int one(int x);\nint two(int x);\nint main(void) { return one(10) + two(3); }\n"
    write(tmp_path, {"main.c": text})
    compile_object(compiler, flags, "main.c", tmp_path)
    libraries = ["one/libone.a", "two/libtwo.a"]
    program = link_program(compiler, flags, ["main.c.o", *libraries], "main", tmp_path)
    assert run_binary([str(program)], 60).status == 35


def test_an_archive_is_made_anew(host: Compiler, tmp_path: Path) -> None:
    flags = compile_flags(host, get_target("c99"))
    objects_of(host, flags, network(tmp_path, "entry", 2))
    names = ["src/a.c.o", "src/b.c.o"]
    first = archive_static(host, names, "libnet.a", tmp_path).read_bytes()
    assert archive_static(host, names, "libnet.a", tmp_path).read_bytes() == first


@pytest.mark.slow
def test_a_link_by_the_linker_itself_is_the_compilers(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = compile_flags(compiler, get_target("c99"))
    made, commands = [], list[tuple[str, ...]]()
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr("atc.backends.toolchain.linking.own_command", lambda *_: ())
        place = network(tmp_path / str(direct), "entry", 2)
        objects_of(compiler, flags, place, workers=1)
        names = ["src/a.c.o", "src/b.c.o"]
        shared = link_shared(compiler, flags, names, "libnet.so", place, log=commands.append)
        static = archive_static(compiler, names, "libnet.a", place, log=commands.append)
        made.append((shared.read_bytes(), static.read_bytes()))
    assert made[0] == made[1]
    linked = [Path(c[0]).name for c in commands if "-o" in c and "-###" not in c]
    if compiler.kind == "gcc" and compiler.elf:
        assert [name.endswith("ld") for name in linked] == [True, True, False, False]


def test_objects_that_are_optimised_when_linked_are_the_compilers_to_link(
    host: Compiler, tmp_path: Path
) -> None:
    if host.kind != "gcc":
        pytest.skip("only GCC's linker is started without it")
    place = network(tmp_path, "entry", 2)
    flags = (*compile_flags(host, get_target("c99")), "-flto")
    objects_of(host, flags, place, workers=1)
    names = ["src/a.c.o", "src/b.c.o"]
    shared = link_shared(host, flags, names, "libnet.so", place)
    assert ctypes.CDLL(str(shared)).entry
    archive = archive_static(host, names, "libnet.a", place)
    assert b"entry\0" in archive.read_bytes()


@pytest.mark.parametrize("target", ["c99", "cortex-m4f"])
def test_sections_are_as_the_tool_size_counts_them(target: str, tmp_path: Path) -> None:
    record = get_target(target)
    try:
        compiler = find_compiler(record, {"PATH": os.environ["PATH"]})
    except ToolchainError as error:
        pytest.skip(error.message)
    text = 'const char words[] = "text"; int set = 3; int zeroed[64]; int f(void) { return set; }\n'
    write(tmp_path, {"a.c": text, "b.c": "int main(void) { return 0; }\n"})
    flags = compile_flags(compiler, record)
    for name in ("a.c", "b.c"):
        compile_object(compiler, flags, name, tmp_path)
    archive_static(compiler, ["a.c.o", "b.c.o"], "lib.a", tmp_path)
    for name in ("a.c.o", "lib.a"):
        size = compiler.argv[0].removesuffix("gcc") + "size"
        rows = subprocess.run([size, name], cwd=tmp_path, capture_output=True, check=True)
        counted = [line.split()[:3] for line in rows.stdout.decode().splitlines()[1:]]
        expected = tuple(sum(int(row[k]) for row in counted) for k in range(3))
        assert section_sizes(compiler, tmp_path / name) == expected
        assert expected[2] >= 256
