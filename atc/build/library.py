"""Building the library of a generated project, in a folder for that alone."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from atc.backends.target import Target
from atc.backends.toolchain.assembler import assemble
from atc.backends.toolchain.compiler import Compiler, compile_flags, core_flags, shared_library
from atc.backends.toolchain.compiling import compile_object, compiling_threads
from atc.backends.toolchain.linking import archive_static, link_shared
from atc.backends.toolchain.object_file import STAND_IN, enlarge_last_member, link_with_data
from atc.backends.toolchain.processes import Log
from atc.build.objects import BuildContext, Compiling, Unit, compile_units, unusable
from atc.build.output_folder import Content, write_files
from atc.errors import InternalError
from atc.files.blob import Blob
from atc.files.temporary import temporary_folder

LARGE = 1 << 24
"""Bytes of data from which on the tools get a stand-in for it."""


def library_flags(compiler: Compiler, target: Target) -> tuple[str, ...]:
    """Return the flags of every source of a library; its folders are relative to the tree."""
    return (*compile_flags(compiler, target), "-Iinclude", "-I.")


@dataclass(frozen=True)
class BuildResult:
    """Numbers of objects compiled and taken from the cache, and the time in seconds.

    `objects` holds the compiled ones by source path, those that never meet the cache left out.
    """

    compiled: int
    cached: int
    seconds: float
    objects: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    data_at: int | None = None
    """At which byte of the shared library large data begins, where that is known."""


def build_library(
    cwd: Path,
    files: Mapping[str, Content],
    units: Sequence[Unit],
    name: str,
    context: BuildContext,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    repeatable: bool = False,
    data_in_archive: bool = True,
    begun: Compiling | None = None,
) -> tuple[dict[str, Path], BuildResult]:
    """Make `lib<name>.so` and `lib<name>.a` of `units` in the folder `cwd`; returns where they lie.

    Where there is no operating system that loads the first there is the second alone.
    The flags of `context` name include folders relative to the tree. `progress` gets (done, total)
    objects. With `repeatable`, all sources lie in the folder, and the commands that the log hears
    of make the same once more. Without `data_in_archive` data is in the shared library alone.
    `begun` are compilers at work in the folder already.
    Raises ToolchainError with the compiler's words.
    """
    begin = time.perf_counter()
    if not (name.isascii() and name.isidentifier()):
        raise InternalError("a library's name is not a C identifier", where=repr(name))
    # What only includes data is never compiled: a warm rebuild compiles nothing.
    data = [unit for unit in units if context.compiler.elf and unit.path.endswith(".S")]
    code = [unit for unit in units if unit not in data]
    try:
        sources = _sources(files, units)
        texts = {path: content for path, content in sources.items() if isinstance(content, bytes)}
        blob = None if repeatable else _large_blob(sources, data)
        # Others are written when they are compiled.
        needed = sources if repeatable else _sources(files, [u for u in units if not u.cacheable])
        write_files(cwd, {p: c for p, c in needed.items() if blob is None or p in texts})
        with compiling_threads(context.compiler.running, 1) as pool:
            assembling = pool.submit(_assemble, cwd, texts, data, blob, context)
            # No tool reads a large blob: it is written while they work, if it is wanted.
            wanted = blob is not None and data_in_archive
            remaining = {p: sources[p] for p in sources.keys() - texts.keys()} if wanted else {}
            writing = pool.submit(write_files, cwd, remaining)
            missing, made = compile_units(cwd, texts, code, context, progress, begun)
            libraries, at = _link(
                cwd, code, assembling.result(), blob, name, context, data_in_archive
            )
            writing.result()
    except OSError as error:
        raise unusable(cwd, error) from None
    seconds = time.perf_counter() - begin
    return libraries, BuildResult(missing, len(code) - missing, seconds, made, at)


def _sources(files: Mapping[str, Content], units: Sequence[Unit]) -> dict[str, Content]:
    """Return the part of the tree that the units read."""
    paths = sorted({path for unit in units for path in (unit.path, *unit.includes)})
    for path in paths:
        if path not in files:
            raise InternalError("a source of the library wasn't generated", where=path)
    return {path: files[path] for path in paths}


def _large_blob(files: Mapping[str, Content], data: Sequence[Unit]) -> Blob | None:
    """Return the data that a library includes, if it is large and the only one."""
    included = [files[path] for unit in data for path in unit.includes]
    match included:
        case [Blob() as blob] if blob.size >= LARGE:
            return blob
    return None


def _assemble(
    cwd: Path, files: Mapping[str, bytes], units: Sequence[Unit], blob: Blob | None,
    context: BuildContext,
) -> list[str]:  # fmt: skip
    """Assemble what includes data, or a stand-in for a blob; returns the objects."""
    place = PurePosixPath("stand_in" if blob else ".")
    if blob:
        sources = {unit.path: files[unit.path] for unit in units}
        stand_ins = {path: STAND_IN for unit in units for path in unit.includes}
        write_files(cwd / place, {**sources, **stand_ins})
    own = core_flags(context.compiler, context.target)
    folder, compiler = cwd / place, context.compiler
    for unit in units:
        if unit.plain:
            source = str(PurePosixPath(unit.path).with_suffix(".s"))
            write_files(folder, {source: unit.plain})
            assemble(compiler, own, source, f"{unit.path}.o", folder, log=context.log)
        else:
            compile_object(compiler, own, unit.path, folder, log=context.log)
    return [str(place / f"{unit.path}.o") for unit in units]


def _link(
    cwd: Path, code: Sequence[Unit], data: Sequence[str], blob: Blob | None, name: str,
    context: BuildContext, data_in_archive: bool,
) -> tuple[dict[str, Path], int | None]:  # fmt: skip
    """Link both libraries; returns them, and where a blob is in the shared one, if it is known."""
    compiler = context.compiler
    flags = tuple(dict.fromkeys((*context.flags, *(f for unit in code for f in unit.flags))))
    objects = [f"{unit.path}.o" for unit in code]
    shared, static = shared_library(compiler, name), f"lib{name}.a"

    def archive() -> Path:
        made = archive_static(
            compiler, objects, static, cwd, data if data_in_archive else (),
            core_flags(compiler, context.target), log=context.log,
        )  # fmt: skip
        if blob is not None and data_in_archive:
            enlarge_last_member(made, (cwd / data[0]).read_bytes(), blob.size, blob.write)
        return made

    def share(*more: str) -> Path:
        return link_shared(compiler, flags, [*objects, *more], shared, cwd, log=context.log)

    with compiling_threads(compiler.running, 1) as pool:
        archiving = pool.submit(archive)
        made, at = dict[str, Path](), None
        if blob is not None and not context.target.bare:
            stand_in, held = (cwd / data[0]).read_bytes(), cwd / f"{name}_weights.o"
            made[shared], at = link_with_data(
                lambda: share(held.name), stand_in, blob.size, blob.write, held,
                f"{name}_weights_data",
            )  # fmt: skip
        elif not context.target.bare:
            made[shared] = share(*data)
        return {**made, static: archiving.result()}, at


@contextmanager
def work_folder(place: Path | None = None, keep: bool = False) -> Iterator[Path]:
    """Make a folder to build in and remove it afterwards, unless it is to be kept.

    It lies in `place`, which goes too if it wasn't there before.
    """
    fresh = False
    with ExitStack() as stack:
        try:
            if place is not None:
                fresh = not place.exists()
                place.mkdir(parents=True, exist_ok=True)
            if keep:
                folder = Path(tempfile.mkdtemp(prefix="atc-build-", dir=place)).resolve()
            else:
                if place is not None and fresh:
                    stack.callback(_remove_empty, place)
                folder = stack.enter_context(temporary_folder("build", place))
        except OSError as error:
            raise unusable(place or Path("the temporary folder"), error) from None
        yield folder


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def written_down(log: Log, folder: Path) -> Log:
    """Return a log that also appends each command to `commands.txt` in a folder, a line each."""

    def record(command: tuple[str, ...]) -> None:
        with (folder / "commands.txt").open("a", encoding="utf-8") as file:
            file.write(shlex.join(command) + "\n")
        log(command)

    return record
