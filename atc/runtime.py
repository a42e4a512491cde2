"""Runs a compiled network through its C interface, with cffi and numpy alone.

Every generated project carries this file's text in its Python module: nothing of ours is imported.
"""

# ruff: noqa: I001 (one line an import: atc/emit.py moves them)

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from atc.runtime_values import Array, Tensor, Value, flat, grouped, to_texts
from atc.runtime_values import by_name, listed_inputs, listed_outputs

ABI_VERSION = 1

_DECLARATIONS = """
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} NET_tensor_info;
int NET_set_input_shapes(void *ctx, const int64_t *const *shapes);
size_t NET_arena_size_for(const int64_t *const *shapes);
int NET_output_shape(const void *ctx, size_t index, int64_t *shape);
const int64_t *NET_input_lowest(size_t index);
int NET_init(void *ctx, void *arena, size_t arena_size);
int NET_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
uint32_t NET_abi_version(void);
const char *NET_build_info(void);
const char *NET_status_string(int status);
const void *NET_last_fault(const void *ctx);
size_t NET_context_size(void);
size_t NET_arena_size(void);
size_t NET_alignment(void);
size_t NET_weights_size(void);
size_t NET_input_count(void);
size_t NET_output_count(void);
const NET_tensor_info *NET_input_info(size_t index);
const NET_tensor_info *NET_output_info(size_t index);
typedef struct {
  const char *name; int32_t output; int32_t present; size_t first; size_t count;
} NET_sequence_info;
int NET_start_threads(void *ctx);
void NET_stop_threads(void *ctx);
size_t NET_sequence_count(void);
const NET_sequence_info *NET_sequence(size_t index);
"""

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Element types by their codes in ONNX."""

_STRING = 8


class Network:
    """A compiled network, ready to run.

    A sequence of the model is a list of arrays, a map is a dict, a sequence of maps is a list of
    dicts, an optional without a value is None: `parameters` and `results` say so. `inputs` and
    `outputs` are the tensors, sequences' elements and maps' keys and values among them. Strings are
    arrays of objects; what isn't UTF-8 in them is kept as surrogate escapes.

    It may be called from several threads at once: each call in progress has an arena of its own,
    and arenas are kept for the next calls. The interpreter's lock is released meanwhile.
    """

    def __init__(
        self, library: str | Path, prefix: str, weights: str | Path | None = None,
        huge_pages: bool = False,
    ) -> None:  # fmt: skip
        """Load a shared library whose functions are called `<prefix>_...`.

        `weights` is the file of the weights where they are not in the library. With `huge_pages`
        arenas are in large pages where the system has some. Raises OSError for
        a file that can't be loaded, RuntimeError for one that can't run here.
        """
        self._library: _Library | None = _Library(library, prefix, weights, huge_pages)
        self._prefix = prefix
        self.inputs: tuple[Tensor, ...] = self._library.tensors("input")
        self.outputs: tuple[Tensor, ...] = self._library.tensors("output")
        self.parameters: tuple[Value, ...] = self._library.values("input", self.inputs)
        self.results: tuple[Value, ...] = self._library.values("output", self.outputs)
        self.build_info: str = self._library.text("build_info")
        self._library.idle.append(_Context(self._library))  # raises what keeps it from running

    def __call__(self, *inputs: Any, out: Array | Sequence[Array | None] | None = None) -> Any:
        """Compute the outputs: an array, or a tuple where the network has several.

        Arrays of the right type and shape are read where they lie, if contiguous. The outputs are
        new arrays, or those of `out`. Raises TypeError or ValueError naming the tensor.
        """
        library = self._open()
        arrays = listed_inputs(self.inputs, flat(self.parameters, inputs))
        results = library.run(arrays, self._listed(out))
        found = grouped(self.results, self._read(results))
        return found[0] if len(found) == 1 else tuple(found)

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Any]:
        """Compute the outputs by name, in the model's order, from inputs by name."""
        library = self._open()
        listed = by_name("input", self.parameters, inputs, complete=True)
        arrays = listed_inputs(self.inputs, flat(self.parameters, listed))
        given = by_name("output", self.outputs, out or {}, complete=False)
        results = library.run(arrays, given)
        found = grouped(self.results, self._read(results))
        return {v.name: a for v, a in zip(self.results, found, strict=True)}

    def bind(self, *inputs: Any, out: Array | Sequence[Array | None] | None = None) -> Bound:
        """Return a call on these very arrays that costs next to nothing beside the network.

        Strings lie in arrays of bytes then, `S256` for instance, as C holds them.
        """
        library = self._open()
        arrays = listed_inputs(self.inputs, flat(self.parameters, inputs), in_place=True)
        return Bound(library, arrays, self._listed(out), self.results)

    def close(self) -> None:
        """Let go of the library; it is unloaded once no call and no bound call needs it."""
        self._library = None

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        return f"<network {self._prefix}: ({inputs}) -> ({outputs})>"

    def _open(self) -> _Library:
        if self._library is None:
            raise ValueError(f"the network {self._prefix} is closed")
        return self._library

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
        self, library: _Library, inputs: list[Array], out: Sequence[Any], made: Sequence[Value]
    ) -> None:
        """Take inputs that have been checked, and arrays for the outputs or None."""
        self._library = library
        self._context = library.context()
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

    def __call__(self) -> Any:
        """Run the network; returns the bound output, or the tuple of all."""
        status = self._run(*self._arguments)
        if status:
            raise self._library.error(status, self._arguments[0])
        if self._result is not None:
            return self._result
        found = grouped(self._made, self._context.filled(self.outputs))
        return found[0] if len(found) == 1 else tuple(found)


def read_weights(path: Path) -> Array:
    """Return the weights of a file, mapped, or of the files in a folder of its name, joined."""
    parts = [] if path.exists() else sorted(path.with_suffix("").glob("*.bin"))
    if not parts:
        return np.memmap(path, np.uint8, "r")
    sizes = [part.stat().st_size for part in parts]
    memory = np.empty(sum(sizes) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    joined = at = memory[start : start + sum(sizes)]
    for part, size in zip(parts, sizes, strict=True):
        at[:size] = np.fromfile(part, np.uint8, size)
        at = at[size:]
    return joined


def _new_memory(size: int, huge_pages: bool) -> Array:
    """Return bytes for an arena, in large pages if that is asked for and possible."""
    with suppress(AttributeError, OSError):  # systems without such pages
        if huge_pages:
            mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapped.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(mapped, np.uint8)
    return np.empty(size, np.uint8)


class _Library:
    """The loaded library: its functions, and contexts that no call uses at the moment."""

    def __init__(
        self, path: str | Path, prefix: str, weights: str | Path | None, huge_pages: bool = False
    ) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS.replace("NET", prefix))
        self.handle = self.ffi.dlopen(str(path))
        self.prefix = prefix
        self.huge_pages = huge_pages
        found = self.function("abi_version")()
        if found != ABI_VERSION:
            raise RuntimeError(f"{path} has the interface {found}, this loader knows {ABI_VERSION}")
        self.run_tensors = self.function("run_tensors")
        self.set_shapes = self._optional("set_input_shapes")
        """What says the inputs' shapes, where they have ranges."""
        self.outputs = self.tensors("output")
        self.weights = self._weights(weights)
        self.idle: list[_Context] = []

    def _weights(self, path: str | Path | None) -> Array | None:
        """Map the file of the weights; processes that use the same file share its memory."""
        if self.function("weights_size")() == 0:
            return None
        if path is None:
            raise RuntimeError(f"the network {self.prefix} needs a file of weights")
        return read_weights(Path(path))

    def function(self, name: str) -> Any:
        return getattr(self.handle, f"{self.prefix}_{name}")

    def _optional(self, name: str) -> Any:
        try:
            return self.function(name)
        except AttributeError:
            return None

    def text(self, function: str, *arguments: int) -> str:
        data: bytes = self.ffi.string(self.function(function)(*arguments))
        return data.decode()

    def error(self, status: int, context: Any = None) -> RuntimeError:
        """Return what a status means; a checked build tells more of its latest run."""
        text = self.text("status_string", status)
        with suppress(AttributeError):  # other builds have no such function
            fault = self.function("last_fault")(context) if context is not None else None
            message = self.ffi.string(self.ffi.cast("char *", fault)).decode() if fault else ""
            text = message or text
        return RuntimeError(f"the network {self.prefix}: {text}")

    def tensors(self, side: str) -> tuple[Tensor, ...]:
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
        if info.dtype == _STRING:
            count = int(np.prod(shape, dtype=np.int64))
            return Tensor(name, shape, np.dtype(object), int(info.size) // count if count else 1)
        return Tensor(name, shape, _dtype(info.dtype))

    def context(self) -> _Context:
        """Return a context that nobody else has (a list's pop and append are atomic)."""
        try:
            return self.idle.pop()
        except IndexError:
            return _Context(self)

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


class _Context:
    """What one call in progress needs: the C context, its arena, the tables of pointers."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        ffi = library.ffi
        size, alignment = library.function("arena_size")(), library.function("alignment")()
        self._memory = _new_memory(size + alignment, library.huge_pages)
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))
        arena = ffi.cast("void *", start + -start % alignment)
        self._inputs = ffi.new("void *[]", max(library.function("input_count")(), 1))
        self._outputs = ffi.new("void *[]", max(library.function("output_count")(), 1))
        self._context = ffi.new("uint64_t[]", library.function("context_size")() // 8 + 1)
        self.arguments = (self._context, self._inputs, self._outputs)
        self._buffer = ffi.from_buffer
        init = library.function("init")
        extra: tuple[Any, ...] = ()
        if library.weights is not None:
            init = ffi.cast("int (*)(void *, void *, size_t, const void *, size_t)", init)
            extra = (ffi.from_buffer(library.weights), library.weights.size)
        status = init(self._context, arena, size, *extra)
        if status:
            raise library.error(status)
        self._start_threads(library)

    def _start_threads(self, library: _Library) -> None:
        """Start the threads of a network that has some; they end with this object."""
        try:
            start, stop = library.function("start_threads"), library.function("stop_threads")
        except AttributeError:
            return
        if start(self._context) == 0:  # else the calling thread does it all
            weakref.finalize(self, stop, self._context)

    def point_to(self, inputs: list[Array], out: Sequence[Any]) -> list[Array]:
        """Fill the tables; returns the outputs' arrays. The caller keeps the arrays alive."""
        shapes = self._shapes(inputs)
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
        shapes = [self._output_shape(k) for k in range(len(outputs))]
        return [
            a if a.shape == s else a.reshape(-1)[: prod(s)].reshape(s)
            for a, s in zip(outputs, shapes, strict=True)
        ]

    def _shapes(self, inputs: Sequence[Array]) -> list[tuple[int, ...]]:
        """Say what shapes the inputs have; returns the outputs'."""
        library = self._library
        if library.set_shapes is None:
            return [t.shape for t in library.outputs]
        given = [library.ffi.new("int64_t[]", [*a.shape] or [0]) for a in inputs]
        status = library.set_shapes(self._context, given or library.ffi.NULL)
        if status:
            shown = ", ".join(str(list(a.shape)) for a in inputs)
            raise ValueError(f"{library.error(status)}: {shown}")
        return [self._output_shape(k) for k in range(len(library.outputs))]

    def _output_shape(self, index: int) -> tuple[int, ...]:
        rank = len(self._library.outputs[index].shape)
        shape = self._library.ffi.new("int64_t[]", max(rank, 1))
        status = self._library.function("output_shape")(self._context, index, shape)
        if status:
            raise self._library.error(status)
        return tuple(shape[0:rank])

    def _pointer(self, array: Array) -> Any:
        try:
            return self._buffer(array)
        except ValueError:  # numpy doesn't lend arrays of types that aren't its own: bfloat16
            return self._buffer(array.view(f"u{array.itemsize}"))


def _dtype(code: int) -> np.dtype[Any]:
    """Return the numpy type of an ONNX code; those of ml_dtypes are bits where it is absent."""
    name = _DTYPES[code]
    if code < 16:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16 if code == 16 else np.uint8)
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
