"""One library of several networks: equal kernels and equal weights stand in it once.

`atc batch --sdk=NAME` makes one, and a traced function with `exclude_from_trace`.

A kernel's name is a digest of its text, so that equal files of two projects are one file. Where
networks have constants in common, each is compiled once more with the weights of those before it
before its own, so that the last one's are everybody's.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from atc.backends.toolchain.compiler import LOADS, STRIP, THREADS, shared_library
from atc.build.library import build_library, library_flags, work_folder
from atc.build.objects import BuildContext, Unit
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
    separate_weights: int = 0
    """Bytes of the weights in it, and in the networks' own libraries together."""


def make_sdk(
    output: Path, projects: Sequence[Path], context: BuildContext, *, strip: bool = False
) -> Sdk:
    """Write the library of these networks' output folders into the folder `output`.

    The context's flags are the user's own. With `strip` it has no symbols that loading it doesn't
    need. Raises OptionError if the networks' files contradict each other, as with other options.
    """
    name, target, compiler = network_name(output), context.target, context.compiler
    names = tuple(network_name(project) for project in projects)
    repeated = next((n for k, n in enumerate(names) if n in (name, *names[:k])), None)
    if repeated is not None:
        raise OptionError(f"two networks are called {repeated}", where="--sdk", hint="rename one")
    files, kernels = _gathered(projects)
    sources = [path for path in files if path.endswith(".c")]
    distinct = sum(path.startswith("src/kernels/") for path in sources)
    weights = _weights(projects, names, target.alignment)
    held = sum(len(data) for path, data in weights.items() if path.endswith(".bin"))
    files[f"include/{name}.h"] = _header(name, names).encode()
    text = b"".join(files[path] for path in sources)
    linking = (THREADS,) * (b"pthread.h" in text) + (LOADS,) * (b"dlopen(" in text)
    flags = (*library_flags(compiler, target), *context.flags, *linking)
    stripped = {f"src/{each}.c" for each in names} if strip else set()
    units = [
        Unit(
            path, PurePosixPath(path).stem, _includes(path, files),
            flags=(STRIP,) * (path in stripped),
        )
        for path in sources
    ]  # fmt: skip
    for path in (p for p in weights if p.endswith(".S")):
        included = (path.removesuffix(".S") + ".bin",)
        units.append(Unit(path, PurePosixPath(path).stem, included, cacheable=False))
    with work_folder() as cwd:
        made, _ = build_library(
            cwd, {**files, **weights}, units, name, replace(context, flags=flags)
        )
        write_tree({**files, **weights, **made}, output)
    shared = shared_library(compiler, name)
    size = (output / (shared if shared in made else f"lib{name}.a")).stat().st_size
    return Sdk(output, names, kernels, distinct, size, held)


def _gathered(projects: Sequence[Path]) -> tuple[dict[str, bytes], int]:
    """Return the sources of projects by path, equal ones once, and the number of all kernels."""
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
    return files, kernels


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
