"""Keeping float tensors in other types than the model's, as a lowering goes along.

Arithmetic stays in float32. A tensor that is kept in 16 bits holds only values that those bits can
hold: it is rounded where an operator makes it, and constants when compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir

from atc.ir.expr import cast
from atc.ir.graph import DType, TensorType
from atc.lower.builder import Builder
from atc.lower.caches import declare

PICKING = frozenset({
    "Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather",
    "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "ReduceMax", "ReduceMin",
    "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose",
    "Unsqueeze", "Where",
})  # fmt: skip
"""Operators whose results are values of their operands, or these negated, or zero."""

Types = DType | None | tuple[DType | None, ...]
"""A type for all operands, or one for each; None leaves one as it is."""


@dataclass(frozen=True)
class Storage:
    """The type that a node's float32 operands and results are stored in.

    One that `follows` keeps its results so only if all operands that are computed already are.
    """

    inputs: Types = None
    outputs: Types = None
    follows: bool = False


Policy = Callable[[onnx_ir.Node], Storage]


@dataclass
class Precision:
    """Facts known of the values of one lowering.

    With `wide`, no value is of a 16-bit type: those of the model become float32.
    """

    policy: Policy | None = None
    wide: bool = False
    states: Mapping[str, str] = field(default_factory=dict)
    """The outputs that inputs become in the next run."""
    _kept: dict[str, DType] = field(default_factory=dict)
    _made: dict[tuple[Builder, str, DType], str] = field(default_factory=dict)

    def widens(self, value: onnx_ir.Value) -> bool:
        """Return whether a value of the model is kept in a wider type than it declares."""
        return self.wide and value.dtype in (onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16)

    def given(self, builder: Builder, name: str) -> str:
        """Return what stands for an input or initializer of a graph."""
        half = self.wide and builder.parts(name) is None and builder.type(name).dtype.is_half
        return builder.cast(name, DType.FLOAT) if half else name

    def declare(self, builder: Builder, value: onnx_ir.Value, type_: TensorType) -> str:
        """Add an input of the graph; return the value that is read as it.

        A state holds what a node made of it in the run before, or has appended to it: that is
        rounded then, and not when it is read.
        """
        name = value.name or ""
        grows = name in builder.caches.growths
        if grows and self.widens(value):
            return declare(builder, name, replace(type_, dtype=DType.FLOAT))
        given = declare(builder, name, type_)
        kept = self._kept_of(value, grows) if _is_float(builder, given) else None
        self._kept.update({given: kept} if kept else {})
        return given

    def _kept_of(self, state: onnx_ir.Value, grows: bool) -> DType | None:
        """Return the type that a node keeps of what a state becomes; of what it appends."""
        outputs = () if state.graph is None else state.graph.outputs
        becomes = self.states.get(state.name or "")
        following = next((v for v in outputs if v.name == becomes), None)
        maker = None if following is None else following.producer()
        if following is None or maker is None or self.policy is None or self.policy(maker).follows:
            return None
        storage = self.policy(maker)
        reads = grows and state in maker.inputs
        read = _at(storage.inputs, maker.inputs.index(state)) if reads else None
        return _at(storage.outputs, following.index() or 0) or read

    def operands(
        self, node: onnx_ir.Node, inputs: tuple[str, ...], builder: Builder
    ) -> tuple[str, ...]:
        """Return what a node reads."""
        storage = self._storage(node, inputs, builder)
        return tuple(
            self._rounded(builder, name, _at(storage.inputs, k)) for k, name in enumerate(inputs)
        )

    def results(
        self, node: onnx_ir.Node, inputs: tuple[str, ...], outputs: tuple[str, ...],
        builder: Builder,
    ) -> tuple[str, ...]:  # fmt: skip
        """Return what the readers of a node's results read; `inputs` are what it read."""
        storage = self._storage(node, inputs, builder)
        for past, (_, whole) in builder.caches.made.items():
            if past in self._kept:
                self._kept[whole] = self._kept[past]
        kept = {self._kept.get(name) for name in inputs if _is_float(builder, name)}
        if node.op_type in PICKING and len(kept) == 1:
            (dtype,) = kept
            if dtype is not None and dtype is storage.outputs:
                self._kept.update({n: dtype for n in outputs if _is_float(builder, n)})
        return tuple(
            self._rounded(builder, name, _at(storage.outputs, k)) for k, name in enumerate(outputs)
        )

    def declared(self, builder: Builder, value: onnx_ir.Value, name: str) -> str:
        """Return what stands for an output of the model, of the type that it declares."""
        if not self.wide or value.dtype is None or builder.parts(name) is not None:
            return name
        if value.name in {growth.output for growth in builder.caches.growths.values()}:
            return name
        dtype = DType.from_onnx(value.dtype.value)
        return builder.cast(name, dtype) if dtype.is_half else name

    def _storage(self, node: onnx_ir.Node, inputs: tuple[str, ...], builder: Builder) -> Storage:
        storage = Storage() if self.policy is None else self.policy(node)
        if not storage.follows:
            return storage
        computed = [n for n in inputs if _is_float(builder, n) and builder.value(n) is None]
        kept = bool(computed) and all(n in self._kept for n in computed)
        return storage if kept else Storage()

    def _rounded(self, builder: Builder, name: str, dtype: DType | None) -> str:
        if dtype is None or self._kept.get(name) is dtype or not _is_float(builder, name):
            return name
        key = (builder, name, dtype)
        if key not in self._made:
            rounded = self._made[key] = _round(builder, name, dtype)
            self._kept[rounded] = dtype
        return self._made[key]


def _round(builder: Builder, name: str, dtype: DType) -> str:
    """Return what a float rounded to a type is: one expression, so that no pass splits it."""
    if builder.value(name) is None:
        return builder.map(lambda x: cast(cast(x, dtype), DType.FLOAT), name)
    with np.errstate(over="ignore"):  # beyond the type's range is infinite, as in C
        return builder.cast(builder.cast(name, dtype), DType.FLOAT)


def _is_float(builder: Builder, name: str) -> bool:
    return bool(name) and builder.parts(name) is None and builder.type(name).dtype is DType.FLOAT


def _at(types: Types, k: int) -> DType | None:
    if not isinstance(types, tuple):
        return types
    return types[k] if k < len(types) else None
