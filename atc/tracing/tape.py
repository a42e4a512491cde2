"""The recorder of a function that runs: a tape, the tensors it reads, those it updates."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atc.tracing.errors import TracingError, place
from atc.tracing.networks import Options, network_of, options_of
from atc.tracing.recording import Array, Recording
from atc.tracing.segments import Segments

LONGEST = 500
"""Most nodes that are recorded outside of traced functions before they are computed."""


class Tracked:
    """A tensor as tapes know it: its elements, or the tape's value that they are yet to be."""

    array: Array | None
    tape: Tape | None
    value: str
    name: str
    constant: bool
    kept_grad: Tracked | None = None
    """The gradient that `backward` has stored, of a parameter."""


@dataclass
class Tape:
    """A recording in progress.

    `sources` are the tensors behind its inputs. `traced` is the name of the function that is being
    traced, '' outside of any.
    """

    traced: str = ""
    symbolic: bool = False
    constants: bool = False
    """Whether tensors that are read become constants."""
    options: Options = options_of({"oo_level": "O2"})
    warned: bool = False
    excluded: bool = False
    """Whether a part of the function was left to Python."""
    ended: bool = False
    segments: Segments | None = None
    """The parts into which `exclude_from_trace` has cut the function."""
    differentiating: int = 0
    grads: dict[int, tuple[Tracked, Tracked | None]] = field(default_factory=dict)
    """The gradients of parameters as they were when the function began."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start over without nodes."""
        self.recording = Recording()
        self.sources: dict[str, Tracked] = {}
        self.values: dict[int, str] = {}
        self.made: list[weakref.ref[Tracked]] = []
        self.updates: dict[int, tuple[Tracked, Tracked]] = {}

    def value(self, tensor: Tracked) -> str:
        """Return the value of a tensor in the recording; one from outside becomes an input."""
        if id(tensor) in self.updates:
            tensor = self.updates[id(tensor)][1]
        if tensor.tape is self:
            return tensor.value
        if tensor.tape is not None:
            tensor.tape.resolve(tensor)
        known = self.values.get(id(tensor))
        if known is not None:
            return known
        array = tensor.array
        assert array is not None
        if tensor.constant or self.constants:
            value = self.recording.constant(array, tensor.name)
        else:
            value = self.recording.input(array.dtype, array.shape, tensor.name)
        self.sources[value] = tensor
        self.values[id(tensor)] = value
        return value

    def placeholder(self, tensor: Tracked, name: str) -> None:
        """Make a tensor an input, even if the tape reads other tensors as constants."""
        assert tensor.array is not None
        value = self.recording.input(tensor.array.dtype, tensor.array.shape, name)
        self.sources[value] = tensor
        self.values[id(tensor)] = value

    def take(self, tensor: Tracked) -> None:
        """Keep track of a tensor that was made of this tape's values."""
        self.made.append(weakref.ref(tensor))
        if not self.traced and not self.differentiating and len(self.recording.nodes) > LONGEST:
            self.finish()

    def look(self, tensor: Tracked, why: str) -> Array:
        """Compute a tensor's elements and return them; `why` says what they are for."""
        current = self.updates[id(tensor)][1] if id(tensor) in self.updates else tensor
        self._check_ended()
        if self.symbolic:
            raise TracingError(
                f"{why} of a traced tensor has no value while the function is traced symbolically",
                where=place(), hint="trace with symbolic=False, or compute with where()",
            )  # fmt: skip
        if self.traced and why == "the bool" and not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.traced}: the branch taken at {place()} is frozen in the trace", stacklevel=4
            )
        if not self.traced and not self.differentiating:
            self.finish()
            assert tensor.array is not None
            return tensor.array
        if current.array is None:
            current.array = self.run([current.value])[0]
        assert current.array is not None
        return current.array

    def resolve(self, tensor: Tracked) -> None:
        """Compute a tensor that another tape reads, and all others that are alive."""
        self._check_ended()
        if self.traced:
            raise TracingError(
                f"a tensor that {self.traced} traces is read by another trace", where=place()
            )
        self.finish()

    def _check_ended(self) -> None:
        if self.ended:
            raise TracingError(
                f"a tensor of {self.traced} is used after the function has ended", where=place(),
                hint="return it from the function",
            )  # fmt: skip

    def finish(self) -> None:
        """Compute all tensors that are alive, and start over."""
        alive = [t for ref in self.made if (t := ref()) is not None and t.tape is self]
        waiting = [t for t in alive if t.array is None]
        changed = list(self.updates.values())
        values = [t.value for t in waiting] + [self.value(new) for _, new in changed]
        arrays = self.run(values, self.segments)
        for tensor, array in zip(waiting, arrays, strict=False):
            tensor.array = array
        for (tensor, _), array in zip(changed, arrays[len(waiting) :], strict=True):
            tensor.array = array
        for tensor in alive:
            tensor.tape = None
        self.restart()

    def run(self, values: Sequence[str], segments: Segments | None = None) -> list[Array]:
        """Compute values from the present values of what the recording has read.

        The network that computes them is one of the `segments`, if there are any.
        """
        distinct = list(dict.fromkeys(values))
        found: dict[str, Array] = {}
        for value in distinct:
            source = self.sources.get(value)
            if source is not None and source.array is not None:
                found[value] = source.array
        wanted = [v for v in distinct if v not in found]
        if wanted:
            inputs = [i for i in self.recording.inputs if i in self.recording.used(wanted)]
            names = {f"out{k}": v for k, v in enumerate(wanted)}
            model = self.recording.model("segment", inputs, names)
            if segments is None:
                network = network_of(model, self.options)
            else:
                network = segments.network(model)
            given = {i: self.sources[i].array for i in inputs}
            found.update(zip(wanted, network.run(given).values(), strict=True))
        return [np.array(found[v]) for v in values]


_AMBIENT: ContextVar[Tape | None] = ContextVar("ambient", default=None)
_TRACED: ContextVar[Tape | None] = ContextVar("traced", default=None)


def traced_tape() -> Tape | None:
    """Return the tape of the function that is being traced, if any."""
    return _TRACED.get()


def set_traced(tape: Tape | None) -> Any:
    """Make a tape the one that records; returns a token for `reset_traced`."""
    return _TRACED.set(tape)


def reset_traced(token: Any) -> None:
    """Make the previous tape the one that records."""
    _TRACED.reset(token)


def current_tape() -> Tape:
    """Return the tape that records: that of a traced function, else that of the context."""
    tape = _TRACED.get()
    if tape is not None:
        return tape
    tape = _AMBIENT.get()
    if tape is None:
        tape = Tape()
        _AMBIENT.set(tape)
    return tape


def options_for(level: int, more: Mapping[str, Any]) -> Options:
    """Return the options for a level of optimisation, 0 to 3, and further ones."""
    return options_of({"oo_level": f"O{level}", **more})
