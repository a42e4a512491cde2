"""Other batch sizes than a model's own: the first extent of its inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir

from atc.convert import load_model
from atc.errors import ModelError
from atc.options.options import Options


def with_batch(options: Options, batch: int, folder: Path) -> Options:
    """Return the options of the same model for inputs of this batch size.

    An ONNX model that has a size of its own is written to `folder` without it. Constants of a
    model may still hold the old size; then it can't be compiled.
    """
    model = load_model(options.model, options.framework, options.input_shape, options.weight)
    own = {v.name or "": v for v in model.graph.inputs if v.name not in model.graph.initializers}
    shapes: dict[str, Any] = dict(options.input_shape)
    for name, value in own.items():
        dims = shapes.get(name) or _static(value)
        if dims:
            shapes[name] = (batch, *dims[1:])
    if all(_static(v)[:1] in ((), (batch,)) for v in own.values()):
        return replace(options, input_shape=shapes)
    with options.model.open("rb") as file:
        head = file.read(64)
    if b"mg" in head[:12].lower() or b"{" in head:
        return replace(options, input_shape=shapes)  # their importers take any shape
    return replace(options, model=_opened(options.model, folder), input_shape=shapes)


def _static(value: onnx_ir.Value) -> tuple[int, ...]:
    dims = tuple(value.shape or ())
    return tuple(d for d in dims if isinstance(d, int)) if all(
        isinstance(d, int) for d in dims
    ) else ()  # fmt: skip


def _opened(path: Path, folder: Path) -> Path:
    """Write a model whose inputs' first extents are open; returns the file."""
    try:
        proto = onnx.load(path)
        for value in proto.graph.input:
            dims = value.type.tensor_type.shape.dim
            if dims:
                dims[0].dim_param = "batch"
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        del proto.graph.value_info[:]
        onnx.save(proto, folder / path.name)
    except Exception as error:  # onnx and protobuf raise many kinds
        raise ModelError(f"the batch size can't be changed: {error}", where=str(path)) from None
    return folder / path.name
