"""`atc quantize`: an ONNX model of 8-bit integers from a float model and calibration inputs.

The arithmetic of quantising is onnxruntime's (`onnxruntime.quantization`): ranges of all values
are measured on the inputs, then QuantizeLinear and DequantizeLinear nodes are put around operators
(the QDQ form). What that costs is measured layer by layer, see `report.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir

from atc.convert import load_model
from atc.diagnostics import Diagnostics
from atc.dims import InputShape
from atc.errors import AtcError, OptionError, UnsupportedError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.ir.graph import Array
from atc.lower.context import node_name
from atc.options.options import Options
from atc.pipeline.pipeline import Compile
from atc.pipeline.request import resolve_request
from atc.quantize.calibration import Feeds, Labelled, Types, read_labelled, read_samples
from atc.quantize.layer_noise import Layer, measure_layers
from atc.runtime.load import open_network

METHODS = ("minmax", "percentile", "entropy")
"""How a value's range follows from what the inputs show of it."""

_OPSET = 13  # the first with scales per channel
IR_VERSION = 8  # since version 4 constants needn't be inputs
_ADAPTED = 17  # what older models are converted to


@dataclass(frozen=True)
class Job:
    """A model to quantise, the manner, and the nodes that stay in float."""

    model: Path
    output: Path
    calibration: Path | None = None
    framework: str = ""
    weight: Path | None = None
    input_shape: Mapping[str, InputShape] = field(default_factory=dict)
    method: str = "minmax"
    percentile: float = 99.99
    per_channel: bool = True
    activations: str = "uint8"
    keep_float: tuple[str, ...] = ()
    """Nodes by name."""
    keep_worst: int = 0
    labels: Path | None = None
    target: str = "host"
    weights: str = "int8"
    """int4: only weights, and those of products."""
    block: int = 32
    symmetric: bool = True


@dataclass(frozen=True)
class Accuracy:
    """The part of `count` labelled inputs that the compiled libraries classify rightly."""

    count: int
    float32: float
    quantised: float


@dataclass(frozen=True)
class Quantised:
    """The result; `kept` are the nodes that stayed in float on request, `samples` inputs."""

    output: Path
    method: str
    per_channel: bool
    samples: int
    kept: tuple[str, ...]
    layers: tuple[Layer, ...]
    accuracy: Accuracy | None


def quantize_model(job: Job, compile: Compile) -> Quantised:
    """Quantise a model and write it to `job.output`, a file, at the end of all.

    `compile` makes the libraries that labelled inputs are classified with.

    Raises OptionError for wrong files and names or without onnxruntime, UnsupportedError where
    onnxruntime can't quantise the model.
    """
    need_onnxruntime()
    if job.calibration is None:
        raise OptionError("no inputs are given to calibrate with", where="--calibration",
                          hint="give some, or --weights=int4, which needs none")  # fmt: skip
    check_output(job.output)
    with temporary_folder("quantize") as folder:
        prepared = Path(folder, "float.onnx")
        types = _prepare(job, prepared)
        samples = read_samples(job.calibration, types)
        labelled = read_labelled(job.labels, types, samples) if job.labels else None
        result, kept = Path(folder, "quantised.onnx"), job.keep_float
        _quantise(job, prepared, result, samples, kept)
        layers = measure_layers(prepared, result, samples)
        worst = [layer.node for layer in worst_layers(layers)[: job.keep_worst]]
        if worst:
            kept = (*kept, *worst)
            _quantise(job, prepared, result, samples, kept)
            layers = measure_layers(prepared, result, samples)
        accuracy = None
        if labelled:
            accuracy = _accuracy(job, result, labelled, Path(folder), compile)
        write_model(result, job.output)
    return Quantised(
        job.output, job.method, job.per_channel, len(samples), kept, layers, accuracy
    )  # fmt: skip


def worst_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return the quantised layers, first those that add most noise."""
    quantised = [layer for layer in layers if layer.quantised]
    return sorted(quantised, key=lambda layer: layer.added, reverse=True)


def need_onnxruntime() -> None:
    """Raise OptionError where onnxruntime's quantization is not installed."""
    try:
        import onnxruntime.quantization  # noqa: F401
    except ImportError as error:
        raise OptionError(
            f"quantising needs onnxruntime ({one_line(str(error), 80)})", where="atc quantize",
            hint="pip install 'atc[quantize]'",
        ) from None  # fmt: skip


def check_output(output: Path) -> None:
    """Raise OptionError, before the long work, where no file can be written."""
    if output.is_dir() or not os.access(output.absolute().parent, os.W_OK):
        raise OptionError(
            f"can't write the file {output}", where="--output", hint="name a file, x_int8.onnx"
        )


def write_model(source: Path, output: Path) -> None:
    """Put a file in another one's place, at once."""
    try:
        with temporary_folder("quantized", output.absolute().parent, hidden=True) as folder:
            shutil.copyfile(source, folder / "new")
            (folder / "new").replace(output)
    except OSError as error:
        raise not_written(output, error, "--output") from None


# ------------------------------------------------------------------------------------ the model


def _prepare(job: Job, path: Path) -> Types:
    """Write the float model, cleaned and with names for all nodes; return its inputs' types."""
    model = load_model(job.model, job.framework, job.input_shape, job.weight)
    for node in model.graph:
        node.name = node_name(node)
    # Old files list constants among the inputs.
    constants = model.graph.initializers
    model.graph.inputs[:] = [v for v in model.graph.inputs if v.name not in constants]
    check_kept(model, job.keep_float)
    types = {v.name or "": _type(v, job.model) for v in model.graph.inputs}
    from onnxruntime.quantization import quant_pre_process

    with of_onnxruntime(job.model):
        model.ir_version = max(model.ir_version or 0, IR_VERSION)
        proto = onnx_ir.to_proto(model)
        if model.opset_imports.get("", _ADAPTED) < _OPSET:
            proto = onnx.version_converter.convert_version(proto, _ADAPTED)
        onnx.save(proto, path)
        quant_pre_process(str(path), str(path), skip_symbolic_shape=True)
    return types


def _type(value: onnx_ir.Value, file: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    dims = list(value.shape) if value.shape is not None else [None]
    if value.dtype is None or not all(isinstance(d, int) for d in dims):
        raise OptionError(
            f"the shape of input '{one_line(value.name or '', 60)}' is open", where=str(file),
            hint="give it with --input_shape",
        )  # fmt: skip
    return tuple(int(d) for d in dims if isinstance(d, int)), value.dtype.numpy()


def check_kept(model: onnx_ir.Model, names: Sequence[str]) -> None:
    """Raise OptionError for a name that no node of the model has."""
    named = {node.name for node in model.graph}
    for name in names:
        if name not in named:
            raise OptionError(
                f"no node is called '{one_line(name, 60)}'", where="--keep_float",
                hint="names are those of the model; a node without one has its first output's",
            )  # fmt: skip


class _Reader:
    """Hands the inputs to onnxruntime, which asks for them one by one."""

    def __init__(self, samples: Sequence[Feeds]) -> None:
        self._left: Iterator[Feeds] = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next inputs, None at the end."""
        feeds = next(self._left, None)
        return None if feeds is None else dict(feeds)

    def __iter__(self) -> Iterator[Feeds]:
        return self._left

    def __next__(self) -> Feeds:
        return next(self._left)


def _quantise(
    job: Job, source: Path, result: Path, samples: Sequence[Feeds], kept: Sequence[str]
) -> None:
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    methods = dict(zip(METHODS, ("MinMax", "Percentile", "Entropy"), strict=True))
    extra = {"CalibPercentile": job.percentile} if job.method == "percentile" else {}
    with of_onnxruntime(job.model):
        quantize_static(
            str(source), str(result), _Reader(samples), quant_format=QuantFormat.QDQ,
            per_channel=job.per_channel, weight_type=QuantType.QInt8,
            activation_type=QuantType.QInt8 if job.activations == "int8" else QuantType.QUInt8,
            nodes_to_exclude=[*kept], calibrate_method=CalibrationMethod[methods[job.method]],
            extra_options=extra,
        )  # fmt: skip


@contextmanager
def of_onnxruntime(model: Path) -> Iterator[None]:
    """Turn whatever onnxruntime raises into one line that names the model; drop what it prints."""
    try:
        with redirect_stdout(StringIO()):
            yield
    except AtcError:
        raise
    except Exception as error:  # its own kinds, ValueError, RuntimeError, TypeError...
        reason = one_line(str(error), 300) or type(error).__name__
        raise UnsupportedError(
            f"onnxruntime can't quantise it: {reason}", where=str(model),
            hint="keep nodes in float with --keep_float, or try --per_channel=0",
        ) from error  # fmt: skip


# ------------------------------------------------------------------------------------- accuracy


def _accuracy(
    job: Job, quantised: Path, labelled: Labelled, folder: Path, compile: Compile
) -> Accuracy:
    """Compile both models and classify the labelled inputs with each library."""
    wide = Options(
        job.model, folder / "wide" / "net", framework=job.framework, weight=job.weight,
        input_shape=job.input_shape, target=job.target,
    )  # fmt: skip
    narrow = replace(
        wide, model=quantised, output=folder / "narrow" / "net", framework="", weight=None,
        input_shape={},
    )  # fmt: skip
    env, quiet = dict(os.environ), Diagnostics()
    requests = [resolve_request(o, env) for o in (wide, narrow)]
    shares = [classified(compile(r, quiet).folder, labelled) for r in requests]
    return Accuracy(len(labelled.labels), *shares)


def classified(library: Path, labelled: Labelled) -> float:
    """Return the part of inputs whose largest score, in the first output, is the label's."""
    net = open_network(library)
    right = 0
    for feeds, label in zip(labelled.feeds, labelled.labels, strict=True):
        scores = next(iter(net.run(dict(feeds)).values()))
        right += int(np.asarray(scores).reshape(-1).argmax()) == label
    return right / len(labelled.labels)
