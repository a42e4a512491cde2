"""Layouts and element types of a network's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.adapt.editing import Editor, feed
from atc.dims import RANGES
from atc.errors import OptionError

CHANNELS_LAST: Mapping[str, tuple[int, ...]] = {"NHWC": (0, 2, 3, 1), "NDHWC": (0, 2, 3, 4, 1)}
"""Formats of inputs that differ from a model's own, with the axes of [N, C, ...] that they have."""

FORMATS = ("", "NCHW", "NHWC", "ND", "NCDHW", "NDHWC")

TYPES: Mapping[str, ir.DataType] = {
    "FP32": ir.DataType.FLOAT, "FP16": ir.DataType.FLOAT16, "BF16": ir.DataType.BFLOAT16,
    "DOUBLE": ir.DataType.DOUBLE, "INT8": ir.DataType.INT8, "UINT8": ir.DataType.UINT8,
    "INT16": ir.DataType.INT16, "UINT16": ir.DataType.UINT16, "INT32": ir.DataType.INT32,
    "UINT32": ir.DataType.UINT32, "INT64": ir.DataType.INT64, "UINT64": ir.DataType.UINT64,
}  # fmt: skip
"""The words of `--output_type`."""


def keep_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Make these values of the model its outputs, if any are named."""
    if names:
        graph = model.graph
        values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
        values |= {v.name: v for node in graph for v in node.outputs}
        graph.outputs[:] = [values[name] for name in names]


def set_input_format(model: ir.Model, layout: str, others: frozenset[str]) -> int:
    """Let the inputs of fitting rank, less `others`, come channels last; return how many do."""
    axes = CHANNELS_LAST.get(layout)
    if axes is None:
        return 0
    chosen = [
        v
        for v in _inputs(model.graph)
        if v.name not in others and v.shape is not None and len(v.shape) == len(axes)
    ]
    for value in chosen:
        editor = Editor(model.graph, f"{value.name}.format")
        readers = list(value.uses())
        shape = [*value.shape] if value.shape is not None else []
        value.shape = ir.Shape([shape[a] for a in axes])
        if RANGES in value.meta:
            value.meta[RANGES] = [value.meta[RANGES][a] for a in axes]
        back = [axes.index(a) for a in range(len(axes))]
        feed(value, readers, editor.add("Transpose", value, perm=back))
        editor.put_first()
    return len(chosen)


def set_half_inputs(model: ir.Model, names: Sequence[str], images: frozenset[str]) -> None:
    """Let float32 inputs come in half precision.

    Raises OptionError: E10016 for a name that the model doesn't have, E10017 for one that isn't a
    float32 input, E10034 for one that takes an image.
    """
    for name in names:
        value = _named_input(model.graph, name)
        if name in images:
            raise OptionError(
                f"input '{name}' takes an image of uint8", where="--input_fp16_nodes",
                hint="leave it out, or --insert_op_conf", code="E10034",
            )  # fmt: skip
        if value.dtype is not ir.DataType.FLOAT:
            raise OptionError(
                f"input '{name}' is {value.dtype}, not float32", where="--input_fp16_nodes",
                code="E10017",
            )  # fmt: skip
        editor = Editor(model.graph, f"{name}.type")
        readers = list(value.uses())
        feed(value, readers, editor.cast(value, ir.DataType.FLOAT))
        value.dtype = ir.DataType.FLOAT16
        editor.put_first()


def set_quantized_inputs(model: ir.Model, word: str, others: frozenset[str] = frozenset()) -> None:
    """Let float32 inputs that are quantized at once come as 8-bit integers of the same scale.

    `word` is INT8, UINT8 or nothing; `others` stay as they are. Of the other sign than the model's
    own the zero point moves by 128. Raises OptionError if no input is read by nothing but a
    QuantizeLinear to 8 bits.
    """
    if not word:
        return
    dtype, count = TYPES[word], 0
    for value in _inputs(model.graph):
        readers = list(value.uses())
        found = {_quantization(use.node, use.idx) for use in readers}
        grid = found.pop() if len(found) == 1 else None
        if value.dtype is not ir.DataType.FLOAT or grid is None or value.name in others:
            continue
        scale, zero_point, own = grid
        moved = zero_point + _LOWEST[dtype] - _LOWEST[own]
        editor = Editor(model.graph, f"{value.name}.type")
        values = editor.add(
            "DequantizeLinear", value, editor.constant(scale),
            editor.constant(moved, dtype.numpy()),
        )  # fmt: skip
        values.dtype, values.shape = ir.DataType.FLOAT, value.shape
        feed(value, readers, values)
        value.dtype = dtype
        editor.put_first()
        count += 1
    if not count:
        raise OptionError(
            "no input of the model is quantized to 8-bit integers before all else",
            where="--input_type", hint="quantise the model first: --cal_conf, or atc quantize",
        )  # fmt: skip


_LOWEST = {ir.DataType.INT8: -128, ir.DataType.UINT8: 0}


def _quantization(node: ir.Node, position: int) -> tuple[float, int, ir.DataType] | None:
    """Return scale, zero point and type of a QuantizeLinear by constants to 8 bits, else None."""
    if node.op_type != "QuantizeLinear" or position != 0:
        return None
    scale = _constant(node.inputs[1])
    point = _constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)
    if scale is None or point is None or scale.size != 1 or point.size != 1:
        return None
    types = {np.dtype(t.numpy()): t for t in _LOWEST}
    own = types.get(point.dtype)
    return None if own is None else (float(scale.item()), int(point.item()), own)


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the elements of an initializer or of a Constant's result, None for what isn't one."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None or node.op_type != "Constant" or "value" not in node.attributes:
        return None
    return node.attributes["value"].as_tensor().numpy()


def set_output_types(
    model: ir.Model, wanted: Sequence[tuple[str, str]], states: frozenset[str] = frozenset()
) -> None:
    """Convert outputs: for the name "" all but `states`, else those called so or `node:number`.

    Numbers that an integer type can't hold become its nearest. Raises OptionError E10016 for a
    name that no output has.
    """
    graph = model.graph
    for name, word in wanted:
        chosen = [
            k for k, v in enumerate(graph.outputs)
            if (_is_called(v, name) if name else v.name not in states)
        ]  # fmt: skip
        if not chosen:
            known = ", ".join(f"'{v.name}'" for v in graph.outputs)
            raise OptionError(
                f"'{name}' is not an output; the outputs are {known}", where="--output_type",
                hint="an inner value becomes an output by --out_nodes", code="E10016",
            )  # fmt: skip
        for k in chosen:
            graph.outputs[k] = _converted(graph, graph.outputs[k], TYPES[word])


def _inputs(graph: ir.Graph) -> list[ir.Value]:
    return [v for v in graph.inputs if v.name not in graph.initializers]


def _named_input(graph: ir.Graph, name: str) -> ir.Value:
    for value in _inputs(graph):
        if value.name == name:
            return value
    inside = any(name in (node.name, *(v.name for v in node.outputs)) for node in graph)
    known = ", ".join(f"'{v.name}'" for v in _inputs(graph))
    problem = "is not an input of the model" if inside else "is not in the model"
    raise OptionError(
        f"'{name}' {problem}; the inputs are {known}", where="--input_fp16_nodes",
        code="E10017" if inside else "E10016",
    )  # fmt: skip


def _is_called(value: ir.Value, name: str) -> bool:
    node = value.producer()
    numbered = node is not None and name == f"{node.name}:{value.index()}"
    return name == value.name or numbered


def _converted(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return a value of another type that has the name of the old one."""
    if value.dtype is dtype:
        return value
    name = value.name or ""
    editor = Editor(graph, f"{name}.type")
    x = value
    floats = value.dtype is None or value.dtype.is_floating_point()
    if dtype.is_integer() and floats:
        limits = np.iinfo(dtype.numpy())
        low, high = (np.float32(v) for v in (limits.min, limits.max))
        high = high if float(high) <= limits.max else np.nextafter(high, np.float32(0))
        x = editor.cast(x, ir.DataType.FLOAT)
        x = editor.add("Clip", x, editor.constant(low), editor.constant(high))
    result = editor.cast(x, dtype)
    result.shape = value.shape
    if value.producer() is not None:
        value.name = editor.fresh(f"{name}.own")
        result.name = name
    editor.put_last()
    return result
