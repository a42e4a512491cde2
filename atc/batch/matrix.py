"""The matrix of a batch: a TOML file of models, targets, variants and their options.

    output = "out"
    targets = ["x86-64-avx2", "c99"]

    [options]
    op_compiler_cache_mode = "enable"

    [[model]]
    path = "digits.onnx"

    [[variant]]
    name = "small"
    options = {oo_level = "O1"}

Paths are relative to the file. Options are those of `atc`, by name.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atc import __version__
from atc.errors import OptionError, one_line
from atc.options.files import file_digest
from atc.options.table import OPTIONS, ROLES
from atc.options.values import path as a_path
from atc.options.values import required_path

_OWN = {"model", "output", "target"}
_TOP = {"output", "targets", "options", "model", "variant"}
_MODEL = {"path", "name", "targets", "options"}
_VARIANT = {"name", "options"}


@dataclass(frozen=True)
class Row:
    """One compilation: its name, and what `atc.compile` gets."""

    name: str
    model: Path
    output: Path
    target: str
    variant: str
    options: Mapping[str, Any]

    def digest(self) -> str:
        """Return a digest of all that the result depends on: files' contents, options, version."""
        files = {}
        for name, value in {"model": self.model, **self.options}.items():
            setting = OPTIONS.get(name)
            if setting is not None and setting.parse in (a_path, required_path):
                place = Path(str(value))
                files[name] = file_digest(place) if place.is_file() else ""
        parts = [__version__, self.target, dict(self.options), files]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Matrix:
    """The rows of a batch and the folder that they are written below."""

    output: Path
    rows: tuple[Row, ...]


def read_matrix(path: Path) -> Matrix:
    """Return the matrix of a file; raises OptionError that names what is wrong in it."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError(f"can't read {path}: {error.strerror}", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}", where=str(path)) from None
    here = path.absolute().parent
    _only(data, _TOP, path, "the file")
    models = _tables(data, "model", path)
    if not models:
        raise _wrong(path, "there is no [[model]]")
    output = here / _text(data, "output", path, "out")
    everywhere = _options(data, here, path)
    variants = _tables(data, "variant", path) or [{"name": ""}]
    rows = []
    for model in models:
        _only(model, _MODEL, path, "a [[model]]")
        file = here / _text(model, "path", path)
        name = folder_name(_text(model, "name", path, file.stem.removesuffix("-symbol")), path)
        own = {**everywhere, **_options(model, here, path)}
        for target in _targets({"targets": ["host"], **data, **model}, path):
            for variant in variants:
                _only(variant, _VARIANT, path, "a [[variant]]")
                kind = _text(variant, "name", path, "")
                place = output / folder_name(target, path)
                place = place / folder_name(kind, path) if kind else place
                options = {**own, **_options(variant, here, path)}
                label = ", ".join(filter(None, (name, target, kind)))
                rows.append(Row(label, file, place / name, target, kind, options))
    names = [row.output for row in rows]
    repeated = next((n for k, n in enumerate(names) if n in names[:k]), None)
    if repeated is not None:
        raise _wrong(path, f"two rows are written to {repeated}: give one another name")
    return Matrix(output, tuple(rows))


def _targets(data: Mapping[str, Any], path: Path) -> Iterator[str]:
    targets = data["targets"]
    if not (isinstance(targets, list) and targets and all(isinstance(t, str) for t in targets)):
        raise _wrong(path, "targets is not a list of names")
    yield from targets


def _options(table: Mapping[str, Any], here: Path, path: Path) -> dict[str, Any]:
    """Return the options of a table, paths made absolute."""
    given = table.get("options", {})
    if not isinstance(given, dict):
        raise _wrong(path, "options is not a table")
    options: dict[str, Any] = {}
    for name, value in given.items():
        setting = OPTIONS.get(name)
        if setting is None or setting.role not in ROLES["compile"] or name in _OWN:
            raise _wrong(path, f"'{one_line(name, 60)}' is not an option of a row")
        if not isinstance(value, str | int | float | bool):
            raise _wrong(path, f"the option {name} is neither text nor number")
        is_path = setting.parse is a_path and value
        options[name] = str(here / str(value)) if is_path else value
    return options


def _tables(data: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    tables = data.get(name, [])
    if not (isinstance(tables, list) and all(isinstance(t, dict) for t in tables)):
        raise _wrong(path, f"{name} is not a list of tables: write [[{name}]]")
    return tables


def _text(table: Mapping[str, Any], name: str, path: Path, default: str | None = None) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or (default is None and not value) or "\0" in value:
        raise _wrong(path, f"{name} is missing, or no text")
    return value


def folder_name(name: str, where: object) -> str:
    """Return a name that becomes a folder's; raise OptionError, which says where it is, if not."""
    if not name or name in (".", "..") or "/" in name or not name.isprintable() or len(name) > 200:
        raise OptionError(f"'{one_line(name, 60)}' can't name a folder", where=str(where),
                          hint="give another name, without slashes")  # fmt: skip
    return name


def _only(table: Mapping[str, Any], known: set[str], path: Path, what: str) -> None:
    unknown = next((name for name in table if name not in known), None)
    if unknown is not None:
        listed = ", ".join(sorted(known))
        raise _wrong(path, f"{what} has no '{one_line(unknown, 60)}', only {listed}")


def _wrong(path: Path, text: str) -> OptionError:
    return OptionError(text, where=str(path), hint="see atc/docs/farm.md for the form")
