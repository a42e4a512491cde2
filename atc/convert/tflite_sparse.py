"""TensorFlow Lite models whose weights are stored sparsely, which tf2onnx reads as if they weren't.

Imported by the converter's process alone, beside tensorflow.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what TensorFlow says is no reason

from tensorflow.lite.python import schema_py_generated as schema

_DTYPES = {
    schema.TensorType.FLOAT32: np.float32, schema.TensorType.FLOAT16: np.float16,
    schema.TensorType.INT8: np.int8, schema.TensorType.INT16: np.int16,
    schema.TensorType.INT32: np.int32,
}  # fmt: skip


def dense_file(path: str, result: str) -> str:
    """Write a model with its sparse weights filled up as `result`, if there are such.

    Returns the path to read. Raises ValueError for weights that don't fit their metadata.
    """
    content = Path(path).read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    sparse = [(g, t) for g in model.subgraphs for t in g.tensors if t.sparsity is not None]
    if not sparse:
        return path
    for _, tensor in sparse:
        dense = schema.BufferT()
        dense.data = np.frombuffer(_filled(model, tensor).tobytes(), np.uint8)
        model.buffers.append(dense)
        tensor.buffer, tensor.sparsity = len(model.buffers) - 1, None
    for graph in model.subgraphs:
        graph.operators = [op for op in graph.operators if not _densified(model, graph, op)]
    write(model, result)
    return result


def write(model: Any, path: str) -> None:
    """Write a model."""
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    Path(path).write_bytes(builder.Output())


def code_of(model: Any, op: Any) -> int:
    """Return which of the built-in operators this is."""
    code = model.operatorCodes[op.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))


def _densified(model: Any, graph: Any, op: Any) -> bool:
    """Return whether an operator only fills up a weight; its result then is that weight."""
    if code_of(model, op) != schema.BuiltinOperator.DENSIFY:
        return False
    weight, result = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    result.buffer = weight.buffer
    return True


def _filled(model: Any, tensor: Any) -> npt.NDArray[Any]:
    """Return a sparse tensor's numbers with the zeros between them."""
    sparsity, shape = tensor.sparsity, [int(n) for n in tensor.shape]
    name = (tensor.name or b"").decode(errors="replace")
    if tensor.type not in _DTYPES:
        raise ValueError(f"the sparse weights '{name}' have type {tensor.type}")
    stored = np.frombuffer(bytes(model.buffers[tensor.buffer].data), _DTYPES[tensor.type])
    order = [int(n) for n in sparsity.traversalOrder]
    blocks = [] if sparsity.blockMap is None else [int(n) for n in sparsity.blockMap]
    if sorted(order) != list(range(len(shape) + len(blocks))):
        raise ValueError(f"the sparse weights '{name}' have no order of {len(order)} axes")
    places: dict[int, npt.NDArray[np.int64]] = {}
    at, sizes = np.zeros(1, np.int64), dict[int, int]()
    for axis, level in zip(order, sparsity.dimMetadata, strict=True):
        rows, inner, at = _expanded(level, at)
        places = {k: v[rows] for k, v in places.items()} | {axis: inner}
        sizes[axis] = int(level.denseSize)
    whole = np.zeros(shape, stored.dtype)
    index = []
    for axis in range(len(shape)):
        place = places[axis]
        if axis in blocks:
            inside = len(shape) + blocks.index(axis)
            place = place * sizes[inside] + places[inside]
        index.append(place)
    whole[tuple(index)] = stored[at]
    return whole


def _expanded(
    level: Any, at: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return of each child of the entries `at`: its entry, its place on the axis, its number."""
    if level.format == schema.DimensionType.DENSE:
        size = int(level.denseSize)
        rows = np.repeat(np.arange(len(at)), size)
        inner = np.tile(np.arange(size), len(at))
        return rows, inner, at[rows] * size + inner
    segments = np.asarray(level.arraySegments.values, np.int64)
    indices = np.asarray(level.arrayIndices.values, np.int64)
    counts = segments[at + 1] - segments[at]
    rows = np.repeat(np.arange(len(at)), counts)
    starts = np.repeat(segments[at] - np.cumsum(counts) + counts, counts)
    numbers = starts + np.arange(len(rows))
    return rows, indices[numbers], numbers
