"""Memory within a budget: as much is recomputed as it takes, and no more.

The search for what to recompute knows no budget. It gives a list of plans, least work first,
of which each needs less memory than those before it. That list is bisected for a plan, with the
arena that it really gets. Since the steps are the same for every budget, a larger budget
never gets a plan of more work, and a smaller one none of less.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from atc.backends.flops import work
from atc.backends.kernel import workload_of
from atc.errors import OptionError, one_line
from atc.ir.graph import Graph, Node
from atc.memory.arena import Arena
from atc.memory.bounds import least_bytes, least_work
from atc.options.options import Options
from atc.passes.recomputation_search import Found, Search, frontier
from atc.passes.rematerialize import RematerializationGoal, recomputed_nodes, recomputed_work
from atc.passes.schedule import free_early
from atc.pipeline.held import Held, held_bytes
from atc.program.steps import Program, calls
from atc.select.select import Selection

_ENDS = 4
"""Plans at the end of the list that are all looked at: which has the smallest arena isn't sure."""


@dataclass(frozen=True)
class Planned:
    """A graph with its kernels, calls and memory."""

    graph: Graph
    selection: Selection
    program: Program
    arena: Arena


def plan_within(
    graph: Graph, options: Options, plan: Callable[[Graph], Planned], report: Callable[[str], None],
    held: Held = Held(),  # noqa: B008, a value
) -> Planned:  # fmt: skip
    """Return the plan of least work within --memory_budget, or without one the smallest.

    What the caller holds from run to run counts as the arena does. Before anything is
    recomputed, nodes are run in an order that frees memory earlier. What is recomputed is reported,
    with its cost and the least cost of any plan; nothing is where shapes are known only when
    running. Raises OptionError, which names the least bytes that were found and what bounds
    them, where no plan is within the budget.
    """
    budget = Budget(options, held)
    best = plain = plan(graph)
    if budget.bytes(best) > budget.enough and budget.wanted and not graph.dims:
        best = _smaller(plain, options, plan, budget)
    if options.memory_budget and budget.bytes(best) > options.memory_budget:
        raise OptionError(
            f"{budget.text(best)}, more than {options.memory_budget}",
            where=options.asked("memory_budget"), code="E10013",
            hint=f"{_way_out(options)}; {_bytes_text(plain)}",
        )  # fmt: skip
    recomputed = [" + ".join(n.origin) for n in recomputed_nodes(best.graph)]
    if recomputed:
        report(one_line(f"recomputed: {', '.join(recomputed)}"))
        first = free_early(plain.graph)  # bounds hold for calls in the order that plans have
        ordered = plain if first is plain.graph else plan(first)
        report(f"{budget.text(best)}; {_bytes_text(ordered)}; {_work_text(ordered, best)}")
    return best


@dataclass(frozen=True)
class Budget:
    """The bytes that count in a budget: the arena, and what the caller holds."""

    options: Options
    held: Held

    @property
    def wanted(self) -> bool:
        """Whether less memory is wanted at all."""
        return self.options.recompute != "none" or self.options.memory_budget > 0

    @property
    def enough(self) -> int:
        """The bytes from which on nothing more is recomputed; 0: as few as can be."""
        return max(self.options.memory_budget, self.options.recompute_until)

    def bytes(self, planned: Planned) -> int:
        """Return the bytes of a plan."""
        return planned.arena.plan.size + held_bytes(planned.program, self.held)

    def text(self, planned: Planned) -> str:
        """Return what a plan needs, in words."""
        size, held = planned.arena.plan.size, held_bytes(planned.program, self.held)
        if not held:
            return f"the arena needs {size} bytes"
        return f"arena ({size}), weights and state ({held}) need {size + held} bytes"


def _bytes_text(plain: Planned) -> str:
    """Return which call alone needs most of an arena, below which no plan can be."""
    call, least = least_bytes(plain.program, plain.arena)
    return f"no arena is below {least}, which {one_line(call, 80)} alone needs"


def _work_text(plain: Planned, best: Planned) -> str:
    """Return what part of a run is recomputed, and what part at least has to be."""
    whole = sum(call.work for call in calls(plain.program.steps)) or 1.0
    more = 100 * recomputed_work(best.graph, _work) / whole
    least = 100 * least_work(plain.program, plain.arena, best.arena.plan.size) / whole
    return f"{more:.1f} % more work, where no plan of that size takes less than {least:.1f} %"


def _work(graph: Graph, node: Node) -> float:
    return work(workload_of(graph, node, {}))


def _smaller(
    plain: Planned, options: Options, plan: Callable[[Graph], Planned], budget: Budget
) -> Planned:
    """Return the plan of least work that needs no more than is enough, else the smallest."""
    plans = _plans(free_early(plain.graph), options)
    known: dict[int, Planned] = {}

    def at(k: int) -> Planned:
        if k not in known:
            known[k] = plan(plans[k].graph)
        return known[k]

    first_end = max(len(plans) - _ENDS, 0)
    low, high, found = 0, first_end - 1 if budget.enough else -1, -1
    while low <= high:
        middle = (low + high) // 2
        if budget.bytes(at(middle)) <= budget.enough:
            found, high = middle, middle - 1
        else:
            low = middle + 1
    if found >= 0:
        return at(found)
    ends = [at(k) for k in range(first_end, len(plans))]
    fitting = (p for p in ends if budget.bytes(p) <= budget.enough)
    return next(fitting, min([plain, *ends], key=budget.bytes))


def _plans(graph: Graph, options: Options) -> tuple[Found, ...]:
    if options.recompute == "none":
        return (Found(graph, 0, 0.0),)
    aim = RematerializationGoal(
        cheap=options.recompute == "cheap", minimum=options.recompute_minimum, cost=_work
    )
    search = Search(
        options.recompute_tries, options.recompute_rounds, options.recompute_pool,
        options.recompute_workers or max(1, (os.cpu_count() or 1) // 2),
    )  # fmt: skip
    return frontier(graph, aim, search)


def _way_out(options: Options) -> str:
    if options.recompute != "all":
        return "allow --recompute=all"
    if options.recompute_minimum:
        return f"{options.asked('recompute_minimum')} keeps smaller values: lower it"
    return "this is the least that was found"
