"""Attention and rotary embeddings: the standard's and onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, noise

from atc.errors import AtcError
from atc.passes import run_passes
from support import assert_close, compile_graph, node_model, run_model

MICROSOFT = "com.microsoft"


def case(op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Case:
    kinds = (np.float32,) * outputs
    constant = tuple(i for i, a in enumerate(inputs) if a is not None and a.shape == (1,))
    return Case(op, list(inputs), constant, attributes, domain=MICROSOFT, outputs=kinds)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


B, S, N, H, P = 2, 4, 3, 8, 5  # batch, steps, heads, head size, past


def _merged() -> dict[str, Case]:
    x, w, bias = noise(B, S, 10), noise(10, 3 * N * H, seed=1), noise(3 * N * H, seed=2)
    past, added = noise(2, B, N, P, H, seed=3), noise(B, 1, S, S, seed=4)
    wide, wide_bias = noise(10, 2 * N * H + N * 4, seed=5), noise(2 * N * H + N * 4, seed=6)
    holes = ints([1, 1, 0, 1], [1, 0, 1, 1])
    masks = {
        "lengths": ints(3, 4), "ends and begins": ints(3, 4, 1, 0), "keys": holes,
        "steps and keys": np.stack([holes] * S, 1),
    }  # fmt: skip
    return {
        "Attention": case("Attention", x, w, bias, num_heads=N),
        "Attention causal": case("Attention", x, w, bias, num_heads=N, unidirectional=1),
        "Attention scale": case("Attention", x, w, bias, num_heads=N, scale=0.2),
        **{
            f"Attention {k}": case("Attention", x, w, bias, m, num_heads=N)
            for k, m in masks.items()
        },
        "Attention past": case("Attention", x, w, bias, None, past, outputs=2, num_heads=N),
        "Attention past causal": case(
            "Attention", x, w, bias, None, past, outputs=2, num_heads=N, unidirectional=1
        ),
        "Attention added": case("Attention", x, w, bias, None, None, added, num_heads=N),
        "Attention sizes": case(
            "Attention", x, wide, wide_bias, num_heads=N, qkv_hidden_sizes=[N * H, N * H, N * 4]
        ),
    }


def _multi() -> dict[str, Case]:
    q, k, v = noise(B, S, N * H), noise(B, 7, N * H, seed=1), noise(B, 7, N * H, seed=2)
    k2, v2 = noise(B, S, N * H, seed=1), noise(B, S, N * H, seed=2)
    bias, added = noise(3 * N * H, seed=3), noise(1, N, S, 7, seed=4)
    past_k, past_v = noise(B, N, P, H, seed=7), noise(B, N, P, H, seed=8)
    mask = ints([1] * 7, [1, 1, 1, 0, 1, 0, 0])
    op = "MultiHeadAttention"
    return {
        op: case(op, q, k, v, num_heads=N),
        f"{op} bias": case(op, q, k, v, bias, num_heads=N),
        f"{op} keys of heads": case(op, q, past_k, past_v, num_heads=N),
        f"{op} mask": case(op, q, k, v, None, mask, added, num_heads=N, mask_filter_value=-100.0),
        f"{op} lengths": case(op, q, k, v, None, ints(7, 3), num_heads=N),
        f"{op} causal": case(op, q, k2, v2, num_heads=N, unidirectional=1),
        f"{op} past": case(
            op,
            q,
            k2,
            v2,
            None,
            None,
            None,
            past_k,
            past_v,
            outputs=3,
            num_heads=N,
            unidirectional=1,
        ),
    }


def _grouped() -> dict[str, Case]:
    heads, groups, size = 4, 2, 16
    q, k, v = (
        noise(B, S, heads * size),
        noise(B, S, groups * size, seed=1),
        noise(B, S, groups * size, seed=2),
    )
    one = [a[:, :1].copy() for a in (q, k, v)]
    packed = noise(B, S, (heads + 2 * groups) * size, seed=3)
    past = [noise(B, groups, 9, size, seed=s) for s in (4, 5)]
    angle = np.random.default_rng(6).uniform(0, 6, (16, size // 2))
    turn = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    base = {"num_heads": heads, "kv_num_heads": groups, "outputs": 3}
    start = [None, None, ints(S - 1, S - 1), ints(S)]
    grown = [*past, ints(6, 3), ints(7)]
    op = "GroupQueryAttention"
    return {
        op: case(op, q, k, v, *start, **base),
        f"{op} packed": case(op, packed, None, None, *start, **base),
        f"{op} capped": case(op, q, k, v, *start, softcap=0.5, scale=0.7, **base),
        f"{op} rotary": case(op, q, k, v, *start, *turn, do_rotary=1, **base),
        f"{op} rotary pairs": case(
            op, q, k, v, *start, *turn, do_rotary=1, rotary_interleaved=1, **base
        ),
        f"{op} past": case(op, *one, *grown, **base),
        f"{op} past rotary": case(op, *one, *grown, *turn, do_rotary=1, **base),
        f"{op} window": case(op, *one, *grown, local_window_size=2, **base),
        f"{op} first window": case(op, q, k, v, *start, local_window_size=2, **base),
        f"{op} smooth": case(op, q, k, v, *start, smooth_softmax=1, **base),
        f"{op} sink": case(
            op, q, k, v, *start, None, None, None, None, noise(heads, seed=9), **base
        ),
    }


def _rotary() -> dict[str, Case]:
    angle = np.random.default_rng(6).uniform(0, 6, (16, H // 2))
    turn = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    flat, apart = noise(B, S, N * H), noise(B, N, S, H)
    ids = np.array([[3, 0, 7, 15], [1, 2, 3, 4]])
    first, op = np.array([5]), "RotaryEmbedding"
    return {
        op: case(op, flat, ids, *turn),
        f"{op} first": case(op, flat, first, *turn, interleaved=1),
        f"{op} heads": case(op, apart, ids, *turn, interleaved=1),
        f"{op} part": case(
            op, flat, ids, *(t[:, :2].copy() for t in turn), num_heads=N, rotary_embedding_dim=4
        ),
    }


CASES = {**_merged(), **_multi(), **_grouped(), **_rotary()}
CASES_COMPILED = compiled(CASES)


@pytest.mark.few(20)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    case_ = CASES[name]
    got, expected = CASES_COMPILED[name](case_.feeds), case_.onnxruntime()
    assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("room", [5, 8])
def test_a_cache_of_the_size_of_a_window_keeps_the_last_keys(room: int) -> None:
    """Each run takes what it kept itself: rows behind the kept keys may hold anything."""
    heads, groups, size, window, done = 4, 2, 16, 5, 0
    angle = np.random.default_rng(6).uniform(0, 6, (32, size // 2))
    turn = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    kept = [[np.zeros((1, groups, room, size), np.float32)] * 2] * 2
    for steps in (3, 1, 1, 1, 4, 11, 1):
        done += steps
        made = []
        for run, past in zip(("onnxruntime", "atc"), kept, strict=True):
            x = noise(1, steps, (heads + 2 * groups) * size, seed=done)
            each = case(
                "GroupQueryAttention", x, None, None, *past, ints(done - 1), ints(done), *turn,
                num_heads=heads, kv_num_heads=groups, outputs=3, do_rotary=1,
                local_window_size=window, sliding_window_cache=1,
            )  # fmt: skip
            made.append(each.onnxruntime() if run == "onnxruntime" else
                        run_model(each.model, each.feeds))  # fmt: skip
        kept = [results[1:] for results in made]
        assert_close(made[1][:1], made[0][:1], rtol=1e-4, atol=1e-5)


def test_packed_operands() -> None:
    packed = noise(B, S, N, 3, H)
    q, k, v = (packed[:, :, :, i].reshape(B, S, N * H) for i in range(3))
    half = packed[:, :, :, 1:].copy()
    (expected,) = case("MultiHeadAttention", q, k, v, num_heads=N).onnxruntime()
    for inputs in ([packed], [q, half]):
        model = node_model("MultiHeadAttention", inputs, domain=MICROSOFT, num_heads=N)
        assert_close(run_model(model, inputs), [expected], rtol=1e-4, atol=1e-5)


def test_attention_is_two_products_and_a_softmax() -> None:
    q, k, v = noise(2, 4, 5, 8), noise(2, 2, 6, 8, seed=1), noise(2, 2, 6, 8, seed=2)
    graph = run_passes(compile_graph(node_model("Attention", [q, k, v], opset=24)))
    kinds = [n.op.kind for n in graph.nodes if n.op.kind != "Reshape"]
    assert kinds == ["MatMul", "Softmax", "MatMul"]


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    q, k, v = (noise(1, 1, 3, 4, seed=s) for s in range(3))
    mask = np.array([[True, False, True], [False] * 3, [False, True, False]])
    (y,) = run_model(node_model("Attention", [q, k, v, mask], opset=24), [q, k, v, mask])
    assert (y[0, 0, 1] == 0).all()
    assert np.allclose(y[0, 0, 2], v[0, 0, 1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [(case("Attention", noise(1, 2, 3), noise(3, 12), None, ints(1, 2, 3), num_heads=2),
      "a mask of"),
     (case("MultiHeadAttention", noise(1, 2, 9), noise(1, 2, 9), noise(1, 2, 9), num_heads=2),
      "2 heads of a width of 9"),
     (case("GroupQueryAttention", noise(1, 1, 8), noise(1, 1, 4), noise(1, 1, 4), None, None,
           ints([0]), ints(1), num_heads=2, kv_num_heads=1, k_quant_type="PER_TENSOR"),
      "quantized cache"),
     (case("GroupQueryAttention", noise(1, 2, 8), noise(1, 2, 4), noise(1, 2, 4), noise(1, 1, 3, 4),
           noise(1, 1, 3, 4), ints(4), ints(5), *[None] * 9, ints(2), num_heads=2, kv_num_heads=1),
      "query_seqlens"),
     (case("GroupQueryAttention", noise(1, 1, 8), noise(1, 1, 4), noise(1, 1, 4), noise(1, 1, 3, 4),
           noise(1, 1, 3, 4), ints(4), ints(5), num_heads=2, kv_num_heads=1, local_window_size=4,
           sliding_window_cache=1), "a cache of 3 keys for a window of 4")],
)  # fmt: skip
def test_limits_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)
