"""`GradManager`: gradients of tensors with respect to the attached ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from atc.errors import one_line
from atc.tracing.errors import ArgumentError, TracingError, place
from atc.tracing.parameter import Parameter
from atc.tracing.tape import Tape, current_tape
from atc.tracing.tensor import Tensor, asarray, node


class GradManager:
    """Records while it is entered; `backward` then adds to each attached parameter's `grad`.

    As MegEngine's does: gradients accumulate until `clear_grad`, of the optimizer or the manager.
    """

    def __init__(self) -> None:
        self._attached: dict[int, Parameter] = {}
        self._tape: Tape | None = None

    def attach(self, parameters: Parameter | Iterable[Parameter]) -> GradManager:
        """Attach parameters, whose gradients are wanted; returns the manager."""
        for each in [parameters] if isinstance(parameters, Parameter) else [*parameters]:
            if not isinstance(each, Parameter):
                raise ArgumentError(f"{type(each).__name__} is not a Parameter", where=place())
            if each.dtype.kind != "f":
                raise ArgumentError(f"a parameter of {each.dtype} has no gradient", where=place())
            self._attached[id(each)] = each
        return self

    def attached_tensors(self) -> list[Parameter]:
        """Return the attached parameters."""
        return [*self._attached.values()]

    def clear_grad(self) -> GradManager:
        """Forget the gradients; returns the manager."""
        for each in self._attached.values():
            each.grad = None
        return self

    def __enter__(self) -> GradManager:
        self._tape = current_tape()
        self._tape.differentiating += 1
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._tape is not None
        self._tape.differentiating -= 1
        self._tape = None

    def backward(self, y: Tensor, dy: Any = None) -> None:
        """Add to each parameter's `grad` the gradient of the sum of y dy; dy is 1 by default.

        Parameters that y doesn't depend on are left as they are, and a warning names them.
        """
        unreached = self.propagate(y, dy)
        if unreached:
            warnings.warn(one_line(f"{place()}: {untrained(unreached)}"), stacklevel=2)

    def propagate(self, y: Tensor, dy: Any = None) -> list[Parameter]:
        """Do what `backward` does without a warning; returns the parameters that it would name."""
        tape = self._tape
        if tape is None:
            raise TracingError("backward outside of the manager's `with` block", where=place())
        if y.tape is not tape:
            raise TracingError(
                "backward of a tensor that wasn't computed in the `with` block", where=place()
            )
        if y.dtype.kind != "f":
            raise ArgumentError(f"backward of a tensor of {y.dtype}", where=place())
        if dy is not None:
            y = node("Mul", y, asarray(dy, y.dtype))
        parameters = [*self._attached.values()]
        if not parameters:
            raise ArgumentError("backward without attached parameters", where=place())
        found = {tape.value(p): p for p in parameters}
        reached = tape.recording.reached(y.value, found)
        wanted = [x for x in found if x in reached]
        values = tape.recording.gradient(y.value, wanted) if wanted else []
        for parameter, value in zip((found[x] for x in wanted), values, strict=True):
            new = Tensor.recorded(tape, value)
            old = parameter.grad
            parameter.grad = new if old is None else old + new
        return [p for x, p in found.items() if x not in reached]


def untrained(parameters: Sequence[Parameter]) -> str:
    """Return what is to be said of parameters that no gradient goes to."""
    names = [p.name or f"a parameter of {p.dtype} {[*p.shape]}" for p in parameters]
    return f"no gradient goes to {one_line(', '.join(names), 150)}: the loss doesn't depend on it"

