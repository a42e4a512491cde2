"""Layers as torch's exporters, tf2onnx and paddle2onnx write them, for where none is installed."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from fuzz.compare import Case, check, run_onnxruntime, run_reference
from onnx import numpy_helper

HEADER = '<ir_version: 9, opset_import: ["" : 18]>'

FORMS = {
    "TorchScript's GroupNorm": (
        """(float[2,6,5,4] x) => (float[2,6,5,4] y) {
            rows = Constant<value = int64[3] {0, 3, -1}>()
            flat = Reshape(x, rows)
            ones = Constant<value = float[3] {1.0, 1.0, 1.0}>()
            zeros = Constant<value = float[3] {0.0, 0.0, 0.0}>()
            same = InstanceNormalization<epsilon = 0.00001>(flat, ones, zeros)
            shape = Shape(x)
            back = Reshape(same, shape)
            scaled = Mul(back, w)
            y = Add(scaled, b)
        }""",
        {"w": (6, 1, 1), "b": (6, 1, 1)},
    ),
    "TorchScript's attention for any batch": (
        """(float[2,7,8] x) => (float[2,7,8] y) {
            all = Shape(x)
            zero = Constant<value = int64 {0}>()
            n = Gather<axis = 0>(all, zero)
            axis = Constant<value = int64[1] {0}>()
            first = Unsqueeze(n, axis)
            rest = Constant<value = int64[4] {7, 3, 2, 4}>()
            heads = Concat<axis = 0>(first, rest)
            product = MatMul(x, w)
            qkv = Reshape(product, heads)
            transposed = Transpose<perm = [2, 0, 3, 1, 4]>(qkv)
            i0 = Constant<value = int64 {0}>()
            i1 = Constant<value = int64 {1}>()
            i2 = Constant<value = int64 {2}>()
            q = Gather<axis = 0>(transposed, i0)
            k = Gather<axis = 0>(transposed, i1)
            v = Gather<axis = 0>(transposed, i2)
            kt = Transpose<perm = [0, 1, 3, 2]>(k)
            root = Constant<value = float {0.70710678}>()
            qs = Mul(q, root)
            ks = Mul(kt, root)
            score = MatMul(qs, ks)
            share = Softmax<axis = -1>(score)
            mixed = MatMul(share, v)
            apart = Transpose<perm = [0, 2, 1, 3]>(mixed)
            last = Constant<value = int64[2] {7, 8}>()
            wanted = Concat<axis = 0>(first, last)
            y = Reshape(apart, wanted)
        }""",
        {"w": (8, 24)},
    ),
    "TorchScript's LSTM with the batch first": (
        """(float[2,5,3] x) => (float[2,5,8] y) {
            all = Shape(x)
            zero = Constant<value = int64[1] {0}>()
            n = Gather<axis = 0>(all, zero)
            two = Constant<value = int64[1] {2}>()
            four = Constant<value = int64[1] {4}>()
            states = Concat<axis = 0>(two, n, four)
            start = ConstantOfShape<value = float[1] {0.0}>(states)
            transposed = Transpose<perm = [1, 0, 2]>(x)
            out, h, c = LSTM<direction = "bidirectional", hidden_size = 4>(
                transposed, w, r, b, , start, start)
            apart = Transpose<perm = [0, 2, 1, 3]>(out)
            shape = Constant<value = int64[3] {0, 0, -1}>()
            joined = Reshape(apart, shape)
            y = Transpose<perm = [1, 0, 2]>(joined)
        }""",
        {"w": (2, 16, 3), "r": (2, 16, 4), "b": (2, 32)},
    ),
    "dynamo's reading at indices, masked": (
        """(float[1,3,5,4] x) => (float[1,3,6,2] y) {
            last = Transpose<perm = [2, 3, 0, 1]>(x)
            i = Constant<value = int64[6,1,1] {0, 0, 1, 2, 3, 4}>()
            j = Constant<value = int64[1,2,1] {1, 3}>()
            shape = Constant<value = int64[3] {6, 2, 1}>()
            rows = Expand(i, shape)
            columns = Expand(j, shape)
            places = Concat<axis = -1>(rows, columns)
            read = GatherND<batch_dims = 0>(last, places)
            first = Transpose<perm = [2, 3, 0, 1]>(read)
            limit = Constant<value = int64 {4}>()
            beyond = GreaterOrEqual(i, limit)
            axis = Constant<value = int64[1] {2}>()
            flat = Squeeze(beyond, axis)
            none = Constant<value = float {0.0}>()
            y = Where(flat, none, first)
        }""",
        {},
    ),
    "tf2onnx's Conv1D of channels last, with Gelu": (
        """(float[2,9,3] x) => (float[2,5,4] y) {
            axis = Constant<value = int64[1] {1}>()
            image = Unsqueeze(x, axis)
            first = Transpose<perm = [0, 3, 1, 2]>(image)
            made = Conv<pads = [0, 1, 0, 1], strides = [1, 2], kernel_shape = [1, 3]>(first, w, b)
            last = Transpose<perm = [0, 2, 3, 1]>(made)
            rows = Squeeze(last, axis)
            root = Constant<value = float {1.41421356}>()
            scaled = Div(rows, root)
            erf = Erf(scaled)
            one = Constant<value = float {1.0}>()
            more = Add(erf, one)
            half = Constant<value = float {0.5}>()
            part = Mul(half, rows)
            y = Mul(part, more)
        }""",
        {"w": (4, 3, 1, 3), "b": (4,)},
    ),
    "paddle2onnx's squeeze and excitation": (
        """(float[1,4,6,5] x) => (float[1,4,6,5] y) {
            mean = GlobalAveragePool(x)
            down = Conv<kernel_shape = [1, 1]>(mean, w)
            wide = Constant<value = int64[4] {1, -1, 1, 1}>()
            bias = Reshape(b, wide)
            more = Add(down, bias)
            short = Relu(more)
            up = Conv<kernel_shape = [1, 1]>(short, v)
            gate = HardSigmoid<alpha = 0.2, beta = 0.5>(up)
            y = Mul(x, gate)
        }""",
        {"w": (2, 4, 1, 1), "b": (2,), "v": (4, 2, 1, 1)},
    ),
}
"""By their names: the graph, and the shapes of its weights."""


@pytest.fixture(scope="module")
def wrong() -> dict[str, str]:
    """Return what is wrong with each of the forms that fail, compiled together."""
    return {f.case.name: f.reason for f in check([form(name) for name in FORMS])}


def form(name: str) -> Case:
    text, weights = FORMS[name]
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(f"{HEADER} net {text}")
    for label, shape in weights.items():
        values = (rng.standard_normal(shape) * 0.4).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, label))
    (x,) = model.graph.input
    extents = [d.dim_value for d in x.type.tensor_type.shape.dim]
    case = Case(name, model, {"x": rng.standard_normal(extents).astype(np.float32)})
    assert (run_reference(case) or run_onnxruntime(case)) is not None  # there is a truth
    return case


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_an_exporter_writes(name: str, wrong: dict[str, str]) -> None:
    assert name not in wrong, wrong[name]
