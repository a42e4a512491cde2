"""onnxruntime's own operators on quantized tables and weights, and its experts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ort_cases import Case, compiled, integers, noise, scales

from atc.errors import AtcError
from support import assert_close, run_model

I8, U8, I32, I64, F32 = np.int8, np.uint8, np.int32, np.int64, np.float32


def case(
    op: str,
    *inputs: Any,
    outputs: tuple[Any, ...] = (F32,),
    fixed: tuple[int, ...] = (),
    **given: Any,
) -> Case:
    """Return a node; the inputs `fixed` are constants."""
    return Case(op, list(inputs), fixed, given, domain="com.microsoft", outputs=outputs)


def _tables() -> dict[str, Case]:
    where, scale = np.array([[3, 0], [19, -1]], I64), scales(20, 4)
    small = np.random.default_rng(0).integers(0, 8, (20, 64))
    packed, points = integers("uint8", 20, 32), integers("uint8", 20, 2)
    op, rows = "GatherBlockQuantized", {"block_size": 16, "quantize_axis": 1}
    whole, tables = integers("uint8", 20, 64), integers("uint8", 9, 8)
    ids, kinds = np.array([[1, 5, 2], [8, 0, 3]], I32), np.array([[0, 1, 1], [0, 0, 1]], I32)
    mask = np.array([[1, 1, 0], [1, 1, 1]], I32)
    embedding = [ids, kinds, tables, tables[:6], tables[:2], tables[2], tables[3], mask]
    embedding += [F32(v) for v in (0.02, 0.03, 0.01, 0.02, 0.04)]
    embedding += [U8(v) for v in (100, 120, 130, 140, 150)]
    bare = [None if k in (1, 4, 7, 10, 15) else v for k, v in enumerate(embedding)]
    both = (F32, I32)
    return {
        f"{op} nibbles": case(op, packed, where, scale, fixed=(0, 2), bits=4, **rows),
        f"{op} zeros": case(op, packed, where, scale, points, fixed=(0, 2, 3), bits=4, **rows),
        f"{op} bytes": case(op, whole, where, scale, whole[:, :4], fixed=(0, 2, 3), bits=8, **rows),
        **{f"{op} {t.__name__}": case(op, small.astype(t), where, scale, fixed=(0, 2), **rows)
           for t in (ml_dtypes.int4, ml_dtypes.uint4)},
        f"{op} columns": case(op, small.T.astype(ml_dtypes.int4), where[0], scale.T.copy(),
                              fixed=(0, 2), block_size=16, quantize_axis=0, gather_axis=1),
        "QEmbedLayerNormalization": case("QEmbedLayerNormalization", *embedding, outputs=both),
        "QEmbedLayerNormalization bare": case("QEmbedLayerNormalization", *bare, outputs=both),
        **{f"MatMulBnb4 {kind}": case("MatMulBnb4", noise(3, 32), integers("uint8", 96), scales(12),
                                      fixed=(1, 2), K=32, N=6, block_size=16, quant_type=kind)
           for kind in (0, 1)},
    }  # fmt: skip


def quantized(weight: str, *rest: Any, outputs: tuple[Any, ...] = (F32,), **given: Any) -> Case:
    """Return QAttention of two heads of 4.

    Weights are of 7 bits: onnxruntime's sums of pairs saturate on CPUs without VNNI.
    """
    x, w = integers("uint8", 2, 3, 8), integers(weight, 8, 24) // 2
    one, zero = F32(0.02), np.dtype(weight).type(3)
    inputs = [x, w, noise(24), one, F32(0.01), *rest[:1], U8(120), zero, *rest[1:]]
    return case("QAttention", *inputs, fixed=(1, 3, 4, 6, 7), outputs=outputs, num_heads=2, **given)


def _attention() -> dict[str, Case]:
    two = (F32, F32)
    three = (F32, F32, F32)
    q, k, v = (noise(2, 1, 8, seed=s) for s in range(3))
    past = noise(2, 2, 5, 4, seed=3), noise(2, 2, 5, 4, seed=4)
    held, bias = np.array([3], I32), noise(1, 2, 1, 4)
    mask, op = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], I32), "DecoderMaskedMultiHeadAttention"
    shared = {"num_heads": 2, "past_present_share_buffer": 1}
    return {
        "QAttention": quantized("int8", None),
        "QAttention unidirectional": quantized("uint8", np.array([2, 3], I32), unidirectional=1),
        "QAttention mask": quantized("int8", np.array([[1, 1, 0], [1, 1, 1]], I32)),
        "QAttention past": quantized("int8", None, noise(2, 2, 2, 4, 4), outputs=two),
        op: case(op, q, k, v, None, None, *past, held, outputs=three, **shared),
        f"{op} masked": case(op, q, k, v, mask, bias, *past, held, None, None, noise(24),
                             outputs=three, **shared),
        f"{op} cross": case(op, q, *past, num_heads=2),
        **{f"MRotaryEmbedding {kind}": case(
            "MRotaryEmbedding", noise(2, 3, 16), np.arange(18).reshape(3, 2, 3) % 9, noise(9, 4),
            noise(9, 4, seed=1), mrope_section=[2, 1, 1], num_heads=2, mrope_layout=kind)
           for kind in (0, 1)},
    }  # fmt: skip


def experts(hidden: int = 12, **given: Any) -> Case:
    """Return MoE of four experts on five rows of 8."""
    weights = [noise(4, hidden, 8, seed=2), noise(4, hidden, seed=3)]
    inner = hidden // 2 if given.get("activation_type") == "swiglu" else hidden
    weights += [noise(4, 8, inner, seed=4), noise(4, 8, seed=5)]
    return case("MoE", noise(5, 8), noise(5, 4, seed=1), *weights, **given)


def quantized_experts(bits: int, block: int, kind: str) -> Case:
    """Return QMoE of four experts on five rows of 32."""
    wide, inner = 32, 64
    tails = [(wide // block,), (inner // block,)] if block else [(), ()]
    first = [integers("uint8", 4, inner, wide * bits // 8), scales(4, inner, *tails[0])]
    second = [integers("uint8", 4, wide, inner * bits // 8), scales(4, wide, *tails[1])]
    inputs = [noise(5, wide), noise(5, 4, seed=1), *first, noise(4, inner), *second, noise(4, wide)]
    given: dict[str, Any] = {"block_size": block} if block else {}
    return case("QMoE", *inputs, fixed=(2, 3, 5, 6), expert_weight_bits=bits, k=2,
                activation_type=kind, normalize_routing_weights=1, **given)  # fmt: skip


def _experts() -> dict[str, Case]:
    swiglu = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
    return {
        **{f"MoE {kind}": experts(activation_type=kind, k=1 + (kind == "silu"))
           for kind in ("relu", "gelu", "silu", "identity")},
        "MoE normalized": experts(k=2, normalize_routing_weights=1),
        "MoE swiglu": experts(24, activation_type="swiglu", k=2, swiglu_fusion=1, **swiglu),
        "QMoE bytes": quantized_experts(8, 0, "relu"),
        "QMoE nibbles": quantized_experts(4, 0, "silu"),
        "QMoE blocks": quantized_experts(4, 16, "relu"),
    }  # fmt: skip


CASES = {**_tables(), **_attention(), **_experts()}
COMPILED = compiled(CASES)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-4, atol=1e-4)


def test_a_quantized_lstm_is_within_the_rounding_of_its_inputs() -> None:
    """onnxruntime rounds inputs and states to bytes at each step, which costs half a per cent."""
    weights = [integers("uint8", 2, n, 20, seed=n) for n in (3, 5)]
    grids = [np.full(2, 0.01, F32), np.full(2, 128, U8)] * 2
    given = case("DynamicQuantizeLSTM", noise(4, 2, 3), *weights, noise(2, 40), *[None] * 4, *grids,
                 hidden_size=5, direction="bidirectional", outputs=(F32, F32, F32))  # fmt: skip
    got, expected = run_model(given.model, given.feeds), given.onnxruntime()
    assert_close(got, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (experts(k=5), "k is 5, there are 4 experts"),
        (experts(activation_type="tanh"), "activation_type 'tanh'"),
        (experts(24, activation_type="swiglu", swiglu_limit_after_activation=1),
         "swiglu_limit_after_activation"),
        (case("MatMulBnb4", noise(3, 32), integers("uint8", 95), scales(12), fixed=(1, 2), K=32,
              N=6, block_size=16, quant_type=0), "95 bytes and 12 scales for 6 x 32"),
    ],
)  # fmt: skip
def test_mistakes_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)
