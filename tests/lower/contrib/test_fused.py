"""onnxruntime's own float operators against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, noise

from atc.errors import AtcError
from support import assert_close, node_model, run_model

MICROSOFT = "com.microsoft"


def case(
    op: str, *inputs: Any, outputs: tuple[Any, ...] = (np.float32,), **attributes: Any
) -> Case:
    return Case(op, list(inputs), (), attributes, domain=MICROSOFT, outputs=outputs)


def _activations() -> dict[str, Case]:
    x, bias = noise(3, 5, 8) * 3, noise(8, seed=1)
    return {
        "Gelu": case("Gelu", x),
        "FastGelu": case("FastGelu", x),
        "FastGelu with bias": case("FastGelu", x, bias),
        "BiasGelu": case("BiasGelu", x, bias),
        "QuickGelu": case("QuickGelu", x),
        "QuickGelu alpha": case("QuickGelu", x, alpha=0.7),
    }


def _normalizations() -> dict[str, Case]:
    x, skip, row = noise(2, 5, 8), noise(2, 5, 8, seed=1), noise(1, 5, 8, seed=2)
    gamma, beta, bias = noise(8, seed=3), noise(8, seed=4), noise(8, seed=5)
    four = (np.float32, None, None, np.float32)
    ids, kinds = (
        np.array([[1, 5, 2], [8, 0, 3]], np.int32),
        np.array([[0, 1, 1], [0, 0, 1]], np.int32),
    )
    words, places, segments = noise(9, 8), noise(6, 8, seed=1), noise(2, 8, seed=2)
    mask, order = np.array([[1, 1, 0], [1, 1, 1]], np.int32), np.array([[2, 0, 5]], np.int32)
    embedding = [ids, kinds, words, places, segments, gamma, beta]
    return {
        "SkipLayerNormalization": case("SkipLayerNormalization", x, skip, gamma, beta),
        "SkipLayerNormalization bias": case(
            "SkipLayerNormalization", x, skip, gamma, beta, bias, outputs=four, epsilon=1e-3
        ),
        "SkipLayerNormalization row": case("SkipLayerNormalization", x, row, gamma, None, bias),
        "SkipSimplifiedLayerNormalization": case(
            "SkipSimplifiedLayerNormalization", x, skip, gamma, bias, outputs=four
        ),
        "SimplifiedLayerNormalization": Case(
            "SimplifiedLayerNormalization", [x, gamma], attributes={"axis": -1, "epsilon": 1e-4}
        ),
        "EmbedLayerNormalization": case(
            "EmbedLayerNormalization", *embedding, mask, outputs=(np.float32, np.int32)
        ),
        "EmbedLayerNormalization places": case(
            "EmbedLayerNormalization",
            *embedding,
            None,
            order,
            outputs=(np.float32, np.int32, np.float32),
        ),
        "EmbedLayerNormalization bare": case(
            "EmbedLayerNormalization",
            ids,
            None,
            words,
            places,
            None,
            gamma,
            beta,
            outputs=(np.float32, np.int32),
        ),
    }


def _products() -> dict[str, Case]:
    x, w, bias = noise(2, 4, 7, 8), noise(6, 4, 3, 3, seed=1), noise(6, seed=2)
    z = noise(2, 6, 7, 8, seed=3)
    pads = {"pads": [1, 1, 1, 1]}
    a, b, c = noise(5, 6), noise(6, 7, seed=1), noise(7, seed=2)
    batch, other = noise(2, 3, 4, 5), noise(2, 3, 5, 6, seed=1)
    return {
        **{
            f"FusedConv {name}": case("FusedConv", x, w, bias, activation=name, **params, **pads)
            for name, params in (
                ("Relu", {}),
                ("Tanh", {}),
                ("Sigmoid", {}),
                ("LeakyRelu", {"activation_params": [0.2]}),
                ("Clip", {"activation_params": [-0.5, 0.7]}),
                ("HardSigmoid", {"activation_params": [0.3, 0.4]}),
            )
        },
        "FusedConv plus z": case("FusedConv", x, w, bias, z, activation="Relu", **pads),
        "FusedGemm": case("FusedGemm", a, b, c, activation="Relu", alpha=0.5, beta=2.0),
        "FusedGemm leaky": case("FusedGemm", a, b, c, activation="LeakyRelu", activation_alpha=0.3),
        "FusedMatMul": case("FusedMatMul", batch, other, alpha=0.25),
        "FusedMatMul transB": case("FusedMatMul", batch, other.swapaxes(2, 3).copy(), transB=1),
        "FusedMatMul transA": case("FusedMatMul", batch.swapaxes(2, 3).copy(), other, transA=1),
        "FusedMatMul batches": case(
            "FusedMatMul", batch.transpose(2, 0, 1, 3).copy(), other, transBatchA=1
        ),
        "FusedMatMul batches of B": case(
            "FusedMatMul", batch, other.transpose(2, 0, 1, 3).copy(), transBatchB=1
        ),
        "Inverse": case("Inverse", noise(3, 2, 6, 6)),
    }


def _causal() -> dict[str, Case]:
    x, w, bias, state = noise(2, 6, 5), noise(6, 1, 3), noise(6, seed=1), noise(2, 6, 2, seed=2)
    op, both = "CausalConvWithState", (np.float32, np.float32)
    transposed = [a.swapaxes(1, 2).copy() for a in (x, state)]
    return {
        op: case(op, x, w, outputs=both),
        f"{op} state": case(op, x, w, bias, state, outputs=both, activation="silu"),
        f"{op} one step": case(op, x[..., :1].copy(), w, None, state, outputs=both),
        f"{op} dilated": case(op, x, w, None, noise(2, 6, 4), outputs=both, dilation=2),
        f"{op} transposed": case(op, transposed[0], w, bias, transposed[1], outputs=both,
                                 channels_last=1),
    }


CASES = {**_activations(), **_normalizations(), **_products(), **_causal()}
COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    got = COMPILED[name](CASES[name].feeds)
    assert_close(got, CASES[name].onnxruntime(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("steps", "window"), [(5, 3), (2, 4)])
def test_states_before_the_last_steps_are_kept(
    steps: int, window: int, channels_last: bool
) -> None:
    x, w, states = noise(2, 6, steps), noise(6, 1, 3), noise(window, 2, 6, 2, seed=2)
    whole = np.concatenate([states[-1], x], 2)
    y = sum(whole[:, :, k : k + steps] * w[:, 0, k, None] for k in range(3))
    kept = [whole[:, :, end + 1 : end + 3] if end >= 0 else np.zeros((2, 6, 2), np.float32)
            for end in range(steps - window, steps)]  # fmt: skip
    given = [x, states]
    wanted = [y, np.stack(kept)]
    if channels_last:
        given, wanted = ([a.swapaxes(-1, -2).copy() for a in each] for each in (given, wanted))
    node = case("CausalConvWithState", given[0], w, None, given[1], outputs=(np.float32,) * 2,
                state_window=window, channels_last=int(channels_last))  # fmt: skip
    assert_close(run_model(node.model, node.feeds), wanted, rtol=1e-4, atol=1e-5)


def test_nhwc_convolution_is_conv_between_transposes() -> None:
    x, w, bias = noise(2, 7, 8, 4), noise(6, 4, 3, 3, seed=1), noise(6, seed=2)
    model = node_model("NhwcConv", [x, w, bias], domain=MICROSOFT, strides=[2, 1])
    first = x.transpose(0, 3, 1, 2).copy()
    plain = node_model("Conv", [first, w, bias], strides=[2, 1])
    expected = run_model(plain, [first, w, bias])[0].transpose(0, 2, 3, 1)
    assert_close(run_model(model, [x, w, bias]), [expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attributes", [{}, {"kernel_shape": [3, 2]}])
def test_nhwc_convolution_takes_weights_with_channels_last(attributes: dict[str, Any]) -> None:
    """As onnxruntime's optimizer of transformers writes them; 3 channels may be rows as well."""
    for channels, size in ((4, (3, 2)), (3, (3, 2)), (2, (3, 2))):
        x, w = noise(2, 7, 8, channels), noise(6, channels, *size, seed=1)
        turned = w.transpose(0, 2, 3, 1).copy()
        model = node_model("NhwcConv", [x, turned], domain=MICROSOFT, strides=[2, 1], **attributes)
        first = x.transpose(0, 3, 1, 2).copy()
        plain = node_model("Conv", [first, w], strides=[2, 1])
        expected = run_model(plain, [first, w])[0].transpose(0, 2, 3, 1)
        assert_close(run_model(model, [x, turned]), [expected], rtol=1e-5, atol=1e-6)


def test_inverse_needs_an_exchange_of_rows() -> None:
    x = np.array([[[0, 2], [4, 1]], [[1e-8, 1], [1, 1]]], np.float32)
    (y,) = run_model(node_model("Inverse", [x], domain=MICROSOFT), [x])
    assert_close([y], [np.linalg.inv(x.astype(np.float64)).astype(np.float32)], rtol=1e-6)


@pytest.mark.parametrize(
    ("case_", "message"),
    [
        (case("Inverse", noise(2, 3)), "not a batch of square matrices"),
        (case("FusedGemm", noise(2, 3), noise(3, 2), activation="Sine"), "activation 'Sine'"),
        (
            case(
                "EmbedLayerNormalization",
                np.zeros((1, 9), np.int32),
                None,
                noise(3, 4),
                noise(5, 4),
                None,
                noise(4),
                noise(4),
            ),
            "9 positions, but 5 rows",
        ),
    ],
)
def test_limits_are_named(case_: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(case_.model, case_.feeds)
