"""Binary dumps of values, in MegEngine's format, and the comparison of two of them.

A file is a little-endian header (length of the name, type code, number of dims that follow, the
dims with zeros behind them), the name, and the values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atc.errors import ModelError, OptionError, not_written, one_line, way_out
from atc.files.regular import regular
from atc.ir.graph import Array
from atc.load_and_run.engine import Engine, Step
from atc.tools.explain import read_report

MAX_DIMS = 7
_HEAD = struct.Struct("<III")
_CODES = {"float32": 0, "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "bool": 8, "float16": 9,
          "uint16": 13}  # fmt: skip
_TYPES = {**{code: np.dtype(name) for name, code in _CODES.items()}, 8: np.dtype("u1"),
          100000: np.dtype("u1"), 100001: np.dtype("i4"), 100002: np.dtype("i1")}  # fmt: skip
_WIDER = {"float64": "float32", "int64": "int32", "uint64": "int32", "uint32": "int32"}


@dataclass(frozen=True)
class Dumped:
    """The content of a file."""

    name: str
    array: Array


def dump_bytes(name: str, array: Array) -> bytes:
    """Return the file of a value; types that the format lacks become the nearest one it has.

    Strings become bytes, their cells another axis.
    """
    if array.dtype.kind == "S":
        cells = np.frombuffer(array.tobytes(), np.uint8)
        array = cells.reshape(*array.shape, array.dtype.itemsize)
    kind = array.dtype.name
    if kind not in _CODES:
        kind = _WIDER.get(kind, "float32")
        array = array.astype(kind)
    text = name.encode("ascii", "backslashreplace")
    shape = array.shape if array.ndim <= MAX_DIMS else (array.size,)
    dims = (*(shape or (1,)), *[0] * MAX_DIMS)[:MAX_DIMS]
    head = _HEAD.pack(len(text), _CODES[kind], MAX_DIMS) + struct.pack(f"<{MAX_DIMS}I", *dims)
    return head + text + np.ascontiguousarray(array).tobytes()


def read_dump(path: Path) -> Dumped:
    """Return a file's value; raises ModelError that names the file."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise ModelError(
            f"can't be read: {error.strerror}", where=str(path), hint=way_out(error)
        ) from None
    try:
        length, code, most = _HEAD.unpack_from(data)
        if most > 64 or code not in _TYPES:
            raise ValueError(f"type {code}, {most} dims")
        dims = struct.unpack_from(f"<{most}I", data, _HEAD.size)
        start = _HEAD.size + 4 * most
        shape = dims[: dims.index(0)] if 0 in dims else dims
        name, values = data[start : start + length], data[start + length :]
        array = np.frombuffer(values, _TYPES[code]).reshape(shape)
    except (struct.error, ValueError) as error:
        reason = one_line(str(error), 100)
        raise ModelError(f"no binary dump of a value: {reason}", where=str(path)) from None
    return Dumped(name.decode("ascii", "replace"), array)


def write_dump(path: Path, name: str, array: Array) -> None:
    """Write a value's file; raises OptionError where that fails."""
    try:
        path.write_bytes(dump_bytes(name, array))
    except OSError as error:
        raise not_written(path, error, "--bin_io_dump") from None


@dataclass
class BinaryDump:
    """An observer that writes each result, with `inputs` each operand too, to a file."""

    engine: Engine
    folder: Path
    inputs: bool = False
    _operands: list[Array] = field(default_factory=list)

    def __call__(self, step: Step, done: bool, arrays: Sequence[Array]) -> None:
        """Copy operands before the call, write after it."""
        split = len(step.reads)
        if not done:
            self._operands = [a.copy() for a in arrays[:split]] if self.inputs else []
            return
        for number, array in zip(step.writes, arrays[split:], strict=True):
            stem, name = f"{number:06x}", self._name(step, number)
            write_dump(self.folder / stem, name, array)
            for k, operand in enumerate(self._operands):
                write_dump(self.folder / f"{stem}-inp{k}", f"inp{k}: {name}", operand)

    def _name(self, step: Step, number: int) -> str:
        own = _info(self.engine, number)
        return f"var={own} owner_opr_inputs= {', '.join(_info(self.engine, k) for k in step.reads)}"


def _info(engine: Engine, number: int) -> str:
    tensor = engine.values[number].tensor
    dims = ",".join(map(str, tensor.shape))
    return f"{{id:{number}, shape:{{{dims}}}, name:{one_line(tensor.name, 200)}}}"


def output_variables(engine: Engine) -> list[int]:
    """Return the number of each output among the variables, by the report beside the library.

    They are the numbers in other dumps of the same build. Without a report outputs are counted.
    """
    count = len(engine.outputs)
    try:
        found = read_report(engine.folder)["output_variables"]
    except (OptionError, LookupError):
        return list(range(count))
    valid = isinstance(found, list) and all(type(n) is int and n >= 0 for n in found)
    return found if valid and len(set(found)) == count == len(found) else list(range(count))


# ---- comparison ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Two files whose values differ; `error` is the largest, None where shapes or types do."""

    file: str
    text: str
    error: float | None


def compare_dumps(first: Path, second: Path, max_error: float, stop: bool) -> list[Difference]:
    """Return how two dumps (files, or folders with the same names) differ.

    The error of two numbers is |a - b| / max(1, |a|, |b|). With `stop` only the first difference.
    """
    found: list[Difference] = []
    for a, b in _pairs(first, second):
        difference = _compare(read_dump(a), read_dump(b), a.name, max_error)
        if difference is not None:
            found.append(difference)
            if stop:
                break
    return found


def _pairs(first: Path, second: Path) -> Iterator[tuple[Path, Path]]:
    if not first.is_dir() and not second.is_dir():
        yield first, second
        return
    for path in (first, second):
        if not path.is_dir():
            reason = "is a file, not a folder" if path.exists() else "is not there"
            raise OptionError(
                f"{one_line(str(path))} {reason}", hint="compare two folders of dumps, or two files"
            )
    names = [{p.name for p in folder.iterdir() if p.is_file()} for folder in (first, second)]
    if names[0] != names[1]:
        lacking = sorted(names[0] ^ names[1])[0]
        raise OptionError(
            f"{one_line(lacking, 100)} is in one of the folders only",
            where=f"{first}, {second}", hint="compare dumps of one model",
        )  # fmt: skip
    for name in sorted(names[0]):
        yield first / name, second / name


def _compare(a: Dumped, b: Dumped, file: str, max_error: float) -> Difference | None:
    if a.array.shape != b.array.shape or a.array.dtype != b.array.dtype:
        kinds = [f"{x.array.dtype} {list(x.array.shape)}" for x in (a, b)]
        return Difference(file, f"{kinds[0]} and {kinds[1]}", None)
    x, y = a.array.astype(np.float64), b.array.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = np.maximum(1.0, np.maximum(np.abs(x), np.abs(y)))
        error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y) / scale)
    error = np.where(np.isnan(error), np.inf, error).reshape(-1)
    worst = int(error.argmax()) if error.size else 0
    if not error.size or error[worst] <= max_error:
        return None
    place = [int(i) for i in np.unravel_index(worst, x.shape)]
    text = f"{x.reshape(-1)[worst]:g} and {y.reshape(-1)[worst]:g} at {place}"
    return Difference(file, f"{text}, error {error[worst]:.3g}: {a.name}", float(error[worst]))
