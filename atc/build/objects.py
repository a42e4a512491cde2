"""The objects of a library: its sources compiled, or taken from the cache.

Compilers may begin with kernels while the rest of the library is still planned and written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler, source_flags
from atc.backends.toolchain.compiling import (
    PARSED,
    Job,
    compile_job,
    compiling_threads,
    parse_header,
)
from atc.backends.toolchain.processes import Log, TimedOut, no_log
from atc.backends.toolchain.unused_headers import without_unused_headers
from atc.build.output_folder import write_files
from atc.cache import Key, make_key
from atc.errors import CompilerCrash, ToolchainError

KERNEL_HEADER = "src/kernel.h"
VOCABULARY = ("src/simd.h", "src/simd_math.h")  # headers of kernels that aren't portable
ONE_LANE = "src/simd_scalar.h"
"""The vectors' table of kernels that take one of one lane in the place of src/simd.h."""


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

    @property
    def many(self) -> int:
        """The kernels of vectors from which on their headers are parsed alone."""
        return self.parse_from * self.workers


def unusable(place: Path, error: OSError) -> ToolchainError:
    """Return the error of a folder to build in that the system refuses."""
    return ToolchainError(
        f"can't work in {place}: {error.strerror}",
        hint="set TMPDIR, or --build_dir, to a free folder",
    )


class Compiling:
    """The compilers at work in one folder: each unit is begun once, in whatever order units come,
    unless its text changes.

    Objects lie beside their sources. A kernel of vectors takes most of its time for reading the
    compiler's headers of instructions, so these may be parsed once for many. Make it with
    `compiling`.
    """

    def __init__(self, cwd: Path, context: BuildContext, pool: ThreadPoolExecutor) -> None:
        self._cwd = cwd
        self._context = context
        self._pool = pool
        self._objects: dict[Unit, Future[Path]] = {}
        self._parsed: dict[tuple[str, ...], Future[Path]] = {}
        self._written: dict[str, bytes] = {}

    def begin(self, unit: Unit, files: Mapping[str, bytes], *, parse: bool = False) -> None:
        """Write a unit's files and let a compiler begin with it when one is free.

        With `parse`, what kernels of vectors include is parsed before the first of them.
        Raises ToolchainError where the folder can't be written.
        """
        own = {path: files[path] for path in (unit.path, *unit.includes) if path in files}
        new = {path: text for path, text in own.items() if self._written.get(path) != text}
        if unit in self._objects:
            if not new:
                return
            self.finish([unit])  # which makes another object
        try:
            write_files(self._cwd, new)  # what is there is being read
        except OSError as error:
            raise unusable(self._cwd, error) from None
        self._written.update(new)
        flags = unit_flags(unit, self._context)
        if not _is_of_vectors(unit):
            self._objects[unit] = self._pool.submit(self._compile, unit, flags)
            return
        parsed = None
        if parse and _can_parse(flags, self._context):
            if flags not in self._parsed:
                self._parsed[flags] = self._pool.submit(self._parse, flags, len(self._parsed))
            parsed = self._parsed[flags]
        self._objects[unit] = self._pool.submit(self._compile_vectors, unit, flags, parsed)

    def finish(self, units: Iterable[Unit]) -> None:
        """Wait for those of the units that have begun, whatever becomes of them."""
        for unit in units:
            if unit in self._objects:
                self._objects[unit].exception()

    def wait(self, unit: Unit) -> None:
        """Wait for a begun unit's object; ToolchainError with the compiler's words."""
        self._objects[unit].result()

    def clear(self) -> None:
        """Drop what hasn't begun, wait for what has, and remove parsed headers."""
        self._pool.shutdown(cancel_futures=True)
        for future in self._parsed.values():
            if not future.cancelled() and future.exception() is None:
                future.result().unlink()

    def _parse(self, flags: tuple[str, ...], number: int) -> Path:
        header = f"parsed/{number}.h"
        lines = (f'#include "../{path}"\n' for path in (KERNEL_HEADER, *VOCABULARY))
        write_files(self._cwd, {header: "".join(lines).encode()})
        own = (*flags, *self._less(flags))
        job = Job(self._context.compiler, own, header, self._cwd)
        return parse_header(job, log=self._context.log)

    def _less(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        return without_unused_headers(self._context.compiler, flags, self._context.log)

    def _compile_vectors(
        self, unit: Unit, flags: tuple[str, ...], parsed: Future[Path] | None
    ) -> Path:
        """Compile a kernel of vectors, if possible without reading all that headers declare."""
        own = (*flags, *self._less(flags))
        if parsed is not None:  # before it in the pool's queue, so that none waits for itself
            with suppress(ToolchainError):
                file = parsed.result()
                own += ("-include", str(file.with_suffix("").relative_to(self._cwd)))
        try:
            return self._compile(unit, own)
        except (CompilerCrash, TimedOut):
            raise
        except ToolchainError:
            if own == flags:
                raise
            return self._compile(unit, flags)

    def _compile(self, unit: Unit, flags: tuple[str, ...]) -> Path:
        job = Job(self._context.compiler, flags, unit.path, self._cwd)
        return compile_job(job, self._context.log)


@contextmanager
def compiling(cwd: Path, context: BuildContext) -> Iterator[Compiling]:
    """Yield compilers that work in a folder until the end of a with statement."""
    with compiling_threads(context.compiler.running, max(1, context.workers)) as pool:
        begun = Compiling(cwd.resolve(), context, pool)
        try:
            yield begun
        except Exception:
            begun.clear()
            raise
        begun.clear()  # after an interrupt the pool ends what runs


def compile_units(
    cwd: Path,
    files: Mapping[str, bytes],
    units: Sequence[Unit],
    context: BuildContext,
    progress: Callable[[int, int], None] = lambda done, total: None,
    begun: Compiling | None = None,
) -> tuple[int, dict[str, bytes]]:
    """Put the object of each unit beside its source in `cwd`, from the cache where it has it.

    Returns how many were compiled and, of those, the objects that may be kept, by source path.
    Sources that are compiled here, and `files` has, are written there. `begun` are compilers at
    work there already. The first unit (in order) that fails is the one whose error is raised.
    """
    keys = {u: object_key(files, u, context) for u in units if u.cacheable}
    missing = _take_cached(cwd, units, keys, context.cache, begun)
    done, total = len(units) - len(missing), len(units)
    progress(done, total)
    left = missing
    if context.farm is not None and missing:
        cached = done
        left = _compile_elsewhere(
            cwd, files, missing, context, context.farm, lambda n: progress(cached + n, total)
        )
        done += len(missing) - len(left)
    with ExitStack() as stack:
        if begun is None:
            begun = stack.enter_context(compiling(cwd, context))
        parse = sum(map(_is_of_vectors, left)) >= context.many
        for unit in left:
            begun.begin(unit, files, parse=parse)
        for number, unit in enumerate(left, 1):
            begun.wait(unit)
            progress(done + number, total)
    made: dict[str, bytes] = {}
    for unit in missing:
        if unit in keys:
            made[unit.path] = (cwd / f"{unit.path}.o").read_bytes()
            context.cache.put(keys[unit], unit.name, made[unit.path], bypass=unit.bypass)
    return len(missing), made


def _is_of_vectors(unit: Unit) -> bool:
    """Return whether a unit is a kernel that includes the vectors' headers and no other table."""
    wanted = {KERNEL_HEADER, *VOCABULARY} <= {*unit.includes} and ONE_LANE not in unit.includes
    return wanted and unit.path.endswith(".c")


def _can_parse(flags: Sequence[str], context: BuildContext) -> bool:
    """Return whether headers can be parsed alone, and objects stay what they are."""
    return context.compiler.kind in PARSED and "-g" not in flags  # which names what it came from


def _compile_elsewhere(
    cwd: Path, files: Mapping[str, bytes], units: Sequence[Unit], context: BuildContext,
    farm: Farm, progress: Callable[[int], None],
) -> list[Unit]:  # fmt: skip
    """Put the objects that others compile beside their sources; return the units left over."""
    far = [unit for unit in units if files.keys() >= {unit.path, *unit.includes}]
    jobs = [
        RemoteJob(
            context.compiler, unit_flags(unit, context), unit.path,
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


def unit_flags(unit: Unit, context: BuildContext) -> tuple[str, ...]:
    """Return the flags of a unit, which are others for other languages."""
    flags = (*context.flags, *unit.flags)
    return flags if context.compiler.kind == "nvcc" else source_flags(flags, unit.path)


def object_key(files: Mapping[str, bytes], unit: Unit, context: BuildContext) -> Key:
    """Return the key of an object: all that its bytes depend on."""
    headers = {f"header {path}": files[path] for path in unit.includes}
    return make_key(
        path=unit.path,
        source=files[unit.path],
        target=context.target.name,
        compiler=context.compiler.version,
        compiler_digest=context.compiler.identity(),
        flags=shlex.join(unit_flags(unit, context)),
        **headers,
    )


def _take_cached(
    cwd: Path, units: Sequence[Unit], keys: Mapping[Unit, Key], cache: ObjectCache,
    begun: Compiling | None,
) -> list[Unit]:  # fmt: skip
    """Write the objects that the cache has beside their sources; return the units it lacks."""
    found: dict[Unit, bytes] = {}
    cache.prefetch(key for unit, key in keys.items() if not unit.bypass)
    for unit in units:
        data = cache.get(keys[unit], unit.name, bypass=unit.bypass) if unit in keys else None
        if data is not None:
            found[unit] = data
    if begun is not None:  # another process has stored what the cache lacked at first
        begun.finish(found)
    write_files(cwd, {f"{unit.path}.o": data for unit, data in found.items()})
    return [unit for unit in units if unit not in found]
