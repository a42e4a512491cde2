"""Tensors of ONNX files: sparse ones become dense, damaged and unsafe ones are refused."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx import numpy_helper

from atc.errors import ModelError, UnsupportedError, one_line

_MOST_DIGITS = 40  # of an offset or a size: any larger one is as wrong
MOST_DENSE = 1 << 28
"""Elements that a sparse tensor may have once its zeros are written out."""


def prepare_tensors(graph: onnx.GraphProto, path: str) -> None:
    """Write out the zeros of sparse initializers and constants, in subgraphs too.

    Raises ModelError for external data at a place that isn't a number.
    """
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, path))
    del graph.sparse_initializer[:]
    for tensor in graph.initializer:
        _check_place(tensor, path)
    for attribute in (a for node in graph.node for a in node.attribute):
        _check_place(attribute.t, path)
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and attribute.name == "sparse_value":
            whole = _dense(attribute.sparse_tensor, path)
            attribute.CopyFrom(onnx.helper.make_attribute("value", whole))
        for inner in (attribute.g, *attribute.graphs):
            if inner.node:
                prepare_tensors(inner, path)


def _check_place(tensor: onnx.TensorProto, path: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    for key in entries.keys() & {"offset", "length"}:
        if not entries[key].isdecimal() or len(entries[key]) > _MOST_DIGITS:
            raise ModelError(
                f"the {key} in external data file '{one_line(entries.get('location', ''), 100)}' "
                f"is '{one_line(entries[key], 40)}'", where=f"{path}, tensor '{tensor.name}'",
            )  # fmt: skip


def _dense(sparse: onnx.SparseTensorProto, path: str) -> onnx.TensorProto:
    """Return a sparse tensor as a dense one; its indices are numbers of elements, or tuples."""
    name, dims = sparse.values.name, [*sparse.dims]
    where = f"{path}, sparse tensor '{name}'"
    if min(dims, default=0) < 0 or prod(dims) > MOST_DENSE:
        raise UnsupportedError(
            f"the shape {dims}; up to {MOST_DENSE} elements are possible", where=where
        )
    try:
        values, indices = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
        dense = np.zeros(dims, values.dtype)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), dims)
        if values.shape != indices.shape:
            raise ValueError(f"{values.size} values at {indices.size} places")
        if indices.size and not 0 <= indices.min() <= indices.max() < dense.size:
            raise ValueError(f"a place outside {dims}")
        dense.reshape(-1)[indices] = values
        return numpy_helper.from_array(dense, name)
    except (ValueError, TypeError) as error:
        raise ModelError(f"is damaged: {one_line(str(error), 200)}", where=where) from error


def check_tensor(tensor: onnx_ir.TensorProtocol, path: Path) -> None:
    """Refuse what can't be a tensor; external data must lie in the model's folder."""
    where = f"{path}, tensor '{tensor.name}'"
    dims = [*tensor.shape.numpy()]
    if min(dims, default=0) < 0:
        raise ModelError(f"the shape {dims} has a negative extent", where=where)
    if isinstance(tensor, onnx_ir.ExternalTensor):
        _check_external_data(tensor, path, where)
        return
    proto = getattr(tensor, "raw", None)
    if isinstance(proto, onnx.TensorProto) and proto.HasField("raw_data"):
        count = len(proto.raw_data)
        if tensor.dtype != onnx_ir.DataType.STRING and count != tensor.nbytes:
            raise ModelError(f"has {count} bytes of data, not {tensor.nbytes}", where=where)


def _check_external_data(tensor: onnx_ir.ExternalTensor, path: Path, where: str) -> None:
    """Refuse a data file outside the model's folder, and data that the file doesn't hold."""
    folder = path.parent.resolve()
    location = str(tensor.location)
    shown = one_line(location, 100)
    try:
        file = (folder / location).resolve()
        there = file.is_file()
    except (OSError, ValueError) as error:  # too long a name, or one with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"external data file '{shown}': {reason}", where=where) from None
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        raise ModelError(f"external data '{shown}' lies outside the model's folder", where=where)
    if not there:
        raise ModelError(f"external data file '{shown}' is missing", where=where)
    offset, length, available = tensor.offset or 0, tensor.length or 0, file.stat().st_size
    size = max(length, tensor.nbytes)
    if min(offset, length) < 0 or offset + size > available:
        raise ModelError(
            f"external data file '{shown}' has {available} bytes and can't hold {size} at offset "
            f"{offset}",
            where=where, hint="copy or export the file again, whole",
        )  # fmt: skip
    if tensor.length is not None and length != tensor.nbytes:
        raise ModelError(
            f"external data file '{shown}': {length} bytes at offset {offset} are given, not "
            f"the {tensor.nbytes} of the tensor", where=where,
        )  # fmt: skip
