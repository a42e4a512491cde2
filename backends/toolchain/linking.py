"""Linking objects to libraries, programs and archives, by the tools beside a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from atc.backends.toolchain import elf
from atc.backends.toolchain.compiler import (
    LOADS,
    OPEN_ENDED,
    Compiler,
    known_digest,
    link_flags,
    linker_words,
)
from atc.backends.toolchain.processes import (
    ANSWER,
    Log,
    ask_program,
    companion,
    no_log,
    own_command,
    ran,
    run_binary,
    run_tool,
)
from atc.errors import ToolchainError


def link_shared(
    compiler: Compiler,
    flags: tuple[str, ...],
    objects: Sequence[str],
    output: str,
    cwd: Path,
    *,
    log: Log = no_log,
) -> Path:
    """Link the objects (named relative to `cwd`) to a shared library and return its path.

    Of the flags only those of `link_flags` are passed on.
    """
    kept = link_flags(flags)

    def words(name: str) -> Iterator[str]:
        yield from (*kept, "-shared")
        if compiler.elf:
            yield from (f"-Wl,-soname,{name}", "-Wl,--build-id=none", "-Wl,-z,noexecstack")
            # Sanitizers leave their runtime's symbols to the program.
            if not any(f == OPEN_ENDED or f.startswith("-fsanitize=") for f in kept):
                yield "-Wl,-z,defs"

    _link(compiler, words, objects, _libraries(flags), output, cwd.resolve(), log)
    return cwd / output


_LINKED, _OBJECT = "linked", "object.o"  # names in the question how GCC links
_SCRIPT = 4096  # bytes of a linker script, at most


def _link(
    compiler: Compiler, flags: Callable[[str], Iterable[str]], objects: Sequence[str],
    libraries: Sequence[str], output: str, cwd: Path, log: Log,
) -> None:  # fmt: skip
    """Link objects, by the linker itself where GCC says how: its drivers take as long as that.

    `flags` are asked for the output's name. What fails so is the compiler's to do, and its words
    are the error's.
    """

    def command(output: str, objects: Sequence[str], *more: str) -> tuple[str, ...]:
        return (*compiler.argv, *more, *flags(output), "-o", output, *objects, *libraries)

    if own := own_command(compiler, "ld", command(_LINKED, [_OBJECT], "-###"), linker_words, log):
        names = {_LINKED: [output], _OBJECT: objects}
        words = tuple(name for word in own for name in names.get(word, [word]))
        if ran(compiler, words, cwd, output, log).status == 0:
            return
    run_tool(compiler, command(output, objects), cwd, output, log)


def link_inputs(compiler: Compiler) -> Mapping[str, bytes]:
    """Return the digests of all that goes into a library beside objects, and of the tools, by path.

    These are what a C library brings for each link, and the libraries that are looked into. There
    are none where GCC doesn't say what it links.
    """
    question = (*compiler.argv, "-###", "-shared", "-pthread", "-o", _LINKED, _OBJECT, "-lm", LOADS)
    command = own_command(compiler, "ld", question, linker_words, no_log)
    others = [companion(compiler, name, no_log) for name in ("as", "objcopy", "ar")]
    if not command or None in others:
        return {}
    folders = [word[2:] for word in command if word.startswith("-L")]
    names = {word[2:] for word in command if word.startswith("-l")}
    todo = [word for word in (*command, *others) if word and word.startswith("/")]
    for name in sorted(names):  # as text: a path's object takes longer to make than to look for
        found = (f"{place}/lib{name}{end}" for place in folders for end in (".so", ".a"))
        todo += [file for file in found if os.path.exists(file)][:1]
    digests: dict[str, bytes] = {}
    while todo:
        file = todo.pop()
        if file not in digests and os.path.isfile(file):
            digests[file] = known_digest(file)
            todo += _named_by_script(file)
    return digests


def _named_by_script(file: str) -> Iterator[str]:
    """Yield the files that a linker script names, as that of a C library does."""
    if file.endswith(".so") and os.stat(file).st_size < _SCRIPT:
        for word in Path(file).read_text("utf-8", "replace").split():
            if word.startswith("/") and word != "/*":
                yield word


def _libraries(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return what comes last in a link: libraries serve only what stands before them."""
    return ("-lm", *[LOADS] * (LOADS in flags))


def link_program(
    compiler: Compiler,
    flags: tuple[str, ...],
    objects: Sequence[str],
    output: str,
    cwd: Path,
    *,
    static: bool = False,
    log: Log = no_log,
) -> Path:
    """Link an executable; `static` ones run under an emulator without the target's libraries."""
    kept = (*link_flags(flags), *(("-static",) if static else ()))
    command = (*compiler.argv, *kept, "-o", output, *objects, *_libraries(flags))
    run_tool(compiler, command, cwd.resolve(), output, log)
    return cwd.resolve() / output


def link_wasm(
    compiler: Compiler, exports: Sequence[str], archive: str, output: str, cwd: Path, *,
    log: Log = no_log,
) -> Path:  # fmt: skip
    """Link a WebAssembly module of functions of a static library; it imports nothing."""
    start = "-mexec-model=reactor" if compiler.kind == "zig" else "-nostartfiles"
    words = (start, "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=1048576",
             "-Wl,--export=__heap_base", *(f"-Wl,--export={name}" for name in exports))  # fmt: skip
    command = (*compiler.argv, *words, "-o", output, archive, "-lm")
    run_tool(compiler, command, cwd.resolve(), output, log)
    return cwd.resolve() / output


def archive_static(
    compiler: Compiler,
    objects: Sequence[str],
    output: str,
    cwd: Path,
    data: Sequence[str] = (),
    flags: Sequence[str] = (),
    *,
    log: Log = no_log,
) -> Path:
    """Make a static library of objects, and of objects with data alone, and return its path.

    Where objcopy is there (ELF), the objects become one member that defines the public symbols
    only: the kernels of two networks in one program then never clash. Those with data, which may be
    large and whose symbols have the network's name, stay as they are. Else it is a plain archive.
    `flags` say which processor they are for, where the compiler's own isn't it.
    """
    folder = cwd.resolve()
    objcopy = companion(compiler, "objcopy", log) if compiler.elf else None
    if objcopy is not None:
        whole = str(Path(output).with_suffix(".o"))
        words = [w for w in compiler.argv if not w.startswith("--specs=")]  # for whole programs
        driver = replace(compiler, argv=tuple(words))
        join = (*flags, "-r", "-nostdlib")
        _link(driver, lambda output: join, objects, (), whole, folder, log)
        run_tool(compiler, (objcopy, "--localize-hidden", whole), folder, output, log)
        objects = [whole]
    (folder / output).unlink(missing_ok=True)  # ar adds to an archive that exists
    options = "-rcsD" if compiler.elf else "-rcs"
    command = (*_archiver(compiler, log), options, output, *objects, *data)
    run_tool(compiler, command, folder, output, log)
    return cwd / output


def link_uncalled(
    compiler: Compiler, objects: Sequence[str], output: str, cwd: Path, *, log: Log = no_log
) -> Path:  # fmt: skip
    """Link what `main` needs of objects and archives by zig's own linker, without a C library.

    zig would compile one first, which takes minutes. The program is there to be measured alone.
    """
    words = ("ld.lld", "--gc-sections", "--entry=main", "--unresolved-symbols=ignore-all")
    zig = compiler.argv[: compiler.argv.index("cc")]
    run_tool(compiler, (*zig, *words, "-o", output, *objects), cwd.resolve(), output, log)
    return cwd.resolve() / output


def section_sizes(
    compiler: Compiler, file: Path, *, log: Log = no_log
) -> tuple[int, int, int]:
    """Return the bytes of code and constants, of data, and of zeroed data in an object, archive or
    program, as the tool `size` counts them; it is asked itself where the file isn't ELF.
    """
    if compiler.elf:
        return elf.section_sizes(file.read_bytes())
    tool = companion(compiler, "size", log)
    if tool is None:
        raise ToolchainError("the tool size isn't there", hint="install binutils")
    done = run_binary((tool, str(file)), ANSWER, log=log)
    rows = [line.split() for line in done.stdout.decode(errors="replace").splitlines()[1:]]
    if done.status or not rows:
        raise ToolchainError(f"{Path(tool).name} can't read {file.name}")
    code, data, bss = (sum(int(row[k]) for row in rows) for k in range(3))
    return code, data, bss


def extract_archive(
    compiler: Compiler, archive: str, cwd: Path, *, log: Log = no_log
) -> tuple[str, ...]:
    """Put the members of a static library beside it; returns their names relative to `cwd`."""
    place = (cwd / archive).resolve()
    members = place.with_name(f"{place.name}.d")
    members.mkdir()
    run_tool(compiler, (*_archiver(compiler, log), "-x", str(place)), members, archive, log)
    return tuple(sorted(str(file.relative_to(cwd.resolve())) for file in members.iterdir()))


def _archiver(compiler: Compiler, log: Log) -> tuple[str, ...]:
    if compiler.kind == "zig":
        return (*compiler.argv[: compiler.argv.index("cc")], "ar")
    found = companion(compiler, "ar", log)
    if found is None:
        raise ToolchainError("no archiver: ar isn't there", hint="install binutils")
    if compiler.kind == "gcc" and compiler.elf:  # as gcc-ar; else it loads LLVM's plugin, too
        done = ask_program((*compiler.argv, "-print-file-name=liblto_plugin.so"), ANSWER, log=log)
        plugin = done.stdout.decode(errors="replace").strip()
        if not done.status and Path(plugin).is_absolute():
            return (found, "--plugin", plugin)
    return (found,)
