"""Gradients of gradients, against differences of gradients in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import atc
from atc import GradManager, Parameter, Tensor, functional, gradcheck, trace
from atc import array_api as xp
from atc.errors import UnsupportedError
from atc.tracing.tensor import node

RNG = np.random.default_rng(0)
LABELS = np.array([0, 2, 1, 1])
SCALES = np.array([1, 1, 1.5], np.float32)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def between(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 0.9, shape)


def slopes_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function that computes the gradients of another, in a row."""

    def slopes(*parameters: Parameter) -> Tensor:
        manager = GradManager().attach(parameters).clear_grad()
        with manager:
            manager.backward(function(*parameters))
        found = [xp.reshape(p.grad, (-1,)) for p in parameters]
        manager.clear_grad()
        return xp.concat(found)

    return slopes


def activations(x: Tensor) -> Tensor:
    smooth = xp.tanh(x) * functional.sigmoid(x) * functional.softplus(x) * functional.gelu(x)
    return xp.sum(smooth * functional.leaky_relu(x) * xp.sin(x) * xp.cos(x))


def functions(x: Tensor) -> Tensor:
    roots = xp.sqrt(x) * xp.log(x) * xp.asin(x) * xp.atan(x) / xp.acos(x)
    return xp.sum(roots * xp.sinh(x) * xp.tan(x) * xp.atanh(x) * xp.acosh(x + 1.0) * xp.exp(x))


def network(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    y = functional.linear(xp.tanh(functional.linear(x, w, b)), v)
    return functional.cross_entropy(y, LABELS)


def images(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = functional.relu(functional.conv2d(x, w, b, padding=1, stride=2))
    return xp.sum(functional.max_pool2d(y, 2) ** 3.0) + xp.sum(functional.avg_pool2d(y, 2) ** 3.0)


def parts(x: Tensor) -> Tensor:
    joined = xp.concat([x[:, 1:] * x[:, :-1], xp.flip(x, axis=1)], axis=1)
    places = Tensor(np.array([[0, 2], [3, 3]]))
    return xp.sum(joined**3.0) + xp.sum(xp.take_along_axis(x, places, axis=1) ** 3.0)


def best(x: Tensor) -> Tensor:
    return xp.sum(xp.max(x, axis=1) ** 3.0) + xp.min(x * x) + xp.sum(xp.std(x, axis=1))


def batches(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = Parameter(np.zeros(3)), Parameter(np.ones(3))
    return xp.sum(functional.batch_norm(x, mean, var, w, b, training=True) ** 3.0)


CASES: list[tuple[Callable[..., Tensor], list[np.ndarray]]] = [
    (parts, [normal(2, 4)]),
    (images, [normal(1, 2, 7, 7), normal(3, 2, 3, 3), normal(3)]),
    (network, [normal(4, 3), normal(5, 3), normal(5), normal(3, 5)]),
    (activations, [normal(5)]),
    (functions, [between(5)]),
    (lambda x, y: xp.sum(x**y) + xp.sum((x / y) * (x * y) - x * y), [between(3, 4), normal(4)]),
    (lambda x, y: xp.sum(xp.maximum(x, y) ** 2.0 * xp.minimum(x, y)), [normal(6), normal(6)]),
    (lambda x: xp.sum(xp.where(x > 0, x * x * x, xp.exp(x))), [normal(6)]),
    (lambda x, y: xp.sum((x @ y) ** 3.0), [normal(2, 3, 4), normal(4, 2)]),
    (lambda x: xp.sum(functional.softmax(x, axis=1) ** 2.0 * x), [normal(2, 3, 2)]),
    (lambda x: xp.sum(functional.log_softmax(x) ** 3.0), [normal(2, 4)]),
    (lambda x, w: xp.sum(functional.conv_transpose2d(x, w, stride=2, padding=1) ** 3.0),
     [normal(1, 2, 3, 3), normal(2, 2, 3, 3)]),
    (lambda x, w, b: xp.sum(functional.layer_norm(x, w, b) ** 3.0),
     [normal(3, 4), normal(4), normal(4)]),
    (batches, [normal(4, 3, 2), normal(3), normal(3)]),
    (best, [normal(3, 4)]),
    (lambda x: xp.sum(xp.cumulative_sum(x, axis=0) ** 3.0), [normal(4)]),
    (lambda x: xp.sum(node("Resize", x, None, SCALES, mode="linear") ** 3.0), [normal(1, 2, 3)]),
    (lambda x: xp.sum(node("ReduceLogSumExp", x, keepdims=0) ** 3.0), [normal(4)]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("function", "arrays"), CASES)
def test_second_derivatives_are_differences_of_first_ones(
    function: Callable[..., Tensor], arrays: list[np.ndarray]
) -> None:
    assert gradcheck(slopes_of(function), arrays)


def grown(power: int, x: float) -> list[float]:
    """Return the derivatives of x^power that a trace computes of each other."""
    parameter = Parameter(np.array([x]))

    @trace
    def derivatives() -> list[Tensor]:
        found = []
        with GradManager().attach(parameter) as manager:
            y: Any = parameter**float(power)
            for _ in range(power):
                manager.backward(y)
                y, parameter.grad = parameter.grad, None
                found.append(y)
        return found

    return [float(y) for y in derivatives()]


def test_derivatives_of_any_order() -> None:
    assert grown(4, 2.0) == [32, 48, 48, 24]


@pytest.mark.slow
def test_a_gradient_penalty_trains() -> None:
    """The slope by the input is a part of the loss, as Wasserstein networks have it."""
    weight, data = Parameter(np.array([3.0, 4.0])), np.array([[1.0, 2.0], [0.5, -1.0]])

    @trace
    def penalized(x: Tensor) -> Tensor:
        inputs = Parameter(x.numpy())
        with GradManager().attach([inputs, weight]) as manager:
            manager.backward(xp.sum(xp.tanh(inputs @ weight)))
            slope, inputs.grad, weight.grad = inputs.grad, None, None
            assert slope is not None
            penalty = xp.sum((xp.sqrt(xp.sum(slope * slope, axis=1)) - 1.0) ** 2.0)
            manager.backward(penalty)
        return penalty

    def penalty(w: np.ndarray) -> float:
        slopes = (1 - np.tanh(data @ w) ** 2)[:, None] * w
        return float(((np.linalg.norm(slopes, axis=1) - 1) ** 2).sum())

    assert float(penalized(data)) == pytest.approx(penalty(weight.numpy()))
    step = 1e-6 * np.eye(2)
    wanted = [(penalty(weight.numpy() + s) - penalty(weight.numpy() - s)) / 2e-6 for s in step]
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), wanted, rtol=1e-4)


def test_what_has_no_second_derivative_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"second derivative of Reduce \(Prod\)"):
        gradcheck(slopes_of(lambda x: xp.prod(x)), [normal(3)])


def test_only_the_part_that_changes_is_differentiated() -> None:
    """A Prod of what isn't asked for doesn't matter."""
    weight, other = Parameter(normal(3)), Parameter(normal(3))

    @trace
    def cubes() -> Tensor:
        with GradManager().attach(weight) as manager:
            manager.backward(xp.sum(weight**3.0) + xp.prod(other))
            slope, weight.grad = weight.grad, None
            assert slope is not None
            manager.backward(xp.sum(slope))
        return slope

    cubes()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), 6 * weight.numpy())
    assert atc.is_tracing() is False


def test_a_second_derivative_ends_where_gradients_stop() -> None:
    with pytest.raises(UnsupportedError, match="second derivative through StopGradient"):
        gradcheck(slopes_of(lambda x: xp.sum((x * x).detach() * x)), [normal(3)])
