"""Runs a compiled network through its C interface, with cffi and numpy alone.

Every generated project carries this file's text in its Python module: nothing of ours is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atc.runtime.device import (
    DeviceTensor,
    Streams,
    checked_tensor,
    current_stream,
    is_on_device,
    new_tensor,
    resized,
    stream_of,
)
from atc.runtime.library import Context, Library
from atc.runtime.queue import CallQueue, captured
from atc.runtime.shown import html_table
from atc.runtime.values import Array, Tensor, Value, by_name, flat, grouped, listed_inputs, to_texts

if TYPE_CHECKING:
    from concurrent.futures import Future


T = TypeVar("T")


class Network:
    """A compiled network, ready to run.

    A sequence of the model is a list of arrays, a map is a dict, a sequence of maps is a list of
    dicts, an optional without a value is None: `parameters` and `results` say so. `inputs` and
    `outputs` are the tensors, sequences' elements and maps' keys and values among them. Strings are
    arrays of objects; what isn't UTF-8 in them is kept as surrogate escapes.

    It may be called from several threads at once: each call in progress has an arena of its own,
    and arenas are kept for the next calls. The interpreter's lock is released meanwhile. A network
    that carries states (`state_size` bytes) has one arena, and its calls come one after the other;
    bound calls have states of their own.
    """

    def __init__(
        self, library: str | PathLike[str], prefix: str,
        weights: str | PathLike[str] | None = None, huge_pages: bool = False,
        device_id: int | None = None,
    ) -> None:  # fmt: skip
        """Load a shared library whose functions are called `<prefix>_...`.

        `weights` is the file of the weights where they are not in the library. With `huge_pages`
        arenas are in large pages where the system has some. A network for a GPU runs on that with
        the number `device_id`, or the one that it was compiled for. Raises OSError for a file that
        can't be loaded, RuntimeError for one that can't run here.
        """
        self._library: Library | None = Library(
            library, prefix, weights, huge_pages, device_id
        )
        self._prefix = prefix
        self.inputs: tuple[Tensor, ...] = self._library.inputs
        self.outputs: tuple[Tensor, ...] = self._library.outputs
        self.parameters: tuple[Value, ...] = self._library.values("input", self.inputs)
        self.results: tuple[Value, ...] = self._library.values("output", self.outputs)
        self._given = [v.name for v in self.parameters]
        self._names = frozenset(self._given)
        self._made = [v.name for v in self.results]
        values = (*self.parameters, *self.results)
        self._direct = self._library.is_direct and all(v.is_plain for v in values)
        self.build_info: str = self._library.text("build_info")
        self.state_size: int = self._library.state_size
        self._queue = CallQueue(prefix)
        self._streams: Streams | None = Streams(self._library)
        self._library.idle.append(Context(self._library))  # raises what keeps it from running

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the network: its inputs and outputs."""
        sides = (("input", self.inputs), ("output", self.outputs))
        rows = [(side, *str(t).rsplit(": ", 1)) for side, tensors in sides for t in tensors]
        return html_table(self._prefix, ("", "name", "type"), rows, self.build_info)

    def __call__(
        self, /, *inputs: Any, out: Any | Sequence[Any | None] | None = None, stream: Any = None,
        **named: Any,
    ) -> Any:  # fmt: skip
        """Compute the outputs: an array, or a tuple where the network has several.

        Inputs come in the network's order, by their names (`net(x=a)`, `net(**{"x:0": a})`), or
        the first in order and the rest by name. `out` and `stream` are never names of inputs here.
        Arrays of the right type and shape are read where they lie, if contiguous; small ones are
        copied, which takes less. The outputs are new arrays, or those of `out`. Raises TypeError or
        ValueError naming the tensor.

        A network for a GPU takes tensors that lie there, with `__dlpack__` or
        `__cuda_array_interface__`, and returns the same kind: nothing is copied. The call is then
        queued on `stream`, a number or an object of the library that the tensors are of, else on
        torch's or cupy's current stream, of other libraries on the default one, and its results are
        there when that has got so far.
        """
        if named:
            inputs = self._ordered(inputs, named)
        found = self._computed(inputs, out, stream)
        return found[0] if len(found) == 1 else tuple(found)

    def submit(
        self, /, *inputs: Any, out: Array | Sequence[Array | None] | None = None,
        urgent: bool = False, **named: Any,
    ) -> Future[Any]:  # fmt: skip
        """Queue a call; returns a future, whose `result()` is what the call returns or raises.

        A thread of the network's own runs the calls in the order in which they come; `urgent` ones
        run beside them and wait for none. Inputs are copied, so that the caller may change them,
        but for arrays that can't be written. A full queue lets its caller wait. Environment
        variables say how long it is and how errors come: see `CallQueue`.
        """
        library = self._open()
        try:
            given = flat(self.parameters, self._ordered(inputs, named) if named else inputs)
            arrays = listed_inputs(self.inputs, given)
            results = self._listed(out)
        except (TypeError, ValueError) as error:
            if self._queue.level < 2:
                raise
            return self._queue.done(error=error)
        if self._queue.level == 0:
            return self._queue.done(self._called(library, arrays, results))
        call = partial(self._called, library, captured(arrays, given), results)
        return self._queue.put(call, urgent)

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: Any = None
    ) -> dict[str, Any]:
        """Compute the outputs by name, in the model's order, from inputs by name; see a call."""
        if not hasattr(inputs, "keys"):
            raise TypeError("run takes a dict of arrays by name; a call takes arrays in order")
        given = by_name("output", self.outputs, out, complete=False) if out else None
        found = self._computed(self._ordered((), inputs), given, stream)
        return dict(zip(self._made, found, strict=True))

    def _ordered(self, first: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters' values, of which the `first` come without names.

        Raises ValueError for a name that isn't one of theirs, TypeError for a missing one.
        """
        if not first and named.keys() == self._names:
            return tuple([named[name] for name in self._given])
        if len(first) > len(self._given):
            raise TypeError(
                f"{len(first)} inputs given, the network takes {len(self._given)}: {self._given}"
            )
        given = dict(zip(self._given, first, strict=False))
        for name in named:
            if name in given:
                raise TypeError(f"input {name!r} is given twice")
        return tuple(by_name("input", self.parameters, {**given, **named}, complete=True))

    def _computed(
        self, inputs: Sequence[Any], out: Any | Sequence[Any | None] | None, stream: Any = None
    ) -> list[Any]:
        """Return the results for the parameters' values."""
        library = self._library or self._open()
        if self._direct and out is None and stream is None:
            found = library.run_directly(inputs)
            if found is not None:
                return found
        if library.run_device is not None and any(map(is_on_device, inputs)):
            return self._computed_there(library, inputs, out, stream)
        if stream is not None:
            raise TypeError("stream= is for tensors on a GPU that the network was compiled for")
        arrays = listed_inputs(self.inputs, flat(self.parameters, inputs))
        return grouped(self.results, self._read(library.run(arrays, self._listed(out))))

    def _computed_there(
        self, library: Library, inputs: Sequence[Any], out: Any, stream: Any
    ) -> list[Any]:
        """Queue a run on tensors of the GPU; returns the results, which are there, too."""
        if len(inputs) != len(self.inputs) or not all(v.is_plain for v in self.parameters):
            names = [t.name for t in self.inputs]
            raise TypeError(f"{len(inputs)} inputs given, the network takes {len(names)}: {names}")
        listed = out if isinstance(out, list | tuple) else [out] * len(self.outputs)
        if len(listed) != len(self.outputs):
            raise TypeError(f"{len(listed)} tensors for {len(self.outputs)} outputs")
        queue = current_stream(inputs[0]) if stream is None else stream_of(stream)
        pairs = zip(inputs, self.inputs, strict=True)
        found = [checked_tensor(value, tensor, "input", queue) for value, tensor in pairs]
        given = [each.stream for each in found if each.stream is not None]
        if stream is None and given:
            queue = int(given[0])
        results: list[Any] = []

        def made(shapes: list[tuple[int, ...]]) -> list[DeviceTensor]:
            own = [replace(t, shape=s) for t, s in zip(self.outputs, shapes, strict=True)]
            sides = [*zip(listed, own, strict=True)]
            results.extend(new_tensor(inputs[0], t) if o is None else o for o, t in sides)
            return self._checked_outputs(library, results, own, found, queue)

        streams = self._streams or Streams(library)  # closed meanwhile
        shapes = streams.run(queue, found, made)
        return [resized(result, shape) for result, shape in zip(results, shapes, strict=True)]

    @staticmethod
    def _checked_outputs(
        library: Library, results: Sequence[Any], tensors: Sequence[Tensor],
        inputs: Sequence[DeviceTensor], queue: int,
    ) -> list[DeviceTensor]:  # fmt: skip
        """Return where the outputs lie; ValueError where a tensor is on another device."""
        pairs = zip(results, tensors, strict=True)
        outputs = [checked_tensor(value, tensor, "output", queue) for value, tensor in pairs]
        for each in (*inputs, *outputs):
            if each.device not in (None, library.device_id):
                raise ValueError(
                    f"a tensor is on device {each.device}, the network on {library.device_id}"
                )
        return outputs

    def reset(self) -> None:
        """Make the states zero, as they are before the first call."""
        self._with_context(Context.reset)

    def save_state(self) -> bytes:
        """Return the states as bytes, for `restore_state` of any network of this library."""
        return self._with_context(Context.save_state)

    def restore_state(self, state: bytes) -> None:
        """Let the states be what they were when they were saved; ValueError for another size."""
        self._with_context(partial(Context.restore_state, state=state))

    def _with_context(self, do: Callable[[Context], T]) -> T:
        library = self._open()
        context = library.context()
        try:
            return do(context)
        finally:
            library.idle.append(context)

    def bind(
        self, /, *inputs: Any, out: Array | Sequence[Array | None] | None = None, **named: Any
    ) -> Bound:
        """Return a call on these very arrays that costs next to nothing beside the network.

        They come as those of a call do, by name too.
        Its `inputs` and `outputs` are the arrays: write the former, call it, read the latter.
        Strings lie in arrays of bytes then, `S256` for instance, as C holds them.
        """
        library = self._open()
        given = self._ordered(inputs, named) if named else inputs
        arrays = listed_inputs(self.inputs, flat(self.parameters, given), in_place=True)
        return Bound(library, arrays, self._listed(out), self.results)

    def close(self) -> None:
        """Let go of the library; it is unloaded once no call and no bound call needs it.

        Calls that are queued are still run.
        """
        self._library = None
        self._streams = None
        self._queue.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        return f"<network {self._prefix}: ({inputs}) -> ({outputs})>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"the network {self._prefix} can't be copied or pickled: load it once more, in the "
            "process that needs it"
        )

    def _open(self) -> Library:
        if self._library is None:
            raise ValueError(f"the network {self._prefix} is closed")
        return self._library

    def _called(
        self, library: Library, arrays: list[Array], out: Sequence[Array | None]
    ) -> Any:
        """Run once; returns what a call returns."""
        found = grouped(self.results, self._read(library.run(arrays, out)))
        return found[0] if len(found) == 1 else tuple(found)

    def _read(self, results: Sequence[Array]) -> list[Array]:
        """Return the outputs with the strings among them as objects."""
        pairs = zip(self.outputs, results, strict=True)
        return [to_texts(array) if tensor.cell else array for tensor, array in pairs]

    def _listed(self, out: Array | Sequence[Array | None] | None) -> Sequence[Array | None]:
        if out is None:
            return [None] * len(self.outputs)
        return [out] if isinstance(out, np.ndarray) else out


class Bound:
    """A network with its arrays: each call reads `inputs`, writes `outputs` and returns them.

    It has an arena of its own. Only one thread may call it at a time.
    """

    def __init__(
        self, library: Library, inputs: list[Array], out: Sequence[Any], made: Sequence[Value]
    ) -> None:
        """Take inputs that have been checked, and arrays for the outputs or None."""
        self._library = library
        self._context = Context(library) if library.state_size else library.context()
        outputs = self._context.point_to(inputs, out)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._made = made
        self._arguments = self._context.arguments
        self._run = library.run_tensors
        found = tuple(grouped(made, outputs))
        plain = all(v.is_plain for v in made)
        fixed = library.set_shapes is None and all(v.entry is None for v in made)
        result = found[0] if len(found) == 1 else self.outputs if plain else found
        self._result = result if fixed else None  # else it is made of each run's outputs

    def reset(self) -> None:
        """Make the states zero, as they are before the first call."""
        self._context.reset()

    def save_state(self) -> bytes:
        """Return the states as bytes."""
        return self._context.save_state()

    def restore_state(self, state: bytes) -> None:
        """Let the states be what they were when they were saved; ValueError for another size."""
        self._context.restore_state(state)

    def __call__(self) -> Any:
        """Run the network; returns the bound output, or the tuple of all."""
        status = self._run(*self._arguments)
        if status:
            raise self._library.error(status, self._arguments[0])
        if self._result is not None:
            return self._result
        found = grouped(self._made, self._context.filled(self.outputs))
        return found[0] if len(found) == 1 else tuple(found)
