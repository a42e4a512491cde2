"""Evaluates ONNX nodes whose inputs are all constant, through the standard's own reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
import onnx_ir

from atc.errors import UnsupportedError
from atc.ir.graph import Array, DType
from atc.lower.strings import cells, is_text, texts

MAX_FOLDED = 1 << 24
"""Elements that a folded operand may have; larger ones are computed at run time."""

NOT_FOLDED = frozenset(
    [
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
        "ConstantOfShape",
        "Identity",
        "Expand",
        "Tile",
        "Range",
        "Resize",
        "Upsample",
        "If",
        "Loop",
        "Scan",
        "StringNormalizer",
        "StringSplit",
        "RegexFullMatch",
    ]
)
"""Random operators, those whose small inputs can make a huge output, and those on strings that the
reference computes otherwise than the standard says. Some of their lowerings fold. Identity's gives
the very constant, where the reference copies it: layers that share weights have one for each."""


def can_fold(node: onnx_ir.Node, inputs: Sequence[Array | None]) -> bool:
    """Return whether a node is a pure function of constants that are small enough."""
    if node.domain or node.op_type in NOT_FOLDED or not inputs:
        return False
    if any(isinstance(a.value, onnx_ir.Graph) for a in node.attributes.values()):
        return False
    return sum(prod(a.shape) for a in inputs if a is not None) <= MAX_FOLDED


def evaluate(
    node: onnx_ir.Node, inputs: Sequence[Array | None], opset: int
) -> tuple[Array, ...] | None:
    """Return a node's outputs, or None when the reference can't compute it."""
    from onnx.reference import ReferenceEvaluator  # deferred: few models have nodes to fold

    feeds: dict[str, Array] = {}
    proto = onnx.NodeProto(op_type=node.op_type)
    for i, array in enumerate(inputs):
        proto.input.append("" if array is None else f"i{i}")
        if array is not None:
            feeds[f"i{i}"] = texts(array) if is_text(array) else array
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    proto.attribute.extend(onnx_ir.serde.serialize_attribute(a) for a in node.attributes.values())
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(proto, opsets={"": opset}).run(None, feeds)
    except Exception:  # the reference raises whatever numpy does; the node's lowering then decides
        return None
    if not all(isinstance(r, np.ndarray | np.generic) for r in results):
        return None  # a sequence or an optional value
    try:
        arrays = tuple(cells(r) if is_text(r) else r for r in map(np.asarray, results))
    except UnsupportedError:  # too long for a cell
        return None
    if node.op_type.startswith("Cast") and any(a.dtype == DType.STRING.numpy for a in arrays):
        return None  # numpy writes numbers otherwise than the network
    known = {d.numpy for d in DType}
    return arrays if all(a.dtype in known for a in arrays) else None
