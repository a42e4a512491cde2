"""Training operators against the standard's reference, in all their types and modes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from atc.errors import AtcError
from atc.ir.graph import Array
from support import Batch, compile_graph, node_model, run_model

PREVIEW = "ai.onnx.preview.training"

# ---- dropout ------------------------------------------------------------------------------------


def dropout_model(inputs: list[Any], seed: int | None, name: str = "") -> Any:
    model = node_model("Dropout", inputs, 2, opset=22, constant=())
    node = model.graph.node[0]
    node.name = name
    node.attribute.extend([helper.make_attribute("seed", seed)] if seed is not None else [])
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return model


X = np.random.default_rng(0).standard_normal((4, 5, 7))


REALS = {np.dtype(t).name: t for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)}


def dropout_inputs(name: str, ratio: float, training: bool) -> list[Any]:
    return [X.astype(REALS[name]), np.float32(ratio), np.bool_(training)]


DROPOUTS = Batch({
    **{name: dropout_model(dropout_inputs(name, 0.3, True), 11) for name in REALS},
    **{f"named {k}": dropout_model(dropout_inputs("float32", 0.5, True), None, name)
       for k, name in enumerate(("a", "b", "a"))},
})  # fmt: skip


@pytest.mark.parametrize("name", REALS)
def test_the_mask_is_what_the_seed_draws(name: str) -> None:
    inputs, dtype = dropout_inputs(name, 0.3, True), REALS[name]
    y, mask = DROPOUTS[name](inputs)
    wanted = np.random.RandomState(11).uniform(0, 1.0, X.shape) >= np.float32(0.3)
    np.testing.assert_array_equal(mask, wanted)
    scaled = np.where(wanted, inputs[0].astype(np.float64) / (1 - np.float64(inputs[1])), 0)
    np.testing.assert_allclose(y.astype(np.float64), scaled, rtol=2 * ml_dtypes.finfo(dtype).eps)


def test_the_mode_may_be_chosen_at_run_time() -> None:
    inputs = dropout_inputs("float32", 0.5, False)
    y, mask = DROPOUTS["float32"](inputs)
    np.testing.assert_array_equal(y, inputs[0])
    assert mask.all()


def test_without_a_seed_the_name_draws_the_mask() -> None:
    inputs = dropout_inputs("float32", 0.5, True)
    masks = [DROPOUTS[f"named {k}"](inputs)[1] for k in range(3)]
    np.testing.assert_array_equal(masks[0], masks[2])
    assert (masks[0] != masks[1]).any()
    assert 0.3 < masks[0].mean() < 0.7


# ---- batch statistics ---------------------------------------------------------------------------


def batch_inputs(name: str, rank: int) -> list[Array]:
    random, shape = np.random.default_rng(1), (6, 3, 4, 5)[:rank]
    x = random.standard_normal(shape) * 3 + 10
    return [a.astype(REALS[name]) for a in (x, *random.uniform(0.5, 2, (4, 3)))]


BATCHES = Batch({
    f"{name} {rank}": node_model(
        "BatchNormalization", batch_inputs(name, rank), 3, opset=15,
        training_mode=1, momentum=0.75, epsilon=0.01,
    )
    for name in ("float32", "float64", "float16") for rank in (2, 3, 4)
})  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_statistics(name: str, rank: int) -> None:
    dtype, (x, *channels) = REALS[name], batch_inputs(name, rank)
    wide = [a.astype(np.float64) for a in (x, *channels)]
    w, s, t, m, v = wide
    axes = tuple(d for d in range(x.ndim) if d != 1)
    tail = (-1, *[1] * (x.ndim - 2))
    mean, var = w.mean(axes), w.var(axes)
    y = (w - mean.reshape(tail)) / np.sqrt(var.reshape(tail) + 0.01)
    y = y * s.reshape(tail) + t.reshape(tail)
    wanted = [y, 0.75 * m + 0.25 * mean, 0.75 * v + 0.25 * var]
    for got, value in zip(BATCHES[f"{name} {rank}"]([x, *channels]), wanted, strict=True):
        assert got.dtype == dtype
        tolerance = 2 * float(np.finfo(dtype).eps) + 1e-7  # attributes are floats
        np.testing.assert_allclose(got.astype(np.float64), value, 8 * tolerance, 8 * tolerance)


@pytest.mark.parametrize("opset", [7, 9, 13])
def test_before_opset_14_more_outputs_than_one_are_training(opset: int) -> None:
    """What PyTorch's exporters left unread is listed nevertheless; onnxruntime is the truth."""
    onnxruntime = pytest.importorskip("onnxruntime")
    arrays = batch_inputs("float32", 3)
    model = node_model("BatchNormalization", arrays, 5, opset=opset, constant=(), momentum=0.7)
    saved = model.graph.output[3:]
    del model.graph.output[3:]
    model.ir_version = 8
    for result, array in zip(model.graph.output, (arrays[0], *arrays[3:]), strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        result.CopyFrom(helper.make_tensor_value_info(result.name, kind, array.shape))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {f"x{k}": a for k, a in enumerate(arrays)})
    for got, want in zip(run_model(model, arrays), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # of inputs around 10
    model.graph.output.extend(saved)
    with pytest.raises(AtcError, match="saved mean and variance are read"):
        run_model(model, arrays)


# ---- optimizers ---------------------------------------------------------------------------------

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Adagrad": {"norm_coefficient": 0.125, "decay_factor": 0.25, "epsilon": 0.5},
    "Adam": {"norm_coefficient": 0.125, "norm_coefficient_post": 0.25, "alpha": 0.75,
             "beta": 0.5, "epsilon": 0.5},
    "Momentum": {"norm_coefficient": 0.125, "alpha": 0.75, "beta": 0.5, "mode": "standard"},
    "Nesterov": {"norm_coefficient": 0.125, "alpha": 0.75, "beta": 0.5, "mode": "nesterov"},
}  # fmt: skip
"""Attributes that are exact in float."""


def optimizer(name: str, dtype: Any, updates: int) -> tuple[onnx.ModelProto, list[Array]]:
    random = np.random.default_rng(3)
    kinds = 4 if name == "Adam" else 3
    op_type = "Momentum" if name == "Nesterov" else name
    shapes = [(3,), (2, 5)]
    tensors = [random.uniform(0.1, 2, s).astype(dtype) for _ in range(kinds) for s in shapes]
    inputs = [np.array(0.125, dtype), np.array(updates, np.int64), *tensors]
    names = [f"i{k}" for k in range(len(inputs))]
    results = [f"o{k}" for k in range((kinds - 1) * len(shapes))]
    node = helper.make_node(op_type, names, results, domain=PREVIEW, **ATTRIBUTES[name])
    codes = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs]
    declare = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "step",
        [declare(n, c, a.shape) for n, c, a in zip(names, codes, inputs, strict=True)],
        [declare(o, codes[0], shapes[k % 2]) for k, o in enumerate(results)],
    )  # fmt: skip
    versions = (("", 21), (PREVIEW, 1))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid(*v) for v in versions])
    return made, inputs


STEPS = {
    f"{name} {np.dtype(dtype).name} {updates}": optimizer(name, dtype, updates)
    for name in ATTRIBUTES for dtype in (np.float32, np.float64) for updates in (0, 3)
}  # fmt: skip
STEPPED = Batch({name: model for name, (model, _) in STEPS.items()})


@pytest.mark.few(8)
@pytest.mark.parametrize("name", STEPS)
def test_an_optimizers_step(name: str) -> None:
    model, inputs = STEPS[name]
    feeds = dict(zip((v.name for v in model.graph.input), inputs, strict=True))
    wanted = ReferenceEvaluator(model).run(None, feeds)
    # The reference returns Adam's results as float, whatever the type.
    tolerance = 1e-5 if "float32" in name or "Adam " in name else 1e-12
    for got, value in zip(STEPPED[name](inputs), wanted, strict=True):
        assert got.dtype == inputs[0].dtype
        np.testing.assert_allclose(got, value, rtol=tolerance)


def test_a_tensor_without_its_state_is_refused() -> None:
    model, _ = optimizer("Adagrad", np.float32, 0)
    del model.graph.node[0].input[-1:]
    with pytest.raises(AtcError, match="5 tensors"):
        compile_graph(model)
