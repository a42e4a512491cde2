"""Objects and archives with large data are those that the tools make of the data itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.elf import place_of_symbol
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import archive_static, link_shared
from atc.backends.toolchain.object_file import (
    STAND_IN,
    enlarge_last_member,
    enlarge_object,
    enlarged_object,
    hollow_object,
)
from atc.codegen.weights import included_weights
from atc.errors import ToolchainError

DATA = np.random.default_rng(0).bytes(64 * 100)
CODE = b"extern const char net_weights_data[];\nconst char *f(void) { return net_weights_data; }\n"
COMPILERS = {"gcc": "c99", "clang": "c99", "aarch64-linux-gnu-gcc": "aarch64-neon"}


def compiler_named(name: str) -> Compiler:
    if shutil.which(name) is None:
        pytest.skip(f"{name} isn't installed")
    compiler = find_compiler(get_target(COMPILERS[name]), {**os.environ, "CC": name})
    if not compiler.elf:
        pytest.skip("no ELF here")
    return compiler


def assembled(compiler: Compiler, folder: Path, data: bytes) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "w.S").write_text(included_weights("net", "net.bin"))
    (folder / "net.bin").write_bytes(data)
    return compile_object(compiler, (), "w.S", folder)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("data", [DATA, DATA[:-16]], ids=["whole", "odd"])
def test_an_enlarged_object_and_its_archive(data: bytes, name: str, tmp_path: Path) -> None:
    compiler = compiler_named(name)
    small, large = (assembled(compiler, tmp_path / d, b) for d, b in (("s", STAND_IN), ("l", data)))
    parts = enlarged_object(small, len(data))
    assert parts is not None
    assert data.join(parts) == large
    enlarge_object(small, len(data), lambda file: file.write(data), tmp_path / "one.o")
    assert (tmp_path / "one.o").read_bytes() == large
    archives = []
    for kind in "sl":
        (tmp_path / kind / "f.c").write_bytes(CODE)
        compile_object(compiler, ("-fPIC",), "f.c", tmp_path / kind)
        archives.append(archive_static(compiler, ["f.c.o"], "a.a", tmp_path / kind, ["w.S.o"]))
    enlarge_last_member(archives[0], small, len(data), lambda file: file.write(data))
    assert archives[0].read_bytes() == archives[1].read_bytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", COMPILERS)
def test_a_library_with_a_hole(name: str, tmp_path: Path) -> None:
    compiler = compiler_named(name)
    small, large = (assembled(compiler, tmp_path / d, b) for d, b in (("s", STAND_IN), ("l", DATA)))
    hollow = hollow_object(small, len(DATA))
    assert hollow is not None
    assert len(hollow) == len(small)
    (tmp_path / "f.c").write_bytes(CODE + b'const char other[] = "constants of its own";\n')
    compile_object(compiler, ("-fPIC",), "f.c", tmp_path)
    libraries = []
    for data in (hollow, large):
        (tmp_path / "w.o").write_bytes(data)
        made = link_shared(compiler, (), ["f.c.o", "w.o"], "libnet.so", tmp_path)
        at = place_of_symbol(made, "net_weights_data", len(DATA))
        assert at is not None
        libraries.append(made.read_bytes())
    libraries[0] = libraries[0][:at] + DATA + libraries[0][at + len(DATA) :]
    assert libraries[0] == libraries[1]
    assert place_of_symbol(made, "net_weights_data", 1 << 20) is None
    assert place_of_symbol(made, "other_weights_data", 64) is None


def test_an_object_of_32_bits(tmp_path: Path) -> None:
    compiler = compiler_named("gcc")
    sources = [("s", STAND_IN), ("l", DATA)]
    objects = []
    for folder, data in sources:
        assembled(compiler, tmp_path / folder, data)
        objects.append(compile_object(compiler, ("-m32",), "w.S", tmp_path / folder))
    assert objects[0][4] == 1
    assert DATA.join(enlarged_object(objects[0], len(DATA)) or ()) == objects[1]


def test_what_is_no_such_object_is_refused(tmp_path: Path) -> None:
    compiler = compiler_named("gcc")
    other = assembled(compiler, tmp_path / "o", bytes(64))
    assert enlarged_object(other, 128) is None
    assert enlarged_object(b"!<arch>\n", 128) is None
    assert hollow_object(other, 128) is None
    assert hollow_object(b"!<arch>\n", 128) is None
    assert enlarged_object(assembled(compiler, tmp_path / "o", STAND_IN), 100) is None
    (tmp_path / "o/f.c").write_bytes(CODE)
    compile_object(compiler, ("-fPIC",), "f.c", tmp_path / "o")
    archive = archive_static(compiler, ["f.c.o"], "a.a", tmp_path / "o")
    with pytest.raises(ToolchainError, match="unknown form"):
        enlarge_object(other, 128, lambda file: file.write(bytes(128)), tmp_path / "none.o")
    assert not (tmp_path / "none.o").exists()
    before = archive.read_bytes()
    with pytest.raises(ToolchainError, match="unknown form"):
        enlarge_last_member(archive, other, 128, lambda file: file.write(bytes(128)))
    assert archive.read_bytes() == before
