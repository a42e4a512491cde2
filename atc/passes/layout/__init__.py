"""Layouts for the whole graph: forms of nodes and reorders between them, chosen together by cost.

`forms.py` and its families have the forms that a node may take, `costs.py` their costs, `choice.py`
builds a problem for `solver.py` from both, `apply.py` rewrites the graph by its solution, and
`report.py` has the costs of the alternatives. A graph in, a graph out; may import the IR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from atc.ir.graph import Array, Graph
from atc.ir.ops import Conv, Pool
from atc.passes.layout.apply import apply
from atc.passes.layout.choice import (
    Choices,
    Kept,
    build_problem,
    choices,
    completed,
    worthwhile,
)  # fmt: skip
from atc.passes.layout.costs import Price, Task, no_price
from atc.passes.layout.forms import Form, Layout, Read, Scene
from atc.passes.layout.report import LayoutReport, layout_names, near_optimal, regions, total
from atc.passes.layout.solver import solve

AUTO = "auto"


@dataclass(frozen=True)
class Layouts:
    """The terms on which layouts are chosen: costs, a layout to prefer, and the observer."""

    wanted: str = AUTO
    price: Price = no_price
    report: Callable[[LayoutReport], None] = lambda found: None
    margin: float = 1.7
    """Forms that cost at most so many times the best one are reported as near-optimal."""
    bytes_last: bool = False
    """Whether kernels of bytes have channels last, as those for small cores do."""
    block: int = 0
    """On a GPU: the channels of a block of bytes; 0: the model's layout."""
    batch_last: bool = False
    """Whether such blocks have the images of a batch last, before the channels of a block."""
    integers: bool = False
    """Whether Softmax between bytes is computed without floats."""
    least_memory: bool = False
    """Whether nothing is copied to memory only to be padded."""


def choose_layouts(
    graph: Graph, outer: Mapping[str, Array], width: int, layouts: Layouts
) -> Graph:
    """Choose layouts that minimise the cost of calls and reorders; vectors hold `width` floats."""
    last, alone = layouts.bytes_last, layouts.block > 0
    names = layout_names(width, last, alone, layouts.batch_last)
    moved = (Conv, Pool) if last else (Conv,)
    if len(names) < 2 or not any(isinstance(n.op, moved) for n in graph.nodes):
        return graph
    found = choices(Scene(graph, outer, width, last, alone, layouts.batch_last), layouts.price)
    kept = worthwhile(found)
    solved = {
        name: _solved(found, _forced(found, kept, layout), ()) for layout, name in names.items()
    }
    solved[AUTO] = _solved(found, kept, tuple(solved.values()))
    chosen = solved[layouts.wanted]
    layouts.report(
        LayoutReport(
            layouts.wanted, chosen.exact,
            {name: total(found, s.forms, s.cost) for name, s in solved.items()},
            regions(found, chosen.forms), near_optimal(found, layouts.margin),
            found.conversions(),
        )
    )  # fmt: skip
    return apply(found, chosen.forms)


@dataclass(frozen=True)
class _Chosen:
    """The number of every node's form, the cost, and whether that is optimal."""

    forms: tuple[int, ...]
    cost: float
    exact: bool


def _solved(found: Choices, kept: Kept, others: Sequence[_Chosen]) -> _Chosen:
    """Return the best choice among the forms kept, or one of the others if that costs less."""
    problem = build_problem(found, kept)
    nodes = [list(own) for own in kept]
    starts = [_near(found, nodes, other.forms) for other in others]
    if not starts:
        starts = [[min(range(len(own)), key=lambda s: c[s]) for own, c in zip(
            nodes, problem.single, strict=False)]]  # fmt: skip
    solution = solve(problem, [completed(problem, start) for start in starts])
    forms = tuple(own[s] for own, s in zip(nodes, solution.states, strict=False))
    own = _Chosen(forms, solution.cost, solution.exact)
    return own if own.exact else min((own, *others), key=lambda c: c.cost)


def _near(found: Choices, kept: Sequence[list[int]], forms: Sequence[int]) -> list[int]:
    """Return states with these forms, or for one that isn't kept, the cheapest in its layout."""
    states = []
    for k, (own, form) in enumerate(zip(kept, forms, strict=True)):
        layout = found.forms[k][form].layout

        def rank(state: int, k: int = k, form: int = form, layout: Layout = layout) -> object:
            number = kept[k][state]
            same = found.forms[k][number].layout is layout
            return number != form, not same, found.costs[k][number]

        states.append(min(range(len(own)), key=rank))  # type: ignore[arg-type]
    return states


def _forced(found: Choices, kept: Kept, layout: Layout) -> Kept:
    """Return the forms in one layout for all nodes that can be computed in it."""
    return [
        [n for n, form in enumerate(forms) if _keeps_to(form, layout) and costs[n] < inf] or own
        for forms, costs, own in zip(found.forms, found.costs, kept, strict=True)
    ]


def _keeps_to(form: Form, layout: Layout) -> bool:
    """Return whether a form's result has a layout, and its operands have that or the plain one."""
    near = (layout, Layout.PLAIN)
    return form.layout is layout and all(
        a.layout in near for a in form.arguments if isinstance(a, Read)
    )


__all__ = ["AUTO", "LayoutReport", "Layouts", "Price", "Task", "choose_layouts", "layout_names"]
