"""Layers and losses against numpy, their gradients against central differences in double."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from atc import GradManager, Parameter, Tensor, array_api, functional, trace
from atc.tracing import ArgumentError

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(2, 4, 5, 5))
LABELS = np.array([2, 0])


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def windows(x: Any, size: int) -> Any:
    n, c, h, w = x.shape
    return x[:, :, : h // size * size, : w // size * size].reshape(
        n, c, h // size, size, w // size, size
    )


def convolved(x: Any, w: Any, b: Any) -> Any:
    """Convolve with padding 1 and stride 2."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,ocij->nohw", seen, w) + b[:, None, None]


CASES: dict[str, tuple[Any, Any, list[Any]]] = {
    "relu": (functional.relu, lambda x: np.maximum(x, 0), [IMAGES]),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.25), lambda x: np.where(x > 0, x, x / 4),
                   [IMAGES]),
    "sigmoid": (functional.sigmoid, logistic, [IMAGES]),
    "gelu": (functional.gelu, lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2, [IMAGES]),
    "silu": (functional.silu, lambda x: x * logistic(x), [IMAGES]),
    "hardswish": (functional.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6, [IMAGES]),
    "softplus": (functional.softplus, lambda x: np.log1p(np.exp(x)), [IMAGES]),
    "softmax": (functional.softmax, softmax, [IMAGES]),
    "log_softmax": (functional.log_softmax, lambda x: np.log(softmax(x)), [IMAGES]),
    "linear": (functional.linear, lambda x, w, b: x @ w.T + b,
               [IMAGES[0, 0], RNG.normal(size=(3, 5)), RNG.normal(size=3)]),
    "conv2d": (lambda x, w, b: functional.conv2d(x, w, b, stride=2, padding=1), convolved,
               [IMAGES, RNG.normal(size=(3, 4, 3, 3)), RNG.normal(size=3)]),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), lambda x: windows(x, 2).max((3, 5)),
                   [IMAGES]),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), lambda x: windows(x, 2).mean((3, 5)),
                   [IMAGES]),
    "global_avg_pool2d": (functional.global_avg_pool2d, lambda x: x.mean((2, 3), keepdims=True),
                          [IMAGES]),
    "flatten": (functional.flatten, lambda x: x.reshape(2, -1), [IMAGES]),
    "layer_norm": (lambda x, w: functional.layer_norm(x, w),
                   lambda x, w: (x - x.mean(-1, keepdims=True))
                   / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w, [IMAGES, RNG.normal(size=5)]),
    "cross_entropy": (lambda x: functional.cross_entropy(x, LABELS),
                      lambda x: -np.log(softmax(x))[[0, 1], LABELS].mean(),
                      [RNG.normal(size=(2, 3))]),
    "labels that don't count": (
        lambda x: functional.cross_entropy(x, np.array([2, -100, 0])),
        lambda x: -np.log(softmax(x))[[0, 2], [2, 0]].mean(), [RNG.normal(size=(3, 4))]),
    "a class that doesn't count": (
        lambda x: functional.nll_loss(x, np.array([[1, 0], [1, 3]]), 1, ignore_index=1),
        lambda x: -(x[0, 0, 1] + x[1, 3, 1]) / 2, [RNG.normal(size=(2, 4, 2))]),
    "square_loss": (functional.square_loss, lambda x, y: ((x - y) ** 2).mean(),
                    [IMAGES, IMAGES * 0.3 + 0.1]),
    "l1_loss": (functional.l1_loss, lambda x, y: abs(x - y).mean(), [IMAGES, IMAGES * 0.3 + 0.1]),
    "binary_cross_entropy": (
        lambda x: functional.binary_cross_entropy(x, x * 0.0 + 0.3),
        lambda x: -(0.3 * np.log(logistic(x)) + 0.7 * np.log(1 - logistic(x))).mean(), [IMAGES]),
    "embedding": (lambda w: functional.embedding(Tensor(LABELS), w), lambda w: w[LABELS],
                  [RNG.normal(size=(4, 3))]),
}  # fmt: skip


def differences(function: Any, operands: list[Any], k: int, weight: Any) -> Any:
    """Return the gradient of the weighted sum of a function with respect to operand k."""
    found = np.zeros_like(operands[k])
    for place in np.ndindex(found.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [np.array(v) for v in operands]
            moved[k][place] += step
            sides.append((function(*moved) * weight).sum())
        found[place] = (sides[0] - sides[1]) / 2e-6
    return found


def test_functions_are_recorded() -> None:
    operands = [v for *_, given in CASES.values() for v in given]

    @trace(record_only=True)
    def every(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        return [function(*[next(rest) for _ in given]) for function, _, given in CASES.values()]

    every(*operands)
    model = ReferenceEvaluator(every.model())
    results = model.run(None, dict(zip(model.input_names, operands, strict=True)))
    for (name, (_, reference, given)), found in zip(CASES.items(), results, strict=True):
        rtol = 1e-6 if name == "gelu" else 1e-9  # the evaluator takes the root of 2 as a float
        np.testing.assert_allclose(found, reference(*given), rtol, 1e-12, err_msg=name)


SINGLE = [pytest.param([name], id=name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("names", [["linear"], *(s for s in SINGLE if s.id != "linear")])
def test_functions_and_their_gradients(names: list[str]) -> None:
    parameters = {n: [Parameter(v) for v in CASES[n][2]] for n in names}
    wanted = {n: np.asarray(CASES[n][1](*CASES[n][2])) for n in names}
    weights = {n: RNG.normal(size=wanted[n].shape) for n in names}
    manager = GradManager().attach([p for n in names for p in parameters[n]])

    @trace(opt_level=0)
    def step() -> dict[str, Tensor]:
        with manager:
            results = {n: CASES[n][0](*parameters[n]) for n in names}
            parts = [array_api.sum(results[n] * weights[n]) for n in names]
            manager.backward(array_api.sum(array_api.stack(parts)))
        return results

    for name, found in step().items():
        np.testing.assert_allclose(found.numpy(), wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)
        for k, parameter in enumerate(parameters[name]):
            assert parameter.grad is not None
            slope = differences(CASES[name][1], CASES[name][2], k, weights[name])
            np.testing.assert_allclose(parameter.grad.numpy(), slope, atol=1e-7, err_msg=name)


def test_one_hot() -> None:
    np.testing.assert_array_equal(functional.one_hot(Tensor(LABELS), 3).numpy(), np.eye(3)[LABELS])


def test_conv_transpose_undoes_the_shape() -> None:
    x = Tensor(np.ones((1, 2, 3, 3), np.float32))
    filters = Tensor(np.ones((2, 1, 2, 2), np.float32))
    found = functional.conv_transpose2d(x, filters, stride=2)
    np.testing.assert_array_equal(found.numpy(), np.full((1, 1, 6, 6), 2, np.float32))


def test_batch_statistics_are_taken_in() -> None:
    mean, var = Parameter(np.zeros(4)), Parameter(np.ones(4))
    scale, shift = Parameter(np.full(4, 2.0)), Parameter(np.full(4, 3.0))

    @trace(opt_level=0)
    def layer(x: Tensor, *, training: bool) -> Tensor:
        return functional.batch_norm(x, mean, var, scale, shift, training)

    axes = (0, 2, 3)
    center, spread = (v[:, None, None] for v in (IMAGES.mean(axes), IMAGES.var(axes)))
    for _ in range(2):
        found = layer(IMAGES, training=True).numpy()
        np.testing.assert_allclose(found, (IMAGES - center) / np.sqrt(spread + 1e-5) * 2 + 3)
    np.testing.assert_allclose(mean.numpy(), IMAGES.mean(axes) * 0.19, rtol=1e-9)
    unbiased = IMAGES.var(axes, ddof=1)
    np.testing.assert_allclose(var.numpy(), 0.81 + 0.19 * unbiased, rtol=1e-9)
    kept = [(v.numpy())[:, None, None] for v in (mean, var)]
    found = layer(IMAGES, training=False).numpy()
    np.testing.assert_allclose(found, (IMAGES - kept[0]) / np.sqrt(kept[1] + 1e-5) * 2 + 3)


@pytest.mark.parametrize(
    ("loss", "label"),
    [
        (functional.cross_entropy, np.array([[1, 2]])), (functional.cross_entropy, np.ones(2)),
        (functional.square_loss, np.ones((2, 1), np.float32)), (functional.l1_loss, np.ones(3)),
        (functional.binary_cross_entropy, np.ones((3, 2))),
    ],
)  # fmt: skip
def test_labels_of_another_shape_are_refused(loss: Any, label: Any) -> None:
    with pytest.raises(ArgumentError, match=r"labels of .* for predictions of \[2, 3\]"):
        loss(Tensor(np.ones((2, 3), np.float32)), label)


@pytest.mark.few(2)
@pytest.mark.parametrize("label", [3, -1, -99, 1 << 40])
def test_a_label_that_is_no_class_is_seen_in_the_loss_alone(label: int) -> None:
    x = np.array([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]], np.float32)
    manager = GradManager()
    tensor = Parameter(x)
    manager.attach(tensor)
    with manager:
        loss = functional.cross_entropy(tensor, np.array([label, 1]))
        manager.backward(loss)
    assert np.isnan(loss.numpy())
    (_, row) = want = np.zeros_like(x)
    row += softmax(x)[1] / 2
    row[1] -= 0.5
    np.testing.assert_allclose(tensor.grad.numpy(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [None, True, False])
def test_halves_are_normalized_as_floats(training: bool | None) -> None:
    x = (np.array([[-1, 1], [3, -3], [2, 5]]) * 1000).astype(np.float16)  # squares are infinite
    if training is None:
        found = functional.layer_norm(Tensor(x), Tensor(np.ones(2, np.float16)))
        want = np.array([[-1, 1], [1, -1], [-1, 1]])
    else:
        mean, var = (Parameter(np.full(2, n, np.float16)) for n in (0, 1))
        one, zero = (Tensor(np.full(2, n, np.float16)) for n in (1, 0))
        found = functional.batch_norm(Tensor(x / 50), mean, var, one, zero, training)
        want = (x / 50.0 - (x / 50.0).mean(0)) / (x / 50.0).std(0) if training else x / 50
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.numpy(), want, rtol=2e-3)


def test_squares_of_halves_are_floats() -> None:
    found = functional.square_loss(Tensor(np.float16([300, 0, 0, 0])), np.zeros(4, np.float16))
    assert found.dtype == np.float16
    assert abs(float(found) - 22500) < 16


@pytest.mark.parametrize("count", [1000, 70_000])
def test_cross_entropies_of_halves_are_summed_in_floats(count: int) -> None:
    x = np.zeros((count, 2), np.float16)
    x[::2, 1] = 300.0
    found = functional.cross_entropy(Tensor(x), np.zeros(count, np.int64))
    assert found.dtype == np.float16
    assert abs(float(found) - (300 + np.log(2)) / 2) < 0.1
