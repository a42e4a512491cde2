"""Modules of PyTorch as ONNX models and as libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from atc.api import compile as compile_file
from atc.errors import UnsupportedError, one_line
from atc.files.temporary import temporary_folder
from atc.pipeline.pipeline import Compilation

OPSET = 20


def export(
    module: torch.nn.Module, inputs: Sequence[Any], path: Path,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
) -> None:  # fmt: skip
    """Write a module as ONNX, for inputs like these, as it is: in training or not.

    Raises UnsupportedError, which says what the exporter can't take.
    """
    log = logging.getLogger("torch.onnx")
    level, said = log.level, io.StringIO()
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, tuple(inputs), dynamo=True, opset_version=OPSET, verbose=False,
                dynamic_shapes=dynamic_shapes, optimize=True,
            )  # fmt: skip
            assert program is not None
            program.save(path)
    except Exception as error:  # the exporter raises whatever its parts do
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = one_line(lines[0] if lines else type(error).__name__, 200)
        raise UnsupportedError(
            f"torch.onnx can't export it: {reason}", where=type(module).__name__
        ) from error
    finally:
        log.setLevel(level)


def compile_module(
    module: torch.nn.Module, example_inputs: Sequence[Any], output: str | PathLike[str], *,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None, **options: Any,
) -> Compilation:  # fmt: skip
    """Compile a PyTorch module into the folder `output`, for inputs like the examples.

    `dynamic_shapes` are torch.export's, `options` the keywords of `atc.compile`: ranges of open
    extents are given in `input_shape`. The module is exported as it is, so call `eval()` before.
    Raises AtcError.
    """
    with temporary_folder("torch") as folder:
        path = Path(folder, f"{Path(output).name}.onnx")
        export(module, example_inputs, path, dynamic_shapes)
        return compile_file(path, output, **options)
