"""The compiler's own graph: typed tensors, ops as values, nodes in execution order.

All values are immutable. The IR knows no target, no file format and no C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from atc.dims import Symbol, plain

Array = npt.NDArray[np.generic]


STRING_BYTES = 256
"""Bytes of the cell that holds a string: UTF-8, ended by a NUL. What follows that doesn't count."""


class DType(Enum):
    """Element type: ONNX `TensorProto.DataType` code, numpy type, C storage type, label."""

    FLOAT = (1, np.float32, "float", "f32")
    UINT8 = (2, np.uint8, "uint8_t", "u8")
    INT8 = (3, np.int8, "int8_t", "i8")
    UINT16 = (4, np.uint16, "uint16_t", "u16")
    INT16 = (5, np.int16, "int16_t", "i16")
    INT32 = (6, np.int32, "int32_t", "i32")
    INT64 = (7, np.int64, "int64_t", "i64")
    STRING = (8, f"S{STRING_BYTES}", "atc_string", "str")
    BOOL = (9, np.bool_, "bool", "b1")
    FLOAT16 = (10, np.float16, "uint16_t", "f16")
    DOUBLE = (11, np.float64, "double", "f64")
    UINT32 = (12, np.uint32, "uint32_t", "u32")
    UINT64 = (13, np.uint64, "uint64_t", "u64")
    BFLOAT16 = (16, ml_dtypes.bfloat16, "uint16_t", "bf16")
    FLOAT8E4M3FN = (17, ml_dtypes.float8_e4m3fn, "uint8_t", "f8e4m3fn")
    FLOAT8E4M3FNUZ = (18, ml_dtypes.float8_e4m3fnuz, "uint8_t", "f8e4m3fnuz")
    FLOAT8E5M2 = (19, ml_dtypes.float8_e5m2, "uint8_t", "f8e5m2")
    FLOAT8E5M2FNUZ = (20, ml_dtypes.float8_e5m2fnuz, "uint8_t", "f8e5m2fnuz")
    UINT4 = (21, ml_dtypes.uint4, "uint8_t", "u4")
    INT4 = (22, ml_dtypes.int4, "uint8_t", "i4")
    FLOAT4E2M1 = (23, ml_dtypes.float4_e2m1fn, "uint8_t", "f4e2m1")
    FLOAT8E8M0 = (24, ml_dtypes.float8_e8m0fnu, "uint8_t", "f8e8m0")
    UINT2 = (25, ml_dtypes.uint2, "uint8_t", "u2")
    INT2 = (26, ml_dtypes.int2, "uint8_t", "i2")

    def __init__(self, code: int, numpy: type[np.generic] | str, c: str, label: str) -> None:
        self.code = code
        self.numpy: np.dtype[np.generic] = np.dtype(numpy)
        self.c = c
        self.label = label  # the short name in symbols and dumps

    __hash__ = object.__hash__  # an enum's own is Python, and types are looked up all the time

    @property
    def itemsize(self) -> int:
        """Bytes of one element; numbers of 2 and 4 bits take one each."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Bits that an element has in the standard."""
        if self.name.endswith(("INT4", "INT2")):
            return int(self.name[-1])
        return 4 if self is DType.FLOAT4E2M1 else 8 * self.itemsize

    @property
    def is_float(self) -> bool:
        """Whether the type holds real numbers."""
        return self is DType.DOUBLE or "FLOAT" in self.name

    @property
    def is_half(self) -> bool:
        """Whether the type is a 16-bit float, stored as bits in C and computed in float."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_small(self) -> bool:
        """Whether the type is one of those that only casts, quantization and movement know."""
        return self.code > DType.BFLOAT16.code

    @property
    def computed(self) -> DType:
        """The type of values of this type in C: another one where C stores only bits."""
        if not (self.is_half or self.is_small):
            return self
        if self.is_float:
            return DType.FLOAT
        return DType.INT8 if self.is_signed else DType.UINT8

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return not self.name.startswith(("U", "BOOL", "STRING")) and self is not DType.FLOAT8E8M0

    @staticmethod
    def from_numpy(dtype: np.dtype[np.generic]) -> DType:
        """Return the element type of a numpy dtype; KeyError when there is none."""
        return _BY_NUMPY[dtype]

    @staticmethod
    def from_onnx(code: int) -> DType:
        """Return the element type of an ONNX data type code; KeyError when there is none."""
        return _BY_CODE[code]


_BY_NUMPY = {d.numpy: d for d in DType}
_BY_CODE = {d.code: d for d in DType}


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a dense row-major tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        return row_major(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.label}[{','.join(map(plain, self.shape))}]"


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense row-major tensor of this shape."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def type_of(array: Array) -> TensorType:
    """Return the tensor type of a numpy array."""
    return TensorType(DType.from_numpy(array.dtype), tuple(array.shape))


class Op:
    """An operation: a frozen dataclass of typed attributes, compared by value."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Raise ValueError when the operand types break the op's rules."""

    @property
    def kind(self) -> str:
        """The op's name in dumps, comments and reports."""
        return type(self).__name__

    @property
    def written(self) -> tuple[int, ...]:
        """Extents that the op's kernel finds out when it runs; none for most ops."""
        return ()

    def subgraphs(self) -> tuple[Graph, ...]:
        """Graphs that the op runs (If, Loop); empty for all others."""
        return ()


@dataclass(frozen=True)
class Node:
    """One op applied to named values.

    An absent optional input is the empty string. `origin` lists the user's own node names;
    it grows when nodes are fused.
    """

    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Composite:
    """A sequence or an empty optional of the model, and which inputs or outputs its elements are.

    `first` is the position of the first one among those of the `side` ("input" or "output");
    `count` is -1 where an optional has no value. A map, or a sequence of maps, is two tensors: the
    keys [n] and the values [n], or [maps, n].
    """

    side: str
    name: str
    first: int
    count: int
    is_map: bool = False


@dataclass(frozen=True)
class Alias:
    """A value that is another one, `of`, once more.

    Of `kind` "output": a result of that name, which an input has; "layout": in another layout;
    "recomputed": a second computation, so that the first one needs no memory until then;
    "swapped": a copy of it, in the host's memory or back from there.
    """

    kind: Literal["output", "layout", "recomputed", "swapped"]
    of: str


OWN = "#"
"""What marks the names that the compiler makes up."""


def is_own(name: str) -> bool:
    """Return whether a value's name is made up, so that the model knows no value of that name."""
    return OWN in name


@dataclass(frozen=True)
class Dequantization:
    """The origin of a dequantized float constant: `integers * scale`, zero points taken off.

    `integers` has the constant's shape, the float32 `scale` is broadcast to it.
    """

    integers: Array
    scale: Array


@dataclass(frozen=True)
class Slide:
    """A state that lies in the result that replaces it, and moves on in its memory after each run.

    The state's input has the type of that result, and is what begins `step` elements further in it
    in the next run; before it, if that is negative. The state itself, of the model's `shape`, is
    there as `loops` over `strides`. It begins `behind` elements before the input's begin: none
    unless a run drops some of it at first; in a step backwards `step`, as what is new comes first.
    """

    shape: tuple[int, ...]
    loops: tuple[int, ...]
    strides: tuple[int, ...]
    step: int
    behind: int = 0


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order over named, statically typed values (names are the SSA)."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    composites: tuple[Composite, ...] = ()
    dims: tuple[Symbol, ...] = ()
    """The run-time extents that shapes, views and loops may depend on, by their index."""
    guards: tuple[int, ...] = ()
    """Extents that are 0 wherever the graph is right; a run that comes to it ends where one isn't.

    Those of a branch, or of a loop's body, don't count where that isn't run.
    """
    quantization: Mapping[str, Dequantization] = field(default_factory=lambda: MappingProxyType({}))
    """The constants that were dequantized when compiling."""
    warnings: tuple[str, ...] = ()
    """What the user should know of the network, though it can be compiled."""
    aliases: Mapping[str, Alias] = field(default_factory=lambda: MappingProxyType({}))
    """The values that are others once more."""
    states: tuple[tuple[int, int], ...] = ()
    """The numbers of an input and of the output that is that input in the next run."""
    slides: Mapping[str, Slide] = field(default_factory=lambda: MappingProxyType({}))
    """How the inputs of states lie that move on in their results."""
    lengths: tuple[tuple[int, int], ...] = ()
    """The numbers of extents that states have, not inputs, and what each is in the next run; they
    are 0 in the first one."""

    def types_of(self, names: Iterable[str]) -> tuple[TensorType | None, ...]:
        """Return the types of values; None where the name is empty."""
        return tuple(self.types[n] if n else None for n in names)

    @cached_property
    def ends(self) -> frozenset[str]:
        """The outputs, to look a name up in."""
        return frozenset(self.outputs)

    def producers(self) -> dict[str, Node]:
        """Return the node that makes each value."""
        return {out: node for node in self.nodes for out in node.outputs}

    def uses(self) -> dict[str, int]:
        """Return how often each value is read, by nodes, subgraphs and as an output."""
        count: dict[str, int] = {}
        for name in (*(n for node in self.nodes for n in reads(node)), *self.outputs):
            count[name] = count.get(name, 0) + 1
        return count

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def reads(node: Node) -> Iterator[str]:
    """Yield every value that a node reads, the outer values of its subgraphs included."""
    yield from (n for n in node.inputs if n)
    for graph in node.op.subgraphs():
        yield from captured(graph)


def captured(graph: Graph) -> tuple[str, ...]:
    """Return the outer values that a subgraph reads, in order of first use."""
    own = {*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs)}
    names = (*(r for node in graph.nodes for r in reads(node)), *graph.outputs)
    return tuple(dict.fromkeys(n for n in names if n not in own))


def original(name: str, aliases: Mapping[str, Alias]) -> str:
    """Return the value that a value is in the end."""
    while name in aliases:
        name = aliases[name].of
    return name


def model_name(name: str, aliases: Mapping[str, Alias]) -> str:
    """Return what the model calls a value: an output may have the name of an input."""
    alias = aliases.get(name)
    return alias.of if alias is not None and alias.kind == "output" else name


def prune(graph: Graph) -> Graph:
    """Drop nodes, constants and types that no output needs."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs) or node.op.written:
            kept.append(node)
            needed.update(reads(node))
    nodes = tuple(reversed(kept))
    named = needed | set(graph.inputs) | {o for n in nodes for o in n.outputs}
    return replace(
        graph,
        nodes=nodes,
        constants={k: v for k, v in graph.constants.items() if k in needed},
        quantization={k: v for k, v in graph.quantization.items() if k in needed},
        types={k: v for k, v in graph.types.items() if k in named},
        aliases={k: v for k, v in graph.aliases.items() if k in named},
    )
