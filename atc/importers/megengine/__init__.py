"""Translate MegEngine dumps (.mge) to ONNX.

`reader` recognizes the containers and reads them into the plain values of `dump`; `translate`
turns those into a model, one rule of `ops_*` per operator type, through `builder`, which infers
shapes and folds shape arithmetic on the way. May import the rest of `importers` and what they may.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from atc.importers.megengine.reader import is_megengine, read_dump

__all__ = ["is_megengine", "load_megengine"]


def load_megengine(path: Path, input_shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    """Read a MegEngine dump and return the ONNX model that computes the same.

    `input_shapes` replaces the shapes that the dump gives its inputs, by name. Raises `ModelError`
    for a damaged file, `UnsupportedError` for what no ONNX operators can say, `OptionError` for
    input shapes that don't fit; each names the file and, where there is one, node and operator.
    The model's metadata entry `atc.warnings` has a line for each suspicious operator.
    """
    from atc.importers.megengine.translate import translate  # late: few processes read dumps

    return translate(read_dump(path), input_shapes)
