"""A compiled library with everything that its build offers: values and calls of special builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atc.ir.graph import DType
from atc.runtime.library import Library
from atc.runtime.load import open_library
from atc.runtime.values import Tensor

_OUTPUT = 3


@dataclass(frozen=True)
class Value:
    """A value that kernel calls read or write; `kind` as in the generated enum."""

    number: int
    tensor: Tensor
    kind: int

    @property
    def is_output(self) -> bool:
        """Whether the network returns it."""
        return self.kind == _OUTPUT


@dataclass(frozen=True)
class Step:
    """A kernel call: what it computes, and the numbers of the values that it reads and writes."""

    number: int
    nodes: str
    op: str
    kernel: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class CallTime:
    """Times of a profiled kernel call: `begin` of the latest run and the sum, in seconds."""

    number: int
    nodes: str
    op: str
    kernel: str
    operations: int
    bytes: int
    runs: int
    seconds: float
    begin: float


class Engine:
    """A loaded library."""

    def __init__(self, library: Path, prefix: str, weights: Path) -> None:
        self.library = Library(library, prefix, weights)
        self.ffi, self.prefix = self.library.ffi, prefix
        self.folder = weights.parent
        self.inputs = self.library.tensors("input")
        self.outputs = self.library.outputs
        self.build_info = self.library.text("build_info")
        self.weights = self.library.weights
        self.is_profiled = self._has("profile_count")
        self.is_hooked = self._has("set_observer")
        self.is_dynamic = self._has("set_input_shapes")
        self.is_checked = self._has("last_fault")
        self.threads = int(self.call("thread_count")) if self._has("thread_count") else 1
        self.values = self._values() if self.is_hooked else ()
        self.steps = self._steps() if self.is_hooked else ()

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the library."""
        return self.library.function(function)(*arguments)

    def text(self, pointer: Any) -> str:
        """Return a C string."""
        data: bytes = self.ffi.string(pointer)
        return data.decode("utf-8", "replace")

    def _has(self, function: str) -> bool:
        try:
            self.library.function(function)
        except AttributeError:
            return False
        return True

    def _values(self) -> tuple[Value, ...]:
        infos = (self.call("value_info", k) for k in range(self.call("value_count")))
        return tuple(Value(k, self._tensor(i.tensor), i.kind) for k, i in enumerate(infos))

    def _tensor(self, info: Any) -> Tensor:
        shape = tuple(int(info.shape[axis]) for axis in range(info.rank))
        return Tensor(self.text(info.name), shape, DType.from_onnx(info.dtype).numpy)

    def _steps(self) -> tuple[Step, ...]:
        found = []
        for k in range(self.call("step_count")):
            info = self.call("step_info", k)
            numbers = tuple(int(info.values[i]) for i in range(info.reads + info.writes))
            nodes, op, kernel = map(self.text, (info.nodes, info.op, info.kernel))
            split = int(info.reads)
            found.append(Step(k, nodes, op, kernel, numbers[:split], numbers[split:]))
        return tuple(found)


def open_engine(path: Path) -> Engine:
    """Load a library from its folder or file; raises ModelError."""
    return open_library(path, Engine)
