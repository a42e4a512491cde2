"""Memory within a budget: as much is recomputed, or swapped, as it takes, and no more.

The search for what to recompute knows no budget. It gives a list of plans, least work first,
of which each needs less memory than those before it. That list is bisected for a plan, with the
arena that it really gets. Since the steps are the same for every budget, a larger budget
never gets a plan of more work, and a smaller one none of less.

Beside a GPU, values may be swapped to the host's memory as well. Some plans of the list, from
that which recomputes nothing on, are brought within the budget by swaps; the fastest is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from atc.backends.flops import work
from atc.backends.kernel import workload_of
from atc.dims import max_value
from atc.errors import OptionError, one_line
from atc.ir.graph import Graph, Node
from atc.memory.arena import Arena
from atc.memory.bounds import least_bytes, least_work
from atc.memory.swapping import swap_within
from atc.options.options import Options
from atc.passes.recomputation_search import Found, Search, frontier
from atc.passes.rematerialize import RematerializationGoal, recomputed_nodes, recomputed_work
from atc.passes.schedule import free_early
from atc.pipeline.held import Held, held_bytes
from atc.program.placement import uses_device
from atc.program.steps import Program, calls
from atc.program.swap import SwapModel, swapped_values
from atc.select.select import Selection

_POOL_PART = 256
"""Bytes that a part of a GPU's pool is a multiple of: PART in gpu.c."""
_SWAPPED = 5
"""Plans of the list that are tried with swaps, to which they leave all, a half, a quarter, ... of
what the recomputation could spare."""
_ENDS = 4
"""Plans at the end of the list that are all looked at: which has the smallest arena isn't sure."""


@dataclass(frozen=True)
class Planned:
    """A graph with its kernels, calls and memory."""

    graph: Graph
    selection: Selection
    program: Program
    arena: Arena


@dataclass(frozen=True)
class Swapper:
    """A way to swap values of a GPU's programs; `plan` gives these an arena."""

    model: SwapModel
    plan: Callable[[Program], Arena]

    def within(self, planned: Planned, size: int, minimum: int) -> Planned:
        """Return a plan whose arena has at most `size` bytes, or as few as swaps lead to."""
        program, arena = swap_within(
            planned.program, planned.arena, self.model, size, minimum, self.plan
        )
        return replace(planned, program=program, arena=arena)

    def run_ns(self, planned: Planned) -> float:
        """Return the estimated time of a run."""
        return self.model.times(planned.program).run

    def text(self, planned: Planned) -> str:
        """Return what a plan's copies take, in words."""
        times = self.model.times(planned.program)
        part = 100 * times.waiting / times.run
        return (
            f"{planned.arena.host_size} bytes of the host's memory; the copies take "
            f"{times.copies / 1e3:.0f} us, the run waits {part:.1f} % of its time for them"
        )


def plan_within(
    graph: Graph, options: Options, plan: Callable[[Graph], Planned], report: Callable[[str], None],
    held: Held = Held(), swapper: Swapper | None = None,  # noqa: B008, a value
) -> Planned:  # fmt: skip
    """Return the plan of least work within --memory_budget, or without one the smallest.

    What the caller holds from run to run counts as the arena does. Before anything is recomputed,
    nodes are run in an order that frees memory earlier. With a `swapper` the plan is that of least
    time, whether values are recomputed or swapped. What is, is reported, with its cost and the
    least cost of any plan; nothing is where shapes are known only when running. Raises OptionError,
    which names the least bytes that were found and what bounds them, where no plan is within the
    budget.
    """
    best = plain = plan(graph)
    budget = Budget(options, held, _left_in_pool(options, plain.program) if swapper else 0)
    if budget.bytes(best) > budget.enough and budget.wanted and not graph.dims:
        found = _Frontier(plain, _plans(free_early(plain.graph), options), plan, budget)
        best = found.fastest(swapper) if swapper and budget.enough else found.smaller()
    if options.memory_budget and budget.bytes(best) > options.memory_budget:
        raise OptionError(
            f"{budget.text(best)}, more than {options.memory_budget}",
            where=options.asked("memory_budget"), code="E10013",
            hint=f"{_way_out(options, plain, best)}; {_bytes_text(plain)}",
        )  # fmt: skip
    if budget.in_pool and budget.bytes(best) > budget.in_pool:
        pool = options.asked("gpu_pool")
        report(f"{budget.text(best)}, more than the {budget.in_pool} that {pool} leaves it")
    recomputed = [" + ".join(n.origin) for n in recomputed_nodes(best.graph)]
    if recomputed:
        report(one_line(f"recomputed: {', '.join(recomputed)}"))
        first = free_early(plain.graph)  # bounds hold for calls in the order that plans have
        ordered = plain if first is plain.graph else plan(first)
        report(f"{budget.text(best)}; {_bytes_text(ordered)}; {_work_text(ordered, best)}")
    if swapper and best.program.on_host:
        report(one_line(f"swapped: {', '.join(swapped_values(best.program))}"))
        report(f"{budget.text(best)}, and {swapper.text(best)}; {_bytes_text(plain)}")
    return best


@dataclass(frozen=True)
class Budget:
    """The bytes that count in a budget: the arena, and what the caller holds."""

    options: Options
    held: Held
    in_pool: int = 0
    """The bytes that a GPU's pool has for an arena from which values may be swapped; 0: any."""

    @property
    def limit(self) -> int:
        """The bytes that are allowed; 0: any."""
        return min((n for n in (self.options.memory_budget, self.in_pool) if n), default=0)

    @property
    def wanted(self) -> bool:
        """Whether less memory is wanted at all."""
        return self.options.recompute != "none" or self.limit > 0

    @property
    def enough(self) -> int:
        """The bytes from which on nothing more is recomputed; 0: as few as can be."""
        return max(self.limit, self.options.recompute_until)

    def bytes(self, planned: Planned) -> int:
        """Return the bytes of a plan."""
        return planned.arena.plan.size + held_bytes(planned.program, self.held)

    def arena(self, planned: Planned) -> int:
        """Return the bytes that an arena may have beside what is held."""
        return max(self.enough - held_bytes(planned.program, self.held), 0)

    def text(self, planned: Planned) -> str:
        """Return what a plan needs, in words."""
        size, held = planned.arena.plan.size, held_bytes(planned.program, self.held)
        if not held:
            return f"the arena needs {size} bytes"
        return f"arena ({size}), weights and state ({held}) need {size + held} bytes"


def _left_in_pool(options: Options, program: Program) -> int:
    """Return the bytes that --gpu_pool leaves the arena of one context; 0: any number."""
    if not options.gpu_pool.isdigit():
        return 0
    weights = sum(_in_pool(array.nbytes) for array in program.constants.values())
    ports = (*program.inputs, *program.outputs)
    others = weights + sum(_in_pool(max_value(program.types[v].nbytes)) for v in ports)
    return max(int(options.gpu_pool) // _POOL_PART * _POOL_PART - others, 1)


def _in_pool(size: int) -> int:
    return -(-size // _POOL_PART) * _POOL_PART


def _bytes_text(plain: Planned) -> str:
    """Return which call alone needs most of an arena, below which no plan can be."""
    call, least = least_bytes(plain.program, plain.arena)
    return f"no arena is below {least}, which {one_line(call, 80)} alone needs"


def _work_text(plain: Planned, best: Planned) -> str:
    """Return what part of a run is recomputed, and what part at least has to be."""
    whole = sum(call.work for call in calls(plain.program.steps)) or 1.0
    more = 100 * recomputed_work(best.graph, _work) / whole
    if best.program.on_host:  # which no bound of recomputation alone holds for
        return f"{more:.1f} % more work"
    least = 100 * least_work(plain.program, plain.arena, best.arena.plan.size) / whole
    return f"{more:.1f} % more work, where no plan of that size takes less than {least:.1f} %"


def _work(graph: Graph, node: Node) -> float:
    return work(workload_of(graph, node, {}))


@dataclass(frozen=True)
class _Frontier:
    """The plans of a network that recompute values, least work first."""

    plain: Planned
    plans: tuple[Found, ...]
    plan: Callable[[Graph], Planned]
    budget: Budget
    known: dict[int, Planned] = field(default_factory=dict)

    def at(self, k: int) -> Planned:
        if k not in self.known:
            self.known[k] = self.plan(self.plans[k].graph)
        return self.known[k]

    def fits(self, planned: Planned) -> bool:
        return self.budget.bytes(planned) <= self.budget.enough

    @cached_property
    def first_end(self) -> int:
        return max(len(self.plans) - _ENDS, 0)

    @cached_property
    def fitting(self) -> int:
        """The number of the plan of least work that needs no more than is enough; -1: none does."""
        low, high, found = 0, self.first_end - 1 if self.budget.enough else -1, -1
        while low <= high:
            middle = (low + high) // 2
            if self.fits(self.at(middle)):
                found, high = middle, middle - 1
            else:
                low = middle + 1
        ends = range(self.first_end, len(self.plans)) if found < 0 else ()
        return next((k for k in ends if self.fits(self.at(k))), found)

    def smaller(self) -> Planned:
        """Return the plan of least work that needs no more than is enough, else the smallest."""
        if self.fitting >= 0:
            return self.at(self.fitting)
        ends = [self.at(k) for k in range(self.first_end, len(self.plans))]
        return min([self.plain, *ends], key=self.budget.bytes)

    def fastest(self, swapper: Swapper) -> Planned:
        """Return the plan of least time where what is still too much is swapped; else the smallest.
        """
        last = self.fitting if self.fitting >= 0 else len(self.plans) - 1
        least, minimum = self.plans[last].need, self.budget.options.recompute_minimum
        much = self.plans[0].need - least
        tried = dict.fromkeys(
            next(k for k, each in enumerate(self.plans) if each.need <= least + (much >> halvings))
            for halvings in range(_SWAPPED)
        )
        made = [
            swapper.within(self.at(k), self.budget.arena(self.at(k)), minimum) for k in tried
        ]
        plans = [self.smaller(), *made]
        fitting = [each for each in plans if self.fits(each)]
        if fitting:
            return min(fitting, key=swapper.run_ns)
        return min(plans, key=self.budget.bytes)


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


def _way_out(options: Options, plain: Planned, best: Planned) -> str:
    if plain.program.dims:
        return "nothing is recomputed or swapped where shapes are ranges: lower their ends"
    if best.arena.plan.size == least_bytes(plain.program, plain.arena)[1]:
        return "this is the least that was found"
    ways = [
        *["--recompute=all"] * (options.recompute != "all"),
        *["--gpu_swap=1"] * (uses_device(plain.program) and not options.gpu_swap),
    ]
    if ways:
        return f"allow {' or '.join(ways)}"
    if options.recompute_minimum > 1:
        asked, at_least = options.asked("recompute_minimum"), options.recompute_minimum
        return f"{asked} keeps values below {at_least} bytes: give a lower --recompute_minimum"
    return "this is the least that was found"
