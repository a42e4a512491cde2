"""Kinds of contexts that calls from Python use: the only one of a network, one of small arrays.

A part of `atc/runtime/network.py`; generated projects carry all in one module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atc.runtime.values import Array, Tensor


class OneContext:
    """The only context of a network with states, in the place of a list of those that are idle."""

    def __init__(self) -> None:
        self._used = threading.Lock()
        self._context: Any = None

    def pop(self) -> Any:
        """Return the context once nobody uses it; IndexError where there is none yet."""
        if self._context is None:
            raise IndexError
        self._used.acquire()
        return self._context

    def append(self, context: Any) -> None:
        """Let others use the context."""
        if self._context is None:
            self._context = context
        else:
            self._used.release()


class OwnArrays:
    """A context's arrays for small inputs and outputs, which calls copy theirs to and from."""

    def __init__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor],
        arguments: Callable[[list[Array], list[Array]], tuple[Any, Any, Any]],
        run: Callable[..., int], error: Callable[[int, Any], RuntimeError],
    ) -> None:  # fmt: skip
        """Make arrays, and the arguments with which C runs on them; `error` is that of a status."""
        own, self._outputs = ([np.empty(t.shape, t.dtype) for t in side]
                              for side in (inputs, outputs))  # fmt: skip
        self._arguments = arguments(own, self._outputs)
        self._inputs = [(k, a, a.dtype, a.shape) for k, a in enumerate(own)]
        self._run, self._error = run, error

    def run(self, inputs: Sequence[Any]) -> list[Array] | None:
        """Run once on copies of the inputs; None, and nothing is run, for other arrays."""
        for k, own, dtype, shape in self._inputs:
            given = inputs[k]
            if type(given) is not np.ndarray or given.dtype != dtype or given.shape != shape:
                return None
            own[...] = given
        status = self._run(*self._arguments)
        if status:
            raise self._error(status, self._arguments[0])
        outputs = []
        for array in self._outputs:
            outputs.append(array.copy())  # noqa: PERF401 (a comprehension is one more call)
        return outputs
