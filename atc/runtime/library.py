"""A loaded library and what its calls need: contexts, arenas, tables of pointers, weights.

A part of `atc/runtime/network.py`; generated projects carry all in one module.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from typing import Any

import numpy as np

from atc.runtime.contexts import OneContext, OwnArrays
from atc.runtime.interface import open_interface
from atc.runtime.memory import new_memory, read_weights
from atc.runtime.values import STRING, Array, Tensor, Value, dtype_of, listed_outputs, number_of

ABI_VERSION = 1

PLANS = 64
"""Shapes for which a context keeps what it found out of them, where no variable says how many."""

SMALL = 4096
"""Bytes of inputs and outputs up to which copying them takes less than lending their memory to C.
"""


class Library:
    """The loaded library: its functions, and contexts that no call uses at the moment."""

    def __init__(
        self, path: str | PathLike[str], prefix: str, weights: str | PathLike[str] | None,
        huge_pages: bool = False, device_id: int | None = None,
    ) -> None:  # fmt: skip
        self.ffi, self.handle = open_interface(path, prefix)
        self.prefix = prefix
        self.huge_pages = huge_pages
        found = self.function("abi_version")()
        if found != ABI_VERSION:
            raise RuntimeError(f"{path} has the interface {found}, this loader knows {ABI_VERSION}")
        self.run_tensors = self.function("run_tensors")
        self.set_shapes = self._optional("set_input_shapes")
        """What says the inputs' shapes, where they have ranges."""
        self.output_shape = self._optional("output_shape")
        """What says the outputs' shapes then."""
        self.release = self._optional("release")
        """What gives back the memory that a context has on a GPU."""
        self.run_device = self._optional("run_device_tensors")
        """What runs on tensors of a GPU, in a library for one."""
        self.device_id = self._device_id(device_id)
        """The number of that GPU; None in other libraries."""
        self.kept_plans = self._kept_plans()
        """For how many shapes a context keeps what it found out of them; -1: all."""
        self.shapes_set = 0
        """How often shapes were set, which finds that out."""
        self.inputs, self.outputs = self.tensors("input"), self.tensors("output")
        fixed = self.set_shapes is None
        self._reads = [(k, t.dtype, t.shape if fixed else None) for k, t in enumerate(self.inputs)]
        self._writes = [t.dtype for t in self.outputs]
        self._fixed = [t.shape for t in self.outputs] if fixed else None
        """The outputs' shapes where no input has ranges."""
        every = (*self.inputs, *self.outputs)
        self.is_direct = all(t.dtype.isbuiltin == 1 and not t.cell for t in every)
        """Whether `run_directly` may be asked: types of numpy's own."""
        sizes = (prod(t.shape) * t.dtype.itemsize for t in every)
        self.copies = self.is_direct and fixed and sum(sizes) <= SMALL
        """Whether it copies the arrays to and from the context's own."""
        self.weights = self._weights(weights)
        self.state_size = self._state_size()
        """Bytes that a context carries from run to run."""
        self.idle: list[Context] | OneContext = OneContext() if self.state_size else []
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        """All that there are."""

    def _device_id(self, wanted: int | None) -> int | None:
        """Return the number of the GPU that contexts are made on."""
        if self.run_device is None:
            if wanted is not None:
                raise RuntimeError(f"the network {self.prefix} wasn't compiled for a GPU")
            return None
        return int(self.function("device_id")()) if wanted is None else wanted

    def _state_size(self) -> int:
        size = self._optional("state_size")
        return int(size()) if size else 0

    def _kept_plans(self) -> int:
        """Return what MXNET_MKLDNN_CACHE_NUM, or its newer name, says."""
        names = ("MXNET_ONEDNN_CACHE_NUM", "MXNET_MKLDNN_CACHE_NUM")
        name = next((n for n in names if os.environ.get(n)), names[1])
        own = ("profile_count", "start_threads", "reset")  # such keep something in one C context
        kept = number_of(name, PLANS, -1)
        return 0 if any(self._optional(function) for function in own) else kept

    def _weights(self, path: str | PathLike[str] | None) -> Array | None:
        """Map the file of the weights; processes that use the same file share its memory."""
        if self.function("weights_size")() == 0:
            return None
        if path is None:
            raise RuntimeError(f"the network {self.prefix} needs a file of weights")
        return read_weights(path)

    def function(self, name: str) -> Any:
        """Return `<network>_<name>`; AttributeError where the library has no such function."""
        try:
            return getattr(self.handle, f"{self.prefix}_{name}")
        except self.ffi.error as error:
            raise AttributeError(str(error)) from None

    def _optional(self, name: str) -> Any:
        try:
            return self.function(name)
        except AttributeError:
            return None

    def text(self, function: str, *arguments: int) -> str:
        """Return the text that a function returns."""
        data: bytes = self.ffi.string(self.function(function)(*arguments))
        return data.decode()

    def error(self, status: int, context: Any = None) -> RuntimeError:
        """Return what a status means; a checked build says more about its latest run."""
        text = self.text("status_string", status)
        with suppress(AttributeError):  # other builds have no such function
            fault = self.function("last_fault")(context) if context is not None else None
            message = self.ffi.string(self.ffi.cast("char *", fault)).decode() if fault else ""
            text = message or text
        return RuntimeError(f"the network {self.prefix}: {text}")

    def tensors(self, side: str) -> tuple[Tensor, ...]:
        """Return the inputs or the outputs, as `side` says."""
        count = self.function(f"{side}_count")()
        found = [self._tensor(self.function(f"{side}_info")(k)) for k in range(count)]
        if side == "input" and self.set_shapes is not None:
            lowest = self.function("input_lowest")
            return tuple(
                replace(t, lowest=tuple(lowest(k)[0 : len(t.shape)]))
                if t.shape else t for k, t in enumerate(found)
            )  # fmt: skip
        return tuple(found)

    def values(self, side: str, tensors: Sequence[Tensor]) -> tuple[Value, ...]:
        """Return the model's inputs or outputs: tensors, and sequences of them where there are."""
        try:
            count, info = self.function("sequence_count")(), self.function("sequence")
        except AttributeError:  # this library has none
            count, info = 0, None
        found: list[Value] = []
        at = 0
        for sequence in (info(k) for k in range(count)):
            if (sequence.output != 0) != (side == "output"):
                continue
            found += [Value(tensors[k].name, k) for k in range(at, sequence.first)]
            name = self.ffi.string(sequence.name).decode()
            size = int(sequence.count) if sequence.present else None
            first = int(sequence.first)
            entry = None
            if sequence.present == 2:
                entry = (tensors[first].dtype, tensors[first + 1].dtype)
            found.append(Value(name, first, size, size is not None and entry is None, entry))
            at = int(sequence.first + sequence.count)
        return (*found, *(Value(tensors[k].name, k) for k in range(at, len(tensors))))

    def _tensor(self, info: Any) -> Tensor:
        name = self.ffi.string(info.name).decode()
        shape = tuple(int(info.shape[axis]) for axis in range(info.rank))
        if info.dtype == STRING:
            count = int(np.prod(shape, dtype=np.int64))
            return Tensor(name, shape, np.dtype(object), int(info.size) // count if count else 1)
        return Tensor(name, shape, dtype_of(info.dtype))

    def context(self) -> Context:
        """Return a context that nobody else has (a list's pop and append are atomic).

        Where the network has states there is one, and whoever else has it is waited for.
        """
        try:
            return self.idle.pop()
        except IndexError:
            return Context(self)

    def run(self, inputs: list[Array], out: Sequence[Any]) -> list[Array]:
        """Run once, in a context that no other thread uses meanwhile.

        Returns the outputs: the arrays of `out`, new ones for None.
        """
        context = self.context()
        try:
            outputs = context.point_to(inputs, out)
            status = self.run_tensors(*context.arguments)
            if status:
                raise self.error(status, context.arguments[0])
            return context.filled(outputs)
        finally:
            self.idle.append(context)

    def run_directly(self, inputs: Sequence[Any]) -> list[Array] | None:
        """Run once, as `run` does, on arrays that can be read where they lie.

        Returns new outputs; None, and nothing is run, for other inputs. In small networks what
        Python does takes most of a call, and where a run reads more memory than the caches hold
        none of it is in them: all of it is in this function, and no more than it must.
        """
        if len(inputs) != len(self._reads):
            return None
        context = self.context()
        try:
            if context.own is not None:
                return context.own.run(inputs)
            _, read, written = context.arguments
            buffer = context.buffer
            for k, dtype, shape in self._reads:
                array = inputs[k]
                if type(array) is not np.ndarray or array.dtype != dtype:
                    return None
                if shape is not None and array.shape != shape:
                    return None
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    return None
                read[k] = buffer(array)
            shapes = self._fixed
            if shapes is None:
                try:
                    shapes = context.shapes_for(inputs)
                except ValueError:
                    return None  # who checks the inputs one by one says which it is
            outputs = []
            for k, dtype in enumerate(self._writes):
                array = np.empty(shapes[k], dtype)
                written[k] = buffer(array)
                outputs.append(array)
            arguments = context.arguments
            status = self.run_tensors(*arguments)
            if status:
                raise self.error(status, arguments[0])
            return outputs if self._fixed is not None else context.filled(outputs)
        finally:
            self.idle.append(context)


@dataclass(frozen=True)
class _Plan:
    """The plan for inputs of some shapes: a C context, and the outputs' shapes."""

    context: Any
    outputs: list[tuple[int, ...]]


class Context:
    """The memory of one call in progress: the C context, its arena, the tables of pointers."""

    def __init__(self, library: Library) -> None:
        self._library = library
        library.contexts.add(self)
        ffi = library.ffi
        size, alignment = library.function("arena_size")(), library.function("alignment")()
        self._memory = new_memory(size + alignment, library.huge_pages)
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))
        arena = ffi.cast("void *", start + -start % alignment)
        self._inputs, self._outputs = self._tables()
        ranks = [len(t.shape) for t in library.inputs]
        extents = [ffi.new("int64_t[]", max(rank, 1)) for rank in ranks]
        self._extents = [*zip(extents, ranks, strict=True)]
        """Where C reads the inputs' shapes, and their ranks."""
        self._shapes = ffi.new("int64_t *[]", extents) if extents else ffi.NULL
        self._made = [(ffi.new("int64_t[]", max(len(t.shape), 1)), len(t.shape))
                      for t in library.outputs]  # fmt: skip
        """Where C writes the outputs' shapes, and their ranks."""
        self._context = ffi.new("uint64_t[]", library.function("context_size")() // 8 + 1)
        self._plans: OrderedDict[tuple[tuple[int, ...], ...], _Plan] = OrderedDict()
        self.arguments = (self._context, self._inputs, self._outputs)
        self.buffer = ffi.from_buffer
        on_gpu = library.device_id is not None
        init = library.function("init_on" if on_gpu else "init")
        first, extra = (library.device_id,) if on_gpu else (), tuple[Any, ...]()
        if library.weights is not None:
            number = "int, " if on_gpu else ""
            init = ffi.cast(f"int (*)(void *, {number}void *, size_t, const void *, size_t)", init)
            extra = (ffi.from_buffer(library.weights), library.weights.size)
        status = init(self._context, *first, arena, size, *extra)
        if status:
            raise library.error(status)
        self.own = None
        if library.copies:
            self.own = OwnArrays(
                library.inputs, library.outputs, self.arguments_on, library.run_tensors,
                library.error,
            )
        self._start_threads(library)
        if library.release is not None:
            weakref.finalize(self, _release, os.getpid(), library.release, self._context)

    def _tables(self) -> tuple[Any, Any]:
        """Return pointers to inputs and to outputs, NULL so far."""
        counts = (len(self._library.inputs), len(self._library.outputs))
        inputs, outputs = (self._library.ffi.new("void *[]", max(n, 1)) for n in counts)
        return inputs, outputs

    def arguments_on(self, inputs: list[Array], outputs: list[Array]) -> tuple[Any, Any, Any]:
        """Return what a run on these arrays takes; the caller keeps them alive."""
        tables = self._tables()
        for table, arrays in zip(tables, (inputs, outputs), strict=True):
            for k, array in enumerate(arrays):
                table[k] = self._pointer(array)
        return (self._context, *tables)

    def _start_threads(self, library: Library) -> None:
        """Start the threads of a network that has some; they end with this object."""
        try:
            start, stop = library.function("start_threads"), library.function("stop_threads")
        except AttributeError:
            return
        if start(self._context) == 0:  # else the calling thread does it all
            weakref.finalize(self, stop, self._context)

    def reset(self) -> None:
        """Make the states what they are at first."""
        if self._library.state_size:
            self._check(self._library.function("reset")(self._context))

    def save_state(self) -> bytes:
        """Return the states' bytes."""
        state = bytearray(self._library.state_size)
        if state:
            to = self.buffer(state)
            self._check(self._library.function("save_state")(self._context, to))
        return bytes(state)

    def restore_state(self, state: bytes) -> None:
        """Let the states be what they were when they were saved."""
        size = self._library.state_size
        if len(state) != size:
            raise ValueError(f"the states are {size} bytes, not {len(state)}")
        if state:
            self._check(self._library.function("restore_state")(self._context, self.buffer(state)))

    def _check(self, status: int) -> None:
        if status:
            raise self._library.error(status)

    def point_to(self, inputs: list[Array], out: Sequence[Any]) -> list[Array]:
        """Fill the tables; returns the outputs' arrays. The caller keeps the arrays alive."""
        shapes = self.shapes_for(inputs)
        outputs = listed_outputs(self._library.outputs, out, inputs, shapes)
        for k, array in enumerate(inputs):
            self._inputs[k] = self._pointer(array)
        for k, array in enumerate(outputs):
            self._outputs[k] = self._pointer(array)
        return outputs

    def filled(self, outputs: Sequence[Array]) -> list[Array]:
        """Return the outputs in the shapes that the run gave them."""
        if self._library.set_shapes is None:
            return [*outputs]
        found = []
        for k, array in enumerate(outputs):
            shape = self._output_shape(k)
            same = array.shape == shape
            found.append(array if same else array.reshape(-1)[: prod(shape)].reshape(shape))
        return found

    def shapes_made(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the shapes that a run gave its outputs, whose `shapes` were known before."""
        fixed = self._library.set_shapes is None
        return [*shapes] if fixed else [self._output_shape(k) for k in range(len(shapes))]

    def shapes_for(self, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
        """Say what shapes the inputs have and return the outputs'; contexts keep them."""
        library = self._library
        if library.set_shapes is None:
            return [t.shape for t in library.outputs]
        key = tuple([a.shape for a in inputs])
        plan = self._plans.get(key)
        if plan is None:
            if self._plans:
                self._context = self._copied()
            self._plans[key] = plan = _Plan(self._context, self._set_shapes(inputs))
            while 0 <= library.kept_plans < len(self._plans):
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
            self._context = plan.context
        self.arguments = (self._context, self._inputs, self._outputs)
        return plan.outputs

    def _copied(self) -> Any:
        """Return a C context on the same arena; such networks have no threads that know it."""
        ffi = self._library.ffi
        copy = ffi.new("uint64_t[]", len(self._context))
        ffi.memmove(copy, self._context, 8 * len(copy))
        return copy

    def _set_shapes(self, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
        """Set the shapes in the C context; returns the largest outputs of these inputs."""
        library = self._library
        library.shapes_set += 1
        for k, (extents, rank) in enumerate(self._extents):
            extents[0:rank] = inputs[k].shape  # ValueError for another rank
        status = library.set_shapes(self._context, self._shapes)
        if status:
            shown = ", ".join(str(list(a.shape)) for a in inputs)
            raise ValueError(f"{library.error(status)}: {shown}")
        return [self._output_shape(k) for k in range(len(library.outputs))]

    def _output_shape(self, index: int) -> tuple[int, ...]:
        library = self._library
        shape, rank = self._made[index]
        status = library.output_shape(self._context, index, shape)
        if status:
            raise library.error(status)
        return tuple(library.ffi.unpack(shape, rank))

    def _pointer(self, array: Array) -> Any:
        try:
            return self.buffer(array)
        except ValueError:  # numpy doesn't lend arrays of types that aren't its own: bfloat16
            return self.buffer(array.view(f"u{array.itemsize}"))


def _release(process: int, release: Any, context: Any) -> None:
    """Give back what a context has of a GPU, but not in a fork, where drivers fail."""
    if os.getpid() == process:
        release(context)
