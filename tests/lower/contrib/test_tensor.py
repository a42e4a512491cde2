"""onnxruntime's own operators on tensors against onnxruntime, or numpy for those of GPUs only."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, integers, noise

from atc.errors import AtcError
from atc.onnx_backend import AtcBackendRep
from support import assert_close, run_model

I8, U8, I32, I64, U32, F32 = np.int8, np.uint8, np.int32, np.int64, np.uint32, np.float32
MICROSOFT = "com.microsoft"


def case(
    op: str,
    *inputs: Any,
    outputs: tuple[Any, ...] = (F32,),
    fixed: tuple[int, ...] = (),
    **given: Any,
) -> Case:
    """Return a node; the inputs `fixed` are constants."""
    return Case(op, list(inputs), fixed, given, domain=MICROSOFT, outputs=outputs)


def _moved() -> dict[str, Case]:
    x, axis = noise(2, 3, 4), np.array(-1, I32)
    pads = np.array([0, 1, 0, 0, 0, 2], I64)
    image, grid = noise(1, 2, 4, 5), noise(1, 3, 3, 2, seed=2)
    small = np.random.default_rng(0).integers(-300, 300, (2, 3, 4)).astype(np.int16)
    return {
        "ExpandDims": case("ExpandDims", x, axis, fixed=(1,)),
        "Range": case("Range", F32(1), np.array([7.5], F32), fixed=(0, 1)),
        "Range down": case("Range", *map(I64, (9, 1, -2)), fixed=(0, 1, 2), outputs=(I64,)),
        "Pad": case("Pad", x, pads, np.array([1.5], F32), fixed=(1, 2)),
        "Pad reflect": case("Pad", x, pads, fixed=(1,), mode="reflect"),
        "GatherND": case("GatherND", x, np.array([[0, 2], [1, -1]], I64)),
        "GridSample": case("GridSample", image, grid, align_corners=1),
        "NhwcMaxPool": case("NhwcMaxPool", integers("int8", 1, 6, 6, 3), kernel_shape=[3, 3],
                            pads=[1, 1, 1, 1], outputs=(I8,)),
        "ConvTransposeWithDynamicPads": case(
            "ConvTransposeWithDynamicPads", noise(1, 2, 4, 4), noise(2, 3, 3, 3),
            np.array([1, 1, 0, 1], I64), strides=[2, 2], fixed=(1, 2)),
        "UnfoldTensor": case("UnfoldTensor", noise(2, 7, 3), size=3, step=2, dim=1),
        "CDist": case("CDist", noise(5, 3), noise(4, 3, seed=1), metric="euclidean"),
        "CDist squared": case("CDist", noise(5, 3), noise(4, 3, seed=1)),
        "MatMulInteger16": case("MatMulInteger16", small[:, :, 0], small[0], outputs=(I32,)),
        **{f"GatedRMSNorm {kind}": case("GatedRMSNorm", noise(2, 3, 8), noise(4, seed=1),
                                        noise(2, 3, 8, seed=2), activation=kind)
           for kind in ("silu", "sigmoid")},
        "GatedAdd": case("GatedAdd", noise(2, 3, 8), noise(2, 3, 8, seed=1), noise(2, 3, 1)),
        "ScaledSiLU": case("ScaledSiLU", noise(2, 8), alpha=1.5),
        "ScaledSiLU by an input": case("ScaledSiLU", noise(2, 8), np.float32(0.5)),
    }  # fmt: skip


def _placed() -> dict[str, Case]:
    ids, scores = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]], I64), noise(2, 6)
    rows: Any = [[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.2, 0.5, 1.3, 0.8], [0.9, 0.1, 0.2, 0.6]]
    boxes, which, images = np.array(rows, F32), np.array([0, 1, 1, 0], I32), noise(2, 3, 5, 7)
    numbers = np.array([3, 4, -7])
    return {
        **{f"NGramRepeatBlock {n}": case("NGramRepeatBlock", ids, scores, ngram_size=n)
           for n in (1, 3, 9)},
        **{f"CropAndResize {m} {s[0]}": case("CropAndResize", images, boxes, which,
                                             np.array(s, I32), fixed=(3,), mode=m,
                                             extrapolation_value=-2.5)
           for m in ("bilinear", "nearest") for s in ((4, 6), (1, 2))},
        "MurmurHash3": case("MurmurHash3", numbers.astype(I32), outputs=(U32,)),
        "MurmurHash3 signed": case("MurmurHash3", numbers, positive=0, seed=5, outputs=(I32,)),
        "MurmurHash3 double": case("MurmurHash3", numbers + 0.5, outputs=(U32,)),
    }  # fmt: skip


CASES = {**_moved(), **_placed()}
COMPILED = compiled(CASES)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-4, atol=1e-5)


def test_unique_keeps_the_order() -> None:
    x = np.array([3, 1, 3, 2, 1], F32)
    model = case("Unique", x, outputs=(F32, I64, I64)).model
    outputs = AtcBackendRep(model, "c99", "O0").run([x])
    assert [o.tolist() for o in outputs] == [[3, 1, 2], [0, 1, 0, 2, 1], [2, 2, 1]]


# ---- operators of GPUs: the reference is numpy ---------------------------------------------------


def gelu(x: Any) -> Any:
    """Return the exact Gelu."""
    return (x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2).astype(F32)


def grouped(x: Any, gamma: Any, beta: Any, groups: int, silu: bool) -> Any:
    """Return group normalization of [batch, height, width, channels]."""
    apart = x.reshape(*x.shape[:3], groups, -1)
    mean, deviation = (f(apart, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.std))
    y = ((apart - mean) / np.sqrt(deviation**2 + 1e-5)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y)) if silu else y


def _alone() -> dict[str, tuple[Case, Callable[[], list[Any]]]]:
    x, w, bias = noise(2, 3, 8), noise(8, 4, seed=1), noise(8, seed=2)
    a, b = noise(2, 3, 2), noise(3, 2, seed=1)
    p, q = (v[..., 0] + 1j * v[..., 1] for v in (a, b))
    image, gamma, beta = noise(2, 3, 2, 8), noise(8, seed=1), noise(8, seed=2)
    skip, offset, bytes_ = noise(2, 8, seed=3), noise(8, seed=4), integers("int8", 2, 5)
    total = image + skip[:, None, None] + offset
    zeros = I8(3), I8(-2)

    def split(z: Any) -> list[Any]:
        return [np.stack([z.real, z.imag], -1).astype(F32)]

    def fast(v: Any) -> Any:
        return v / (1 + np.exp(-1.5957691216057308 * (v + 0.044715 * v**3)))

    table, wild = noise(9, 4), np.array([1, np.inf], F32)
    return {
        "BiasSplitGelu": (case("BiasSplitGelu", x, bias),
                          lambda: [(x + bias)[..., :4] * gelu((x + bias)[..., 4:])]),
        "GemmFastGelu": (case("GemmFastGelu", x, w, bias[:4]), lambda: [fast(x @ w + bias[:4])]),
        "ComplexMul": (case("ComplexMul", a, b), lambda: split(p * q)),
        "ComplexMulConj": (case("ComplexMulConj", a, b), lambda: split(p * q.conj())),
        "GroupNorm": (case("GroupNorm", image, gamma, beta, groups=4, activation=1),
                      lambda: [grouped(image, gamma, beta, 4, True)]),
        "SkipGroupNorm": (case("SkipGroupNorm", image, gamma, beta, skip, offset, groups=2,
                               activation=0, outputs=(F32, F32)),
                          lambda: [grouped(total, gamma, beta, 2, False), total]),
        "MulInteger": (case("MulInteger", bytes_, zeros[0], bytes_[:1], zeros[1], outputs=(I32,)),
                       lambda: [(bytes_.astype(I32) - 3) * (bytes_[:1].astype(I32) + 2)]),
        "ReduceSumInteger": (case("ReduceSumInteger", bytes_, axes=[1], keepdims=0, outputs=(I32,)),
                             lambda: [bytes_.sum(1, dtype=I32)]),
        "TorchEmbedding": (case("TorchEmbedding", table, np.array([[3, 0]])),
                           lambda: [table[[[3, 0]]]]),
        "IsAllFinite": (case("IsAllFinite", x, wild, outputs=(bool,)), lambda: [np.array(False)]),
        "IsAllFinite isnan_only": (case("IsAllFinite", x, wild, isnan_only=1, outputs=(bool,)),
                                   lambda: [np.array(True)]),
        "RelativePositionBias": (_relative(True), lambda: [_relative_bias(True)]),
        "RelativePositionBias ahead": (_relative(False), lambda: [_relative_bias(False)]),
        "GatedRelativePositionBias": (_gated(), _gated_bias),
    }  # fmt: skip


TABLE = noise(8, 3, seed=7)
GATED = [noise(2, 4, 6), noise(6, seed=1), noise(1, 2, 4, 4, seed=2), noise(3, 8, seed=3),
         noise(8, seed=4), noise(1, 2, 1, 1, seed=5)]  # fmt: skip


def _relative(both: bool) -> Case:
    ends = [np.array([n], I64) for n in (6, 6)]
    return case("RelativePositionBias", TABLE, *ends, fixed=(1, 2), max_distance=5,
                is_bidirectional=int(both))  # fmt: skip


def _relative_bias(both: bool) -> Any:
    """Return what transformers' T5 computes."""
    table, result = TABLE.reshape(3, 8), np.empty((1, 3, 6, 6), F32)
    for query in range(6):
        for key in range(6):
            buckets, distance, first = 8, query - key, 0
            if both:
                buckets, first, distance = 4, 4 * (key > query), abs(distance)
            distance, exact = max(distance, 0), buckets // 2
            if distance >= exact:
                far = np.log(distance / exact) / np.log(5 / exact) * (buckets - exact)
                distance = min(exact + int(far), buckets - 1)
            result[0, :, query, key] = table[:, first + distance]
    return result


def _gated() -> Case:
    return case("GatedRelativePositionBias", *GATED, num_heads=2)


def _gated_bias() -> list[Any]:
    query, bias, relative, w, c, eco = GATED
    heads = (query + bias).reshape(2, 4, 2, 3).transpose(0, 2, 1, 3)
    sums = (heads @ w + c).reshape(2, 2, 4, 2, 4).sum(-1)
    u, r = np.split(1 / (1 + np.exp(-sums)), 2, -1)
    return [(u * (r * eco - 1) + 2) * relative]


ALONE = _alone()
ALONE_COMPILED = compiled({name: pair[0] for name, pair in ALONE.items()})


@pytest.mark.parametrize("name", ALONE)
def test_equals_numpy(name: str) -> None:
    given, expected = ALONE[name]
    assert_close(ALONE_COMPILED[name](given.feeds), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (case("UnfoldTensor", noise(2, 3), size=4), r"windows of 4 in \[2, 3\]"),
        (case("MurmurHash3", integers("int8", 3), outputs=(U32,)), "only numbers of 4 and 8 bytes"),
        (case("ComplexMul", noise(2, 3), noise(2, 3)), "holds no complex numbers"),
        (case("CDist", noise(2, 3), noise(2, 3), metric="cosine"), "metric is 'cosine'"),
    ],
)
def test_mistakes_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)
