"""`atc.load`: a compiled library from its folder or file, whatever its network is called."""

from __future__ import annotations

import mmap
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from atc.errors import ModelError, OptionError, reason_of, way_out
from atc.files.temporary import temporary_folder
from atc.names import network_identifier
from atc.runtime.network import Network
from atc.runtime.profile import profile_at_exit, profile_wanted
from atc.runtime.values import VariableError

Loaded = TypeVar("Loaded")

_SYMBOL = b"_abi_version\0"
_HEADER = struct.Struct("<40xQ10xHH")
"""Of a 64-bit ELF file: where the headers of its sections begin, the size and number of them."""

_SECTION = struct.Struct("<4xI16xQQ")
"""Of an ELF section's header: type, begin and size."""

_STRINGS = 3
"""The type of sections of names."""


def load(
    path: str | Path, huge_pages: bool = False, device_id: int | None = None
) -> Network:
    """Load a network from an output folder or from the shared library in it.

    A library that was recompiled since an earlier call is loaded anew. Weights that were
    compiled to be external are read from `<name>_weights.bin`, or from the files in
    `<name>_weights`, beside the library. With `huge_pages` arenas are in large pages where the
    system has some. A network for a GPU runs on that with the number `device_id`, or the one that
    it was compiled for. With MXNET_PROFILER_AUTOSTART=1, profile.json has the network's kernel
    calls when the process ends. Raises ModelError, which names the path, for anything else than a
    library made by atc, and OptionError for an environment variable that makes no sense.
    """
    net = open_network(path, huge_pages, device_id)
    if profile_wanted() and not profile_at_exit(net):
        warnings.warn(
            f"MXNET_PROFILER_AUTOSTART: {path} was compiled without --profile", stacklevel=2
        )
    return net


def open_network(
    path: str | Path, huge_pages: bool = False, device_id: int | None = None
) -> Network:
    """Load a network as `load` does, for a tool: profile.json never has its calls."""
    return open_library(path, partial(Network, huge_pages=huge_pages, device_id=device_id))


def open_library(path: str | Path, opened: Callable[[Path, str, Path], Loaded]) -> Loaded:
    """Return what `opened` makes of a library's file, its prefix and the path of its weights.

    `opened` raises AttributeError for a prefix that isn't one. Raises ModelError as `load` does.
    """
    library = find_library(Path(path))
    with temporary_folder("load") as folder:
        # The system's loader gives what it has already got for a path that it knows, even if the
        # file has been replaced since. A link has a new path, and needs no copy of the weights.
        link = Path(folder, library.name)
        link.symlink_to(library)
        prefixes = [*_prefixes(library)]
        _check_machine(library)
        for prefix in prefixes:
            weights = library.with_name(f"{prefix}_weights.bin")
            try:
                return opened(link, prefix, weights)
            except AttributeError:  # these bytes weren't a symbol of the library's own
                continue
            except VariableError as error:
                raise OptionError(str(error)) from None
            except OSError as error:
                reason = str(error).replace(str(link), str(library))
                raise ModelError(f"can't be loaded: {reason}", where=str(library)) from None
    raise ModelError(
        "not a library compiled by atc", where=str(library), hint="name an output folder of atc"
    )


def find_library(path: Path) -> Path:
    """Return the shared library that a folder or file means, absolute; ModelError if none."""
    if path.is_dir():
        found = sorted([*path.glob("lib*.so"), *path.glob("*.dll")])
        named = path / f"lib{network_identifier(path.resolve().name)}.so"
        if not found and [*path.glob("lib*.a")] and [*path.glob("*.report.json")]:
            raise ModelError(
                "the folder has no lib*.so: its target is one without an operating system, or the "
                "file is lost", where=str(path),
                hint="atc verify FOLDER --model=FILE runs it under the target's emulator",
            )  # fmt: skip
        if len(found) != 1 and named not in found:
            count = f"{len(found)} libraries" if found else "no library lib*.so"
            raise ModelError(
                f"the folder has {count}", where=str(path), hint="name the .so file itself"
            )
        path = named if named in found else found[0]
    if not path.is_file():
        raise ModelError("no such file or folder", where=str(path), hint="compile a model first")
    return path.resolve()


def _prefixes(library: Path) -> Iterator[str]:
    """Yield what may be the network's prefix: `<prefix>_abi_version` stands in the file.

    The one that the file's name speaks of comes first.
    """
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            whole = _is_whole(data)
            found = dict.fromkeys(_symbols(_names(data))) if whole else {}
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ModelError(
            f"can't be read: {reason_of(error, library)}", where=str(library), hint=way_out(error)
        ) from None
    if not whole:
        raise ModelError("the file is cut off", where=str(library), hint="compile or copy it anew")
    named = library.name.removeprefix("lib").partition(".")[0]
    yield from sorted(found, key=lambda name: name != named)


def _check_machine(library: Path) -> None:
    """Raise ModelError for a library of another processor or system than this process's."""
    with library.open("rb") as file:
        head = file.read(20)
    own = Path("/proc/self/exe")
    if head[:2] == b"MZ" and os.name != "nt":
        other = True
    elif head[:4] == b"\x7fELF" and own.exists():
        with own.open("rb") as file:
            mine = file.read(20)
        other = (head[4:6], head[18:20]) != (mine[4:6], mine[18:20])  # class, order; machine
    else:
        other = False
    if other:
        raise ModelError(
            "was compiled for another processor or system than this one", where=str(library),
            hint="atc verify FOLDER --model=FILE runs it under the target's emulator",
        )  # fmt: skip


def _is_whole(data: mmap.mmap) -> bool:
    """Return whether an ELF64 file has its last part, the section headers; else it may crash."""
    if data[:5] != b"\x7fELF\x02":
        return True  # the system's loader will know what it is
    if len(data) < 64:
        return False
    offset, size, count = _HEADER.unpack_from(data)
    return len(data) >= int(offset) + int(size) * int(count)


def _names(data: mmap.mmap) -> bytes | mmap.mmap:
    """Return the string tables of a 64-bit ELF file, or all of another: weights stay unread."""
    if data[:5] != b"\x7fELF\x02":
        return data
    offset, size, count = _HEADER.unpack_from(data)
    if size < _SECTION.size:
        return data
    sections = (_SECTION.unpack_from(data, offset + k * size) for k in range(count))
    return b"".join(data[at : at + length] for kind, at, length in sections if kind == _STRINGS)


def _symbols(data: bytes | mmap.mmap) -> Iterator[str]:
    at = data.find(_SYMBOL)
    while at >= 0:
        name = data[data.rfind(b"\0", 0, at) + 1 : at]
        if name.isascii() and name.decode().isidentifier():
            yield name.decode()
        at = data.find(_SYMBOL, at + 1)
