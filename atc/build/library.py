"""Building the library of a generated project, in a folder for that alone."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.backends.toolchain.assembler import assemble
from atc.backends.toolchain.compiler import (
    Compiler,
    compile_flags,
    core_flags,
    shared_library,
    source_flags,
)
from atc.backends.toolchain.compiling import (
    PARSED,
    Job,
    compile_many,
    compile_object,
    compiling_threads,
    parse_header,
)
from atc.backends.toolchain.linking import archive_static, link_shared
from atc.backends.toolchain.object_file import STAND_IN, enlarge_last_member, link_with_data
from atc.backends.toolchain.processes import Log, no_log
from atc.build.output_folder import Content, write_files
from atc.cache import Key, make_key
from atc.errors import InternalError, ToolchainError
from atc.files.blob import Blob
from atc.files.temporary import temporary_folder

KERNEL_HEADER = "src/kernel.h"
VOCABULARY = ("src/simd.h", "src/simd_math.h")  # headers of kernels that aren't portable
ONE_LANE = "src/simd_scalar.h"
"""The vectors' table of kernels that take one of one lane in the place of src/simd.h."""
LARGE = 1 << 24
"""Bytes of data from which on the tools get a stand-in for it."""


@dataclass(frozen=True)
class Unit:
    """One source of the library, with all the files that its preprocessor or assembler reads.

    `path` and `includes` are paths in the tree. A unit sees no file that no unit declares, so a
    forgotten include is an error at once and never a stale object from the cache. `name` is the
    label in the cache's reports. A unit that isn't `cacheable` never meets the cache (the weights:
    too large to gain); one with `bypass` is kept out of it while it is being debugged. `flags` come
    after those of the whole library. Of what includes data, `plain` is the same text without lines
    of the preprocessor.
    """

    path: str
    name: str
    includes: tuple[str, ...] = ()
    cacheable: bool = True
    bypass: bool = False
    flags: tuple[str, ...] = ()
    plain: bytes = b""


def kernel_unit(kernel: KernelSource) -> Unit:
    """Return the unit of a kernel: it includes kernel.h, with vectors also the vocabulary."""
    headers = (KERNEL_HEADER, *(VOCABULARY if kernel.vocabulary else ()))
    if kernel.launch:
        headers = (*headers, "src/device.h", "src/tensor.h", "src/warpgroup.h", "src/emulation.h")
    more = (f"src/simd_{header}.h" for header in kernel.headers)
    return Unit(kernel.path, kernel.symbol, (*headers, *more))


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


class ObjectCache(Protocol):
    """The part of `atc.cache.Cache` that a build needs."""

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Begin to look for objects that `get` will be asked for."""

    def get(self, key: Key, name: str, *, bypass: bool = False) -> bytes | None:
        """Return the object stored under `key`, if any."""

    def put(self, key: Key, name: str, data: bytes, *, bypass: bool = False) -> None:
        """Store an object."""


@dataclass(frozen=True)
class RemoteJob:
    """A source that another machine can compile: with every file that it reads."""

    compiler: Compiler
    flags: tuple[str, ...]
    source: str
    files: Mapping[str, bytes]


class Farm(Protocol):
    """A compiler elsewhere, such as a cluster."""

    def compile(
        self, jobs: Sequence[RemoteJob], progress: Callable[[int], None]
    ) -> list[bytes | None]:
        """Return the objects of the jobs, None for those that are left to the caller.

        They are the same bytes as this machine's compiler makes.
        """


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
) -> tuple[dict[str, Path], BuildResult]:
    """Make `lib<name>.so` and `lib<name>.a` of `units` in the folder `cwd`; returns where they lie.

    Where there is no operating system that loads the first there is the second alone.
    The flags of `context` name include folders relative to the tree. `progress` gets (done, total)
    objects. With `repeatable`, all sources lie in the folder, and the commands that the log hears
    of make the same once more. Without `data_in_archive` data is in the shared library alone.
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
            missing, made = compile_units(cwd, texts, code, context, progress)
            libraries, at = _link(
                cwd, code, assembling.result(), blob, name, context, data_in_archive
            )
            writing.result()
    except OSError as error:
        raise _unusable(cwd, error) from None
    seconds = time.perf_counter() - begin
    return libraries, BuildResult(missing, len(code) - missing, seconds, made, at)


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


def _unusable(place: Path, error: OSError) -> ToolchainError:
    return ToolchainError(
        f"can't work in {place}: {error.strerror}",
        hint="set TMPDIR, or --build_dir, to a free folder",
    )


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
            raise _unusable(place or Path("the temporary folder"), error) from None
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


@dataclass(frozen=True)
class BuildContext:
    """The compiler, its flags, and the cache that keeps objects."""

    target: Target
    compiler: Compiler
    flags: tuple[str, ...]
    cache: ObjectCache
    workers: int
    log: Log = no_log
    farm: Farm | None = None
    """Compiles before this machine does."""
    parse_from: int = 6
    """Kernels a worker from which on parsing their headers alone takes less time than it saves."""


def compile_units(
    cwd: Path,
    files: Mapping[str, bytes],
    units: Sequence[Unit],
    context: BuildContext,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, dict[str, bytes]]:
    """Put the object of each unit beside its source in `cwd`, from the cache where it has it.

    Returns how many were compiled and, of those, the objects that may be kept, by source path.
    Sources that are compiled here, and `files` has, are written there.
    """
    keys = {u: _key(files, u, context) for u in units if u.cacheable}
    missing = _take_cached(cwd, units, keys, context.cache)
    done, total = len(units) - len(missing), len(units)
    progress(done, total)
    left = missing
    if context.farm is not None and missing:
        cached = done
        left = _compile_elsewhere(
            cwd, files, missing, context, context.farm, lambda n: progress(cached + n, total)
        )
        done += len(missing) - len(left)
    paths = {path: None for unit in left for path in (unit.path, *unit.includes)}
    write_files(cwd, {path: files[path] for path in paths if path in files})
    with _vocabulary_parsed(cwd, left, context) as flags:
        jobs = [Job(context.compiler, flags[unit], unit.path, cwd) for unit in left]
        compile_many(
            jobs, context.workers, progress=lambda n: progress(done + n, total), log=context.log
        )
    made: dict[str, bytes] = {}
    for unit in missing:
        if unit in keys:
            made[unit.path] = (cwd / f"{unit.path}.o").read_bytes()
            context.cache.put(keys[unit], unit.name, made[unit.path], bypass=unit.bypass)
    return len(missing), made


@contextmanager
def _vocabulary_parsed(
    cwd: Path, units: Sequence[Unit], context: BuildContext
) -> Iterator[Mapping[Unit, tuple[str, ...]]]:
    """Yield the flags of each unit, after parsing once what many of them include.

    A kernel of vectors takes most of its time for reading the compiler's headers of instructions.
    """
    flags = {unit: _flags(unit, context) for unit in units}
    alike: dict[tuple[str, ...], list[Unit]] = {}
    for unit in units:
        many = {KERNEL_HEADER, *VOCABULARY} <= {*unit.includes} and ONE_LANE not in unit.includes
        if many and unit.path.endswith(".c"):
            alike.setdefault(flags[unit], []).append(unit)
    with ExitStack() as stack:
        for number, (given, found) in enumerate(alike.items()):
            if not _worth_parsing(len(found), given, context):
                continue
            header = f"parsed/{number}.h"
            lines = (f'#include "../{path}"\n' for path in (KERNEL_HEADER, *VOCABULARY))
            write_files(cwd, {header: "".join(lines).encode()})
            with suppress(ToolchainError):  # whoever can't parse it alone can do without
                file = parse_header(Job(context.compiler, given, header, cwd), log=context.log)
                stack.callback(file.unlink)
                flags |= {unit: (*given, "-include", header) for unit in found}
        yield flags


def _worth_parsing(count: int, flags: Sequence[str], context: BuildContext) -> bool:
    """Return whether parsing a header alone saves time, and lets objects be what they are."""
    known = context.compiler.kind in PARSED and "-g" not in flags  # which names what it came from
    return known and count >= context.parse_from * context.workers


def _compile_elsewhere(
    cwd: Path, files: Mapping[str, bytes], units: Sequence[Unit], context: BuildContext,
    farm: Farm, progress: Callable[[int], None],
) -> list[Unit]:  # fmt: skip
    """Put the objects that others compile beside their sources; return the units left over."""
    far = [unit for unit in units if files.keys() >= {unit.path, *unit.includes}]
    jobs = [
        RemoteJob(
            context.compiler, _flags(unit, context), unit.path,
            {path: files[path] for path in (unit.path, *unit.includes)},
        )
        for unit in far
    ]  # fmt: skip
    left = [unit for unit in units if unit not in far]  # those of data, for others than ELF
    for unit, data in zip(far, farm.compile(jobs, progress), strict=True):
        if data is None:
            left.append(unit)
        else:
            write_files(cwd, {f"{unit.path}.o": data})
    return left


def _sources(files: Mapping[str, Content], units: Sequence[Unit]) -> dict[str, Content]:
    """Return the part of the tree that the units read."""
    paths = sorted({path for unit in units for path in (unit.path, *unit.includes)})
    for path in paths:
        if path not in files:
            raise InternalError("a source of the library wasn't generated", where=path)
    return {path: files[path] for path in paths}


def _flags(unit: Unit, context: BuildContext) -> tuple[str, ...]:
    """Return the flags of a unit, which are others for other languages."""
    flags = (*context.flags, *unit.flags)
    return flags if context.compiler.kind == "nvcc" else source_flags(flags, unit.path)


def _key(files: Mapping[str, bytes], unit: Unit, context: BuildContext) -> Key:
    """Return the key of an object: all that its bytes depend on."""
    headers = {f"header {path}": files[path] for path in unit.includes}
    return make_key(
        path=unit.path,
        source=files[unit.path],
        target=context.target.name,
        compiler=context.compiler.version,
        compiler_digest=context.compiler.identity(),
        flags=shlex.join(_flags(unit, context)),
        **headers,
    )


def _take_cached(
    cwd: Path, units: Sequence[Unit], keys: Mapping[Unit, Key], cache: ObjectCache
) -> list[Unit]:
    """Write the objects that the cache has beside their sources; return the units it lacks."""
    missing, objects = [], {}
    cache.prefetch(key for unit, key in keys.items() if not unit.bypass)
    for unit in units:
        data = cache.get(keys[unit], unit.name, bypass=unit.bypass) if unit in keys else None
        if data is None:
            missing.append(unit)
        else:
            objects[f"{unit.path}.o"] = data
    write_files(cwd, objects)
    return missing
