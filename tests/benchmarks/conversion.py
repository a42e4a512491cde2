"""Conversion of models for the engines that read formats of their own.

MNN's converter and ncnn's `pnnx` come with their packages (`pip install MNN ncnn pnnx`). What an
engine must know of the model beside its files lies there, too, as JSON.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Arrays = Mapping[str, np.ndarray[Any, Any]]

_NCNN_INPUT = re.compile(r'ex\.input\("in\d+", ncnn\.Mat\((.*)\)\.clone\(\)\)')
_NCNN_OUTPUT = re.compile(r"out\.append\(torch\.from_numpy\((.*)\)")
_MNN_CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"
"""What MNN's command `mnnconvert` runs, but that also installs packages and reports its use."""
_BATCHED = "batch_index"
"""Marks what has a batch axis in the program that pnnx writes."""


class ConversionError(Exception):
    """A model that a converter doesn't take; the text says why."""


def converted(engine: str, model: Path, arrays: Arrays, folder: Path) -> Path:
    """Return the model as an engine reads it, written beside a copy in `folder` if not as ONNX.

    `arrays` are the inputs in the model's order, whose shapes are fixed thereby. Raises
    ConversionError.
    """
    convert = _CONVERTERS.get(engine)
    if convert is None:
        return model
    copy = folder / "converted" / "model.onnx"
    if not copy.exists():
        copy.parent.mkdir()
        onnx.save(onnx.load(model), copy)  # with what lies in other files
    return convert(copy, arrays)


def _to_mnn(model: Path, arrays: Arrays) -> Path:
    """Convert to MNN's format."""
    found = model.with_suffix(".mnn")
    _run("MNN's converter", [
        sys.executable, "-c", _MNN_CONVERT, "-f", "ONNX", "--modelFile", str(model),
        "--MNNModel", str(found), "--bizCode", "benchmark",
    ], model.parent)  # fmt: skip
    if not found.exists():
        raise ConversionError("MNN's converter wrote nothing")
    outputs = [o.name for o in onnx.load(model, load_external_data=False).graph.output]
    _describe(found, {"inputs": [*arrays], "outputs": outputs})
    return found


def _to_ncnn(model: Path, arrays: Arrays) -> Path:
    """Convert to ncnn's format, in float32."""
    types = {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}
    try:
        shapes = [f"{[*a.shape]}{types[a.dtype.name]}".replace(" ", "") for a in arrays.values()]
    except KeyError as unknown:
        raise ConversionError(f"pnnx takes no inputs of {unknown}") from None
    program = shutil.which("pnnx", path=Path(sys.executable).parent) or shutil.which("pnnx")
    if program is None:
        raise ConversionError("pnnx isn't installed")
    _run("pnnx", [program, str(model), f"inputshape={','.join(shapes)}", "fp16=0"], model.parent)
    found = model.with_name("model.ncnn.param")
    shown = model.with_name("model_ncnn.py").read_text("utf-8")
    inputs = [_BATCHED in text for text in _NCNN_INPUT.findall(shown)]
    outputs = [_BATCHED in text for text in _NCNN_OUTPUT.findall(shown)]
    if len(inputs) != len(arrays):
        raise ConversionError(f"pnnx left {len(inputs)} of {len(arrays)} inputs")
    _describe(found, {"inputs": dict(zip(arrays, inputs, strict=True)), "outputs": outputs})
    return found


def _run(name: str, command: Sequence[str], folder: Path) -> None:
    """Run a converter in the folder of what it writes."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).split("\n")
        last = next((line for line in reversed(said) if line.strip()), "")
        raise ConversionError(f"{name} ended with status {done.returncode}: {last[:200]}")


def _describe(model: Path, what: Mapping[str, object]) -> None:
    model.with_suffix(".json").write_text(json.dumps(what), "utf-8")


_CONVERTERS: Mapping[str, Callable[[Path, Arrays], Path]] = {"mnn": _to_mnn, "ncnn": _to_ncnn}
