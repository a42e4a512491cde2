"""Memory within a budget: as much is computed again as it takes, and no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from atc.errors import OptionError, one_line
from atc.ir.graph import Graph
from atc.memory.arena import Arena
from atc.options.options import Options
from atc.passes.recomputation_search import Found, Search, plans
from atc.passes.rematerialize import RematerializationGoal, recomputed_nodes
from atc.program.build import Program
from atc.select.select import Selection

_OVERLAP = 2
"""How many times its arena the values of a graph may take: results overwrite operands."""


@dataclass(frozen=True)
class Planned:
    """A graph with its kernels, calls and memory."""

    graph: Graph
    selection: Selection
    program: Program
    arena: Arena


def plan_within(
    graph: Graph, options: Options, plan: Callable[[Graph], Planned], tell: Callable[[str], None]
) -> Planned:
    """Return the first plan within --memory_budget, or without one the smallest that is found.

    Plans are looked at in the order of what is computed again, whatever the budget is: a larger one
    never takes more work. What is computed again is told; nothing is where shapes are known only
    when running. Raises OptionError, which names the least bytes that were found, where no plan is
    within the budget.
    """
    enough = max(options.memory_budget, options.recompute_until)
    best = plan(graph)
    if best.arena.plan.size > enough and options.recompute != "none" and not graph.dims:
        best = _recomputing(best, options, plan, enough)
    if options.memory_budget and best.arena.plan.size > options.memory_budget:
        raise OptionError(
            f"the arena needs {best.arena.plan.size} bytes, more than {options.memory_budget}",
            where=options.asked("memory_budget"), code="E10013", hint=_way_out(options),
        )  # fmt: skip
    again = [" + ".join(n.origin) for n in recomputed_nodes(best.graph)]
    if again:
        tell(one_line(f"computing again: {', '.join(again)}"))
    return best


def _recomputing(
    plain: Planned, options: Options, plan: Callable[[Graph], Planned], enough: int
) -> Planned:
    """Return the plan of least work that takes no more than `enough` bytes, else the smallest."""
    aim = RematerializationGoal(
        cheap=options.recompute == "cheap", minimum=options.recompute_minimum
    )
    search = Search(
        options.recompute_tries, options.recompute_rounds, options.recompute_pool,
        options.recompute_workers or max(1, (os.cpu_count() or 1) // 2),
    )  # fmt: skip
    tried: list[Found] = []
    for found in plans(plain.graph, aim, search, complete=not enough):
        tried.append(found)
        if found.need <= _OVERLAP * enough:
            planned = plan(found.graph)
            if planned.arena.plan.size <= enough:
                return planned
    ends = {(f.need, f.work): f.graph for f in reversed(tried) if f.end}
    planned = min([plain, *map(plan, ends.values())], key=lambda p: p.arena.plan.size)
    least = planned.arena.plan.size
    if least < plain.arena.plan.size and not options.memory_budget:
        for found in tried:  # the least work for the least memory
            if found.graph is planned.graph:
                break
            if found.need <= _OVERLAP * least and (p := plan(found.graph)).arena.plan.size <= least:
                return p
    return planned


def _way_out(options: Options) -> str:
    if options.recompute != "all":
        return "allow --recompute=all"
    if options.recompute_minimum:
        return f"{options.asked('recompute_minimum')} keeps smaller values: lower it"
    return "this is the least that was found"
