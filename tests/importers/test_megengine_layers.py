"""Pooling, normalisation, products and attention of MegEngine dumps against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Const, Quant, build, check, load
from importers.megengine_numpy import normalized, padded, softmax, windows
from importers.megengine_truth import half_away
from importers.megengine_writer import write_v2

from atc.errors import AtcError
from atc.importers.megengine.types import DType

RNG = np.random.default_rng(8)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


IMAGE = normal(2, 4, 9, 8)
S8, U8 = DType("QuantizedS8", 0.0217), DType("Quantized8Asymm", 0.0217, 131)
W8 = DType("QuantizedS8", 0.0113)


def stored(dtype: DType, *shape: int) -> np.ndarray:
    low, high = dtype.limits
    return RNG.integers(low, high + 1, shape).astype(dtype.numpy)


def pool(mode: str, kernel, strides, pads):  # type: ignore[no-untyped-def]
    """Return the pooling of a mode in numpy."""

    def apply(x: np.ndarray) -> np.ndarray:
        fill = -np.inf if mode == "MAX" else 0.0
        found = windows(padded(x.astype(np.float64), pads, fill), kernel, strides, (1, 1))
        if mode == "MAX":
            return found.max((-1, -2))
        if mode == "AVERAGE":
            return found.mean((-1, -2))
        counts = windows(padded(np.ones_like(x, np.float64), pads), kernel, strides, (1, 1))
        return found.sum((-1, -2)) / counts.sum((-1, -2))

    return apply


MODES = ("MAX", "AVERAGE", "AVERAGE_COUNT_EXCLUDE_PADDING")
POOLS = {
    "defaults": ({}, ((2, 2), (2, 2), (0, 0))),
    "padded": (
        {"window_h": 3, "window_w": 4, "stride_w": 1, "pad_h": 1, "pad_w": 2},
        ((3, 4), (2, 1), (1, 2)),
    ),
    "whole": ({"window_h": 9, "window_w": 8}, ((9, 8), (2, 2), (0, 0))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", sorted(POOLS))
def test_pooling(label: str, mode: str, tmp_path: Path) -> None:
    params, arguments = POOLS[label]
    check(
        Case("Pooling", [IMAGE], {"Pooling": {**params, "mode": mode}}, pool(mode, *arguments)),
        tmp_path,
    )


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("size", [(1, 1), (4, 3), (9, 8), (5, 8)])
def test_adaptive_pooling(size: tuple[int, int], mode: str, tmp_path: Path) -> None:
    strides = [n // s for n, s in zip((9, 8), size, strict=True)]
    kernel = [n - (s - 1) * t for n, s, t in zip((9, 8), size, strides, strict=True)]
    target = Const(np.array(size, np.int32))
    truth = pool(mode, kernel, strides, (0, 0))
    params = {"AdaptivePooling": {"mode": mode}}
    check(Case("AdaptivePooling", [IMAGE, target], params, lambda x, _: truth(x)), tmp_path)


@pytest.mark.parametrize("dtype", [S8, U8], ids=["s8", "u8"])
@pytest.mark.parametrize("mode", MODES)
def test_quantized_pooling(mode: str, dtype: DType, tmp_path: Path) -> None:
    x = stored(dtype, 1, 2, 6, 6)
    averaged = pool(mode, (2, 2), (2, 2), (0, 0))(x.astype(np.float64) - dtype.zero_point)
    truth = half_away(averaged) + dtype.zero_point
    case = Case(
        "Pooling", [Quant(x, dtype)], {"Pooling": {"mode": mode}}, lambda _: truth, tolerance=0
    )
    check(case, tmp_path)


def test_roi_align_averages_samples(tmp_path: Path) -> None:
    ramp = np.arange(8 * 8, dtype=np.float32).reshape(1, 1, 8, 8)
    rois = np.array([[0, 2, 2, 6, 6]], np.float32)
    params = {"mode": "AVERAGE", "offset": 0.5, "pooled_height": 2, "pooled_width": 2}
    truth = np.array([[[[2.5 * 8 + 2.5, 2.5 * 8 + 4.5], [4.5 * 8 + 2.5, 4.5 * 8 + 4.5]]]])
    case = Case("ROIAlign", [ramp, rois], {"ROIAlign": params}, lambda *_: (truth, None))
    check(case, tmp_path)


def test_roi_pooling_takes_the_maximum(tmp_path: Path) -> None:
    ramp = np.arange(8 * 8, dtype=np.float32).reshape(1, 1, 8, 8)
    inputs = [ramp, np.array([[0, 1, 1, 4, 4]], np.float32), Const(np.array([2, 2], np.int32))]
    truth = np.array([[[[18, 20], [34, 36]]]], np.float32)
    check(Case("ROIPooling", inputs, {"ROIPooling": {}}, lambda *_: (truth, None)), tmp_path)


def batch_norm(x, scale, bias, mean, variance):  # type: ignore[no-untyped-def]
    y = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-3) * scale + bias
    return None, None, None, y


def statistics(*shape: int) -> list[Const]:
    return [
        Const(a)
        for a in (normal(*shape), normal(*shape), normal(*shape), np.abs(normal(*shape)) + 0.5)
    ]


INFER = {"fwd_mode": "INFERENCE", "epsilon": 1e-3}
V = lambda n: normal(n)  # noqa: E731
NORMS = [
    Case(
        "BatchNorm",
        [IMAGE, *statistics(1, 4, 1, 1)],
        {"BN": {**INFER, "param_dim": "DIM_1C11"}},
        batch_norm,
    ),
    Case(
        "BatchNorm",
        [IMAGE, *statistics(1, 1, 1, 8)],
        {"BN": {**INFER, "param_dim": "DIM_111C"}},
        batch_norm,
        "last",
    ),
    Case("BatchNorm", [IMAGE, *statistics(1, 1, 9, 8)], {"BN": INFER}, batch_norm, "11HW"),
    Case(
        "LayerNorm",
        [IMAGE, Const(V(8)), Const(V(8))],
        {"LayerNorm": {"normalized_dim": 1}},
        lambda x, w, b: (normalized(x, (3,), 1e-5) * w + b, None, None),
    ),
    Case(
        "LayerNorm",
        [IMAGE],
        {"LayerNorm": {"affine": False, "eps": 1e-2, "normalized_dim": 2}},
        lambda x: (normalized(x, (2, 3), 1e-2), None, None),
        "plain",
    ),
    Case(
        "GroupNorm",
        [IMAGE, Const(V(4)), Const(V(4))],
        {"GroupNorm": {"group": 2}},
        lambda x, w, b: (
            normalized(x.reshape(2, 2, -1), (2,), 1e-5).reshape(x.shape) * w[:, None, None]
            + b[:, None, None],
            None,
            None,
        ),
    ),
    Case(
        "GroupNorm",
        [IMAGE],
        {"GroupNorm": {"group": 4, "affine": False}},
        lambda x: (normalized(x, (2, 3), 1e-5), None, None),
        "plain",
    ),
    Case(
        "InstanceNorm",
        [IMAGE, Const(V(4)), Const(V(4))],
        {"GroupNorm": {"eps": 1e-3}},
        lambda x, w, b: (
            normalized(x, (2, 3), 1e-3) * w[:, None, None] + b[:, None, None],
            None,
            None,
        ),
    ),
    Case(
        "GeneralNorm",
        [IMAGE, Const(normal(4, 9)), Const(normal(4, 9))],
        {"GeneralNorm": {"axis_start": 1, "axis_end": 3}},
        lambda x, w, b: (normalized(x, (1, 2), 1e-5) * w[..., None] + b[..., None], None, None),
    ),
    Case(
        "GeneralNorm",
        [IMAGE],
        {"GeneralNorm": {"axis_start": 2, "axis_end": 4, "affine": False}},
        lambda x: (normalized(x, (2, 3), 1e-5), None, None),
        "end",
    ),
    Case(
        "LRN",
        [IMAGE],
        {"LRN": {"n": 3, "k": 1.5, "alpha": 0.2, "beta": 0.6}},
        lambda x: (
            x
            / (
                1.5
                + 0.2
                * sum(
                    np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))[
                        :, i : i + 4
                    ]
                    for i in range(3)
                )
            )
            ** 0.6
        ),
    ),
    *(
        Case("Softmax", [IMAGE], {"Softmax": {"axis": a}}, lambda x, a=a: softmax(x, a), str(a))
        for a in (-1, 1, 0)
    ),
]


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_normalization(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_batch_norm_in_training_is_refused(tmp_path: Path) -> None:
    dump, _, _ = build(Case("BatchNorm", [IMAGE, *statistics(1, 4, 1, 1)], {"BN": {}}, batch_norm))
    with pytest.raises(AtcError, match=r"training mode.*net\.mge: node .*BatchNorm.*eval\(\)"):
        load(write_v2(dump), tmp_path)


def transposed(a: np.ndarray, flag: bool) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(a, -1, -2)) if flag else a


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("kind", ["MatrixMul", "BatchedMatrixMul"])
def test_matrix_product(kind: str, flags: tuple[int, int], tmp_path: Path) -> None:
    lead = () if kind == "MatrixMul" else (3,)
    a, b = normal(*lead, 5, 7), normal(*lead, 7, 4)
    params = {"MatrixMul": {"transposeA": bool(flags[0]), "transposeB": bool(flags[1])}}
    case = Case(
        kind, [transposed(a, bool(flags[0])), transposed(b, bool(flags[1]))], params,
        lambda *_: a @ b,
    )  # fmt: skip
    check(case, tmp_path)


@pytest.mark.parametrize("kind", ["MatrixMul", "BatchedMatrixMul"])
def test_integer_matrix_product(kind: str, tmp_path: Path) -> None:
    lead = () if kind == "MatrixMul" else (2,)
    a, b = stored(S8, *lead, 5, 7), stored(S8, *lead, 7, 4)
    truth = lambda x, y: x.astype(np.int64) @ y.astype(np.int64)  # noqa: E731
    check(Case(kind, [a, b], {"MatrixMul": {}}, truth, tolerance=0), tmp_path)
    check(Case(kind, [Quant(a, S8), Const(b, W8)], {"MatrixMul": {}}, truth, tolerance=0), tmp_path)


def test_dot_has_one_element(tmp_path: Path) -> None:
    check(
        Case("Dot", [normal(9), normal(9)], {"Empty": {}}, lambda x, y: np.array([x @ y])), tmp_path
    )


def attention_truth(q, k, v, packed, mask=None):  # type: ignore[no-untyped-def]
    """Four heads of two features; query, key, value and output projections, then their biases."""
    sizes = [(q.shape[2], 8), (k.shape[2], 8), (v.shape[2], 8), (8, 8), (8,), (8,), (8,), (8,)]
    ends = np.cumsum([0, *(int(np.prod(s)) for s in sizes)])
    flat = packed.ravel().astype(np.float64)
    wq, wk, wv, wo, bq, bk, bv, bo = (
        flat[i:j].reshape(s) for i, j, s in zip(ends, ends[1:], sizes, strict=False)
    )
    split = lambda x: x.reshape(*x.shape[:2], 4, 2).transpose(0, 2, 1, 3)  # noqa: E731
    heads = [split(x @ w + b) for x, w, b in ((q, wq, bq), (k, wk, bk), (v, wv, bv))]
    scores = heads[0] @ heads[1].swapaxes(2, 3) * 0.7
    weights = softmax(scores if mask is None else scores + mask.reshape(-1, *mask.shape[-3:]), -1)
    joined = (weights @ heads[2]).transpose(0, 2, 1, 3).reshape(*q.shape[:2], 8)
    return joined @ wo + bo, weights.reshape(-1, *weights.shape[2:]), None, None


ATTENTION = {
    "num_heads": 4,
    "embeding_size": 8,
    "k_size": 6,
    "v_size": 5,
    "qproj_size": 8,
    "kproj_size": 8,
    "vproj_size": 8,
    "oproj_size": 8,
    "qbias": True,
    "kbias": True,
    "vbias": True,
    "obias": True,
    "sm_scaler": 0.7,
    "training": False,
}
QKV = [normal(2, 3, 8), normal(2, 5, 6), normal(2, 5, 5)]
PACKED = Const(normal(1, 8 * (8 + 6 + 5 + 8) + 32))


def test_attention(tmp_path: Path) -> None:
    check(
        Case("MultiHeadAttn", [*QKV, PACKED], {"MultiHeadAttn": ATTENTION}, attention_truth),
        tmp_path,
    )


@pytest.mark.parametrize("shape", [(3, 5), (8, 3, 5)])
def test_attention_with_a_mask(shape: tuple[int, ...], tmp_path: Path) -> None:
    params = {**ATTENTION, "attn_mask_type": 3, "tensor_combination_type": 1}
    mask = normal(*shape)
    full = np.broadcast_to(mask, (2, 4, 3, 5)) if len(shape) == 2 else mask.reshape(2, 4, 3, 5)
    truth = lambda *xs: attention_truth(*xs[:4], full)  # noqa: E731
    check(Case("MultiHeadAttn", [*QKV, PACKED, mask], {"MultiHeadAttn": params}, truth), tmp_path)


def test_causal_attention(tmp_path: Path) -> None:
    params = {**ATTENTION, "attn_mask_type": 1}
    future = np.triu(np.full((3, 5), -np.inf), 1)
    truth = lambda *xs: attention_truth(*xs, np.broadcast_to(future, (2, 4, 3, 5)))  # noqa: E731
    check(Case("MultiHeadAttn", [*QKV, PACKED], {"MultiHeadAttn": params}, truth), tmp_path)
