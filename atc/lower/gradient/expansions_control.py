"""If, Loop and Scan in gradients: both branches and a choice, iterations written out."""

from __future__ import annotations

import numpy as np
import onnx_ir

from atc.lower.gradient.derivatives import Variable
from atc.lower.gradient.tape import Site, expands, free_names

MOST = 2048
"""Iterations that are written out."""


@expands("If")
def branches(site: Site) -> list[Variable]:
    """Compute both branches and choose, unless the condition is known.

    What goes into the branch that isn't taken is 0, and so is what comes out of it backwards,
    whatever its derivatives are there.
    """
    at = site.at
    condition, known = site.operands[0], at.const(0)
    graphs = [at.subgraph(name) for name in ("then_branch", "else_branch")]
    if known is not None:
        return site.inlined(graphs[0 if known.reshape(-1)[0] else 1], {})
    results = []
    for k, graph in enumerate(graphs):
        taken = site.op("Not", condition) if k else condition
        gated = {n: _gated(site, taken, site.env[n]) for n in dict.fromkeys(free_names(graph))}
        results.append(site.inlined(graph, gated))
    shapes = [[site.shape(x) for x in each] for each in results]
    at.require(shapes[0] == shapes[1], "the gradient of an If whose branches differ in shape")
    return [site.op("Where", condition, x, y) for x, y in zip(*results, strict=True)]


def _gated(site: Site, taken: Variable, x: Variable) -> Variable:
    """Return x where a branch is taken, 0 where not; what isn't float as it is."""
    b = site.tape.ctx.b
    if not b.type(x.value).dtype.is_float:
        return x
    zero = site.constant(np.zeros((), b.type(x.value).dtype.numpy))
    gated: Variable = site.op("Where", taken, x, zero)
    return gated


@expands("Loop")
def loop(site: Site) -> list[Variable]:
    """Write out the iterations, of which there must be a known number."""
    at, b = site.at, site.tape.ctx.b
    graph, states = at.subgraph("body"), list(site.operands[2:])
    trips, going = at.const(0), at.const(1) if site.has(1) else np.asarray(True)
    at.require(trips is not None and going is not None,
               "the gradient of a Loop whose iterations aren't known when compiling")  # fmt: skip
    assert trips is not None
    assert going is not None
    count = int(trips.reshape(-1)[0])
    at.require(count <= MOST, f"the gradient of a Loop of more than {MOST} iterations")
    yes = site.constant(True)
    parts: list[list[Variable]] = [[] for _ in graph.outputs[1 + len(states) :]]
    for trip in range(count if going.reshape(-1)[0] else 0):
        given = [site.constant(np.int64(trip)), yes, *states]
        made = site.inlined(graph, _bound(graph, given))
        ends = b.value(made[0].value)
        at.require(ends is not None, "the gradient of a Loop that ends by a condition")
        assert ends is not None
        states, found = made[1 : 1 + len(states)], made[1 + len(states) :]
        for each, value in zip(parts, found, strict=True):
            each.append(value)
        if not ends.reshape(-1)[0]:
            break
    at.require(all(parts), "the gradient of a Loop that collects nothing")
    return [*states, *(site.stacked(each) for each in parts)]


@expands("Scan")
def scan(site: Site) -> list[Variable]:
    """Write out the iterations."""
    at = site.at
    at.require(site.opset >= 9, "the gradient of a Scan before opset 9")
    graph, count = at.subgraph("body"), at.int("num_scan_inputs")
    split = len(site.operands) - count
    states, sequences = list(site.operands[:split]), site.operands[split:]
    axes = at.ints("scan_input_axes", [0] * count) or []
    axes = [a % len(site.shape(x)) for a, x in zip(axes, sequences, strict=True)]
    directions = at.ints("scan_input_directions", [0] * count) or []
    length = site.shape(sequences[0])[axes[0]]
    at.require(length <= MOST, f"the gradient of a Scan of more than {MOST} iterations")
    collected = len(graph.outputs) - split
    parts: list[list[Variable]] = [[] for _ in range(collected)]
    for step in range(length):
        slices = [
            site.part(x, length - 1 - step if back else step, axis)
            for x, axis, back in zip(sequences, axes, directions, strict=True)
        ]
        made = site.inlined(graph, _bound(graph, [*states, *slices]))
        states = made[:split]
        for each, value in zip(parts, made[split:], strict=True):
            each.append(value)
    out_axes = at.ints("scan_output_axes", [0] * collected) or []
    out_directions = at.ints("scan_output_directions", [0] * collected) or []
    whole = [
        site.stacked(each[::-1] if back else each, axis % (len(site.shape(each[0])) + 1))
        for each, axis, back in zip(parts, out_axes, out_directions, strict=True)
    ]
    return [*states, *whole]


def _bound(graph: onnx_ir.Graph, given: list[Variable]) -> dict[str, Variable]:
    return {v.name or "": x for v, x in zip(graph.inputs, given, strict=True)}
