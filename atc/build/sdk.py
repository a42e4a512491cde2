"""One library of several networks: equal kernels and equal weights stand in it once.

`atc batch --sdk=NAME` makes one, and a traced function with `exclude_from_trace`.

A kernel's name is a digest of its text, so that equal files of two projects are one file. Where
networks have constants in common, each is compiled once more with the weights of those before it
before its own, so that the last one's are everybody's.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from atc.backends.target import Target
from atc.backends.toolchain.compiler import LOADS, STRIP, THREADS, Compiler, shared_library
from atc.backends.toolchain.processes import Log, no_log
from atc.build.library import (
    BuildContext,
    ObjectCache,
    Unit,
    build_library,
    library_flags,
    work_folder,
)
from atc.build.output_folder import network_name, write_tree
from atc.codegen.weights import included_weights
from atc.errors import OptionError

LEAST = 1024
"""Bytes of a constant that is worth compiling networks once more for."""
_PART = re.compile(r'\.incbin "([^"]+)", (\d+), (\d+)')
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_HEADER = """\
/* All networks of {name}. */
#ifndef {guard}
#define {guard}

{includes}

#endif
"""


@dataclass(frozen=True)
class Sdk:
    """A library of several networks: its folder, the kernels of the networks and its own."""

    folder: Path
    networks: tuple[str, ...]
    kernels: int
    distinct: int
    library: int
    weights: int
    separate_weights: int
    """Bytes of the weights in it, and in the networks' own libraries together."""


def make_sdk(
    output: Path, projects: Sequence[Path], target: Target, compiler: Compiler,
    cache: ObjectCache, separate_weights: int, flags: tuple[str, ...] = (), log: Log = no_log,
    *, strip: bool = False,
) -> Sdk:  # fmt: skip
    """Write the library of these networks' output folders into the folder `output`.

    With `strip` it has no symbols that loading it doesn't need. `separate_weights` are the bytes
    of weights of the networks' separate libraries. Raises OptionError if their files contradict
    each other, as with other options.
    """
    name = network_name(output)
    names = tuple(network_name(project) for project in projects)
    repeated = next((n for k, n in enumerate(names) if n in (name, *names[:k])), None)
    if repeated is not None:
        raise OptionError(f"two networks are called {repeated}", where="--sdk", hint="rename one")
    files: dict[str, bytes] = {}
    origin: dict[str, Path] = {}
    kernels = 0
    for project in projects:
        for path, data in _sources(project).items():
            if files.setdefault(path, data) != data:
                raise OptionError(
                    f"{project} and {origin[path]} differ in {path}", where="--sdk",
                    hint="compile both with the same options",
                )  # fmt: skip
            origin.setdefault(path, project)
            kernels += path.startswith("src/kernels/")
    sources = [path for path in files if path.endswith(".c")]
    networks = {f"src/{each}.c" for each in names}
    distinct = sum(path.startswith("src/kernels/") for path in sources)
    weights = _weights(projects, names, target.alignment)
    held = sum(len(data) for path, data in weights.items() if path.endswith(".bin"))
    files[f"include/{name}.h"] = _header(name, names).encode()
    text = b"".join(files[path] for path in sources)
    linking = (THREADS,) * (b"pthread.h" in text) + (LOADS,) * (b"dlopen(" in text)
    own = (*flags, *linking)
    context = BuildContext(
        target, compiler, (*library_flags(compiler, target), *own), cache, os.cpu_count() or 1, log
    )
    units = [
        Unit(
            path, PurePosixPath(path).stem, _includes(path, files),
            flags=(STRIP,) * (strip and path in networks),
        )
        for path in sources
    ]  # fmt: skip
    for path in (p for p in weights if p.endswith(".S")):
        included = (path.removesuffix(".S") + ".bin",)
        units.append(Unit(path, PurePosixPath(path).stem, included, cacheable=False))
    with work_folder() as cwd:
        made, _ = build_library(cwd, {**files, **weights}, units, name, context)
        write_tree({**files, **weights, **made}, output)
    shared = shared_library(compiler, name)
    size = (output / (shared if shared in made else f"lib{name}.a")).stat().st_size
    return Sdk(output, names, kernels, distinct, size, held, separate_weights)


def _sources(project: Path) -> dict[str, bytes]:
    """Return the sources and headers of a project by path."""
    found = [*project.glob("src/**/*.[ch]"), *project.glob("include/*.h")]
    found += project.glob("*_weights.c")  # of targets whose assembler includes no files
    if not found or (project / "targets").is_dir() or list(project.glob("src/**/*.cu")):
        raise OptionError(
            f"{project} is not a project that a library is made of", where="--sdk",
            hint="compile for one CPU target at a time",
        )  # fmt: skip
    return {p.relative_to(project).as_posix(): p.read_bytes() for p in sorted(found)}


def _weights(
    projects: Sequence[Path], names: Sequence[str], alignment: int
) -> dict[str, bytes]:
    """Return the constants of the networks, and what includes them.

    Constants that others begin with lie in those.
    """
    blobs: dict[str, bytes] = {}
    for project, name in zip(projects, names, strict=True):
        data, source = project / f"{name}_weights.bin", project / f"{name}_weights.S"
        if data.exists() and not source.exists():
            raise OptionError(
                f"{project} has its weights beside it", where="--sdk",
                hint="compile it without --external_weight",
            )  # fmt: skip
        if source.exists():
            blobs[name] = weights_of(project)
    groups: list[tuple[bytes, list[str]]] = []
    for name in sorted(blobs, key=lambda name: -len(blobs[name])):
        users = next((users for whole, users in groups if whole.startswith(blobs[name])), None)
        if users is None:
            groups.append((blobs[name], [name]))
        else:
            users.append(name)
    files: dict[str, bytes] = {}
    for blob, unsorted in groups:
        users = [name for name in names if name in unsorted]
        first, *others = users
        file = f"{first}_weights.bin"
        text = included_weights(first, file, alignment=alignment, others=others)
        files |= {file: blob, f"{first}_weights.S": text.encode()}
    return files


def weights_of(project: Path) -> bytes:
    """Return the constants of a network in its output folder."""
    name = network_name(project)
    file, source = project / f"{name}_weights.bin", project / f"{name}_weights.S"
    part = _PART.search(source.read_text("utf-8")) if source.exists() else None
    if part is None:
        return file.read_bytes() if file.exists() else b""
    with (project / part[1]).open("rb") as library:
        library.seek(int(part[2]))
        return library.read(int(part[3]))


def have_constants_in_common(projects: Sequence[Path]) -> bool:
    """Find out if different networks hold the same large constants, by their reports."""
    seen: dict[bytes, bytes] = {}
    for project in projects:
        report = json.loads((project / f"{network_name(project)}.report.json").read_text("utf-8"))
        blob = weights_of(project)
        whole = hashlib.sha256(blob).digest()
        for constant in report["memory"]["constants"]:
            begin, size = constant["offset"], constant["bytes"]
            digest = hashlib.sha256(blob[begin : begin + size]).digest()
            if size >= LEAST and seen.setdefault(digest, whole) != whole:
                return True
    return False


def _header(name: str, names: Sequence[str]) -> str:
    includes = "\n".join(f'#include "{each}.h"' for each in names)
    return _HEADER.format(name=name, guard=f"{name.upper()}_H", includes=includes)


def _includes(path: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return all headers that a source reads, in the folders that its compiler looks into."""
    found: dict[str, None] = {}
    todo = [path]
    while todo:
        source = todo.pop()
        for name in _INCLUDE.findall(files[source].decode("utf-8", "replace")):
            beside = posixpath.normpath(f"{PurePosixPath(source).parent}/{name}")
            header = next((p for p in (beside, f"include/{name}", name) if p in files), None)
            if header is not None and header not in found:
                found[header] = None
                todo.append(header)
    return tuple(found)
