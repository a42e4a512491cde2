"""The files of a generated project, and putting them where the user wants it: all or nothing.

A project is `{path: content}`. The output folder changes only when everything is ready. Large files
that lie in the folder of a build are not read but get a second name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from atc.errors import InternalError, OptionError, not_written
from atc.files.blob import Blob
from atc.files.locked import PATIENCE, locked
from atc.files.temporary import left_over, temporary_folder
from atc.names import network_identifier

Content: TypeAlias = bytes | Blob
"""What a file of a generated project holds."""

MANIFEST = ".atc-manifest.json"  # in an output folder: which of its files are ours to replace

def network_name(output: Path) -> str:
    """Return the C prefix for an output path; OptionError E10022 when it has no last part."""
    if output.name in ("", ".", ".."):
        raise OptionError(
            f"'{output}' names no file", where="--output", code="E10022",
            hint="end the path with the network's name, e.g. --output=out/net",
        )  # fmt: skip
    return network_identifier(output.name)


def write_tree(
    files: Mapping[str, Content | Path], folder: Path, patience: float = PATIENCE
) -> None:
    """Make `folder` hold exactly `files`, beside whatever files there are not ours.

    A path stands for the file there, which gets a second name in `folder`, or a copy on another
    file system: for large files whose first name goes.

    Everything is written next to its destination first and then moved there; if that fails or is
    interrupted, all is as it was before. Files of a previous output that are no longer wanted
    go. Raises OptionError, which names the path, where the folder can't be written, another process
    is still writing to it after `patience` seconds, or a file that isn't ours is in the way.
    """
    tree = {**files, MANIFEST: _manifest(files)}
    for path in files:
        if path == MANIFEST:
            raise InternalError("a generated file has the manifest's name", where=path)
        _checked(path)
    try:
        _place(tree, folder, patience)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"can't write {folder}: {reason}", where="--output", hint="choose another folder"
        ) from None


def check_folder(folder: Path, option: str) -> None:
    """Raise OptionError if `folder` surely can't be written: before long work, not after it."""
    try:
        whole = folder.absolute()
    except FileNotFoundError:
        raise OptionError(
            f"can't write {folder}: the current folder is gone", where=option,
            hint="change into a folder that is there",
        ) from None  # fmt: skip
    for place in (whole, *whole.parents):
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


def _place(tree: Mapping[str, Content | Path], folder: Path, patience: float) -> None:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file", where="--output", hint="name a folder")
    made = [parent for parent in folder.absolute().parents if not parent.exists()]
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with locked(folder, patience):
                temporary = stack.enter_context(_cleared(folder))
            new, old = temporary / "new", temporary / "old"
            write_files(new, tree)
            if not _made_whole(new, folder):
                with locked(folder, patience):
                    _swap_in(tree, new, folder, old)
    except BaseException:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        raise


def _cleared(folder: Path) -> AbstractContextManager[Path]:
    """Restore what a killed process was replacing; return a temporary folder near by.

    It is inside an output folder that exists: that may be a mount point, its parent closed to us.
    """
    near = folder if folder.is_dir() else folder.parent
    for place in dict.fromkeys((near, folder.absolute().parent)):
        for left in left_over(place, hidden=True):
            if place == folder:
                _undo(left, folder)
    return temporary_folder("output", near, hidden=True)


def _made_whole(new: Path, folder: Path) -> bool:
    """Make the output folder of a new one, unless it is there, perhaps since a moment ago."""
    if folder.is_dir():
        return False
    try:
        new.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _swap_in(tree: Mapping[str, Content | Path], new: Path, folder: Path, old: Path) -> None:
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
        # The manifest comes last: until it is there, `_undo` can restore what was.
        for path in (*(p for p in tree if p != MANIFEST), *stale, MANIFEST):
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


def _undo(left: Path, folder: Path) -> None:
    """Restore what a process was replacing in `folder` when it was killed, from what it left."""
    new, old = left / "new", left / "old"
    listed = _listed(new)
    if not listed:  # nothing was replaced yet, or all of it
        return
    placed = [path for path in listed if not (new / path).exists()]
    with suppress(OSError):
        for path in placed:
            (folder / path).unlink(missing_ok=True)
        for file in [p for p in old.rglob("*") if p.is_file()]:
            _move(file, folder / file.relative_to(old))
        _drop_empty(folder, placed)


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
    return frozenset(path for path in _listed(folder) if (folder / path).is_file())


def _listed(folder: Path) -> frozenset[str]:
    """Return the files that a folder's manifest lists and itself; none where it is damaged."""
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        return frozenset({*(str(_checked(path)) for path in listed), MANIFEST})
    except (OSError, ValueError, LookupError, TypeError, InternalError):
        return frozenset()


def _checked(path: str) -> PurePosixPath:
    """Return a path of the tree; raise InternalError if it could lead out of its folder."""
    pure = PurePosixPath(path)
    plain = str(pure) == path and path.isprintable() and not set(path) & set('\\:*?"<>|')
    if not plain or pure.is_absolute() or ".." in pure.parts or path == ".":
        raise InternalError("a generated file's path is unsafe", where=repr(path))
    return pure


def write_files(folder: Path, files: Mapping[str, Content | Path]) -> None:
    """Write files below a folder, which may be new; a path stands for the file there."""
    folder.mkdir(exist_ok=True)
    made = {folder}
    for path, data in files.items():
        destination = folder / _checked(path)
        if destination.parent not in made:
            destination.parent.mkdir(parents=True, exist_ok=True)
            made.add(destination.parent)
        match data:
            case bytes():
                destination.write_bytes(data)
            case Blob():
                with destination.open("wb") as file:
                    data.write(file)
                if data.executable:  # by whoever may read it, as linkers have it
                    mode = destination.stat().st_mode
                    destination.chmod(mode | (mode & 0o444) >> 2)
            case Path():
                try:
                    os.link(data, destination)
                except OSError:
                    shutil.copyfile(data, destination)


def write_dump(path: Path, text: str) -> None:
    """Write a graph as text into the folder of --dump."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise not_written(path, error, "--dump") from None
