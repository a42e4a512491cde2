"""Lowered ranges of shapes: compared with single shapes of them, and their names in errors."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product

import onnx_ir

from atc.dims import NARROWER, RANGES, RELATED, Symbol, evaluate, plain, symbols_of, upper_bound
from atc.errors import AtcError, ModelError, UnsupportedError, one_line
from atc.ir.graph import Graph, is_own
from atc.ir.ops import If

_HINT = "give a narrower range in --input_shape, or list the shapes with --dynamic_dims"
_TRIES = 64
"""Shapes inside a range that are tried until one is found that the network runs."""
_MOST_TRIES = 1 << 16
"""How many are tried, from the smallest, where those are none."""


def label_extents(error: AtcError, symbols: Sequence[Symbol]) -> None:
    """Let an error call run-time extents what people call them."""
    named: set[Symbol] = set()

    def label(found: re.Match[str]) -> str:
        named.add(symbols[int(found[1])])
        name = one_line(symbols[int(found[1])].label, 60)
        return name if re.fullmatch(r"[^\W\d][\w.]*(\[\d+\])?", name) else f"'{name}'"

    error.message = re.sub(r"\bd\[(\d+)\]", label, plain(error.message))
    if error.hint in ("", NARROWER) and sum(symbol.given for symbol in named) > 1:
        error.hint = RELATED


@contextmanager
def labelled(symbols: Sequence[Symbol]) -> Iterator[None]:
    """Let errors call run-time extents what people call them."""
    try:
        yield
    except AtcError as error:
        label_extents(error, symbols)
        raise


def check_range(model: onnx_ir.Model, graph: Graph, lower: Callable[[], Graph], file: str) -> None:
    """Raise UnsupportedError unless values have the shapes that they have in a static network.

    Compared at both ends of the range and inside it, except at shapes that the network refuses
    when it runs, or those of which it refuses a branch and the static one all: every value that
    both graphs know by a name of the model. `lower` lowers the model as it stands.
    """
    for point in _points(graph):
        shapes = {i: tuple(evaluate(n, point) for n in graph.types[i].shape) for i in graph.inputs}
        shown = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
        with _pinned(model, shapes):
            try:
                static = lower()
            except AtcError as error:
                if isinstance(error, ModelError) and _may_end(graph, point):
                    continue
                raise UnsupportedError(
                    f"the range holds shapes that don't work ({shown}): {error.message}",
                    where=error.where or file, hint=RELATED if len(point) > 1 else _HINT,
                ) from error  # fmt: skip
        _compare(graph, static, point, f"{file} at {shown}")


def _points(graph: Graph) -> Iterator[Mapping[Symbol, int]]:
    """Yield both ends and a shape inside; UnsupportedError where the network would run nowhere."""
    symbols = [s for s in graph.dims if s.given]
    bounds = [(s.low, upper_bound(s.high)) for s in symbols]
    seeded = random.Random(0)

    def runs(point: Mapping[Symbol, int]) -> bool:
        return not _ends(graph, point)

    ends = [dict(zip(symbols, each, strict=True)) for each in zip(*bounds, strict=True)] or [{}]
    drawn = (
        {s: seeded.randint(*both) for s, both in zip(symbols, bounds, strict=True)}
        for _ in range(_TRIES)
    )
    chosen = [*filter(runs, ends), *islice(filter(runs, drawn), 1)]
    if not chosen:
        every = product(*(range(low, high + 1) for low, high in bounds))
        points = (dict(zip(symbols, each, strict=True)) for each in islice(every, _MOST_TRIES))
        chosen = [*islice(filter(runs, points), 1)]
    if not chosen:
        raise UnsupportedError(
            "shapes of the range don't work: sizes that must agree differ", hint=RELATED
        )
    yield from chosen


def _may_end(graph: Graph, point: Mapping[Symbol, int]) -> bool:
    """Return whether a part of the graph ends runs of these shapes with a status."""
    return any(evaluate(f, point) for f in graph.guards if _known(f)) or any(
        _may_end(g, point) for node in graph.nodes for g in node.op.subgraphs()
    )


def _ends(graph: Graph, point: Mapping[Symbol, int]) -> bool:
    """Return whether a run of these shapes surely ends with a status, whatever the values are."""
    return any(evaluate(f, point) for f in graph.guards if _known(f)) or any(
        isinstance(node.op, If) and all(_ends(g, point) for g in node.op.subgraphs())
        for node in graph.nodes
    )


@contextmanager
def _pinned(model: onnx_ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Give the model's inputs fixed shapes for a while."""
    before = [(v, v.shape, v.meta.pop(RANGES, None)) for v in model.graph.inputs]
    try:
        for value, _, _ in before:
            shape = shapes.get(value.name or "")
            if shape is not None:
                value.shape = onnx_ir.Shape(shape)
        yield
    finally:
        for value, own, ranges in before:
            value.shape = own
            if ranges is not None:
                value.meta[RANGES] = ranges


def _compare(graph: Graph, static: Graph, point: Mapping[Symbol, int], where: str) -> None:
    for name, type_ in graph.types.items():
        other = static.types.get(name)
        if other is None or is_own(name) or not _known((type_.shape, other.shape)):
            continue
        shape = tuple(evaluate(n, point) for n in type_.shape)
        if shape != other.shape or type_.dtype is not other.dtype:
            raise UnsupportedError(
                f"value '{name}' has the shape {list(other.shape)}, which is not what the range "
                f"says of it: {type_}", where=where, hint=_HINT,
            )  # fmt: skip


def _known(shapes: object) -> bool:
    return all(s.given for s in symbols_of(shapes))
