"""Assembling text that needs no preprocessor: by the assembler itself where GCC says how."""

from __future__ import annotations

from pathlib import Path

from atc.backends.toolchain.compiler import Compiler, assembler_words
from atc.backends.toolchain.processes import Log, no_log, own_command, ran, run_tool

_SOURCE, _OBJECT = "source.s", "object.o"  # names in the question how GCC assembles


def assemble(
    compiler: Compiler, flags: tuple[str, ...], source: str, output: str, cwd: Path, *,
    log: Log = no_log,
) -> Path:  # fmt: skip
    """Assemble a source `*.s`, named relative to `cwd`, and return the object's path.

    GCC's driver takes as long as the assembler, with the preprocessor thrice as long. What fails
    without it is the compiler's to do, and its words are the error's.
    """
    folder = cwd.resolve()

    def command(source: str, output: str, *more: str) -> tuple[str, ...]:
        return (*compiler.argv, *more, *flags, "-c", source, "-o", output)

    question = command(_SOURCE, _OBJECT, "-###")
    words = own_command(compiler, "as", question, assembler_words, log)
    names = {_SOURCE: source, _OBJECT: output}
    own = tuple(names.get(word, word) for word in words)
    if not own or ran(compiler, own, folder, source, log).status:
        run_tool(compiler, command(source, output), folder, source, log)
    return cwd / output
