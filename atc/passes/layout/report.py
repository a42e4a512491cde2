"""Estimated costs of each choice of layouts: in all, and region by region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from atc.ir.ops import Conv
from atc.passes.layout.choice import Choices
from atc.passes.layout.costs import Task
from atc.passes.layout.forms import Layout


@dataclass(frozen=True)
class Total:
    """Estimated cycles of a whole graph, and how many of them are reorders."""

    cycles: float
    reorders: float


@dataclass(frozen=True)
class Region:
    """Consecutive nodes whose results have one layout, and what they would cost in others.

    `nodes` names the first and the last node of the model; reorders are not counted. A layout in
    which not all of the nodes can be computed takes their best form instead.
    """

    layout: str
    nodes: tuple[str, str]
    count: int
    cycles: float
    alternatives: Mapping[str, float]


@dataclass(frozen=True)
class LayoutReport:
    """The layouts of a graph: `wanted` as the option says, the totals of all that was weighed."""

    wanted: str
    exact: bool
    totals: Mapping[str, Total]
    regions: tuple[Region, ...]
    near_optimal: tuple[Task, ...] = ()
    """Forms of convolutions that are estimated to cost little more than the best."""
    conversions: tuple[Task, ...] = ()
    """The reorders that were weighed."""


def layout_names(
    width: int, bytes_last: bool = False, bytes_alone: bool = False, batch_last: bool = False
) -> dict[Layout, str]:
    """Return what layouts are called where vectors hold `width` floats, 1: there are none.

    `bytes_last` says whether even then bytes may lie with their channels last; of `bytes_alone`
    there are blocks of so many, with `batch_last` behind their images.
    """
    names = {Layout.PLAIN: "nchw", Layout.LAST: "nhwc", Layout.BLOCKS: f"nchw{width}c"}
    if batch_last:
        names[Layout.BLOCKS] = f"chwn{width}"
    if bytes_alone:
        return {layout: names[layout] for layout in (Layout.PLAIN, Layout.BLOCKS)}
    if width > 1:
        return names
    kept = (Layout.PLAIN, Layout.LAST) if bytes_last else (Layout.PLAIN,)
    return {layout: names[layout] for layout in kept}


def total(found: Choices, states: Sequence[int], cost: float) -> Total:
    """Return the total of a choice that costs so much."""
    nodes = sum(costs[s] for costs, s in zip(found.costs, states, strict=False))
    return Total(round(cost, 1), round(cost - nodes, 1))


def near_optimal(found: Choices, factor: float) -> tuple[Task, ...]:
    """Return the forms of convolutions that cost up to so many times the best, where several do."""
    tasks: list[Task] = []
    for node, forms, costs in zip(
        found.scene.graph.nodes, found.forms, found.costs, strict=True
    ):
        near = [f for f, c in zip(forms, costs, strict=True) if c <= factor * min(costs)]
        if isinstance(node.op, Conv) and len(near) > 1:
            tasks += [found.task(node, form) for form in near]
    return tuple(dict.fromkeys(tasks))


def regions(found: Choices, states: Sequence[int]) -> tuple[Region, ...]:
    """Return the runs of nodes in one layout; nodes that have no choice belong to no run."""
    result: list[Region] = []
    run: list[int] = []
    for k, forms in enumerate(found.forms):
        if len({f.layout for f in forms}) < 2:
            continue
        if run and _layout(found, states, run[-1]) is not _layout(found, states, k):
            result.append(_region(found, states, run))
            run = []
        run.append(k)
    return (*result, _region(found, states, run)) if run else tuple(result)


def _layout(found: Choices, states: Sequence[int], node: int) -> Layout:
    return found.forms[node][states[node]].layout


def _region(found: Choices, states: Sequence[int], run: Sequence[int]) -> Region:
    scene = found.scene
    names = layout_names(scene.width, scene.bytes_last, scene.bytes_alone, scene.batch_last)
    origins = [found.scene.graph.nodes[k].origin for k in run]
    labels = [name for origin in origins for name in origin] or [""]
    others = {
        name: round(sum(_least(found, k, layout) for k in run), 1)
        for layout, name in names.items()
    }
    cycles = sum(found.costs[k][states[k]] for k in run)
    layout = names[_layout(found, states, run[0])]
    return Region(layout, (labels[0], labels[-1]), len(run), round(cycles, 1), others)


def _least(found: Choices, node: int, layout: Layout) -> float:
    """Return what the cheapest form of a node in a layout costs, or of all if it has none."""
    pairs = list(zip(found.forms[node], found.costs[node], strict=True))
    own = min((c for f, c in pairs if f.layout is layout), default=inf)
    return own if own < inf else min(c for _, c in pairs)
