"""Optimizers: `step()` updates parameters by their gradients.

All that changes from step to step is tensors, so a step is traced once and a compiled step still
counts and obeys `lr`. Numbers are those of PyTorch's optimizers of the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from atc.tracing.errors import ArgumentError, place
from atc.tracing.parameter import Parameter
from atc.tracing.tensor import Tensor, astype, binary, node


class Optimizer:
    """Base class of optimizers: the parameters, the learning rate, `clear_grad`."""

    def __init__(self, params: Parameter | Iterable[Parameter], lr: float) -> None:
        self.params = [params] if isinstance(params, Parameter) else [*params]
        wrong = [p for p in self.params if not isinstance(p, Parameter)]
        if wrong or not self.params:
            what = f"a {type(wrong[0]).__name__}" if wrong else "nothing"
            raise ArgumentError(f"{what} is given to optimize", where=place(),
                                hint="give Parameters")  # fmt: skip
        self.rate = Parameter(np.float64(_positive(lr, "lr")), name="lr")

    @property
    def lr(self) -> float:
        """The learning rate, which may be changed between steps."""
        return float(self.rate)

    @lr.setter
    def lr(self, rate: float) -> None:
        self.rate.assign(np.float64(_positive(rate, "lr")))

    def clear_grad(self) -> Optimizer:
        """Clear the parameters' gradients; returns the optimizer."""
        for parameter in self.params:
            parameter.grad = None
        return self

    def step(self) -> Optimizer:
        """Update each parameter that has a gradient; returns the optimizer."""
        self._begin()
        for k, parameter in enumerate(self.params):
            grad = parameter.grad
            if grad is not None:
                self._change(k, parameter, grad)
        return self

    def state(self) -> Sequence[Parameter]:
        """Return the optimizer's state, which a checkpoint has to contain."""
        return []

    def _begin(self) -> None:
        """Prepare a step."""

    def _change(self, k: int, parameter: Parameter, grad: Tensor) -> None:
        raise NotImplementedError

    def _zeros(self, kind: str) -> list[Parameter]:
        return [
            Parameter(np.zeros(p.shape, p.dtype), name=f"{p.name or k}.{kind}")
            for k, p in enumerate(self.params)
        ]

    def _rate_for(self, parameter: Parameter) -> Tensor:
        return astype(self.rate, parameter.dtype)


def _positive(value: float, name: str) -> float:
    if not 0 <= value < np.inf:
        raise ArgumentError(f"{name} is {value}", where=place(), hint="give a number from 0 on")
    return value


class SGD(Optimizer):
    """p - lr v, where v = momentum v + g and g includes `weight_decay` times p."""

    def __init__(
        self, params: Parameter | Iterable[Parameter], lr: float, momentum: float = 0.0,
        nesterov: bool = False, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, lr)
        self._momentum, self._nesterov = _positive(momentum, "momentum"), nesterov
        self._decay = _positive(weight_decay, "weight_decay")
        if nesterov and not momentum:
            raise ArgumentError("nesterov without momentum", where=place())
        self._velocity = self._zeros("velocity") if momentum else []

    def state(self) -> Sequence[Parameter]:
        """Return the velocities."""
        return self._velocity

    def _change(self, k: int, parameter: Parameter, grad: Tensor) -> None:
        if self._decay:
            grad = grad + parameter * self._decay
        if self._momentum:
            velocity = self._velocity[k] * self._momentum + grad
            self._velocity[k].assign(velocity)
            grad = grad + velocity * self._momentum if self._nesterov else velocity
        parameter.assign(parameter - self._rate_for(parameter) * grad)


class Adam(Optimizer):
    """Steps of lr m / (sqrt(v) + eps), with bias-corrected averages m of g and v of g g."""

    decoupled = False
    """Whether weight decay is decoupled from the gradient."""

    def __init__(
        self, params: Parameter | Iterable[Parameter], lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, lr)
        for beta in betas:
            if not 0 <= beta < 1:
                raise ArgumentError(f"a beta of {beta}", where=place(), hint="give 0 to below 1")
        self._betas, self._eps = betas, _positive(eps, "eps")
        self._decay = _positive(weight_decay, "weight_decay")
        self._first, self._second = self._zeros("first"), self._zeros("second")
        self._count = Parameter(np.float64(0), name="step")

    def state(self) -> Sequence[Parameter]:
        """Return both averages of every parameter, and the count of steps."""
        return [*self._first, *self._second, self._count]

    def _begin(self) -> None:
        self._count.assign(self._count + 1.0)

    def _change(self, k: int, parameter: Parameter, grad: Tensor) -> None:
        dtype, (slow, fast) = parameter.dtype, self._betas
        rate = self._rate_for(parameter)
        x: Tensor = parameter
        if self._decay and self.decoupled:
            x = x - x * (rate * self._decay)
        elif self._decay:
            grad = grad + x * self._decay
        first = self._first[k] * slow + grad * (1 - slow)
        second = self._second[k] * fast + grad * grad * (1 - fast)
        self._first[k].assign(first)
        self._second[k].assign(second)
        unbiased = [1.0 - binary("Pow", np.float64(b), self._count) for b in self._betas]
        root = node("Sqrt", second) / astype(node("Sqrt", unbiased[1]), dtype) + self._eps
        parameter.assign(x - astype(self.rate / unbiased[0], dtype) * first / root)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    decoupled = True

    def __init__(
        self, params: Parameter | Iterable[Parameter], lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)
