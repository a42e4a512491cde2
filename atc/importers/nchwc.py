"""Filters in onnxruntime's blocked layout (com.microsoft.nchwc) become plain ones again.

onnxruntime saves what it laid out for a processor: filters [O, I, h, w] lie as
[O/B, I/B, h, w, B of I, B of O], or as [O/B, I, h, w, B of O] where fewer than B channels are read,
with zeros up to multiples of B. B is 8 or 16 and stands nowhere in the file. Values between such
nodes stay as they are declared, [N, C up to a multiple of B, h, w].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir

from atc.errors import ModelError, UnsupportedError

DOMAIN = "com.microsoft.nchwc"
BLOCKS = (8, 16)
SAVE = "save it with ORT_ENABLE_EXTENDED at most"

Filters = npt.NDArray[np.float32]


def lay_out_plainly(model: onnx_ir.Model) -> str:
    """Replace the filters of blocked convolutions, and tell ReorderInput its block.

    Returns a line where only the filters' scales tell the block, else "". Raises UnsupportedError
    where nothing tells it, ModelError for filters in no blocks.
    """
    nodes = [n for n in model.graph.all_nodes() if n.domain == DOMAIN]
    if not nodes:
        return ""
    convs = {n: _filters(n) for n in nodes if n.op_type == "Conv"}
    fitting = _fitting_blocks(nodes, convs)
    block = fitting[0] if len(fitting) == 1 else _likely_block([*convs.values()])
    if not block:
        raise UnsupportedError(
            "onnxruntime laid it out for one processor, in blocks of 8 or 16 channels, and nothing "
            "in it says which", hint=SAVE,
        )  # fmt: skip
    plain: dict[onnx_ir.Value, onnx_ir.Value] = {}
    for node in nodes:
        if node.op_type == "ReorderInput":
            node.attributes.add(onnx_ir.AttrInt64("block", block))
    for node, stored in convs.items():
        weight = node.inputs[1]
        assert weight is not None
        if weight not in plain:
            name = f"{weight.name}_plain"
            value = onnx_ir.Value(name=name, const_value=onnx_ir.tensor(
                plain_filters(stored, block), name=name
            ))  # fmt: skip
            model.graph.register_initializer(value)
            plain[weight] = value
        node.replace_input_with(1, plain[weight])
    if len(fitting) == 1:
        return ""
    return (
        f"onnxruntime laid it out for one processor; taken to be in blocks of {block} channels, as "
        f"the scales of its filters say: to be sure, {SAVE}"
    )


def plain_filters(stored: Filters, block: int) -> Filters:
    """Return filters [O, I, h, w] of blocked ones, which are declared with that shape, too."""
    o, i, h, w = stored.shape
    if i < block:
        rows = stored.reshape(o // block, i, h, w, block).transpose(0, 4, 1, 2, 3)
    else:
        rows = stored.reshape(o // block, i // block, h, w, block, block)
        rows = rows.transpose(0, 5, 1, 4, 2, 3)
    return np.ascontiguousarray(rows).reshape(stored.shape)


def _filters(node: onnx_ir.Node) -> Filters:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if weight is None else weight.const_value
    if tensor is None or tensor.dtype != onnx_ir.DataType.FLOAT or len(tensor.shape) != 4:
        raise ModelError(f"the filters of '{node.name}' ({DOMAIN}) are no constants [O, I, h, w]")
    return tensor.numpy()


def _fitting_blocks(
    nodes: Sequence[onnx_ir.Node], convs: Mapping[onnx_ir.Node, Filters]
) -> Sequence[int]:
    """Return the blocks that channel counts and layouts admit; raises ModelError for none."""
    fitting = [
        block for block in BLOCKS
        if all(_fits_conv(n, f.shape, block) for n, f in convs.items())
        and all(_fits_output(n, convs, block) for n in nodes)
    ]  # fmt: skip
    if not fitting:
        raise ModelError(f"its filters lie in no blocks of {BLOCKS[0]} or {BLOCKS[1]} channels")
    return fitting


def _fits_conv(node: onnx_ir.Node, shape: Sequence[int], block: int) -> bool:
    outputs, inputs = shape[:2]
    if 0 in shape or outputs % block:
        return False
    blocked = _is_blocked(node.inputs[0])
    if inputs >= block:
        return inputs % block == 0 and blocked is not False
    return inputs == 1 if node.attributes.get_int("group", 1) > 1 else not blocked


def _is_blocked(value: onnx_ir.Value | None) -> bool | None:
    """Return whether a value lies in blocks, None behind operators that take both layouts."""
    producer = None if value is None else value.producer()
    if producer is None:
        return False
    return producer.op_type != "ReorderOutput" if producer.domain == DOMAIN else None


def _fits_output(
    node: onnx_ir.Node, convs: Mapping[onnx_ir.Node, Filters], block: int
) -> bool:
    if node.op_type != "ReorderOutput" or node.inputs[0] is None:
        return True
    producer, channels = node.inputs[0].producer(), node.attributes.get_int("channels", 0)
    if producer is None or producer not in convs:
        return True
    stored: int = convs[producer].shape[0]
    return -(-channels // block) * block == stored


def _likely_block(filters: Sequence[Filters]) -> int:
    """Return the block under which output channels differ in scale, 0 where it isn't clear.

    Read in wrong blocks, an output channel mixes several, and their scales are alike. Each layer
    votes whose likelihoods, of numbers with a variance for each channel, differ beyond chance.
    """
    votes = []
    for stored in filters:
        gains = [_log_likelihood(plain_filters(stored, block)) for block in BLOCKS]
        if abs(gains[1] - gains[0]) > 20 + 20 * math.sqrt(stored.shape[0]):
            votes.append(BLOCKS[gains[1] > gains[0]])
    return next((b for b in BLOCKS if votes and votes.count(b) >= 0.9 * len(votes)), 0)


def _log_likelihood(filters: Filters) -> float:
    rows = filters.reshape(len(filters), -1).astype(np.float64)
    variances = np.square(rows).mean(axis=1)
    least = max(float(variances.max()) * 1e-12, 1e-300)
    return float(-0.5 * rows.shape[1] * np.log(np.maximum(variances, least)).sum())
