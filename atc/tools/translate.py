"""`--mode=1`: writes a model of any format as ONNX, to look at or to run elsewhere."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir
from google.protobuf import json_format

from atc.convert import load_model
from atc.errors import ModelError, not_written, one_line
from atc.options.options import Options


def write_translation(options: Options, path: Path) -> None:
    """Write the imported model: ONNX where `path` ends in .onnx, else ONNX's JSON form.

    The result passes `onnx.checker`. Raises ModelError where it doesn't (a wrong ONNX file),
    OptionError where `path` can't be written.
    """
    model = load_model(options.model, options.framework, options.input_shape, options.weight)
    proto = onnx_ir.to_proto(model)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ModelError(
            f"is not a valid ONNX model: {one_line(str(error), 200)}", where=options.model.name
        ) from error
    binary = path.suffix == ".onnx"
    data = proto.SerializeToString(deterministic=True) if binary else _json(proto)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise not_written(path, error, "--json") from None


def _json(proto: onnx.ModelProto) -> bytes:
    text: str = json_format.MessageToJson(proto, sort_keys=True, indent=1)
    return f"{text}\n".encode()
