"""Sparse weights of TensorFlow Lite models against the dense ones that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atc

RNG = np.random.default_rng(3)
BLOCK = 4
MASK = np.repeat(RNG.random((8, 4)) < 0.5, BLOCK, axis=1)
WEIGHTS = (RNG.standard_normal((8, 16)) * MASK).astype(np.float32)
X = RNG.standard_normal((1, 16)).astype(np.float32)


def sparse(dense: bytes, order: list[int], densify: bool) -> bytes:
    """Store the weights of a model sparsely: whole rows or columns first, by blocks of columns."""
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(dense, 0)
    (graph,) = model.subgraphs
    number = next(k for k, t in enumerate(graph.tensors) if t.shape.tolist() == [8, 16])
    tensor = graph.tensors[number]
    blocked = len(order) == 3
    outer = WEIGHTS.reshape(8, 4, BLOCK) if blocked else WEIGHTS[..., None]
    outer = outer.transpose(order[0], order[1], 2)
    kept = np.argwhere(outer.any(axis=2))
    counts = np.bincount(kept[:, 0], minlength=len(outer))

    def vector(values: Any) -> Any:
        made = schema.Int32VectorT()
        made.values = np.asarray(values, np.int32)
        return made

    def level(size: int, indices: Any = None) -> Any:
        made = schema.DimensionMetadataT()
        made.format, made.denseSize = int(indices is not None), size
        if indices is not None:
            made.arraySegmentsType = made.arrayIndicesType = schema.SparseIndexVector.Int32Vector
            made.arraySegments = vector([0, *np.cumsum(counts)])
            made.arrayIndices = vector(indices)
        return made

    tensor.sparsity = schema.SparsityParametersT()
    tensor.sparsity.traversalOrder = np.array(order, np.int32)
    tensor.sparsity.dimMetadata = [level(len(outer)), level(outer.shape[1], kept[:, 1])]
    if blocked:
        tensor.sparsity.blockMap = np.array([1], np.int32)
        tensor.sparsity.dimMetadata.append(level(BLOCK))
    stored = schema.BufferT()
    values = outer[kept[:, 0], kept[:, 1]]
    stored.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    model.buffers.append(stored)
    tensor.buffer = len(model.buffers) - 1
    if densify:
        _densify(schema, model, graph, number)
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _densify(schema: Any, model: Any, graph: Any, number: int) -> None:
    """Let an operator fill up the weights, as converters write it where a layer doesn't."""
    code, filled, op = schema.OperatorCodeT(), schema.TensorT(), schema.OperatorT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DENSIFY
    code.version = 1
    model.operatorCodes.append(code)
    source = graph.tensors[number]
    filled.shape, filled.type, filled.name, filled.buffer = source.shape, source.type, b"filled", 0
    graph.tensors.append(filled)
    for each in graph.operators:
        inputs = [len(graph.tensors) - 1 if k == number else k for k in each.inputs]
        each.inputs = np.array(inputs, np.int32)
    op.opcodeIndex = len(model.operatorCodes) - 1
    op.inputs = np.array([number], np.int32)
    op.outputs = np.array([len(graph.tensors) - 1], np.int32)
    graph.operators.insert(0, op)


@pytest.fixture(scope="module")
def dense() -> bytes:
    """Return a model of one layer, with its weights stored densely."""
    tf = pytest.importorskip("tensorflow")
    layer = tf.keras.layers.Dense(8, use_bias=False)
    net = tf.keras.Sequential([tf.keras.layers.Input((16,), batch_size=1), layer])
    layer.set_weights([WEIGHTS.T])
    return bytes(tf.lite.TFLiteConverter.from_keras_model(net).convert())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "densify"), [([0, 1], True), ([1, 0], False), ([0, 1, 2], False)]
)
def test_sparse_weights_are_filled_up(
    order: list[int], densify: bool, dense: bytes, tmp_path: Path
) -> None:
    from tensorflow.lite.python import schema_py_generated as schema

    from atc.convert.tflite_sparse import dense_file

    path, filled = tmp_path / "net.tflite", tmp_path / "filled.tflite"
    path.write_bytes(sparse(dense, order, densify))
    assert dense_file(str(path), str(filled)) == str(filled)
    model = schema.ModelT.InitFromPackedBuf(filled.read_bytes(), 0)
    (graph,) = model.subgraphs
    (layer,) = graph.operators  # nothing fills up any more
    weight = graph.tensors[layer.inputs[1]]
    assert weight.sparsity is None
    stored = np.frombuffer(bytes(model.buffers[weight.buffer].data), np.float32)
    np.testing.assert_array_equal(stored.reshape(weight.shape), WEIGHTS)


@pytest.mark.slow
def test_a_sparse_model_is_compiled(dense: bytes, tmp_path: Path) -> None:
    pytest.importorskip("tf2onnx")
    path = tmp_path / "net.tflite"
    path.write_bytes(sparse(dense, [0, 1, 2], True))
    done = atc.compile(path, tmp_path / "net", framework="tflite", target="c99")
    np.testing.assert_allclose(atc.load(done.folder)(X), X @ WEIGHTS.T, atol=1e-5)
