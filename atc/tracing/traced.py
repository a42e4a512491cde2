"""`trace`: a decorator that compiles a function of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, overload

import numpy as np
import onnx

from atc.errors import one_line
from atc.exporters.megengine import to_megengine
from atc.pipeline.held import Held
from atc.runtime.network import Network
from atc.tracing.configs import DTRConfig, SublinearMemoryConfig
from atc.tracing.errors import ArgumentError, OperandError, TracingError
from atc.tracing.networks import Options, network_of, write_library
from atc.tracing.recording import Array
from atc.tracing.segments import Segments
from atc.tracing.tape import Tape, Tracked, options_for, reset_traced, set_traced, traced_tape
from atc.tracing.tensor import REAL, Tensor

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclass
class Entry:
    """A trace: its network, where the inputs come from, where the outputs go."""

    model: onnx.ModelProto
    network: Network | None
    arguments: tuple[str, ...]
    sources: list[tuple[str, Tracked]]
    """The inputs that aren't arguments."""
    results: Any
    """The function's result, with the outputs' names in the place of tensors."""
    updates: list[tuple[Tracked, str]]
    grads: list[tuple[Tracked, Tracked | None, str | None]]
    """Parameters, their gradients before, and the outputs that have them after, if any."""

    def named(self, tensor: Tracked) -> str:
        """Return the name of a tensor's input."""
        return next(name for name, source in self.sources if source is tensor)

    def held(self) -> Held:
        """Return what is kept between calls: captured tensors, new values, gradients."""
        pairs = tuple((self.named(t), out) for t, out in self.updates)
        replaced = {name for name, _ in pairs}
        kept = [t.array for name, t in self.sources if name not in replaced]
        kept += [p.array for p, _, output in self.grads if output is not None]
        more = sum(array.nbytes for array in kept if array is not None)
        return Held(pairs, in_place=False, more=more)

    def fits(self) -> bool:
        """Return whether the parameters have the gradients that the trace began with."""
        return all(p.kept_grad is before for p, before, _ in self.grads)

    def ran(self, found: Mapping[str, Array]) -> Any:
        """Assign computed values to tensors and gradients; returns the function's result."""
        for tensor, name in self.updates:
            tensor.array = found[name]
        for parameter, before, output in self.grads:
            if output is None:
                parameter.kept_grad = None
            elif before is not None:
                before.array = found[output]
                parameter.kept_grad = before
            else:
                parameter.kept_grad = _outer(found[output])
        return _mapped(self.results, lambda name: _outer(found[name]))


def _outer(array: Array) -> Tensor:
    made = Tensor(array)
    made.constant = False
    return made


def _mapped(results: Any, of: Callable[[Any], Any]) -> Any:
    """Return a result with each tensor, or its placeholder, replaced."""
    if isinstance(results, dict):
        return {k: of(v) for k, v in results.items()}
    if isinstance(results, (tuple, list)):
        return type(results)(of(v) for v in results)
    return of(results)


class Traced:
    """A traced function: the first call of a kind compiles it, later ones run the library.

    Calls are of one kind if their arrays have equal types and shapes and their keywords are equal
    or the same objects.
    """

    def __init__(
        self, function: Callable[..., Any], *, symbolic: bool, capture_as_const: bool,
        record_only: bool, options: Options,
    ) -> None:  # fmt: skip
        update_wrapper(self, function, updated=())
        self._function = function
        self._symbolic = symbolic or record_only
        self._constants = capture_as_const or record_only
        self._runs = not record_only
        self._options = options
        self._entries: dict[Any, list[Entry]] = {}
        self._last: Entry | None = None
        self._excluded = False
        self._warned = False
        self._held: dict[int, Any] = {}
        self._signature = inspect.signature(function)
        self._segments = Segments(self._name, options)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what the function returns."""
        if traced_tape() is not None:
            return self._function(*arguments, **keywords)  # a part of another trace
        arrays = self._arrays(arguments)
        if self._excluded:
            return self._recorded(arrays, keywords)
        key = (tuple((a.dtype.str, a.shape) for a in arrays.values()), self._kind(keywords))
        for entry in self._entries.get(key, ()):
            if entry.network is not None and entry.fits():
                self._last = entry
                return entry.ran(_run(entry, list(arrays.values())))
        result = self._recorded(arrays, keywords)
        if not self._excluded and self._last is not None:
            self._entries.setdefault(key, []).append(self._last)
        return result

    def _arrays(self, arguments: Sequence[Any]) -> dict[str, Array]:
        """Return the positional arguments by name, as arrays."""
        names = [
            p.name for p in self._signature.parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        rest = [p.name for p in self._signature.parameters.values() if p.kind == p.VAR_POSITIONAL]
        if rest:
            names += [f"{rest[0]}_{k}" for k in range(len(arguments) - len(names))]
        if len(arguments) > len(names):
            raise ArgumentError(f"{len(arguments)} arguments for {len(names)}", where=self._name)
        return {n: self._array(n, a) for n, a in zip(names, arguments, strict=False)}

    def _array(self, name: str, argument: Any) -> Array:
        if isinstance(argument, Tensor):
            return argument.numpy()
        if isinstance(argument, _PLAIN) or not hasattr(argument, "__array__"):
            if not hasattr(argument, "__dlpack__"):
                raise OperandError(
                    f"positional parameter '{name}' is not an array but "
                    f"{type(argument).__name__}", where=self._name,
                    hint="arrays are the network's inputs; make all else keyword-only",
                )  # fmt: skip
            return np.from_dlpack(argument)
        array = np.asarray(argument)
        if array.dtype.kind not in "biuf":
            raise OperandError(
                f"positional parameter '{name}' is an array of {array.dtype}", where=self._name,
                hint=REAL,
            )  # fmt: skip
        return array

    def _kind(self, keywords: Mapping[str, Any]) -> Any:
        """Return what is equal for calls that may share a trace."""
        found: list[tuple[str, type, Any]] = []
        for name, value in sorted(keywords.items()):
            if isinstance(value, _PLAIN):
                found.append((name, type(value), value))
            else:
                self._held[id(value)] = value  # so that no other object gets its id
                found.append((name, object, id(value)))
        return tuple(found)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "function")

    def _recorded(self, arrays: Mapping[str, Array], keywords: Mapping[str, Any]) -> Any:
        """Run the function's own text with a tape that records, then what was recorded."""
        tape, entry = self.record(arrays, keywords)
        self._warned |= tape.warned
        self._excluded |= tape.excluded
        self._last = None if self._excluded else entry
        if not self._runs:
            return None
        given = [tape.sources[i.name].array for i in entry.model.graph.input]
        if tape.excluded:
            entry.network = self._segments.network(entry.model, entry.held())
        else:
            entry.network = network_of(entry.model, self._options, entry.held())
        found = dict(zip(_outputs(entry.model), entry.network.run(
            dict(zip([t.name for t in entry.network.inputs], given, strict=True))
        ).values(), strict=True))  # fmt: skip
        result = entry.ran(found)
        if tape.excluded:
            self._segments.join()
        return result

    def record(
        self, arrays: Mapping[str, Array], keywords: Mapping[str, Any]
    ) -> tuple[Tape, Entry]:
        """Run the function's own text with a tape that records; returns that and the trace."""
        tape = Tape(self._name, self._symbolic, self._constants, self._options, self._warned,
                    segments=self._segments)  # fmt: skip
        inputs = {name: _outer(array) for name, array in arrays.items()}
        for name, tensor in inputs.items():
            tape.placeholder(tensor, name)
        token = set_traced(tape)
        try:
            returned = self._function(*inputs.values(), **keywords)
            tensors = self._returned(returned)
            entry = self._entry(tape, tuple(inputs), returned, tensors)
        except BaseException:
            for parameter, before in tape.grads.values():
                parameter.kept_grad = before
            raise
        finally:
            tape.ended = True
            reset_traced(token)
        return tape, entry

    def _returned(self, returned: Any) -> list[Tensor]:
        """Return the tensors of a result. Raises TracingError if it has something else."""
        if isinstance(returned, dict):
            parts = [*returned.values()]
            if not all(isinstance(k, str) for k in returned):
                raise TracingError("a key of the returned dict is not a string", where=self._name)
        else:
            parts = [*returned] if isinstance(returned, (tuple, list)) else [returned]
        wrong = [p for p in parts if not isinstance(p, Tensor)]
        if wrong or not parts:
            what = type(wrong[0]).__name__ if wrong else "nothing"
            raise TracingError(
                f"the function returns {what}, which isn't traced", where=self._name,
                hint="return tensors: one, a tuple, a list or a dict",
            )  # fmt: skip
        return parts

    def _entry(
        self, tape: Tape, arguments: tuple[str, ...], returned: Any, tensors: Sequence[Tensor]
    ) -> Entry:
        """Return the trace of what was recorded."""
        if isinstance(returned, dict):
            names = [*returned]
        else:
            count = len(tensors)
            names = ["output"] if count == 1 else [f"output_{k}" for k in range(count)]
        outputs: dict[str, str] = {}
        texts = iter(names)

        def added(name: str, tensor: Tracked) -> str:
            while name in outputs or name in tape.recording.types:
                name += "_"
            outputs[name] = tape.value(tensor)
            return name

        results = _mapped(returned, lambda t: added(next(texts), t))
        updates = [
            (t, added(f"new_{t.name or k}", new))
            for k, (t, new) in enumerate(tape.updates.values())
        ]
        grads = []
        for k, (parameter, before) in enumerate(tape.grads.values()):
            now = parameter.kept_grad
            name = None if now is None else added(f"grad_{parameter.name or k}", now)
            grads.append((parameter, before, name))
        if self._constants and (updates or any(name for *_, name in grads)):
            raise TracingError(
                "a parameter is changed, which capture_as_const makes a constant", where=self._name
            )
        if tape.excluded:
            arguments = tuple(a for a in arguments if a in tape.recording.inputs)
        used = tape.recording.used([*outputs.values()])
        inputs = [*arguments, *(i for i in tape.recording.inputs if i in used - {*arguments})]
        model = tape.recording.model(one_line(self._name, 40), inputs, outputs)
        sources = [(i, tape.sources[i]) for i in inputs if i not in arguments]
        return Entry(model, None, arguments, sources, results, updates, grads)

    # ---- what was traced ------------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The compiled network of the latest call."""
        entry = self._traced()
        if entry.network is None:
            entry.network = network_of(entry.model, self._options, entry.held())
        return entry.network

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks of all calls that `exclude_from_trace` has cut; else the latest call's."""
        return self._segments.networks if self._excluded else (self.network,)

    def model(
        self, arg_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None
    ) -> onnx.ModelProto:
        """Return the latest trace as an ONNX model, with other names if they are given.

        Raises ValueError if there are too few or too many names.
        """
        entry = self._traced()
        model = onnx.ModelProto()
        model.CopyFrom(entry.model)
        if output_names is not None and isinstance(entry.results, dict):
            raise OperandError("output_names for a function that returns a dict", where=self._name)
        for what, names, infos in (
            ("arg_names", arg_names, model.graph.input),
            ("output_names", output_names, model.graph.output),
        ):
            if names is None:
                continue
            if len(names) != len(infos):
                raise ArgumentError(
                    f"{what} has {len(names)} names for {len(infos)}", where=self._name
                )
            _rename(model.graph, dict(zip([i.name for i in infos], names, strict=True)))
        return model

    def dump(
        self, file: str | Path, *, arg_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Write the latest trace: `*.onnx` an ONNX model, `*.mge` one of MegEngine's, any other
        name a folder of a library.

        Raises ValueError without capture_as_const, and for too few or too many names;
        UnsupportedError for what MegEngine's operators can't express.
        """
        if self._excluded:
            raise ArgumentError("a function with exclude_from_trace can't be dumped",
                                where=self._name)  # fmt: skip
        if not self._constants:
            raise ArgumentError(
                "dump needs the parameters as constants", where=self._name,
                hint="trace with capture_as_const=True",
            )  # fmt: skip
        model = self.model(arg_names, output_names)
        data, path = model.SerializeToString(deterministic=True), Path(file)
        if path.suffix == ".onnx":
            path.write_bytes(data)
        elif path.suffix == ".mge":
            path.write_bytes(to_megengine(model))
        else:
            write_library(data, path, self._options)

    def _traced(self) -> Entry:
        if self._last is None:
            raise ArgumentError(
                "nothing is traced that could be written" if self._excluded else
                "the function hasn't been called yet", where=self._name,
                hint="call it with arrays of the shapes that it is for",
            )  # fmt: skip
        return self._last


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for info in (*graph.input, *graph.output):
        info.name = names.get(info.name, info.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]


def _outputs(model: onnx.ModelProto) -> list[str]:
    return [o.name for o in model.graph.output]


def _run(entry: Entry, arrays: Sequence[Array]) -> dict[str, Array]:
    """Run a trace on arrays."""
    assert entry.network is not None
    found = entry.network(*arrays, *(_present(t) for _, t in entry.sources))
    listed = found if isinstance(found, tuple) else (found,)
    return dict(zip(_outputs(entry.model), listed, strict=True))


def _present(tensor: Tracked) -> Array:
    if tensor.tape is not None:
        tensor.tape.resolve(tensor)
    assert tensor.array is not None
    return tensor.array


@overload
def trace(function: Callable[..., Any], /) -> Traced: ...


@overload
def trace(
    *, symbolic: bool = False, capture_as_const: bool = False, record_only: bool = False,
    sublinear_memory_config: SublinearMemoryConfig | None = None,
    dtr_config: DTRConfig | None = None, opt_level: int = 2, **options: Any,
) -> Callable[[Callable[..., Any]], Traced]: ...  # fmt: skip


def trace(
    function: Callable[..., Any] | None = None, /, *, symbolic: bool = False,
    capture_as_const: bool = False, record_only: bool = False,
    sublinear_memory_config: SublinearMemoryConfig | None = None,
    dtr_config: DTRConfig | None = None, opt_level: int = 2, **options: Any,
) -> Traced | Callable[[Callable[..., Any]], Traced]:  # fmt: skip
    """Compile a function of tensors: `@trace`, or `@trace(symbolic=True, ...)`.

    Positional arguments are arrays, the network's inputs; keyword-only parameters may be anything
    else. Tensors that the function reads from elsewhere are inputs of its network, or constants
    with `capture_as_const`. With `symbolic` no tensor has a value while the function is traced;
    otherwise tensors have those of the first call, and a branch that depends on one is frozen.
    `record_only` computes nothing. `opt_level` is 0 to 3; further keywords are those of
    `atc.compile`.

    Returns the function, which is recorded at its first call with arrays of some types and shapes,
    and runs the library at later ones; `network` is the compiled network of the latest call,
    `model()` its ONNX model, and `dump(file)` writes either.
    """
    if opt_level not in range(4):
        raise ArgumentError(f"opt_level is {opt_level}", where="opt_level", hint="give 0 to 3")
    more: dict[str, Any] = {}
    configs = {"sublinear_memory_config": (sublinear_memory_config, SublinearMemoryConfig),
               "dtr_config": (dtr_config, DTRConfig)}  # fmt: skip
    for name, (config, kind) in configs.items():
        if config is not None and not isinstance(config, kind):
            raise ArgumentError(f"{name} is of the type {type(config).__name__}", where=name,
                                hint=f"give atc.{kind.__name__}(...)")  # fmt: skip
        more |= {} if config is None else config.options()
    resolved = options_for(opt_level, {**more, **options})

    def made(function: Callable[..., Any]) -> Traced:
        return Traced(function, symbolic=symbolic, capture_as_const=capture_as_const,
                      record_only=record_only, options=resolved)  # fmt: skip

    return made if function is None else made(function)
