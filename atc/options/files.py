"""Reading the small files that options name: lists of operators, switches, JSON.

Every mistake is one OptionError with the file, the line and what is expected there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line, way_out
from atc.files.regular import regular

NO_JSON = "E10032"
"""ATC's code of a file that is none."""
MAX_BYTES = 1 << 20
_CHUNK = 1 << 24
"""Bytes that are digested at a time: other threads may run between, and be waited for."""


def read_text(path: Path, option: str) -> str:
    """Return the text of an option's file."""
    try:
        with regular(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise wrong(f"the file is larger than {MAX_BYTES} bytes", path, option)
        return data.decode("utf-8-sig")
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        raise wrong(problem, path, option, hint=way_out(error)) from None
    except UnicodeDecodeError as error:
        raise wrong(f"byte {error.start} is not UTF-8", path, option) from None


def read_json(path: Path, option: str) -> Any:
    """Return the content of an option's JSON file."""
    text = read_text(path, option)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        raise wrong(problem, path, option, NO_JSON) from None
    except RecursionError:
        raise wrong("is not JSON: nested too deeply", path, option, NO_JSON) from None


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, numbered from 1, less comments (#) and blanks."""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


def wrong(
    problem: str, path: Path, option: str, code: str = "E10001", *, line: int = 0, hint: str = ""
) -> OptionError:
    """Return the error for a file of an option; `line` 0 means the whole of it."""
    place = f"{path}, line {line}" if line else str(path)
    return OptionError(
        one_line(problem, 300), where=f"--{option}: {place}", hint=hint, code=code
    )  # fmt: skip


def file_digest(path: Path) -> str:
    """Return a file's SHA-256.

    That of a folder is made of its files' names and theirs. Raises OSError, also of a file that
    never ends.
    """
    digest = hashlib.sha256()
    if path.is_dir():
        for each in sorted(p for p in path.rglob("*") if p.is_file()):
            digest.update(f"{each.relative_to(path).as_posix()}\0{file_digest(each)}".encode())
        return digest.hexdigest()
    with regular(path).open("rb", buffering=0) as file:
        chunk = memoryview(bytearray(min(os.fstat(file.fileno()).st_size + 1, _CHUNK)))
        while size := file.readinto(chunk):
            digest.update(chunk[:size])
    return digest.hexdigest()
