"""Stores scales of packed weights in float16 where that holds each of them exactly.

Beside blocks of 32 weights of 4 bits, scales in float32 are a fifth of what a product reads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.ir.graph import Array, DType, Node
from atc.ir.ops.quantize import MatMulPacked
from atc.passes.rewriting import Rewriting

SCALES = 2
"""The operand of MatMulPacked."""


def narrow_scales(state: Rewriting, node: Node) -> Node:
    """Let a product with packed weights read constant scales in float16, if none changes."""
    if not isinstance(node.op, MatMulPacked):
        return node
    name = node.inputs[SCALES]
    scales = state.constant(name)
    if scales is None or state.types[name].dtype is not DType.FLOAT:
        return node
    halves = as_halves(scales)
    if not np.array_equal(halves.astype(np.float32), scales):
        return node
    inputs = [*node.inputs]
    inputs[SCALES] = state.add_constant(halves, f"{name}.f16")
    return replace(node, inputs=tuple(inputs))


def as_halves(scales: Array) -> Array:
    """Return scales rounded to float16, infinite where they are too large."""
    with np.errstate(over="ignore"):
        return scales.astype(np.float16)
