"""`Parameter`: a tensor that training updates."""

from __future__ import annotations

from typing import Any, cast

from atc.tracing.errors import ArgumentError, place
from atc.tracing.tape import current_tape, traced_tape
from atc.tracing.tensor import Tensor, asarray


class Parameter(Tensor):
    """A tensor of a network that training updates; `grad` is its gradient, or None."""

    def __init__(self, data: Any, dtype: Any = None, *, name: str = "") -> None:
        super().__init__(data, dtype, name=name)
        self.constant = False

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` has stored."""
        self._note_grad()
        return cast("Tensor | None", self.kept_grad)

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        self._note_grad()
        self.kept_grad = grad

    def _note_grad(self) -> None:
        tape = traced_tape()
        if tape is not None:
            tape.grads.setdefault(id(self), (self, self.kept_grad))

    def assign(self, value: Any) -> None:
        """Assign a new value of the same type and shape."""
        new = asarray(value, self.dtype)
        if new.shape != self.shape:
            raise ArgumentError(
                f"a parameter of {list(self.shape)} is given {list(new.shape)}", where=place()
            )
        tape = current_tape()
        if new.array is not None and new.tape is None and not tape.traced:
            tape.finish()  # what was recorded before still reads the value of then
            self.array = new.array
            return
        tape.value(self)
        tape.updates[id(self)] = (self, new)
