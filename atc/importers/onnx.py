"""Reads ONNX files into `onnx_ir` models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir
from onnx_ir.passes.common import InlinePass

from atc.errors import ModelError


def load_onnx(path: Path) -> onnx_ir.Model:
    """Read an ONNX file, with external data from its own folder and functions inlined."""
    try:
        model = onnx_ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise many kinds for a damaged file
        raise ModelError(f"not a readable ONNX model: {error}", where=str(path)) from error
    if len(model.functions):
        model = InlinePass()(model).model
    return model


def pin_inputs(
    model: onnx_ir.Model, shapes: Mapping[str, tuple[int, ...]], file: str
) -> onnx_ir.Model:
    """Set the inputs' shapes; ModelError E10017 for a name that is no input."""
    inputs = {v.name: v for v in model.graph.inputs}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ModelError(
                f"'{name}' in --input_shape is not an input; the inputs are "
                + ", ".join(f"'{n}'" for n in inputs),
                where=file, code="E10017",
            )  # fmt: skip
        inputs[name].shape = onnx_ir.Shape(shape)
    return model
