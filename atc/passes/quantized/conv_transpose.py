"""Computes transposed convolutions of integers as convolutions, once they have their epilogue.

Their results, mostly bytes by then, are moved to their places.
"""

from __future__ import annotations

from collections.abc import Mapping

from atc.ir.graph import Array, DType, Graph, Node
from atc.ir.ops import Conv, ConvTranspose
from atc.passes.canonical.conv_transpose import conv_transpose_as_conv
from atc.passes.quantized.conv import conv_for_vectors
from atc.passes.rewriting import Rewriting, rewrite


def conv_transpose_of_integers(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Replace each ConvTranspose of integers by a Conv in the form that vectors compute."""
    decomposed = rewrite(graph, _decomposed, outer)
    return graph if decomposed is graph else rewrite(decomposed, _padded, outer)


def _decomposed(state: Rewriting, node: Node) -> Node:
    match node.op:
        case ConvTranspose(accumulator=DType.INT32):
            return conv_transpose_as_conv(state, node)
        case _:
            return node


def _padded(state: Rewriting, node: Node) -> Node:
    match node.op:
        case Conv(accumulator=DType.INT32):
            return conv_for_vectors(state, node, node.op) or node
        case _:
            return node
