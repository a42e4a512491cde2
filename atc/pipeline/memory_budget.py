"""Memory within a budget: as much is computed again as it takes, and no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from atc.errors import OptionError, one_line
from atc.ir.graph import Graph
from atc.memory.arena import Arena, largest_call
from atc.options.options import Options
from atc.passes.recomputation_search import Found, Search, plans
from atc.passes.rematerialize import RematerializationGoal, recomputed_nodes
from atc.pipeline.held import Held, held_bytes
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
    graph: Graph, options: Options, plan: Callable[[Graph], Planned], tell: Callable[[str], None],
    held: Held = Held(),  # noqa: B008, a value
) -> Planned:  # fmt: skip
    """Return the first plan within --memory_budget, or without one the smallest that is found.

    What the caller holds from run to run counts as the arena does. Plans are looked at in the order
    of what is computed again, whatever the budget is: a larger one never takes more work. What is
    computed again is told, and how much less no plan can do with; nothing is where shapes are known
    only when running. Raises OptionError, which names the least bytes that were found and what
    bounds them, where no plan is within the budget.
    """
    budget = Budget(options, held)
    best = plan(graph)
    if budget.bytes(best) > budget.enough and options.recompute != "none" and not graph.dims:
        best = _recomputing(best, options, plan, budget)
    if options.memory_budget and budget.bytes(best) > options.memory_budget:
        raise OptionError(
            f"{budget.text(best)}, more than {options.memory_budget}",
            where=options.asked("memory_budget"), code="E10013",
            hint=f"{_way_out(options)}; {_bound_text(best)}",
        )  # fmt: skip
    again = [" + ".join(n.origin) for n in recomputed_nodes(best.graph)]
    if again:
        tell(one_line(f"computing again: {', '.join(again)}"))
        tell(f"{budget.text(best)}; {_bound_text(best)}")
    return best


@dataclass(frozen=True)
class Budget:
    """What counts in a budget: the arena, and what the caller holds."""

    options: Options
    held: Held

    @property
    def enough(self) -> int:
        """The bytes from which on nothing more is computed again; 0: as few as can be."""
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


def _bound_text(planned: Planned) -> str:
    """Return which call alone needs most of the arena, below which no plan can be."""
    call, least = largest_call(planned.program, planned.arena)
    return f"{call} alone needs {least} of the arena's {planned.arena.plan.size}"


def _recomputing(
    plain: Planned, options: Options, plan: Callable[[Graph], Planned], budget: Budget
) -> Planned:
    """Return the plan of least work that needs no more than is enough, else the smallest."""
    enough = budget.enough
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
            if budget.bytes(planned) <= enough:
                return planned
    ends = {(f.need, f.work): f.graph for f in reversed(tried) if f.end}
    planned = min([plain, *map(plan, ends.values())], key=budget.bytes)
    least = budget.bytes(planned)
    if least < budget.bytes(plain) and not options.memory_budget:
        for found in tried:  # the least work for the least memory
            if found.graph is planned.graph:
                break
            if found.need <= _OVERLAP * least and budget.bytes(p := plan(found.graph)) <= least:
                return p
    return planned


def _way_out(options: Options) -> str:
    if options.recompute != "all":
        return "allow --recompute=all"
    if options.recompute_minimum:
        return f"{options.asked('recompute_minimum')} keeps smaller values: lower it"
    return "this is the least that was found"
