"""Memory within a budget: as much is computed again as it takes, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atc.errors import OptionError, one_line
from atc.ir import Graph
from atc.memory import Arena
from atc.options import Options
from atc.passes.recompute import AGAIN, Wish, recompute
from atc.program import Program
from atc.select import Selection


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

    What it computes again is told; nothing is where shapes are known only when running. Raises
    OptionError, which names the least bytes that were found, where no plan is within the budget.
    """
    best = plan(graph)
    for wish in () if graph.dims else _wishes(options):
        if _fits(best, options):
            break
        changed = recompute(graph, wish)
        if changed is graph:
            continue
        found = plan(changed)
        best = min(best, found, key=lambda p: p.arena.plan.size)
    if options.memory_budget and best.arena.plan.size > options.memory_budget:
        raise OptionError(
            f"the arena needs {best.arena.plan.size} bytes, more than {options.memory_budget}",
            where="--memory_budget", code="E10013",
            hint="allow --recompute=all" if options.recompute != "all" else "this is the least",
        )  # fmt: skip
    again = [" + ".join(n.origin) for n in best.graph.nodes if AGAIN in n.outputs[0]]
    if again:
        tell(one_line(f"computing again: {', '.join(again)}"))
    return best


def _wishes(options: Options) -> Iterator[Wish]:
    """Yield how far to go: to the budget first, then as far as it goes."""
    if options.recompute == "none":
        return
    goals = (max(options.memory_budget, options.recompute_until), options.recompute_until)
    for goal in dict.fromkeys(goals):
        yield Wish(
            goal, options.recompute == "cheap", options.recompute_minimum, options.recompute_tries
        )


def _fits(found: Planned, options: Options) -> bool:
    enough = max(options.memory_budget, options.recompute_until)
    return 0 < enough >= found.arena.plan.size
