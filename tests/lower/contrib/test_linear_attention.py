"""Attention by a matrix of state, against steps in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
K, V = 6, 10
"""Numbers of a key and of a value."""


def steps(
    q: Array, k: Array, v: Array, state: Array, g: Array | None, rate: Array | None, delta: bool
) -> tuple[Array, list[Array]]:
    """Return y [batch, steps, heads, V] and the states after each step, for heads [..., size]."""
    heads, y, states = v.shape[2], [], []
    readers = max(q.shape[2], heads)
    s = state.astype(np.float64)
    q, k = (np.repeat(x, n // x.shape[2], 2) for x, n in ((q, readers), (k, heads)))
    for t in range(q.shape[1]):
        if g is not None:
            s = s * np.exp(g[:, t].astype(np.float64))[..., None]
        held = np.einsum("bhkv,bhk->bhv", s, k[:, t]) if delta else 0
        write = v[:, t] - held
        write = write if rate is None else rate[:, t] * write
        s = s + k[:, t, :, :, None] * write[:, :, None]
        read = np.repeat(s, readers // heads, 1)
        y.append(np.einsum("bhkv,bhk->bhv", read, q[:, t]) / np.sqrt(K))
        states.append(s)
    return np.stack(y, 1), states


def made(
    rule: str, q_heads: int = 2, heads: int = 2, *, count: int = 5, by_key: bool = False,
    window: int = 0, shared_rate: bool = False, past: bool = True, dtype: Any = F32,
    domain: str = "com.microsoft",
) -> tuple[Case, list[Array]]:  # fmt: skip
    """Return a node and its results."""
    b = 2
    q, k, v = (noise(b, count, h, n, seed=s) * 0.5 for s, (h, n) in
               enumerate(((q_heads, K), (heads, K), (heads, V))))  # fmt: skip
    state = noise(b, heads, K, V, seed=3) if past else np.zeros((b, heads, K, V), F32)
    g = rate = None
    if "gated" in rule:
        g = -np.abs(noise(b, count, heads, K if by_key else 1, seed=4))
    if "delta" in rule:
        rate = np.abs(noise(b, count, 1 if shared_rate else heads, 1, seed=5))
    y, states = steps(q, k, v, state, g, rate, "delta" in rule)
    flat = [None if x is None else x.reshape(b, count, -1).astype(dtype) for x in (q, k, v)]
    tail = [None if x is None else x.reshape(b, count, -1).astype(dtype) for x in (g, rate)]
    before, after = state, states[-1]
    given: dict[str, Any] = {}
    if window:
        before = np.stack([noise(*state.shape, seed=9)] * (window - 1) + [state])
        none = [np.zeros(state.shape)] * (window - count)
        after = np.stack(none + states[-window:])
        given["state_window"] = window
    case = Case(
        "LinearAttention", [*flat, before.astype(dtype) if past else None, *tail], (),
        {"q_num_heads": q_heads, "kv_num_heads": heads, "update_rule": rule, **given},
        opset=21 if domain else 27, domain=domain, outputs=(dtype, dtype),
    )  # fmt: skip
    return case, [y.reshape(b, count, -1).astype(dtype), after.astype(dtype)]


MADE = {
    **{rule: made(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "factors of keys": made("gated_delta", by_key=True),
    "factors of keys, gated": made("gated", by_key=True),
    "readers share states": made("gated_delta", 6, 2),
    "states share readers": made("gated_delta", 2, 6),
    "one rate": made("gated_delta", shared_rate=True),
    "a step": made("gated_delta", count=1),
    "no past": made("delta", past=False),
    "float16": made("gated_delta", dtype=np.float16),
    "states of steps": made("gated_delta", window=3),
    "more states than steps": made("gated_delta", window=4, count=2),
    "standard": made("gated_delta", 4, 2, domain=""),
}  # fmt: skip
CASES = {name: case for name, (case, _) in MADE.items()}
COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_states_are_decayed_corrected_and_read(name: str) -> None:
    case, want = MADE[name]
    rough = 5e-3 if name == "float16" else 2e-5
    assert_close(COMPILED[name](case.feeds), want, rtol=rough, atol=rough)


@pytest.mark.parametrize(
    ("target", "options"),
    [("c99", {}), ("c99", {"num_threads": 2}),
     pytest.param("cuda-emulated", {}, marks=pytest.mark.slow)],
)  # fmt: skip
def test_only_the_run_knows_how_many_steps(
    target: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = made("gated_delta", heads=4)[0].model
    for k in (0, 1, 2, 4, 5):
        model.graph.input[k].type.tensor_type.shape.dim[1].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    shapes = f"x0:2,1~7,{2 * K};x1:2,1~7,{4 * K};x2:2,1~7,{4 * V};x4:2,1~7,4;x5:2,1~7,4"
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target, input_shape=shapes, **options)
    network = atc.load(tmp_path / "net")
    for count in (1, 2, 7):
        case, want = made("gated_delta", heads=4, count=count)
        assert_close(list(network(*case.feeds)), want, rtol=2e-5, atol=2e-5)


def test_a_state_is_updated_where_it_lies(tmp_path: Path) -> None:
    case, _ = made("gated_delta", count=1)
    model = case.model
    renamed = {model.graph.input[3].name: "past_state", model.graph.output[1].name: "present_state"}
    text = onnx.printer.to_text(model)
    for old, new in renamed.items():
        text = text.replace(old, new)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", state="auto")
    network = atc.load(tmp_path / "net")
    q, k, v, _, g, rate = (np.asarray(x) for x in case.inputs)
    parts = [x.reshape(2, 1, 2, -1) for x in (q, k, v, g, rate)]
    many = [np.repeat(x, 3, 1) for x in parts]
    want, _ = steps(*many[:3], np.zeros((2, 2, K, V)), *many[3:], True)
    for t in range(3):
        got = network(q, k, v, g, rate)
        np.testing.assert_allclose(got.reshape(-1), want[:, t].reshape(-1), rtol=1e-4, atol=1e-5)


# ---- onnxruntime's gated delta net ---------------------------------------------------------------


def net(*, packed: bool = False, fused: bool = False, by_key: bool = False) -> tuple[Case, Any]:
    """Return GatedDeltaNet of two rows of three steps, and its results."""
    b, count, own, heads = 2, 3, 2, 4
    q, k, v = (noise(b, count, h, n, seed=s) for s, (h, n) in
               enumerate(((own, K), (own, K), (heads, V))))  # fmt: skip
    state = noise(b, heads, V, K, seed=3)
    raw, rate = noise(b, count, heads, K if by_key else 1, seed=4), noise(b, count, heads, seed=5)
    log, bias = noise(heads, seed=6), noise(heads, seed=7)
    inputs: list[Any] = [x.reshape(b * count, *x.shape[2:]) for x in (q, k, v)]
    if packed:
        inputs = [np.concatenate([x.reshape(b * count, -1) for x in inputs], 1), None, None]
    own_decay = raw.reshape(b * count, heads, -1)
    given: dict[str, Any] = {}
    if fused:
        given = {"gate_activation": "qwen", "beta_activation": "sigmoid", "qk_l2_norm": 1}
        soft = np.log1p(np.exp(raw.astype(np.float64) + bias[:, None]))
        g, effective = -np.exp(log.astype(np.float64))[:, None] * soft, 1 / (1 + np.exp(-rate))
        q, k = (x / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True)) for x in (q, k))
    else:
        raw, rate = -np.abs(raw), np.abs(rate) * 0.2
        own_decay, g, effective = -np.abs(own_decay), raw, rate
    decay = own_decay if by_key else own_decay.reshape(b * count, heads)
    inputs += [None, decay, rate.reshape(b * count, heads), state, *((log, bias) if fused else ())]
    y, states = steps(q, k, v, state.swapaxes(2, 3), g, effective[..., None], True)
    want = [y.reshape(b * count, heads, V), states[-1].swapaxes(2, 3)]
    case = Case("GatedDeltaNet", inputs, (), given, domain="com.microsoft", outputs=(F32, F32))
    return case, [x.astype(F32) for x in want]


@pytest.mark.parametrize("given", [{}, {"packed": True}, {"fused": True}, {"by_key": True}])
def test_gated_delta_nets_have_their_states_the_other_way(given: dict[str, bool]) -> None:
    case, want = net(**given)
    assert_close(run_model(case.model, case.feeds), want, rtol=1e-4, atol=1e-4)


def test_gates_are_computed_in_floats() -> None:
    a, b = noise(2, 3, 4), noise(2, 3, 4, seed=1)
    bias, scale = noise(4, seed=2), -np.exp(noise(4, seed=3))
    case = Case("LinearAttentionGate", [a, bias, scale, b], (), {}, domain="com.microsoft",
                outputs=(F32, F32))  # fmt: skip
    want = [scale * np.log1p(np.exp(a + bias)), 1 / (1 + np.exp(-b))]
    assert_close(run_model(case.model, case.feeds), want, rtol=1e-5, atol=1e-6)


def test_a_rule_that_is_unknown_is_named() -> None:
    case, _ = made("linear")
    bad = Case(case.op, case.inputs, (), {**case.attributes, "update_rule": "hebb"},
               domain="com.microsoft", outputs=case.outputs)  # fmt: skip
    with pytest.raises(AtcError, match="update_rule is 'hebb'"):
        run_model(bad.model, bad.feeds)


@pytest.mark.parametrize("window", [0, 3])
def test_states_of_another_shape_are_named(window: int) -> None:
    """Keys and values exchanged are as many numbers."""
    case, _ = made("linear", window=window)
    inputs = [*case.inputs]
    inputs[3] = np.ascontiguousarray(np.swapaxes(inputs[3], -1, -2))
    bad = replace(case, inputs=inputs)
    with pytest.raises(AtcError, match=r"a state \[.*\], not \["):
        run_model(bad.model, bad.feeds)
