"""Model files of every kind: what atc doesn't read itself is converted by the package that does.

Takes what `importers` takes, gives an `onnx_ir.Model`. A converter runs in a process of its own:
it may run what the file says, print, and end badly. May import `backends`, `importers` and below.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx_ir

from atc.backends.toolchain.processes import TimedOut, run_binary
from atc.dims import InputShape
from atc.errors import AtcError, ModelError, OptionError, ToolchainError, one_line
from atc.files.temporary import temporary_folder
from atc.importers import load_model as load_known
from atc.importers.foreign import Foreign, foreign_format

__all__ = ["CONVERTED", "load_model"]

CONVERTED = ("torch", "tflite", "sklearn")
"""Words of --framework whose files are converted."""

OPSET = 18
PATIENCE = 600.0
"""Seconds that a converter may take."""


def load_model(
    path: Path, framework: str, shapes: Mapping[str, InputShape], weight: Path | None,
    patience: float = PATIENCE, mapped: bool = False,
) -> onnx_ir.Model:  # fmt: skip
    """Read a model file as `importers.load_model` does, and those that `CONVERTED` names.

    They are only converted where `framework` says so: reading a pickle runs it. A converter may
    take `patience` seconds. Raises AtcError.
    """
    if framework not in CONVERTED:
        return load_known(path, framework, shapes, weight, mapped)
    found = _checked(path, framework)
    stamps = tuple(_stamp(file) for file in _files(path))
    data = _converted(path, found, stamps, patience)
    with temporary_folder("convert") as folder:
        file = Path(folder, "model.onnx")
        file.write_bytes(data)
        try:
            return load_known(file, "onnx", shapes, weight, mapped)
        except AtcError as error:
            error.where = error.where.replace(str(file), f"{path} as ONNX")
            raise


def _checked(path: Path, framework: str) -> Foreign:
    """Return what a file is; OptionError for another kind, or if its converter isn't installed."""
    found = foreign_format(path)
    if found is None or found.framework != framework:
        if not path.exists():
            raise ModelError("can't be read: No such file or directory", where=str(path),
                             hint="check the name")  # fmt: skip
        is_what = f"is {found.what}" if found else "is not a file of that framework"
        raise OptionError(
            f"{one_line(path.name, 100)} {is_what}", where=f"--framework={framework}",
            hint=found.way if found else "leave --framework out: atc finds out what a file is",
        )  # fmt: skip
    missing = [name for name in found.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{one_line(path.name, 100)} is {found.what}: not installed here: "
            f"{', '.join(missing)}", where=f"--framework={framework}",
            hint=f"pip install 'atc[{framework}]', or {found.way}",
        )  # fmt: skip
    return found


def _files(path: Path) -> list[Path]:
    """Return the files of a model, which may be a folder."""
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=1)
def _converted(
    path: Path, found: Foreign, stamps: tuple[tuple[str, int, int], ...], patience: float
) -> bytes:
    """Return a model as ONNX; the last one is kept, as a compilation may read it several times."""
    with temporary_folder("convert") as folder:
        result = Path(folder, "model.onnx")
        program = (sys.executable, "-P", "-m", f"atc.convert.{found.framework}_child")
        words = (str(path.resolve()), str(result), str(OPSET))
        try:
            done = run_binary((*program, *words), patience, cwd=folder)
        except TimedOut:
            raise ToolchainError(f"converting took longer than {patience:g} s", where=str(path),
                                 hint="convert it yourself") from None  # fmt: skip
        if done.status == 0 and result.is_file():
            return result.read_bytes()
    reason = f"signal {-done.status}" if done.status < 0 else f"exit status {done.status}"
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    output = one_line(next((line for line in reversed(lines) if line), reason), 300)
    raise ModelError(f"can't be converted: {output}", where=str(path),
                     hint=f"is it whole, and of the installed {found.needs[0]}?")
