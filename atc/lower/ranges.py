"""Lowered ranges of shapes: compared with single shapes of them, and their names in errors."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

import onnx_ir

from atc.dims import NARROWER, RANGES, RELATED, Symbol, evaluate, plain, symbols_of, upper_bound
from atc.errors import AtcError, UnsupportedError, one_line
from atc.ir.graph import Graph, is_own

_HINT = "give a narrower range in --input_shape, or list the shapes with --dynamic_dims"
_TRIES = 64
"""Shapes inside a range that are tried until one is found that the network runs."""


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
    when it runs: every value that both graphs know by a name of the model. `lower` lowers the model
    as it stands.
    """
    for point in _points(graph):
        shapes = {i: tuple(evaluate(n, point) for n in graph.types[i].shape) for i in graph.inputs}
        shown = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
        with _pinned(model, shapes):
            try:
                static = lower()
            except AtcError as error:
                raise UnsupportedError(
                    f"the range holds shapes that don't work ({shown}): {error.message}",
                    where=error.where or file, hint=RELATED if len(point) > 1 else _HINT,
                ) from error  # fmt: skip
        _compare(graph, static, point, f"{file} at {shown}")


def _points(graph: Graph) -> Iterator[Mapping[Symbol, int]]:
    """Yield both ends and a shape inside; UnsupportedError where the network would run nowhere."""
    symbols = [s for s in graph.dims if s.given]
    guards = [f for f in graph.guards if _known(f)]

    def runs(point: Mapping[Symbol, int]) -> bool:
        return not any(evaluate(f, point) for f in guards)

    seeded = random.Random(0)
    ends = [{s: s.low for s in symbols}, {s: upper_bound(s.high) for s in symbols}]
    inside = (
        {s: seeded.randint(s.low, upper_bound(s.high)) for s in symbols} for _ in range(_TRIES)
    )
    chosen = [*filter(runs, ends), *islice(filter(runs, inside), 1)]
    if not chosen:
        raise UnsupportedError(
            "shapes of the range don't work: sizes that must agree differ", hint=RELATED
        )
    yield from chosen


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
