"""Writes MXNet symbol JSON and NDArray files without MXNet, and runs what the importer makes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from numpy.typing import NDArray

from atc.importers.mxnet import load_mxnet

Array = NDArray[Any]
Node = dict[str, Any]

FLAGS = {
    "float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6,
    "bool": 7, "int16": 8, "uint16": 9, "uint32": 10, "uint64": 11, "bfloat16": 12,
}  # fmt: skip


# ---- symbols -----------------------------------------------------------------------------------


def variable(name: str, **attrs: str) -> Node:
    """Return a variable's node."""
    return {"op": "null", "name": name, "inputs": []} | ({"attrs": attrs} if attrs else {})


def node(op: str, name: str, inputs: Sequence[Sequence[int]], **attrs: object) -> Node:
    """Return an operator's node; attributes are written as MXNet prints them."""
    found = {"op": op, "name": name, "inputs": [list(i) for i in inputs]}
    return found | ({"attrs": {k: str(v) for k, v in attrs.items()}} if attrs else {})


def symbol(nodes: Sequence[Node], heads: Sequence[Sequence[int]], version: int = 10901) -> Node:
    """Return a symbol as MXNet 1.x writes it."""
    return {
        "nodes": list(nodes),
        "arg_nodes": [i for i, n in enumerate(nodes) if n["op"] == "null"],
        "node_row_ptr": list(range(len(nodes) + 1)),
        "heads": [list(h) for h in heads],
        "attrs": {"mxnet_version": ["int", version]},
    }


# ---- parameters --------------------------------------------------------------------------------


def ndarray(array: Array, version: int = 2) -> bytes:
    """Return one array: version 2, 3 (NumPy shapes), 1 or 0 (the first format)."""
    dims = array.shape
    shape = struct.pack(f"<i{len(dims)}q", len(dims), *dims)
    head = {
        3: struct.pack("<Ii", 0xF993FACA, 0) + shape,
        2: struct.pack("<Ii", 0xF993FAC9, 0) + shape,
        1: struct.pack("<I", 0xF993FAC8) + shape,
        0: struct.pack(f"<I{len(dims)}I", len(dims), *dims),
    }[version]
    return head + struct.pack("<iii", 1, 0, FLAGS[array.dtype.name]) + array.tobytes()


def params(arrays: Mapping[str, Array], version: int = 2) -> bytes:
    """Return an NDArray file."""
    data = struct.pack("<QQQ", 0x112, 0, len(arrays))
    data += b"".join(ndarray(a, version) for a in arrays.values())
    data += struct.pack("<Q", len(arrays))
    for name in arrays:
        data += struct.pack("<Q", len(name.encode())) + name.encode()
    return data


def write(folder: Path, root: object, arrays: Mapping[str, Array] | None = None) -> Path:
    """Write net-symbol.json and, where there are arrays, net-0000.params; return the former."""
    path = folder / "net-symbol.json"
    path.write_text(json.dumps(root))
    if arrays:
        (folder / "net-0000.params").write_bytes(params(arrays))
    return path


# ---- running -----------------------------------------------------------------------------------


def run(
    path: Path, inputs: Mapping[str, Array], *, weights: Path | None = None, optimize: bool = True
) -> list[Array]:
    """Import a model, check it with onnx.checker and return onnxruntime's outputs.

    Without `optimize` onnxruntime doesn't fuse quantised operators into its own kernels, whose
    int8 products may saturate.
    """
    model = load_mxnet(path, weights, {k: v.shape for k, v in inputs.items()})
    return run_model(model, inputs, optimize=optimize)


def run_model(
    model: onnx_ir.Model, inputs: Mapping[str, Array], *, optimize: bool = True
) -> list[Array]:
    """Check an imported model with onnx.checker and return onnxruntime's outputs."""
    runtime = pytest.importorskip("onnxruntime")
    proto = onnx_ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, {k.name: inputs[k.name] for k in session.get_inputs()}))


def assert_close(found: Array, wanted: Array, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    """Assert equal shapes and values within rtol, or atol of the largest value."""
    assert found.shape == wanted.shape
    scale = float(np.nanmax(np.abs(wanted.astype(np.float64)))) if wanted.size else 1.0
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol * (scale or 1)
    )
