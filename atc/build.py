"""Building the library of a generated project, and putting the project where the user wants it.

Both take `{path: bytes}`: the compilers work in a temporary folder, and the output folder changes
only when everything is ready. Large files that lie in that folder are not read but moved.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from atc.backends.kernel import KernelSource
from atc.backends.target import Target
from atc.backends.toolchain import (
    Compiler,
    Job,
    Log,
    archive_static,
    compile_flags,
    compile_many,
    link_shared,
    no_log,
)
from atc.cache import Key, make_key
from atc.errors import InternalError, OptionError, ToolchainError

VOCABULARY = ("src/simd.h", "src/simd_math.h")  # headers of kernels that aren't portable
MANIFEST = ".atc-manifest.json"  # in an output folder: which of its files are ours to replace


# ------------------------------------------------------------------------------- the library


@dataclass(frozen=True)
class Unit:
    """One source of the library, with all the files that its preprocessor or assembler reads.

    `path` and `includes` are paths in the tree. A unit sees no file that no unit declares, so a
    forgotten include is an error at once and never a stale object from the cache. `name` is the
    label in the cache's reports. A unit that isn't `cacheable` never meets the cache (the weights:
    too large to gain); one with `bypass` is kept out of it while it is being debugged. `flags` come
    after those of the whole library.
    """

    path: str
    name: str
    includes: tuple[str, ...] = ()
    cacheable: bool = True
    bypass: bool = False
    flags: tuple[str, ...] = ()


def kernel_unit(kernel: KernelSource) -> Unit:
    """Return the unit of a kernel: it includes kernel.h, with vectors also the vocabulary."""
    headers = ("src/kernel.h",) if kernel.portable else ("src/kernel.h", *VOCABULARY)
    more = (f"src/simd_{header}.h" for header in kernel.headers)
    return Unit(kernel.path, kernel.symbol, (*headers, *more))


def library_flags(compiler: Compiler, target: Target) -> tuple[str, ...]:
    """Return the flags of every source of a library; its folders are relative to the tree."""
    return (*compile_flags(compiler, target), "-Iinclude", "-I.")


@dataclass(frozen=True)
class BuildResult:
    """How many objects were compiled, how many came from the cache, and the time in seconds.

    `objects` holds the compiled ones by source path, those that never meet the cache left out.
    """

    compiled: int
    cached: int
    seconds: float
    objects: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class ObjectCache(Protocol):
    """The part of `atc.cache.Cache` that a build needs."""

    def get(self, key: Key, name: str, *, bypass: bool = False) -> bytes | None:
        """Return the object stored under `key`, if any."""

    def put(self, key: Key, name: str, data: bytes, *, bypass: bool = False) -> None:
        """Store an object."""


def build_library(
    cwd: Path,
    files: Mapping[str, bytes],
    units: Sequence[Unit],
    name: str,
    shop: Shop,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Path], BuildResult]:
    """Make `lib<name>.so` and `lib<name>.a` of `units` in the folder `cwd`; returns where they lie.

    The flags of `shop` name include folders relative to the tree. `progress` gets (done, total)
    objects. Raises ToolchainError with the compiler's words.
    """
    begin = time.perf_counter()
    if not (name.isascii() and name.isidentifier()):
        raise InternalError("a library's name is no C identifier", where=repr(name))
    # What only includes data is never compiled: a warm rebuild compiles nothing.
    data = [unit for unit in units if shop.compiler.elf and unit.path.endswith(".S")]
    code = [unit for unit in units if unit not in data]
    try:
        _write(cwd, _sources(files, units))
        with ThreadPoolExecutor(1) as pool:
            assembling = pool.submit(_assemble, cwd, data, shop)
            missing, made = compile_units(cwd, files, code, shop, progress)
            assembling.result()
        libraries = _link(cwd, code, data, name, shop)
    except OSError as error:
        raise _unusable(cwd, error) from None
    seconds = time.perf_counter() - begin
    return libraries, BuildResult(missing, len(code) - missing, seconds, made)


def _assemble(cwd: Path, units: Sequence[Unit], shop: Shop) -> None:
    jobs = [Job(shop.compiler, (), unit.path, cwd) for unit in units]
    compile_many(jobs, 1, log=shop.log)


def _link(
    cwd: Path, code: Sequence[Unit], data: Sequence[Unit], name: str, shop: Shop
) -> dict[str, Path]:
    """Link both libraries at the same time."""
    flags = tuple(dict.fromkeys((*shop.flags, *(f for unit in code for f in unit.flags))))
    objects, rest = ([f"{unit.path}.o" for unit in units] for units in (code, data))
    shared, static = f"lib{name}.so", f"lib{name}.a"
    with ThreadPoolExecutor(2) as pool:
        both = (
            pool.submit(
                link_shared, shop.compiler, flags, [*objects, *rest], shared, cwd, log=shop.log
            ),
            pool.submit(archive_static, shop.compiler, objects, static, cwd, rest, log=shop.log),
        )
    return {path: future.result() for path, future in zip((shared, static), both, strict=True)}


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
    fresh = place is not None and not place.exists()
    try:
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="atc-build-", dir=place)).resolve()
    except OSError as error:
        raise _unusable(place or Path("the temporary folder"), error) from None
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
            if place is not None and fresh:
                with suppress(OSError):
                    place.rmdir()


def written_down(log: Log, folder: Path) -> Log:
    """Return a log that also appends each command to `commands.txt` in a folder, a line each."""

    def record(command: tuple[str, ...]) -> None:
        with (folder / "commands.txt").open("a", encoding="utf-8") as file:
            file.write(shlex.join(command) + "\n")
        log(command)

    return record


@dataclass(frozen=True)
class Shop:
    """What objects are compiled with, and where they are kept."""

    target: Target
    compiler: Compiler
    flags: tuple[str, ...]
    cache: ObjectCache
    workers: int
    log: Log = no_log


def compile_units(
    cwd: Path,
    files: Mapping[str, bytes],
    units: Sequence[Unit],
    shop: Shop,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, dict[str, bytes]]:
    """Put the object of each unit beside its source in `cwd`, from the cache where it has it.

    Returns how many were compiled and, of those, the objects that may be kept, by source path.
    """
    keys = {u: _key(files, u, shop) for u in units if u.cacheable}
    missing = _take_cached(cwd, units, keys, shop.cache)
    jobs = [Job(shop.compiler, (*shop.flags, *unit.flags), unit.path, cwd) for unit in missing]
    cached, total = len(units) - len(missing), len(units)
    progress(cached, total)
    objects = compile_many(
        jobs, shop.workers, progress=lambda done: progress(cached + done, total), log=shop.log
    )
    made: dict[str, bytes] = {}
    for unit, path in zip(missing, objects, strict=True):
        if unit in keys:
            made[unit.path] = path.read_bytes()
            shop.cache.put(keys[unit], unit.name, made[unit.path], bypass=unit.bypass)
    return len(missing), made


def _sources(files: Mapping[str, bytes], units: Sequence[Unit]) -> dict[str, bytes]:
    """Return the part of the tree that the units read."""
    paths = sorted({path for unit in units for path in (unit.path, *unit.includes)})
    for path in paths:
        if path not in files:
            raise InternalError("a source of the library wasn't generated", where=path)
    return {path: files[path] for path in paths}


def _key(files: Mapping[str, bytes], unit: Unit, shop: Shop) -> Key:
    """Return the key of an object: all that its bytes depend on."""
    headers = {f"header {path}": files[path] for path in unit.includes}
    return make_key(
        path=unit.path,
        source=files[unit.path],
        target=shop.target.name,
        compiler=shop.compiler.version,
        compiler_digest=shop.compiler.identity(),
        flags=shlex.join((*shop.flags, *unit.flags)),
        **headers,
    )


def _take_cached(
    cwd: Path, units: Sequence[Unit], keys: Mapping[Unit, Key], cache: ObjectCache
) -> list[Unit]:
    """Write the objects that the cache has beside their sources; return the units it lacks."""
    missing = []
    for unit in units:
        data = cache.get(keys[unit], unit.name, bypass=unit.bypass) if unit in keys else None
        if data is None:
            missing.append(unit)
        else:
            (cwd / f"{unit.path}.o").write_bytes(data)
    return missing


# -------------------------------------------------------------------------- the output folder


def write_tree(files: Mapping[str, bytes | Path], folder: Path) -> None:
    """Make `folder` hold exactly `files`, beside whatever files there are not ours.

    A path stands for the file there, which gets a second name in `folder`, or a copy on another
    file system: for large files whose first name goes.

    Everything is written next to its destination first and then moved there; if that fails or is
    interrupted, all is as it was before. Files of a previous output that are no longer wanted
    go. Raises OptionError, which names the path, where the folder can't be written or
    a file that isn't ours is in the way.
    """
    tree = {**files, MANIFEST: _manifest(files)}
    for path in files:
        if path == MANIFEST:
            raise InternalError("a generated file has the manifest's name", where=path)
        _checked(path)
    try:
        _place(tree, folder)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"can't write {folder}: {reason}", where="--output", hint="choose another folder"
        ) from None


def check_folder(folder: Path, option: str) -> None:
    """Raise OptionError if `folder` surely can't be written: told before long work, not after."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if not os.path.lexists(place):
            continue
        if not place.is_dir():
            raise OptionError(f"{place} is a file", where=option, hint="name a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise OptionError(
                f"can't write {place}: permission denied", where=option,
                hint="choose another folder",
            )  # fmt: skip
        return


def _place(tree: Mapping[str, bytes | Path], folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file", where="--output", hint="name a folder")
    made = [parent for parent in folder.absolute().parents if not parent.exists()]
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        # Inside an output folder that exists: it may be a mount point, its parent closed to us.
        near = folder if folder.is_dir() else folder.parent
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=near) as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            _write(new, tree)
            if folder.is_dir():
                _swap_in(tree, new, folder, old)
            else:
                new.rename(folder)
    except BaseException:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        raise


def _swap_in(tree: Mapping[str, bytes | Path], new: Path, folder: Path, old: Path) -> None:
    """Move the files of `new` into `folder` and those they replace to `old`; all or nothing."""
    ours = _previous(folder)
    foreign = [path for path in tree if path not in ours and (folder / path).exists()]
    if foreign and foreign != [MANIFEST]:  # a damaged manifest alone is no loss
        raise OptionError(
            f"{folder / foreign[0]} exists and was not written by atc",
            where="--output",
            hint="move it away or choose another folder",
        )
    stale = sorted(ours - set(tree))
    begun: list[str] = []
    try:
        for path in (*tree, *stale):
            begun.append(path)
            _move(folder / path, old / path)
            _move(new / path, folder / path)
    except BaseException:
        for path in reversed(begun):
            if path in tree and not (new / path).exists():
                _move(folder / path, new / path)
            _move(old / path, folder / path)
        _drop_empty(folder, begun)
        raise
    _drop_empty(folder, stale)


def _move(source: Path, destination: Path) -> None:
    """Move a file, if it is there, to where there is none."""
    if source.exists():
        destination.parent.mkdir(parents=True, exist_ok=True)
        source.rename(destination)


def _drop_empty(folder: Path, paths: Iterable[str]) -> None:
    """Remove the folders of these files that have become empty."""
    parents = {parent for path in paths for parent in PurePosixPath(path).parents}
    for parent in sorted(parents - {PurePosixPath(".")}, reverse=True):
        with suppress(OSError):
            (folder / parent).rmdir()


def _manifest(files: Iterable[str]) -> bytes:
    return (json.dumps({"files": sorted(files)}, indent=1) + "\n").encode()


def _previous(folder: Path) -> frozenset[str]:
    """Return the files in `folder` that its manifest claims; none where it is damaged."""
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        paths = {str(_checked(path)) for path in listed}
    except (OSError, ValueError, LookupError, TypeError, InternalError):
        return frozenset()
    return frozenset(path for path in paths | {MANIFEST} if (folder / path).is_file())


# ------------------------------------------------------------------------------------ paths


def _checked(path: str) -> PurePosixPath:
    """Return a path of the tree; raise InternalError if it could lead out of its folder."""
    pure = PurePosixPath(path)
    plain = str(pure) == path and path.isprintable() and not set(path) & set('\\:*?"<>|')
    if not plain or pure.is_absolute() or ".." in pure.parts or path == ".":
        raise InternalError("a generated file's path is unsafe", where=repr(path))
    return pure


def _write(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    folder.mkdir(exist_ok=True)
    for path, data in files.items():
        destination = folder / _checked(path)
        destination.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, bytes):
            destination.write_bytes(data)
            continue
        try:
            os.link(data, destination)
        except OSError:
            shutil.copyfile(data, destination)
