"""The states of a lowered network: which inputs and outputs they are, and how they grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx_ir

from atc.adapt import states_of
from atc.dims import Symbol, dim, is_dynamic, lower_bound, symbols_of, upper_bound
from atc.errors import UnsupportedError
from atc.ir.graph import DType, Graph, TensorType
from atc.ir.ops import If
from atc.lower.growth import Growth

Lower = Callable[..., Graph]
"""Lowers the model once more, with `growths`."""


def with_states(graph: Graph, model: onnx_ir.Model, lower: Lower) -> Graph:
    """Return the graph that knows which inputs and outputs are states.

    Where some grow the model is lowered anew, with buffers that have room for all they become.
    Raises UnsupportedError for pairs of which one can't be the other in the next run.
    """
    pairs = states_of(model)
    if not pairs:
        return graph
    if graph.composites:
        raise UnsupportedError(
            "a network of sequences can't carry states", where="--state",
            hint="leave the states in the signature",
        )  # fmt: skip
    outputs = [v.name or "" for v in model.graph.outputs]
    states = tuple((graph.inputs.index(a), outputs.index(b)) for a, b in pairs)
    growths: dict[str, Growth] = {}
    doubt: UnsupportedError | None = None
    for (given, computed), (i, o) in zip(pairs, states, strict=True):
        a, b = graph.types[graph.inputs[i]], graph.types[graph.outputs[o]]
        growth = _growth(a, b, computed)
        if growth is not None:
            growths[given] = growth
        elif a != b or a.dtype is DType.STRING or is_dynamic(a.shape):
            doubt = UnsupportedError(
                f"input '{given}' is {_labelled(a, graph.dims)}, output '{computed}' is "
                f"{_labelled(b, graph.dims)}; a state is numbers of one type and shape, or grows "
                "along one axis that has a range", where="--state",
                hint=_which_branch(graph, b) or "give --input_shape fixed extents but for that "
                f'axis: "{given}:1,4,0~1024,64", say',
            )  # fmt: skip
            supposed = _supposed_growth(a, b, computed)
            if supposed is None:
                raise doubt
            growths[given] = supposed
    lengths = _lengths(growths)
    if growths:
        try:
            graph = lower(growths=growths)
        except UnsupportedError as error:
            raise doubt or error from None
    return replace(graph, states=states, lengths=lengths)


def _which_branch(graph: Graph, type_: TensorType) -> str:
    """Return how to decide the branch on which extents of a result depend, '' where none does."""
    for node in graph.nodes:
        if isinstance(node.op, If) and node.inputs[0] in graph.inputs:
            written = symbols_of(tuple(own for own, *_ in node.op.extents))
            if written & symbols_of(type_.shape):
                return (
                    f"'{node.inputs[0]}' decides that; say which branch is taken: "
                    f'--value_range="{node.inputs[0]}:1", or 0'
                )
    return ""


def _labelled(type_: TensorType, symbols: Sequence[Symbol]) -> str:
    text = str(type_)
    for symbol in symbols:
        text = text.replace(symbol.text, symbol.label)
    return text


def _growth(a: TensorType, b: TensorType, output: str) -> Growth | None:
    """Return how an input becomes an output by growing along its one open axis, if it does."""
    axis = _unlike_axis(a, b)
    if a.dtype is not b.dtype or a.dtype is DType.STRING or axis is None:
        return None
    if is_dynamic((*a.shape[:axis], *a.shape[axis + 1 :])):
        return None
    more, own = b.shape[axis] - a.shape[axis], _symbol_of(a.shape[axis])
    if own is None or not own.given or own in symbols_of(more) or lower_bound(more) < 0:
        return None
    if any(not s.given for s in symbols_of(more)) or not isinstance(own.high, int):
        return None
    if lower_bound(own.high - more) < 0:
        raise UnsupportedError(
            f"output '{output}' grows by up to {upper_bound(more)} in a run, but the range of its "
            f"input has room for {own.high}", where="--state",
            hint=f"let the range end at {upper_bound(more)} or more, or runs be shorter",
        )  # fmt: skip
    return Growth(axis, own, more, own.high, output)


def _unlike_axis(a: TensorType, b: TensorType) -> int | None:
    """Return the one axis along which shapes of one rank differ; None where that isn't so."""
    if len(a.shape) != len(b.shape):
        return None
    unlike = [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
    return unlike[0] if len(unlike) == 1 else None


def _symbol_of(extent: int) -> Symbol | None:
    """Return the symbol that an extent is; None where it is computed, or known."""
    return next((s for s in symbols_of(extent) if dim(s) == extent), None)


def _supposed_growth(a: TensorType, b: TensorType, output: str) -> Growth | None:
    """Return how an input may grow where its extents show it only in a buffer with room for more.

    A table of positions, say, that is as long as the buffer cuts what is behind it. So the input is
    supposed to grow by the other ranges that its extent depends on; lowering so shows whether it
    does.
    """
    axis = _unlike_axis(a, b)
    own = None if axis is None else _symbol_of(a.shape[axis])
    if axis is None or own is None:
        return None
    more = sum(dim(s) for s in {*symbols_of(b.shape[axis])} if s.given and s != own)
    if not more:
        return None
    shape = (*a.shape[:axis], a.shape[axis] + more, *a.shape[axis + 1 :])
    return _growth(a, TensorType(b.dtype, shape), output)


def _lengths(growths: Mapping[str, Growth]) -> tuple[tuple[int, int], ...]:
    """Return the extents that the states have, by their symbols' numbers, and the next run's.

    Raises UnsupportedError for states that share an extent but grow otherwise, and for one that
    grows by what another one is.
    """
    found: dict[int, int] = {}
    for name, growth in growths.items():
        symbol, following = growth.length
        shared = found.setdefault(symbol.index, following) == following
        if not shared or any(s.index in {g.past.index for g in growths.values()}
                             for s in symbols_of(growth.more)):  # fmt: skip
            raise UnsupportedError(
                f"input '{name}' grows otherwise than the states that are as long",
                where="--state", hint="leave it in the signature, and name the other states",
            )  # fmt: skip
        if symbol.low:
            raise UnsupportedError(
                f"input '{name}' is never shorter than {symbol.low}, but nothing is kept at first",
                where="--state", hint=f"let its range begin at 0: 0~{growth.room}",
            )  # fmt: skip
    return tuple(found.items())
