"""Training steps, traced and not, against the optimizers' formulas in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc import GradManager, Parameter, Tensor, functional, optim, trace
from atc import array_api as xp
from atc.tracing import ArgumentError, TracingError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(8, 3))
Y = RNG.normal(size=(8, 2))
W = RNG.normal(size=(2, 3))


def slope(w: Any) -> Any:
    """Return the gradient of the mean squared error of x w^T."""
    return 2 * (X @ w.T - Y).T @ X / Y.size


def sgd(w: Any, steps: int, lr: float, momentum: float, nesterov: bool, decay: float) -> Any:
    v = np.zeros_like(w)
    for _ in range(steps):
        g = slope(w) + decay * w
        v = momentum * v + g
        w = w - lr * ((g + momentum * v if nesterov else v) if momentum else g)
    return w


def adam(w: Any, steps: int, lr: float, decay: float, decoupled: bool) -> Any:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, steps + 1):
        g = slope(w)
        if decoupled:
            w = w - lr * decay * w
        else:
            g = g + decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "SGD": (lambda p: optim.SGD(p, 0.1), lambda w, n: sgd(w, n, 0.1, 0, False, 0)),
    "momentum": (lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
                 lambda w, n: sgd(w, n, 0.1, 0.9, False, 0.01)),
    "nesterov": (lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
                 lambda w, n: sgd(w, n, 0.1, 0.9, True, 0)),
    "Adam": (lambda p: optim.Adam(p, 0.05, weight_decay=0.1),
             lambda w, n: adam(w, n, 0.05, 0.1, False)),
    "AdamW": (lambda p: optim.AdamW(p, 0.05, weight_decay=0.1),
              lambda w, n: adam(w, n, 0.05, 0.1, True)),
}  # fmt: skip


def trainer(weight: Parameter, optimizer: optim.Optimizer, traced: bool) -> Any:
    manager = GradManager().attach(weight)

    def step(x: Any, y: Any, *, gm: GradManager, opt: optim.Optimizer) -> Tensor:
        with gm:
            loss = functional.square_loss(functional.linear(x, weight), y)
            gm.backward(loss)
            opt.step().clear_grad()
        return loss

    run = trace(opt_level=0)(step) if traced else step
    wrap = (lambda v: v) if traced else Tensor
    return lambda: run(wrap(X), wrap(Y), gm=manager, opt=optimizer)


DEFAULT = [("SGD", True), ("Adam", True), ("AdamW", True), ("SGD", False)]
OTHER = [
    pytest.param(name, traced, marks=pytest.mark.slow)
    for name in OPTIMIZERS for traced in (True, False) if (name, traced) not in DEFAULT
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "traced"), [*DEFAULT, *OTHER])
def test_steps_are_the_formula(name: str, traced: bool) -> None:
    made, formula = OPTIMIZERS[name]
    weight = Parameter(W)
    step = trainer(weight, made([weight]), traced)
    losses = [float(step()) for _ in range(4)]
    np.testing.assert_allclose(weight.numpy(), formula(W, 4), rtol=1e-9)
    np.testing.assert_allclose(losses[0], ((X @ W.T - Y) ** 2).mean(), rtol=1e-9)
    assert losses[3] < losses[0]


def test_the_learning_rate_may_change_between_compiled_steps() -> None:
    weight = Parameter(W)
    optimizer = optim.SGD(weight, 0.1)
    step = trainer(weight, optimizer, True)
    step()
    optimizer.lr = 0.5
    step()
    once = sgd(W, 1, 0.1, 0, False, 0)
    np.testing.assert_allclose(weight.numpy(), sgd(once, 1, 0.5, 0, False, 0))
    assert optimizer.lr == 0.5


def test_gradients_add_up_until_they_are_cleared() -> None:
    weight = Parameter(W)
    manager = GradManager().attach(weight)

    @trace(opt_level=0)
    def backward(x: Tensor, y: Tensor) -> Tensor:
        with manager:
            loss = functional.square_loss(functional.linear(x, weight), y)
            manager.backward(loss)
        return loss

    for times in range(1, 5):
        backward(X, Y)
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad.numpy(), times * slope(W), rtol=1e-9)
    manager.clear_grad()
    backward(X, Y)
    np.testing.assert_allclose(weight.grad.numpy(), slope(W), rtol=1e-9)


@pytest.mark.slow
def test_a_parameter_that_is_not_attached_stays() -> None:
    weight, frozen = Parameter(W), Parameter(np.ones(2))
    manager = GradManager().attach(weight)
    optimizer = optim.SGD([weight, frozen], 0.1)

    @trace(opt_level=0)
    def step(x: Tensor, y: Tensor) -> Tensor:
        with manager:
            loss = functional.square_loss(functional.linear(x, weight, frozen), y)
            manager.backward(loss)
            optimizer.step().clear_grad()
        return loss

    step(X, Y - 1)
    np.testing.assert_array_equal(frozen.numpy(), np.ones(2))
    assert "new_1" not in [t.name for t in step.network.outputs]


def test_a_failing_trace_leaves_everything_as_it_was() -> None:
    weight = Parameter(W)
    manager = GradManager().attach(weight)

    @trace
    def fails(x: Tensor) -> Tensor:
        with manager:
            manager.backward(functional.linear(x, weight))
            weight.assign(weight * 2.0)
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        fails(X)
    assert weight.grad is None
    np.testing.assert_array_equal(weight.numpy(), W)


def test_constants_can_not_be_trained() -> None:
    weight = Parameter(W)

    @trace(capture_as_const=True)
    def step(x: Tensor) -> Tensor:
        weight.assign(weight * 2.0)
        return x

    with pytest.raises(TracingError, match="capture_as_const"):
        step(X)
    np.testing.assert_array_equal(weight.numpy(), W)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: optim.SGD([], 0.1), lambda: optim.SGD([Tensor(W)], 0.1),
        lambda: optim.SGD(Parameter(W), -1), lambda: optim.SGD(Parameter(W), float("nan")),
        lambda: optim.SGD(Parameter(W), 0.1, nesterov=True),
        lambda: optim.Adam(Parameter(W), betas=(0.9, 1.0)),
        lambda: GradManager().attach(Parameter([1])), lambda: GradManager().attach([Tensor(W)]),
        lambda: Parameter(W).assign(W[0]),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        wrong()


def test_backward_is_for_what_was_recorded() -> None:
    weight = Parameter(W)
    manager = GradManager().attach(weight)
    outside = weight * 2.0
    outside.numpy()
    with pytest.raises(TracingError, match="outside of the manager"):
        manager.backward(outside)
    with manager, pytest.raises(TracingError, match="wasn't computed"):
        manager.backward(outside)
    with manager, pytest.raises(ArgumentError, match="int64"):
        manager.backward(Tensor([1]) + 1)
    with GradManager() as empty, pytest.raises(ArgumentError, match="without attached"):
        empty.backward(weight * 2.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("named", ["w", ""])
def test_parameters_that_no_gradient_goes_to_are_named(named: str) -> None:
    x, lost = Parameter(np.array([1.5, -2.0])), Parameter(np.ones(3), name=named)
    manager = GradManager().attach([lost, x])
    optimizer = optim.AdamW([x, lost], lr=0.1)
    what = named or r"a parameter of float64 \[3\]"
    with manager:
        loss = xp.sum(x * x) + xp.sum(lost.detach()) + xp.sum(xp.astype(lost > 0, np.float64))
        with pytest.warns(UserWarning, match=f"test_optim.py.*no gradient goes to {what}: "):
            manager.backward(loss)
    assert lost.grad is None
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy())
    optimizer.step()
    np.testing.assert_array_equal(lost.numpy(), np.ones(3))  # no weight decay either


def test_no_gradient_goes_through_what_is_detached() -> None:
    x = Parameter(np.array([1.5, -2.0]))
    manager = GradManager().attach(x)
    with manager:
        manager.backward(xp.sum((x * x).detach() * x))
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), x.numpy() ** 2)
