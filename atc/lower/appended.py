"""Sequences to which every iteration of a loop appends one element: results that it collects.

How often such a loop runs need not be known when compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir

from atc.dims import maximum
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.fitting import require_equal
from atc.lower.offsets import difference
from atc.lower.unroll import LoopSource, kept_loop


def appended(ctx: LoweringContext, loop: LoopSource) -> tuple[int, ...]:
    """Return the states that are sequences, where all are only appended to; else none.

    Their body does nothing else with them, so it needn't know how many elements there are.
    """
    states = loop.graph.inputs[len(loop.graph.inputs) - len(loop.states) :]
    results = loop.graph.outputs[1 : 1 + len(loop.states)]
    found = [k for k, name in enumerate(loop.states) if ctx.b.parts(name) is not None]
    fits = all(_is_appended(states[k], results[k]) and _is_sequence(ctx.b, loop.states[k])
               for k in found)  # fmt: skip
    return tuple(found) if fits and len(found) == len({results[k] for k in found}) else ()


def _is_sequence(b: Builder, name: str) -> bool:
    parts = b.parts(name)
    return parts is not None and parts.names is not None and not (parts.is_map or parts.is_stacked)


def _is_appended(state: onnx_ir.Value, result: onnx_ir.Value) -> bool:
    node = result.producer()
    if node is None or node.op_type != "SequenceInsert" or node.domain:
        return False
    at_the_end = all(value is None for value in node.inputs[2:])
    alone = len(state.uses()) == 1 and not result.uses() and node.inputs[0] is state
    return at_the_end and alone and node.graph is not None and state in node.graph.inputs


def lower_appended(
    ctx: LoweringContext, loop: LoopSource, places: Sequence[int]
) -> tuple[str, ...]:
    """Return the results of a loop that appends to its states at these places."""
    count = len(loop.states)
    others = [k for k in range(count) if k not in places]

    def bind(builder: Builder, number: str, held: Sequence[str], parts: Sequence[str]) -> None:
        whole = [builder.sequence(()) if k in places else "" for k in range(count)]
        for k, name in zip(others, held, strict=True):
            whole[k] = name
        loop.bind(builder, number, whole, parts)

    def arranged(builder: Builder, made: list[str]) -> list[str]:
        condition, states, collected = made[0], made[1 : 1 + count], made[1 + count :]
        sequences = (builder.parts(states[k]) for k in places)
        new = (name for parts in sequences if parts is not None for name in parts.names or ())
        return [condition, *(states[k] for k in others), *collected, *new]

    made = kept_loop(ctx, replace(
        loop, bind=bind, states=tuple(loop.states[k] for k in others), arranged=arranged,
        collected=(*loop.collected, *(False for _ in places)),
    ))  # fmt: skip
    results, rows = list(made[: -len(places)]), made[len(made) - len(places) :]
    for k, name in zip(places, rows, strict=True):
        results.insert(k, _with_first(ctx, loop.states[k], name))
    return tuple(results)


def _with_first(ctx: LoweringContext, state: str, rows: str) -> str:
    """Return a sequence of the elements of a state, and then of the rows."""
    b, parts = ctx.b, ctx.b.parts(state)
    assert parts is not None
    type_ = b.type(rows)
    first = parts.names or ()
    for name in first:
        own = b.type(name)
        message = f"a sequence of {own} gets elements {type_} of another type"
        ctx.require(own.dtype is type_.dtype and len(own.shape) == len(type_.shape) - 1, message)
        for n, m in zip(own.shape, type_.shape[1:], strict=True):
            require_equal(ctx, n, m, message)
    whole = [b.reshape(name, (1, *b.shape(name))) for name in first]
    return b.stacked(join(b, [*whole, rows], 0) if whole else rows)


# ---- how often a loop runs ----------------------------------------------------------------------


def counted_trips(ctx: LoweringContext, graph: onnx_ir.Graph) -> int | None:
    """Return how often a loop runs that goes on while its counter is less than a number.

    None where its condition, and the first one, don't say just this.
    """
    less = _comparison(graph.outputs[0])
    if less is None:
        return None
    counter, limit = less
    places = [k for k, value in enumerate(graph.outputs[1:]) if value is counter]
    name = ctx.bound(limit)
    last = ctx.b.extents_of(name) if ctx.b.value(name) is None else ctx.b.value(name)
    if len(places) != 1 or last is None or last.size != 1:
        return None
    state = graph.inputs[2 + places[0]]
    start, given = ctx.const(2 + places[0]), ctx.node.inputs[1]
    if start is None or start.size != 1 or start.dtype.kind not in "iu":
        return None
    if difference(ctx, counter, state) != 1:
        return None
    first = _comparison(given) if given is not None else None
    known = ctx.const(1)
    begins = given is None or (known is not None and bool(known.all()))
    trips = last.reshape(-1).tolist()[0] - int(start.reshape(-1)[0])
    if first is not None and first == (ctx.node.inputs[2 + places[0]], limit):
        return maximum(0, trips)
    return maximum(1, trips) if begins else None


def _comparison(value: onnx_ir.Value) -> tuple[onnx_ir.Value | None, onnx_ir.Value] | None:
    """Return the operands of the Less that a value is."""
    node = value.producer()
    if node is None or node.op_type != "Less" or node.domain or node.inputs[1] is None:
        return None
    return node.inputs[0], node.inputs[1]

