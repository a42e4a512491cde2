"""Load MXNet models: a symbol and its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from atc.errors import ModelError
from atc.files.regular import regular
from atc.importers.mxnet import (  # noqa: F401  (each fills the table of translations)
    ops_activation,
    ops_boxes,
    ops_constant,
    ops_conv,
    ops_deformable,
    ops_elementwise,
    ops_index,
    ops_join,
    ops_matmul,
    ops_norm,
    ops_order,
    ops_pool,
    ops_quantized,
    ops_reduce,
    ops_repeat,
    ops_resize,
    ops_rnn,
    ops_roi,
    ops_shape,
    ops_subgraph,
)
from atc.importers.mxnet.params import Array, read_params
from atc.importers.mxnet.symbol import Symbol, parse_symbol
from atc.importers.mxnet.translate import Sources, needed_nodes, translate

SUFFIX = "-symbol.json"


def load_mxnet(
    symbol_path: Path, params_path: Path | None, input_shapes: Mapping[str, tuple[int, ...]]
) -> ir.Model:
    """Return a symbol and its parameters as an ONNX model.

    `params_path` None is the file of the highest epoch beside the symbol, `<name>-NNNN.params`.
    `input_shapes` gives the inputs' shapes, which a symbol file rarely says itself. Raises a
    ModelError or UnsupportedError that names the file, the node and the operator.
    """
    try:
        data = regular(symbol_path).read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read the model: {error.strerror}",
                         where=str(symbol_path)) from None  # fmt: skip
    symbol = parse_symbol(data, str(symbol_path))
    found = params_path or newest_params(symbol_path)
    if found is None:
        _require_no_weights(symbol, symbol_path, input_shapes)
    params: Mapping[str, Array] = read_params(found) if found else {}
    file = str(found or symbol_path)
    return translate(symbol, Sources(params, input_shapes, file), str(symbol_path))


def newest_params(symbol_path: Path) -> Path | None:
    """Return `<name>-NNNN.params` beside `<name>-symbol.json`, the one of the highest epoch."""
    name = symbol_path.name
    stem = name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else symbol_path.stem
    pattern = re.compile(re.escape(stem) + r"-(\d{4,9})\.params")
    files = symbol_path.parent.iterdir()
    found = [(int(m[1]), p) for p in files if (m := pattern.fullmatch(p.name))]
    return max(found)[1] if found else None


def _require_no_weights(
    symbol: Symbol, symbol_path: Path, input_shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise unless every variable that inference reads has a shape from the user."""
    needed = needed_nodes(symbol, str(symbol_path))
    names = [symbol.nodes[i].name for i in symbol.arguments if i in needed]
    missing = [n for n in names if n not in input_shapes]
    if missing:
        raise ModelError(
            f"there are no weights for {json.dumps(missing[0])} and {len(missing) - 1} more",
            where=str(symbol_path), code="E10008",
            hint=f"put {symbol_path.name.removesuffix(SUFFIX)}-0000.params beside it or "
                 "name it with --weight=FILE",
        )  # fmt: skip
