"""onnxruntime's own quantized operators against onnxruntime.

Where onnxruntime multiplies in another order than the formula, a result may lie on the other side
of a rounding: those operators may differ by one step, in few places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, integers, noise, scales

from atc.errors import AtcError
from atc.passes import run_passes
from support import assert_close, compile_graph, node_model, run_model

MICROSOFT = "com.microsoft"


def case(
    op: str,
    *inputs: Any,
    constant: tuple[int, ...] = (),
    result: Any = np.float32,
    **attributes: Any,
) -> Case:
    return Case(op, list(inputs), constant, attributes, domain=MICROSOFT, outputs=(result,))


def point(dtype: str, scale: float, zero: int) -> tuple[np.float32, np.ndarray]:
    """Return a scale and a zero point."""
    return np.float32(scale), np.array(zero, dtype)


def _near() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for t, z in (("uint8", 110), ("int8", -7)):
        x, y = integers(t, 2, 6, 9), integers(t, 6, 1, seed=1)
        image = integers(t, 2, 5, 8, 9, seed=2)
        p, q, r = point(t, 0.05, z), point(t, 0.03, z + 9), point(t, 0.07, z - 4)
        unit = point(t, 1 / 256, 0 if t == "uint8" else -128)
        new = {
            "Add": case("QLinearAdd", x, *p, y, *q, *r, result=t),
            "Mul": case("QLinearMul", x, *p, y, *q, *r, result=t, constant=(1, 2, 4, 5, 6, 7)),
            "Sigmoid": case("QLinearSigmoid", x, *p, *unit, result=t, constant=(1, 2, 3, 4)),
            "LeakyRelu": case(
                "QLinearLeakyRelu", x, *p, *q, result=t, constant=(1, 2, 3, 4), alpha=0.2
            ),
            "Softmax": case(
                "QLinearSoftmax", x, *p, *unit, result=t, constant=(1, 2, 3, 4), axis=-1, opset=13
            ),
            "Softmax 11": case(
                "QLinearSoftmax", x, *p, *unit, result=t, constant=(1, 2, 3, 4), axis=1, opset=11
            ),
            "AveragePool": case(
                "QLinearAveragePool",
                image,
                *p,
                *q,
                result=t,
                kernel_shape=[3, 2],
                strides=[2, 1],
                pads=[1, 0, 1, 1],
            ),
            "AveragePool of whole windows": case(
                "QLinearAveragePool",
                image,
                *p,
                *q,
                result=t,
                kernel_shape=[3, 3],
                strides=[2, 3],
                ceil_mode=1,
                count_include_pad=1,
                pads=[1, 0, 0, 1],
            ),
            "AveragePool last": case(
                "QLinearAveragePool",
                image,
                *p,
                *q,
                result=t,
                kernel_shape=[2, 3],
                channels_last=1,
                count_include_pad=1,
                pads=[1, 1, 0, 0],
            ),
            "GlobalAveragePool": case("QLinearGlobalAveragePool", image, *p, *q, result=t),
            "GlobalAveragePool last": case(
                "QLinearGlobalAveragePool", image, *p, *q, result=t, channels_last=1
            ),
            "Where": case(
                "QLinearWhere", x > 3, x, *p, y, *q, *r, result=t, constant=(2, 3, 5, 6, 7, 8)
            ),
            "Concat": case(
                "QLinearConcat",
                *r,
                x,
                *p,
                x,
                *r,
                x,
                *q,
                result=t,
                axis=1,
                constant=(0, 1, 3, 4, 6, 7, 9, 10),
            ),
        }
        cases |= {f"{op} {t}": c for op, c in new.items()}
    return cases


def _exact() -> dict[str, Case]:
    a, b, bias = (
        integers("uint8", 5, 33),
        integers("int8", 7, 33, seed=1),
        integers("int16", 7, seed=2),
    )
    scale, column = np.float32(0.02), scales(7, seed=3)
    gemm = [a, scale, np.uint8(120), b, column, np.zeros(7, np.int8), bias.astype(np.int32)]
    known = tuple(range(1, 9))
    x, w = integers("uint8", 2, 7, 8, 4), integers("int8", 6, 4, 3, 3, seed=1)
    conv = [
        x,
        scale,
        np.uint8(99),
        w,
        scales(6),
        np.zeros(6, np.int8),
        np.float32(0.4),
        np.uint8(3),
    ]
    return {
        "QGemm": case(
            "QGemm", *gemm, np.float32(0.9), np.uint8(7), constant=known, result=np.uint8, transB=1
        ),
        "QGemm real": case("QGemm", *gemm, constant=known[:6], transB=1, alpha=0.5),
        "QLinearConv last": case(
            "QLinearConv", *conv, constant=known[:7], result=np.uint8, channels_last=1
        ),
    }


def _real() -> dict[str, Case]:
    a, b, bias = integers("uint8", 5, 33), integers("int8", 33, 7, seed=1), noise(7, seed=2)
    scale, column, zero = np.float32(0.02), scales(7, seed=3), integers("int8", 7, seed=4)
    x = noise(3, 5, 33)
    cases = {
        "MatMulIntegerToFloat": case(
            "MatMulIntegerToFloat",
            a,
            b,
            scale,
            column,
            np.uint8(9),
            zero,
            bias,
            constant=(1, 3, 5, 6),
        ),
        "MatMulIntegerToFloat bare": case("MatMulIntegerToFloat", a, b, scale, np.float32(0.01)),
        "DynamicQuantizeMatMul": case(
            "DynamicQuantizeMatMul", x, b, column, zero, bias, constant=(1, 2, 3, 4)
        ),
        "DynamicQuantizeMatMul bare": case("DynamicQuantizeMatMul", x, b, np.float32(0.01)),
    }
    for bits in (2, 4, 8):
        for zeros in ("none", "packed", *(["real"] if bits < 8 else [])):  # 8: not in onnxruntime
            for k in (64, 75):
                cases[f"MatMulNBits {bits} {zeros} {k}"] = _nbits(bits, zeros, k)
    for k in (64, 75):
        cases[f"MatMulNBits g_idx {k}"] = _nbits(4, "none", k, ordered=False)
    return cases


def _nbits(bits: int, zeros: str, k: int, *, ordered: bool = True) -> Case:
    n, block = 11, 16
    blocks = -(-k // block)
    packed = integers("uint8", n, blocks, block * bits // 8)
    width = -(-blocks * bits // 8)
    given = {
        "none": None,
        "packed": integers("uint8", n, width, seed=1),
        "real": noise(n, blocks, seed=1) + 3,
    }[zeros]
    groups = np.random.default_rng(k).permutation(np.arange(k) // block).astype(np.int32)
    return case(
        "MatMulNBits",
        noise(2, 3, k),
        packed,
        scales(n, blocks),
        given,
        None if ordered else groups,
        noise(n, seed=5),
        constant=(1, 2, 3) if ordered and k == 64 else () if ordered else (1, 4),
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )


NEAR, EXACT, REAL = _near(), _exact(), _real()
CASES = {**NEAR, **EXACT, **REAL}
COMPILED = compiled(CASES)


@pytest.mark.few(10)
@pytest.mark.parametrize("name", NEAR)
def test_within_one_step_of_onnxruntime(name: str) -> None:
    (got,), (expected,) = COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime()
    difference = np.abs(got.astype(int) - expected.astype(int))
    assert got.shape == expected.shape
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.05


@pytest.mark.parametrize("name", EXACT)
def test_equals_onnxruntime(name: str) -> None:
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-6)


@pytest.mark.parametrize("name", REAL)
def test_is_close_to_onnxruntime(name: str) -> None:
    got = COMPILED[name](CASES[name].feeds)
    assert_close(got, CASES[name].onnxruntime(), rtol=1e-4, atol=1e-4)


def test_mean_of_quantities() -> None:
    x = integers("uint8", 3, 4, 5)
    inputs = [x, *point("uint8", 0.05, 110), *point("uint8", 0.02, 90)]
    model = node_model("QLinearReduceMean", inputs, domain=MICROSOFT, axes=[0, 2], keepdims=0)
    mean = (x.astype(np.float64) - 110).mean((0, 2)) * 0.05
    expected = np.clip(np.rint(mean / 0.02) + 90, 0, 255).astype(np.uint8)
    assert run_model(model, inputs)[0].tolist() == expected.tolist()


def test_a_single_constant_is_computed() -> None:
    """All operands are literals then, and the node has none."""
    x = np.array([3], np.uint8)
    scale, zero = point("uint8", 0.5, 5)
    given = case("QLinearLeakyRelu", x, scale, zero, scale, zero, constant=(0, 1, 2, 3, 4),
                 result="uint8", alpha=0.5)  # fmt: skip
    (y,) = run_model(given.model, [])
    assert y.tolist() == [4]


def test_equal_scales_are_joined_as_they_are() -> None:
    x, scale = integers("uint8", 3, 4), np.float32(0.1)
    inputs = [scale, np.uint8(5), x, scale, np.uint8(5), x, scale, np.uint8(5)]
    model = node_model(
        "QLinearConcat", inputs, domain=MICROSOFT, constant=(0, 1, 3, 4, 6, 7), axis=0
    )
    assert [n.op.kind for n in run_passes(compile_graph(model)).nodes] == ["Concat"]


def test_zero_points_are_those_of_the_groups() -> None:
    """With g_idx; onnxruntime takes the middle then, whatever they are."""
    given = _nbits(4, "packed", 64, ordered=False)
    x, q, scale, zeros, groups, bias = given.inputs
    low_first = [np.stack([a & 15, a >> 4], -1).reshape(11, -1) for a in (q, zeros)]
    fields, points = (a.astype(np.float64) for a in low_first)
    weights = (fields - points[:, groups]) * scale[:, groups]
    (y,) = run_model(given.model, given.feeds)
    assert_close(y, (x @ weights.T + bias).astype(np.float32), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            case(
                "MatMulNBits",
                noise(2, 32),
                integers("uint8", 3, 2, 8),
                scales(3, 2),
                None,
                np.zeros(32, np.int32),
                constant=(1, 4),
                K=32,
                N=3,
                bits=4,
                block_size=16,
            ),
            "g_idx of groups that aren't 16 columns",
        ),
        (
            case(
                "MatMulNBits",
                noise(2, 33),
                integers("uint8", 3, 2, 8),
                scales(3, 2),
                K=32,
                N=3,
                bits=4,
                block_size=16,
            ),
            "K is 32",
        ),
        (
            case(
                "QLinearAdd",
                integers("uint8", 3),
                scales(3),
                np.uint8(1),
                integers("uint8", 3),
                np.float32(1),
                np.uint8(0),
                np.float32(1),
                np.uint8(0),
            ),
            "not one number",
        ),
    ],
)
def test_limits_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)
