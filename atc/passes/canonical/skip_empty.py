"""Leaves out nodes that compute no element: kernels needn't provide for results that are empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import DType, Node
from atc.ir.ops import If, Loop, Map, Reshape
from atc.ir.view import View
from atc.passes.rewriting import Rewriting


def skip_empty(state: Rewriting, node: Node) -> Node:
    """Turn a node whose one result is empty into a copy of an empty constant."""
    if isinstance(node.op, If | Loop | Map | Reshape) or len(node.outputs) > 1:
        return node
    type_ = state.types[node.outputs[0]]
    if type_.dtype is DType.STRING or is_dynamic(type_.shape) or type_.size:
        return node
    empty = state.add_constant(np.empty(type_.shape, type_.dtype.numpy), "empty")
    return replace(node, op=Map((0,), Input(type_.dtype, 0), (View((1,)),)), inputs=(empty,))
