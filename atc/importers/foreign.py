"""Recognise model files in formats that only other packages can read.

They are recognised by their content alone, which is never run: a pickle is a program.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from atc.errors import UnsupportedError
from atc.files.regular import regular

_HEAD = 1 << 16
_PICKLED = {
    b"sklearn": ("scikit-learn", ("sklearn", "skl2onnx")),
    b"xgboost": ("XGBoost", ("xgboost", "onnxmltools")),
    b"lightgbm": ("LightGBM", ("lightgbm", "onnxmltools")),
}
"""Modules whose pickles are known: the package, and its converter."""


@dataclass(frozen=True)
class Foreign:
    """A file of another package.

    `framework` is the value of --framework that converts it, '' if there is none, with the modules
    that it `needs`; `way` is how to export it to ONNX, or to a format that can be converted.
    """

    what: str
    framework: str
    way: str
    needs: tuple[str, ...] = ()


_EXPORTED = Foreign(
    "a program of torch.export (.pt2)", "torch",
    "in Python: torch.onnx.export(torch.export.load(FILE), dynamo=True).save('net.onnx')",
    ("torch", "onnxscript"),
)  # fmt: skip
_TORCH = Foreign(
    "a file of torch.save or torch.jit.save, which no exporter reads", "",
    "in Python: torch.export.save(torch.export.export(module, inputs), 'net.pt2'), then "
    "--framework=torch",
)  # fmt: skip
_TFLITE = Foreign(
    "a TensorFlow Lite model", "tflite",
    "python -m tf2onnx.convert --tflite FILE --output net.onnx", ("tensorflow", "tf2onnx"),
)  # fmt: skip
_SAVED = Foreign(
    "a TensorFlow SavedModel", "tflite",
    "python -m tf2onnx.convert --saved-model FOLDER --output net.onnx", ("tensorflow", "tf2onnx"),
)  # fmt: skip
_KERAS = Foreign(
    "a Keras model", "",
    "in Python: keras.models.load_model(FILE).export('folder'), then --model=folder "
    "--framework=tflite",
)  # fmt: skip

_ORT = Foreign(
    "a model in onnxruntime's own format", "",
    "compile the ONNX file that it was made from, or write one in Python: "
    "o = onnxruntime.SessionOptions(); o.optimized_model_filepath = 'net.onnx'; "
    "o.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL; "
    "o.add_session_config_entry('session.save_model_format', 'ONNX'); "
    "onnxruntime.InferenceSession(FILE, o)",
)  # fmt: skip


def foreign_format(path: Path) -> Foreign | None:
    """Return what a file or folder of another package is; None for any other or a missing one."""
    try:
        if path.is_dir():
            return _SAVED if Path(path, "saved_model.pb").is_file() else None
        with regular(path).open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return None
    if head[4:8] == b"TFL3":
        return _TFLITE
    if head[4:8] == b"ORTM":
        return _ORT
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return _KERAS
    if head.startswith(b"PK\x03\x04"):
        return _zipped(path)
    return _pickled(head)


def _zipped(path: Path) -> Foreign | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None
    last = {name.rpartition("/")[2] for name in names}
    if "archive_format" in last or "serialized_exported_program.json" in last:
        return _EXPORTED
    if "data.pkl" in last:
        return _TORCH
    return _KERAS if "model.weights.h5" in last else None


def _pickled(head: bytes) -> Foreign | None:
    """Return the package of a pickle, by the first known module that it names."""
    if len(head) < 3 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        return None
    places = {head.find(module): known for module, known in _PICKLED.items() if module in head}
    if places:
        name, needs = places[min(places)]
        way = f"the package {needs[-1]} writes an ONNX file of it"
        return Foreign(f"a pickle of {name}", "sklearn", way, needs)
    return Foreign("a pickle, a program that Python runs to read it", "",
                   "write an ONNX file with the package that it is of")  # fmt: skip


def refuse_foreign(path: Path) -> None:
    """Raise UnsupportedError, with the way out, for a file that another package reads."""
    found = foreign_format(path)
    if found is None:
        return
    hint = found.way
    if found.framework:
        trust = ", which runs what the pickle says," if found.framework == "sklearn" else ""
        hint = (
            f"--framework={found.framework}{trust} converts it after "
            f"pip install 'atc[{found.framework}]'; else {found.way}"
        )
    raise UnsupportedError(f"is {found.what}, not ONNX", where=str(path), hint=hint)
