from __future__ import annotations

import os
from pathlib import Path

import pytest

from atc.backends.targets import get_target
from atc.backends.toolchain.assembler import assemble
from atc.backends.toolchain.compiler import Compiler, assembler_words
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.codegen.weights import included_weights
from atc.errors import ToolchainError

TARGETS = ("c99", "aarch64-neon", "cortex-m4f", "riscv32")


def compiler_of(target: str) -> tuple[Compiler, tuple[str, ...]]:
    """Return a target's compiler, and the flags that its objects must agree in."""
    found = get_target(target)
    try:
        return find_compiler(found, {**os.environ}), found.cflags if found.bare else ()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("others", [(), ("second", "third")])
def test_plain_text_assembles_to_the_object_of_the_other(
    target: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    compiler, flags = compiler_of(target)
    (tmp_path / "w.bin").write_bytes(bytes(range(200)))
    for name, elf in (("w.S", False), ("w.s", True)):
        text = included_weights("net", "w.bin", part=(8, 77), others=others, elf=elf)
        (tmp_path / name).write_text(text)
        assert elf == ("\n#" not in text)
    commands: list[tuple[str, ...]] = []
    made = assemble(compiler, flags, "w.s", "plain.o", tmp_path, log=commands.append)
    assert made.read_bytes() == compile_object(compiler, flags, "w.S", tmp_path)
    if compiler.kind == "gcc":
        assert Path(commands[-1][0]).name.endswith("as")


def test_a_failure_has_the_assemblers_words(tmp_path: Path) -> None:
    compiler, flags = compiler_of("c99")
    (tmp_path / "w.s").write_text('  .incbin "nowhere.bin"\n')
    with pytest.raises(ToolchainError, match=r"nowhere\.bin"):
        assemble(compiler, flags, "w.s", "w.o", tmp_path)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"Target: x\n as --64 -o object.o source.s\n", ("--64", "-o", "object.o", "source.s")),
        (b" /bin/arm-as -o object.o source.s\n", ("-o", "object.o", "source.s")),
        (b" /lib/cc1 -E x\n as -o object.o x\n", ()),
        (b" /lib/wrapper -o object.o source.s\n", ()),
        (b"", ()),
    ],
)
def test_words_are_those_of_an_assembler_alone(answer: bytes, words: tuple[str, ...]) -> None:
    assert assembler_words(answer) == words
