"""Imports MXNet: symbol JSON and NDArray parameters (0.x to 1.9) become an ONNX model.

Only a translation: MXNet's operators become ONNX's, by decomposition where none says the same;
MXNet itself is not needed. A node keeps its MXNet name. May import the rest of
`importers` and what they may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

_KEYS = re.compile(rb'"(nodes|arg_nodes|node_row_ptr|heads)"\s*:\s*\[')


def is_mxnet(head: bytes) -> bool:
    """Return whether a file that starts with these bytes looks like a symbol JSON."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and _KEYS.search(text) is not None


def load_mxnet(
    symbol_path: Path, params_path: Path | None, input_shapes: Mapping[str, tuple[int, ...]]
) -> ir.Model:
    """Return a symbol and its parameters as an ONNX model; see `load.load_mxnet`."""
    from atc.importers.mxnet import load  # late: few processes read MXNet's models

    return load.load_mxnet(symbol_path, params_path, input_shapes)
