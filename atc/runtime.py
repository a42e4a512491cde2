"""Runs a compiled network through its C interface, with cffi and numpy alone.

Every generated project carries this file's text in its Python module: nothing of ours is imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from atc.runtime_values import Array, Value, flat, grouped, to_cells, to_texts

ABI_VERSION = 1

_DECLARATIONS = """
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} NET_tensor_info;
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


@dataclass(frozen=True)
class Tensor:
    """The name, shape and numpy element type of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    cell: int = 0
    """Bytes in which C holds a string, its NUL among them; 0 for numbers."""

    def __str__(self) -> str:
        return f"{self.name}: {'string' if self.cell else self.dtype.name} {list(self.shape)}"

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the elements in memory."""
        return np.dtype(f"S{self.cell}") if self.cell else self.dtype


class Network:
    """A compiled network, ready to run.

    A sequence of the model is a list of arrays, an optional without a value is None: `parameters`
    and `results` say so. `inputs` and `outputs` are the tensors, sequences' elements among them.
    Strings are arrays of objects; what isn't UTF-8 in them is kept as surrogate escapes.

    It may be called from several threads at once: each call in progress has an arena of its own,
    and arenas are kept for the next calls. The interpreter's lock is released meanwhile.
    """

    def __init__(self, library: str | Path, prefix: str, weights: str | Path | None = None) -> None:
        """Load a shared library whose functions are called `<prefix>_...`.

        `weights` is the file of the weights where they are not in the library. Raises OSError for
        a file that can't be loaded, RuntimeError for one that can't run here.
        """
        self._library: _Library | None = _Library(library, prefix, weights)
        self._prefix = prefix
        self.inputs: tuple[Tensor, ...] = self._library.tensors("input")
        self.outputs: tuple[Tensor, ...] = self._library.tensors("output")
        self.parameters: tuple[Value, ...] = self._library.values("input", self.inputs)
        self.results: tuple[Value, ...] = self._library.values("output", self.outputs)
        self.build_info: str = self._library.text("build_info")
        self._library.idle.append(_Context(self._library))

    def __call__(self, *inputs: Any, out: Array | Sequence[Array | None] | None = None) -> Any:
        """Compute the outputs: an array, or a tuple where the network has several.

        Arrays of the right type and shape are read where they lie, if contiguous. The outputs are
        new arrays, or those of `out`. Raises TypeError or ValueError naming the tensor.
        """
        library = self._open()
        arrays = _inputs(self.inputs, flat(self.parameters, inputs))
        results = _outputs(self.outputs, self._listed(out), arrays)
        library.run(arrays, results)
        found = grouped(self.results, self._read(results))
        return found[0] if len(found) == 1 else tuple(found)

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Any]:
        """Compute the outputs by name, in the model's order, from inputs by name."""
        library = self._open()
        listed = _by_name("input", self.parameters, inputs, complete=True)
        arrays = _inputs(self.inputs, flat(self.parameters, listed))
        given = _by_name("output", self.outputs, out or {}, complete=False)
        results = _outputs(self.outputs, given, arrays)
        library.run(arrays, results)
        found = grouped(self.results, self._read(results))
        return {v.name: a for v, a in zip(self.results, found, strict=True)}

    def bind(self, *inputs: Any, out: Array | Sequence[Array | None] | None = None) -> Bound:
        """Return a call on these very arrays that costs next to nothing beside the network.

        Strings lie in arrays of bytes then, `S256` for instance, as C holds them.
        """
        library = self._open()
        arrays = _inputs(self.inputs, flat(self.parameters, inputs), in_place=True)
        results = _outputs(self.outputs, self._listed(out), arrays)
        return Bound(library, arrays, results, self.results)

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
        self, library: _Library, inputs: list[Array], outputs: list[Array], made: Sequence[Value]
    ) -> None:
        """Take arrays that have been checked."""
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._library = library
        self._context = _Context(library)
        self._context.point_to(inputs, outputs)
        self._arguments = self._context.arguments
        self._run = library.run_tensors
        found = tuple(grouped(made, outputs))
        plain = not any(v.is_sequence or v.count is None for v in made)
        self._result = found[0] if len(found) == 1 else self.outputs if plain else found

    def __call__(self) -> Any:
        """Run the network; returns the bound output, or the tuple of all."""
        status = self._run(*self._arguments)
        if status:
            raise self._library.error(status, self._arguments[0])
        return self._result


def read_weights(path: Path) -> Array:
    """Return the weights of a file, mapped, or of the files in a folder of its name, joined."""
    parts = [] if path.exists() else sorted(path.with_suffix("").glob("*.bin"))
    if not parts:
        return np.memmap(path, np.uint8, "r")
    data = b"".join(part.read_bytes() for part in parts)
    memory = np.empty(len(data) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory[start : start + len(data)]


class _Library:
    """The loaded library: its functions, and contexts that no call uses at the moment."""

    def __init__(self, path: str | Path, prefix: str, weights: str | Path | None) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS.replace("NET", prefix))
        self.handle = self.ffi.dlopen(str(path))
        self.prefix = prefix
        found = self.function("abi_version")()
        if found != ABI_VERSION:
            raise RuntimeError(f"{path} has the interface {found}, this loader knows {ABI_VERSION}")
        self.run_tensors = self.function("run_tensors")
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
        return tuple(self._tensor(self.function(f"{side}_info")(k)) for k in range(count))

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
            found.append(Value(name, int(sequence.first), size, is_sequence=size is not None))
            at = int(sequence.first + sequence.count)
        return (*found, *(Value(tensors[k].name, k) for k in range(at, len(tensors))))

    def _tensor(self, info: Any) -> Tensor:
        name = self.ffi.string(info.name).decode()
        shape = tuple(int(info.shape[axis]) for axis in range(info.rank))
        if info.dtype == _STRING:
            count = int(np.prod(shape, dtype=np.int64))
            return Tensor(name, shape, np.dtype(object), int(info.size) // count if count else 1)
        return Tensor(name, shape, _dtype(info.dtype))

    def run(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run once, in a context that no other thread uses (a list's pop and append are atomic)."""
        try:
            context = self.idle.pop()
        except IndexError:
            context = _Context(self)
        context.point_to(inputs, outputs)
        status = self.run_tensors(*context.arguments)
        failure = self.error(status, context.arguments[0]) if status else None
        self.idle.append(context)
        if failure:
            raise failure


class _Context:
    """What one call in progress needs: the C context, its arena, the tables of pointers."""

    def __init__(self, library: _Library) -> None:
        ffi = library.ffi
        size, alignment = library.function("arena_size")(), library.function("alignment")()
        self._memory = np.empty(size + alignment, np.uint8)
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

    def point_to(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Fill the tables; the caller keeps the arrays alive."""
        for k, array in enumerate(inputs):
            self._inputs[k] = self._pointer(array)
        for k, array in enumerate(outputs):
            self._outputs[k] = self._pointer(array)

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


def _by_name(
    side: str, tensors: Sequence[Tensor] | Sequence[Value], given: Mapping[str, Any], complete: bool
) -> list[Any]:
    """Return the arrays in the tensors' order; None for an absent one that may be absent."""
    names = [t.name for t in tensors]
    for name in given:
        if name not in names:
            raise ValueError(f"there is no {side} {name!r}; the {side}s are {names}")
    for name in names:
        if complete and name not in given:
            raise TypeError(f"{side} {name!r} is missing")
    return [given.get(name) for name in names]


def _inputs(tensors: Sequence[Tensor], given: Sequence[Any], in_place: bool = False) -> list[Array]:
    """Return the inputs as the network can read them; copies only where it must and may."""
    if len(given) != len(tensors):
        names = [t.name for t in tensors]
        raise TypeError(f"{len(given)} inputs given, the network takes {len(tensors)}: {names}")
    arrays = []
    for value, tensor in zip(given, tensors, strict=True):
        array = np.asarray(value)
        if tensor.cell and not (in_place and array.dtype == tensor.stored):
            array = to_cells(array, tensor.name, tensor.cell, in_place)
        _check(array, tensor, "input")
        if not (array.flags.c_contiguous and array.flags.aligned):
            if in_place:
                raise ValueError(f"input {tensor.name!r} can't be bound: it isn't contiguous")
            array = np.array(array, order="C")
        arrays.append(array)
    return arrays


def _outputs(
    tensors: Sequence[Tensor], given: Sequence[Any], inputs: Sequence[Array]
) -> list[Array]:
    """Return the given arrays for the outputs, checked, and new ones for None."""
    if len(given) != len(tensors):
        raise TypeError(f"{len(given)} arrays for {len(tensors)} outputs")
    results: list[Array] = []
    named: list[Array] = []
    for value, tensor in zip(given, tensors, strict=True):
        if value is None:
            results.append(np.empty(tensor.shape, tensor.stored))
            continue
        if not isinstance(value, np.ndarray):
            raise TypeError(f"output {tensor.name!r} must be a numpy array, not {type(value)}")
        _check(value, tensor, "output")
        flags = value.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            raise ValueError(f"output {tensor.name!r} must be contiguous, aligned and writable")
        if any(np.may_share_memory(value, array) for array in (*inputs, *named)):
            raise ValueError(f"output {tensor.name!r} overlaps another tensor")
        named.append(value)
        results.append(value)
    return results


def _check(array: Array, tensor: Tensor, side: str) -> None:
    if array.dtype != tensor.stored:
        raise TypeError(f"{side} {tensor.name!r} must be {tensor.stored}, not {array.dtype}")
    if array.shape != tensor.shape:
        raise ValueError(
            f"{side} {tensor.name!r} must have the shape {tensor.shape}, not {array.shape}"
        )
