"""`gradcheck`: derivatives against finite differences, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atc.errors import VerificationError
from atc.tracing.errors import ArgumentError
from atc.tracing.gradient import GradManager
from atc.tracing.parameter import Parameter
from atc.tracing.tensor import Tensor, node
from atc.tracing.traced import trace


def gradcheck(
    function: Callable[..., Tensor], inputs: Sequence[Any], eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3,
) -> bool:  # fmt: skip
    """Compare the gradients of a function of float64 arrays with central differences.

    The function's results are weighted by random numbers, the same in each call. Returns True, or
    raises VerificationError, which names the first input and element that is off.
    """
    arrays = [np.array(x) for x in inputs]
    if not arrays or any(x.dtype != np.float64 for x in arrays):
        raise ArgumentError("gradcheck is for arrays of float64", hint="use astype")
    parameters = [Parameter(x) for x in arrays]
    manager = GradManager().attach(parameters)

    def weighted() -> Tensor:
        y = function(*parameters)
        shape = [n or 1 for n in y.shape]
        weights = np.random.default_rng(0).uniform(0.5, 1.5, shape)
        return node("ReduceSum", node("Mul", y, weights), keepdims=0)

    @trace(opt_level=1)
    def derived() -> Tensor:
        with manager:
            y = weighted()
            manager.propagate(y)
        return y

    value = trace(opt_level=1)(weighted)
    derived()
    slopes = [np.zeros_like(x) if p.grad is None else p.grad.numpy()
              for p, x in zip(parameters, arrays, strict=True)]  # fmt: skip
    for k, (parameter, array, slope) in enumerate(zip(parameters, arrays, slopes, strict=True)):
        for place in np.ndindex(array.shape):
            sides = []
            for step in (eps, -eps):
                moved = array.copy()
                moved[place] += step
                parameter.assign(moved)
                sides.append(float(value()))
            parameter.assign(array)
            wanted = (sides[0] - sides[1]) / (2 * eps)
            if not abs(slope[place] - wanted) <= atol + rtol * abs(wanted):
                raise VerificationError(
                    f"the derivative by element {list(place)} of input {k} is {slope[place]:g}, "
                    f"differences say {wanted:g}"
                )
    return True
