"""Whether two graphs say the same: the IR compares graphs by identity."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from atc.ir.graph import Graph, Node, reads


def assert_same_graph(a: Graph, b: Graph) -> None:
    """Compare all that a graph is made of, but for types that nothing in it has."""
    for name in ("name", "inputs", "outputs", "composites", "dims", "guards", "warnings", "aliases",
                 "states", "lengths"):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name
    used = {*a.inputs, *a.constants, *a.outputs, *(o for n in a.nodes for o in n.outputs)}
    used |= {name for node in a.nodes for name in reads(node)}
    assert used <= set(b.types)
    assert {n: a.types[n] for n in used} == {n: b.types[n] for n in used}
    _assert_arrays(a.constants, b.constants)
    for name in ("integers", "scale"):
        sides = [{k: getattr(q, name) for k, q in g.quantization.items()} for g in (a, b)]
        _assert_arrays(*sides)
    assert len(a.nodes) == len(b.nodes)
    for mine, other in zip(a.nodes, b.nodes, strict=True):
        _assert_same_node(mine, other)


def _assert_arrays(a: Any, b: Any) -> None:
    assert list(a) == list(b)
    for name, array in a.items():
        assert (array.dtype, array.shape) == (b[name].dtype, b[name].shape), name
        assert array.tobytes() == np.asarray(b[name]).tobytes(), name


def _assert_same_node(a: Node, b: Node) -> None:
    assert type(a.op) is type(b.op)
    assert (a.inputs, a.outputs, a.origin) == (b.inputs, b.outputs, b.origin)
    for f in fields(a.op):  # type: ignore[arg-type]
        mine, other = getattr(a.op, f.name), getattr(b.op, f.name)
        if isinstance(mine, Graph):
            assert_same_graph(mine, other)
        else:
            assert mine == other, (a.op.kind, f.name)
