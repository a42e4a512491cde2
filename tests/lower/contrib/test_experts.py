"""Mixtures of experts, against sums in float64 of each row's own experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from ort_cases import Case, compiled, noise

import atc
from atc.errors import AtcError
from support import assert_close, run_model

Array = NDArray[Any]
F32 = np.float32
EXPERTS, WIDE, INNER = 4, 32, 48


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def shares(p: Array, weights: Array | None, given: dict[str, Any]) -> list[tuple[int, float]]:
    """Return a row's experts and how much of each there is."""
    k = given.get("k", 1)
    which = np.argsort(-p, kind="stable")[:k]
    if given.get("use_sparse_mixer"):
        found, left = [], p.copy()
        for e in which:
            most = left.max()
            near = left >= most - 0.02 * np.maximum(np.abs(p), most)
            found.append((int(e), softmax(np.where(near, left, -np.inf))[e]))
            left[e] = -np.inf
        return found
    part = (softmax(p) if weights is None else weights)[which]
    part = part / part.sum() if given.get("normalize_routing_weights") else part
    return list(zip(which.tolist(), part.tolist(), strict=True))


def activated(parts: list[Array], given: dict[str, Any]) -> Array:
    """Return a row's hidden values."""
    kind = given.get("activation_type", "relu")
    if kind != "swiglu":
        functions = {"relu": lambda v: np.maximum(v, 0), "silu": lambda v: v * sigmoid(v)}
        return functions[kind](parts[0]) * (parts[1] if len(parts) > 1 else 1)
    fusion, x = given.get("swiglu_fusion", 0), parts[0]
    half = len(x) // 2
    g, v = {0: parts, 1: (x[0::2], x[1::2]), 2: (x[:half], x[half:])}[fusion]
    if "swiglu_limit" in given:
        g = np.minimum(g, given["swiglu_limit"])
        v = np.clip(v, -given["swiglu_limit"], given["swiglu_limit"])
    alpha, beta = given.get("activation_alpha", 1.0), given.get("activation_beta", 0.0)
    return g * sigmoid(alpha * g) * (v + beta)


def mixed(
    x: Array, p: Array, layers: dict[int, tuple[Array, Array | None]], weights: Array | None,
    given: dict[str, Any],
) -> Array:  # fmt: skip
    """Return the rows' results by layers 1, 2 and 3."""

    def through(k: int, e: int, v: Array) -> Array:
        w, bias = layers[k]
        return v @ w[e].astype(np.float64).T + (0 if bias is None else bias[e].astype(np.float64))

    y = np.zeros(x.shape)
    for r, row in enumerate(x.astype(np.float64)):
        own = None if weights is None else weights[r]
        for e, share in shares(p[r].astype(np.float64), own, given):
            hidden = activated([through(k, e, row) for k in (1, 3) if k in layers], given)
            y[r] += share * through(2, e, hidden)
    return y


def real(dtype: Any = F32, *, rows: int = 5, gated: bool = False, **given: Any) -> tuple[Case, Any]:
    """Return MoE and its result."""
    swiglu = given.get("activation_type") == "swiglu" and given.get("swiglu_fusion", 0)
    x, p = noise(rows, WIDE).astype(dtype), noise(rows, EXPERTS, seed=1).astype(dtype)
    layers: dict[int, Any] = {
        1: (noise(EXPERTS, INNER * (2 if swiglu else 1), WIDE, seed=2), None),
        2: (noise(EXPERTS, WIDE, INNER, seed=3), noise(EXPERTS, WIDE, seed=4)),
    }
    if gated:
        layers[3] = (noise(EXPERTS, INNER, WIDE, seed=5), noise(EXPERTS, INNER, seed=6))
    layers = {k: tuple(a if a is None else a.astype(dtype) for a in v) for k, v in layers.items()}
    inputs = [x, p, *(a for k in sorted(layers) for a in layers[k])]
    case = Case("MoE", inputs, tuple(range(2, len(inputs))), given, domain="com.microsoft",
                outputs=(dtype,))  # fmt: skip
    return case, mixed(x, p, layers, None, given)


def codes(bits: int, n: int, k: int, block: int, zeros: bool, seed: int) -> tuple[Any, ...]:
    """Return weights as QMoE takes them, their scales and zero points, and as numbers."""
    rng, blocks = np.random.default_rng(seed), k // block if block else 1
    q = rng.integers(0, 1 << bits, (EXPERTS, n, blocks, k // blocks))
    s = rng.uniform(0.5, 1, (EXPERTS, n, blocks)).astype(F32) / (1 << bits)
    z = rng.integers(0, 1 << bits, s.shape) if zeros else np.full(s.shape, 1 << (bits - 1))
    values = ((q - z[..., None]) * s[..., None]).reshape(EXPERTS, n, k)

    def stored(v: Array) -> Array:
        per = 8 // bits
        v = np.pad(v, ((0, 0),) * (v.ndim - 1) + ((0, -v.shape[-1] % per),))
        parts = v.reshape(*v.shape[:-1], -1, per) << (np.arange(per) * bits)
        return parts.sum(-1).astype(np.uint8)

    shape = s.shape if block else s.shape[:2]
    points = stored(z.reshape(shape)) if zeros else None
    return stored(q.reshape(EXPERTS, n, k)), s.reshape(shape), points, values


def quantized(
    bits: int | tuple[int, int, int], block: int = 0, *, zeros: bool = False, gated: bool = False,
    router: bool = False, rows: int = 5, **given: Any,
) -> tuple[Case, Any]:  # fmt: skip
    """Return QMoE of layers of so many bits each, and its result."""
    each = (bits,) * 3 if isinstance(bits, int) else bits
    x, p = noise(rows, WIDE), noise(rows, EXPERTS, seed=1)
    sizes = {1: (INNER, WIDE), 2: (WIDE, INNER), **({3: (INNER, WIDE)} if gated else {})}
    inputs: list[Any] = [x, p, *[None] * 12]
    layers: dict[int, Any] = {}
    for k, (n, depth) in sizes.items():
        q, s, z, values = codes(each[k - 1], n, depth, block, zeros, seed=k)
        bias = noise(EXPERTS, n, seed=k + 5)
        inputs[3 * k - 1 : 3 * k + 2], inputs[10 + k] = [q, s, bias], z
        layers[k] = values, bias
    weights = noise(rows, EXPERTS, seed=9) ** 2 if router else None
    inputs += [weights] if router else []
    given = {"k": 2, "expert_weight_bits": each[0], **given}
    given |= {"block_size": block} if block else {}
    if len(set(each)) > 1:
        given |= {f"fc{k}_expert_weight_bits": b for k, b in enumerate(each, 1)}
    case = Case("QMoE", inputs, tuple(range(2, 14)), given, domain="com.microsoft")
    return case, mixed(x, p, layers, weights, given)


SWIGLU = {"activation_type": "swiglu", "k": 3}
GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 2.0}
MADE = {
    "a row": real(rows=1, k=3),
    "no bias": real(k=2, normalize_routing_weights=1),
    "gated": real(gated=True, activation_type="silu", k=2),
    "swiglu of two layers": real(gated=True, **SWIGLU, **GPT_OSS),
    "swiglu interleaved": real(swiglu_fusion=1, **SWIGLU, **GPT_OSS),
    "swiglu halves": real(swiglu_fusion=2, **SWIGLU),
    "sparse mixer": real(rows=40, k=2, use_sparse_mixer=1),
    "float16": real(np.float16, k=2),
    "bfloat16": real(ml_dtypes.bfloat16, k=2),
    **{f"{bits} bits, {block}{', zeros' * zeros}": quantized(bits, block, zeros=zeros)
       for bits in (2, 4, 8) for block in (0, 16) for zeros in (False, True)},
    "quantized, gated": quantized(4, 16, gated=True, activation_type="silu"),
    "layers of other bits": quantized((4, 8, 2), 16, gated=True),
    "router weights": quantized(4, 16, router=True),
    "router weights normalized": quantized(4, router=True, normalize_routing_weights=1),
}  # fmt: skip
CASES = {name: case for name, (case, _) in MADE.items()}
COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_mixed_of_their_experts(name: str) -> None:
    rough = {"float16": 2e-2, "bfloat16": 2e-1}.get(name, 1e-3)
    case, want = MADE[name]
    want = want.astype(case.outputs[0])
    assert_close(COMPILED[name](case.feeds), [want], rtol=rough, atol=rough)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (real(k=3, use_sparse_mixer=1), "use_sparse_mixer with k = 3"),
        (real(swiglu_fusion=1, gated=True, **SWIGLU), "swiglu_fusion is 1, of 2 layers"),
        (quantized(4, quant_type="fp4"), "quant_type 'fp4'"),
        (quantized(4, weights_prepacked=1), "prepacked"),
    ],
)
def test_mistakes_are_named(bad: tuple[Case, Any], message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad[0].model, bad[0].feeds)


@pytest.mark.parametrize(
    "target", ["c99", pytest.param("cuda-emulated", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("made", [real, lambda rows, k: quantized(4, 16, rows=rows)])
def test_only_the_run_knows_how_many_rows(made: Any, target: str, tmp_path: Path) -> None:
    model = made(rows=2, k=2)[0].model
    for value in model.graph.input[:2]:
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    shapes = f"x0:1~9,{WIDE};x1:1~9,{EXPERTS}"
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target, input_shape=shapes)
    network = atc.load(tmp_path / "net")
    for rows in (1, 2, 9):
        case, want = made(rows=rows, k=2)
        want = want.astype(F32)
        assert_close([network(*case.feeds)], [want], rtol=1e-3, atol=1e-3)
