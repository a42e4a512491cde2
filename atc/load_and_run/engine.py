"""A compiled library with everything that its build offers: values and calls of special builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from atc.ir import Array, DType
from atc.load import open_library
from atc.runtime import Network, read_weights
from atc.runtime_values import Tensor

_DECLARATIONS = """
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} NET_tensor_info;
typedef struct { NET_tensor_info tensor; int32_t kind; } NET_value;
typedef struct {
  const char *nodes, *op, *kernel; size_t reads, writes; const size_t *values;
} NET_step;
typedef struct { uint64_t runs, nanoseconds, begin; } NET_call_time;
typedef struct { const char *nodes, *op, *kernel; uint64_t operations, bytes; } NET_call_info;
typedef void (*NET_observer)(void *user, size_t step, int done, const void *const *values);
int NET_init(void *ctx, void *arena, size_t arena_size);
int NET_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
const char *NET_status_string(int status);
size_t NET_context_size(void);
size_t NET_arena_size(void);
size_t NET_alignment(void);
size_t NET_weights_size(void);
size_t NET_profile_count(void);
const NET_call_info *NET_profile_info(size_t index);
const NET_call_time *NET_profile_times(const void *ctx);
void NET_profile_reset(void *ctx);
void NET_set_observer(void *ctx, NET_observer observer, void *user);
const void *NET_last_fault(const void *ctx);
int NET_set_input_shapes(void *ctx, const int64_t *const *shapes);
int NET_output_shape(const void *ctx, size_t index, int64_t *shape);
int NET_start_threads(void *ctx);
void NET_stop_threads(void *ctx);
int NET_thread_count(void);
size_t NET_step_count(void);
const NET_step *NET_step_info(size_t index);
size_t NET_value_count(void);
const NET_value *NET_value_info(size_t index);
"""

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
    """What a profiled kernel call took: `begin` of the latest run and the sum, in seconds."""

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
        network = Network(library, prefix, weights)
        self.ffi = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS.replace("NET", prefix))
        self.handle = self.ffi.dlopen(str(library))
        self.prefix = prefix
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.build_info = network.build_info
        self.weights: Array | None = None
        if self.call("weights_size"):
            self.weights = read_weights(weights)
        self.is_profiled = self._has("profile_count")
        self.is_hooked = self._has("set_observer")
        self.is_dynamic = self._has("set_input_shapes")
        self.is_checked = self._has("last_fault")
        self.threads = int(self.call("thread_count")) if self._has("thread_count") else 1
        self.values = self._values() if self.is_hooked else ()
        self.steps = self._steps() if self.is_hooked else ()

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the library."""
        return getattr(self.handle, f"{self.prefix}_{function}")(*arguments)

    def text(self, pointer: Any) -> str:
        """Return a C string."""
        data: bytes = self.ffi.string(pointer)
        return data.decode("utf-8", "replace")

    def _has(self, function: str) -> bool:
        try:
            getattr(self.handle, f"{self.prefix}_{function}")
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
