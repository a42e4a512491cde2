"""One execution of a library: runs, threads, times of kernel calls, an observer of their values."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from atc.errors import ModelError
from atc.ir.graph import Array
from atc.load_and_run.engine import CallTime, Engine, Step
from atc.load_and_run.failure import CheckError
from atc.load_and_run.pool import bind
from atc.runtime.values import Tensor

FENCE = 4096
"""Bytes of known content before and after an arena."""
_FENCE_BYTE = 0xA5

Observer = Callable[[Step, bool, Sequence[Array]], None]
"""Called before (False) and after each kernel call with its values; they are not copies."""


class Context:
    """One execution of the network: its arena between fences, its inputs and outputs.

    Inputs have shapes that the network takes, outputs room for the largest results.
    """

    def __init__(self, engine: Engine, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.engine = engine
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        ffi = engine.ffi
        self._size, alignment = engine.call("arena_size"), engine.call("alignment")
        self._memory = np.full(self._size + alignment + 2 * FENCE, _FENCE_BYTE, np.uint8)
        address = self._memory.ctypes.data + FENCE
        self._start = FENCE + -address % alignment
        self._context = ffi.new("uint64_t[]", engine.call("context_size") // 8 + 1)
        self._inputs = ffi.new("void *[]", [_pointer(ffi, a) for a in self.inputs] or [ffi.NULL])
        self._outputs = ffi.new("void *[]", [_pointer(ffi, a) for a in self.outputs] or [ffi.NULL])
        self._arguments = (self._context, self._inputs, self._outputs)
        self._run = engine.library.run_tensors
        self._callback: Any = None
        self._failure: list[BaseException] = []
        self.span = (0.0, 0.0)
        """When the latest run began and ended, in seconds of the monotonic clock."""
        self._stop: Callable[[], object] | None = None
        self._init()

    def _init(self) -> None:
        engine, ffi = self.engine, self.engine.ffi
        init = engine.library.function("init")
        extra: tuple[Any, ...] = ()
        if engine.weights is not None:
            init = ffi.cast("int (*)(void *, void *, size_t, const void *, size_t)", init)
            extra = (ffi.from_buffer(engine.weights), engine.weights.size)
        arena = ffi.cast("void *", self._memory.ctypes.data + self._start)
        self._check(init(self._context, arena, self._size, *extra))
        if engine.is_dynamic:
            dims = [ffi.new("int64_t[]", [*a.shape] or [0]) for a in self.inputs]
            self._check(engine.call("set_input_shapes", self._context, dims or ffi.NULL))

    def run(self) -> None:
        """Run once; raises ModelError, CheckError, or what an observer raised."""
        begin = perf_counter()
        status = self._run(*self._arguments)
        self.span = begin, perf_counter()
        if self._failure:
            raise self._failure.pop()
        self._check(status)

    def results(self) -> list[Array]:
        """Return the outputs in the shapes that the last run gave them."""
        if not self.engine.is_dynamic:
            return list(self.outputs)
        found = []
        for k, output in enumerate(self.outputs):
            shape = self.engine.ffi.new("int64_t[]", max(output.ndim, 1))
            self._check(self.engine.call("output_shape", self._context, k, shape))
            dims = tuple(shape[0 : output.ndim])
            found.append(output.reshape(-1)[: int(np.prod(dims, dtype=np.int64))].reshape(dims))
        return found

    def start_threads(self, cores: Sequence[int] = ()) -> list[list[int]]:
        """Start the network's own threads and bind them to cores; return the cores of each."""
        before = _tasks()
        self._check(self.engine.call("start_threads", self._context))
        stop = self.engine.library.function("stop_threads")
        self._stop = weakref.finalize(self, stop, self._context)
        started = sorted(_tasks() - before)
        for task, core in zip(started, cores, strict=False):
            bind(task, core)
        return [sorted(os.sched_getaffinity(task)) for task in started]

    def stop_threads(self) -> None:
        """End the network's own threads, if it has some."""
        if self._stop is not None:
            self._stop()

    def prepare(self) -> None:
        """Touch every page that a run will need; no kernel runs."""
        arrays = [self._memory, *self.outputs]
        for array in arrays:
            flat = array.reshape(-1).view(np.uint8) if array.size else array
            flat[::4096] = flat[::4096]
        if self.engine.weights is not None:
            int(self.engine.weights[::4096].sum())

    def arena(self) -> Array:
        """Return the arena's bytes."""
        return self._memory[self._start : self._start + self._size]

    def fences_hold(self) -> bool:
        """Return whether the memory before and after the arena is as it was."""
        end = self._start + self._size
        outside = (self._memory[: self._start], self._memory[end:])
        return all(bool((part == _FENCE_BYTE).all()) for part in outside)

    def observe(self, observer: Observer | None) -> None:
        """Let a function see every kernel call; its exception ends the run's success."""
        engine = self.engine
        if observer is None:
            engine.call("set_observer", self._context, engine.ffi.NULL, engine.ffi.NULL)
            self._callback = None
            return
        seen = observer

        def callback(user: Any, number: int, done: int, pointers: Any) -> None:
            if self._failure:
                return
            step = engine.steps[number]
            numbers = (*step.reads, *step.writes)
            try:
                arrays = [_array(engine, pointers[i], engine.values[k].tensor)
                          for i, k in enumerate(numbers)]  # fmt: skip
                seen(step, bool(done), arrays)
            except BaseException as error:  # C code can't pass it on
                self._failure.append(error)

        self._callback = engine.ffi.callback("observer", callback)
        engine.call("set_observer", self._context, self._callback, engine.ffi.NULL)

    def reset_profile(self) -> None:
        """Set the times of all kernel calls to zero."""
        self.engine.call("profile_reset", self._context)

    def profile(self) -> tuple[CallTime, ...]:
        """Return the times of all kernel calls since the last reset."""
        engine = self.engine
        times = engine.call("profile_times", self._context)
        found = []
        for k in range(engine.call("profile_count")):
            info, time = engine.call("profile_info", k), times[k]
            nodes, op, kernel = map(engine.text, (info.nodes, info.op, info.kernel))
            found.append(CallTime(
                k, nodes, op, kernel, info.operations, info.bytes, time.runs,
                time.nanoseconds * 1e-9, time.begin * 1e-9,
            ))  # fmt: skip
        return tuple(found)

    def _check(self, status: int) -> None:
        """Raise what a status of the library means: CheckError for a fault of a checked build."""
        if not status:
            return
        engine = self.engine
        if engine.is_checked and engine.call("last_fault", self._context):
            fault = engine.ffi.cast("char *", engine.call("last_fault", self._context))
            if message := engine.text(fault):
                raise CheckError(message, where="sanity check")
        raise ModelError(engine.text(engine.call("status_string", status)), where=engine.prefix)


def _tasks() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _pointer(ffi: Any, array: Array) -> Any:
    return ffi.cast("void *", array.ctypes.data)


def _array(engine: Engine, pointer: Any, tensor: Tensor) -> Array:
    """Return memory of C as an array."""
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if count == 0:
        return np.empty(tensor.shape, tensor.dtype)
    raw = np.frombuffer(engine.ffi.buffer(pointer, count * tensor.dtype.itemsize), np.uint8)
    return raw.view(tensor.dtype).reshape(tensor.shape)
