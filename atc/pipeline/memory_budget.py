"""Memory within a budget: as much is computed again as it takes, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atc.errors import OptionError, one_line
from atc.ir.graph import Graph
from atc.memory.arena import Arena
from atc.options.options import Options
from atc.passes.rematerialize import AGAIN, Wish, recomputed
from atc.program.build import Program
from atc.select.select import Selection

_ALL = 64
"""Graphs that are all planned, before only some are."""
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

    Plans are looked at in the order in which more and more is computed again, whatever the budget
    is: a larger one never takes more work. What is computed again is told; nothing is where shapes
    are known only when running. Raises OptionError, which names the least bytes that were found,
    where no plan is within the budget.
    """
    enough = max(options.memory_budget, options.recompute_until)
    best = plan(graph)
    if best.arena.plan.size > enough and options.recompute != "none" and not graph.dims:
        for changed in _candidates(graph, options, enough):
            best = min(best, plan(changed), key=lambda p: p.arena.plan.size)
            if best.arena.plan.size <= enough:
                break
    if options.memory_budget and best.arena.plan.size > options.memory_budget:
        raise OptionError(
            f"the arena needs {best.arena.plan.size} bytes, more than {options.memory_budget}",
            where=options.asked("memory_budget"), code="E10013", hint=_way_out(options),
        )  # fmt: skip
    again = [" + ".join(n.origin) for n in best.graph.nodes if AGAIN in n.outputs[0]]
    if again:
        tell(one_line(f"computing again: {', '.join(again)}"))
    return best


def _candidates(graph: Graph, options: Options, enough: int) -> Iterator[Graph]:
    """Yield graphs that compute more and more again and might need no more than `enough` bytes.

    Without a limit that is only the last of them. Which ones are yielded of a longer row doesn't
    depend on the limit: all of the first 64, then every second, of twice as many every fourth, ...
    """
    wish = Wish(
        cheap=options.recompute == "cheap", minimum=options.recompute_minimum,
        tries=options.recompute_tries,
    )  # fmt: skip
    last = yielded = graph
    for k, (last, need) in enumerate(recomputed(graph, wish)):
        turn = k % (1 << (k // _ALL).bit_length()) == 0
        if k and turn and need <= _OVERLAP * enough:
            yielded = last
            yield last
    if last is not yielded:
        yield last


def _way_out(options: Options) -> str:
    if options.recompute != "all":
        return "allow --recompute=all"
    if options.recompute_minimum:
        return f"{options.asked('recompute_minimum')} keeps smaller values: lower it"
    return "this is the least that was found"
