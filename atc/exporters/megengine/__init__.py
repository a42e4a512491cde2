"""Translate ONNX models to MegEngine dumps (.mge), which MegEngine 1.13 loads and runs.

`translate` turns a model into the plain values that the importer reads a dump into, one rule of
`rules_*` per ONNX operator, through `builder`, which numbers the variables; `writer` turns those
into the bytes of an FBS_V2 file.

MegEngine has neither float64 nor integers of 64 bits nor tensors without axes: int64 becomes int32,
and what is a single number a tensor of shape (1). May import what `exporters` may.
"""

from __future__ import annotations

import onnx

from atc.exporters.megengine.translate import translate
from atc.exporters.megengine.writer import write_dump

__all__ = ["to_megengine"]


def to_megengine(model: onnx.ModelProto) -> bytes:
    """Return the dump that computes what an ONNX model of fixed shapes does.

    Raises UnsupportedError for what MegEngine's operators can't say; it names the node and why.
    """
    return write_dump(translate(model))
