"""Einsum: pairs of operands as products of matrices or of elements, then sums and an order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atc.exporters.megengine.builder import Node, Var
from atc.exporters.megengine.steps import Composition, Steps, integers

_Labels = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """An operand: its value and the label of each axis, none of them twice."""

    value: Var
    labels: _Labels

    @property
    def extents(self) -> Mapping[str, int]:
        """The extent of each label."""
        return dict(zip(self.labels, self.value.type.shape, strict=True))


def _einsum(s: Steps, node: Node, xs: Sequence[Var]) -> list[Var]:
    """ONNX Einsum-12, with ellipsis, implicit output, diagonals and any number of operands."""
    if any(not x.type.size for x in xs):
        raise node.refuse("it is of an empty tensor")
    subscripts, output = _parsed(node, node.get("equation").replace(" ", ""), xs)
    terms = [
        _diagonal(s, node, x, labels) for x, labels in zip(xs, subscripts, strict=True)
    ]
    extents: dict[str, int] = {}
    for term in terms:
        for label, extent in term.extents.items():
            extents[label] = max(extents.get(label, 1), extent)
    first, *rest = (_stretched(s, term, extents) for term in terms)
    while rest:
        second, *rest = rest
        first = _product(s, first, second, {*output, *(k for t in rest for k in t.labels)})
    first = _summed(s, first, output)
    return [s.transposed(first.value, [first.labels.index(k) for k in output])]


def _parsed(node: Node, equation: str, xs: Sequence[Var]) -> tuple[list[_Labels], _Labels]:
    """Return each operand's labels and the result's; axes of an ellipsis are '...0' and on."""
    inputs, arrow, result = equation.partition("->")
    parts = inputs.split(",")
    wild = [
        len(x.type.shape) - len(part.replace("...", ""))
        for part, x in zip(parts, xs, strict=False)
    ]
    if len(parts) != len(xs) or any(
        n < 0 or (n > 0 and "..." not in part) for n, part in zip(wild, parts, strict=True)
    ):
        raise node.refuse(f"'{equation}' doesn't fit its operands")
    depth = max(wild)
    if not arrow:
        once = {k for k in inputs if k.isalpha() and inputs.count(k) == 1}
        result = "..." * ("..." in inputs) + "".join(sorted(once))
    return [_labels(p, depth, n) for p, n in zip(parts, wild, strict=True)], _labels(
        result, depth, depth
    )


def _labels(text: str, depth: int, count: int) -> _Labels:
    """Return a label per axis: an ellipsis is the last `count` of `depth` axes."""
    before, dots, after = text.partition("...")
    return (*before, *(f"...{k}" for k in range(depth - count, depth) if dots), *after)


def _diagonal(s: Steps, node: Node, x: Var, labels: _Labels) -> Term:
    """Read axes of the same label as one."""
    once = tuple(dict.fromkeys(labels))
    if len(once) == len(labels):
        return Term(x, labels)
    extents = dict(zip(labels, x.type.shape, strict=True))
    if x.type.shape != tuple(extents[k] for k in labels):
        raise node.refuse("a diagonal of axes of different extents")
    strides = [math.prod(x.type.shape[k + 1 :]) for k in range(len(labels))]
    steps = [sum(n for n, k in zip(strides, labels, strict=True) if k == one) for one in once]
    grid = np.indices([extents[k] for k in once])
    places = sum((i * n for i, n in zip(grid, steps, strict=True)), integers(0))
    flat = s.reshaped(x, [x.type.size])
    return Term(s.op("Gather", flat, np.asarray(places)), once)


def _stretched(s: Steps, term: Term, extents: Mapping[str, int]) -> Term:
    """Drop axes of 1 that others have longer: the value is the same all along them."""
    kept = tuple(k for k, n in term.extents.items() if n == extents[k])
    return Term(s.reshaped(term.value, [extents[k] for k in kept]), kept)


def _summed(s: Steps, term: Term, wanted: Sequence[str] | set[str]) -> Term:
    """Sum over the labels that nobody wants."""
    over = [a for a, k in enumerate(term.labels) if k not in wanted]
    if not over:
        return term
    kept = tuple(k for k in term.labels if k in wanted)
    return Term(s.op("ReduceSum", term.value, integers(*over), keepdims=0), kept)


def _product(s: Steps, a: Term, b: Term, wanted: set[str]) -> Term:
    """Multiply two operands and sum over what both have and nobody wants."""
    a, b = _summed(s, a, {*b.labels, *wanted}), _summed(s, b, {*a.labels, *wanted})
    both = [k for k in a.labels if k in b.labels]
    stack, inner = [k for k in both if k in wanted], [k for k in both if k not in wanted]
    rows, columns = ([k for k in t.labels if k not in both] for t in (a, b))
    x, y = _matrices(s, a, stack, rows, inner), _matrices(s, b, stack, inner, columns)
    value = s.op("MatMul" if inner else "Mul", x, y)
    labels = (*stack, *rows, *columns)
    extents = {**a.extents, **b.extents}
    return Term(s.reshaped(value, [extents[k] for k in labels]), labels)


def _matrices(s: Steps, term: Term, *groups: Sequence[str]) -> Var:
    """Return an operand with an axis a group of labels."""
    order = [term.labels.index(k) for group in groups for k in group]
    shape = [math.prod(term.extents[k] for k in group) for group in groups]
    return s.reshaped(s.transposed(term.value, order), shape)


COMPOSITIONS: Mapping[str, Composition] = {"Einsum": _einsum}
