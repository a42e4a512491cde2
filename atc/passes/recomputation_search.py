"""Search for what to recompute: the cheapest plan for each amount of memory.

A row of plans has those of one rule for goals from the graph's own peak down to the lower bound of
any plan. The first row has the rule of dynamic tensor rematerialization, the others weigh cost,
size and idle time differently. Rounds of a genetic algorithm may continue from there: a rule then
has a factor for each value, too, rules are crossed and mutated, and a rule is as good as the plans
that it leads to (random keys: Bean, ORSA Journal on Computing 1994). All random numbers have one
seed, and nothing depends on the number of threads or on the caller's memory budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from atc.ir.graph import Graph
from atc.passes.lifetimes import Lifetimes
from atc.passes.rematerialize import (
    RematerializationGoal,
    Rematerializer,
    Rule,
    recomputed_work,
)

_GOALS = 96
"""Goals of a row, equally spaced."""
_GOALS_BRED = 8
"""Goals of a rule in the genetic search."""
_HALVINGS = 5
"""Further goals, by bisection between the last one that is met and the next one that isn't."""
_MISSES = 3
"""Consecutive goals that aren't met before lower ones are given up."""
_RUNS = 6_000
"""Rules times nodes, as a row's time grows with its nodes; no row is begun beyond that."""
_RULES = (Rule(), Rule(cost=0.5), Rule(0.3, 1.5, 0.3))
"""The rules that are tried first."""
_SEED = 0
_CHANGED = 0.1
"""The fraction of a rule's numbers that mutate from one round to the next."""


@dataclass(frozen=True)
class Search:
    """The numbers of rules, of genetic rounds after them, of rules in the pool, and of threads."""

    tries: int = 10
    rounds: int = 0
    pool: int = 20
    workers: int = 1


@dataclass(frozen=True)
class Found:
    """A graph that recomputes values, the bytes that it needs, and the work of recomputation."""

    graph: Graph
    need: int
    work: float


def frontier(graph: Graph, aim: RematerializationGoal, search: Search) -> tuple[Found, ...]:
    """Return the Pareto front of the plans found, by work and memory, least work first.

    The first is the graph itself; each needs less memory than all before it. The aim's own goal and
    rule don't matter: the caller takes the first plan that fits. More tries or rounds only add
    plans to choose from.
    """
    rematerializer = Rematerializer(graph, aim.cheap, aim.minimum, aim.cost)
    rules = [_sampled(k) for k in range(min(search.tries, _most_rows(graph)))]
    best = _undominated([Found(graph, rematerializer.peak, 0.0)])

    def row(rule: Rule, goals: int = _GOALS) -> list[Found]:
        return _undominated(_row(rematerializer, rule, goals))

    with ThreadPoolExecutor(search.workers) as threads:
        for found in threads.map(row, rules):
            best = _undominated([*best, *found])
        if rules and search.rounds and rematerializer.droppable:
            pool: list[_Scored] = []
            random, values = Random(_SEED), rematerializer.droppable
            fresh = range(search.pool - len(rules))
            born = [*rules, *(_changed(Rule(), values, random, 1.0) for _ in fresh)]
            for generation in range(search.rounds + 1):
                if generation:
                    born = [_child(pool, values, random) for _ in range(search.pool)]
                made = list(threads.map(lambda rule: row(rule, _GOALS_BRED), born))
                scored = (_Scored(r, m) for r, m in zip(born, made, strict=True) if m)
                pool = sorted([*pool, *scored], key=_Scored.order)[: search.pool]
                if not pool:
                    break
                best = _undominated([*best, *(found for each in made for found in each)])
    return tuple(best)


def _most_rows(graph: Graph) -> int:
    return max(1, _RUNS // max(1, len(graph.nodes)))


def _row(of: Rematerializer, rule: Rule, goals: int) -> Iterator[Found]:
    """Yield plans of one rule for goals from the peak down to the least."""
    kept, missed, misses = of.peak, of.least, 0
    for k in range(goals + 1):
        goal = of.peak - 1 - (of.peak - 1 - of.least) * k // goals
        found = _found(of, goal, rule)
        if found is not None:
            yield found
            kept, missed, misses = goal, of.least, 0
            continue
        missed, misses = max(missed, goal), misses + 1
        if misses == _MISSES:
            break
    for _ in range(_HALVINGS):
        goal = (kept + missed) // 2
        found = _found(of, goal, rule)
        if found is None:
            missed = goal
        else:
            yield found
            kept = goal


def _found(of: Rematerializer, goal: int, rule: Rule) -> Found | None:
    changed = of.run(goal, rule)
    if changed is None:
        return None
    return Found(changed, Lifetimes(changed).peak, recomputed_work(changed, of.cost_of))


def _sampled(number: int) -> Rule:
    """Return one of the rules that are tried; after the first ones with exponents from 0 to 2,
    evenly distributed (Halton).
    """
    if number < len(_RULES):
        return _RULES[number]
    cost, size, idle = (
        2 * _radical_inverse(number - len(_RULES) + 1, base) for base in (2, 3, 5)
    )
    return Rule(cost, size, idle)


def _radical_inverse(number: int, base: int) -> float:
    """Return the number with its digits mirrored at the radix point, a fraction from 0 to 1."""
    value, place = 0.0, 1.0
    while number:
        place /= base
        number, digit = divmod(number, base)
        value += digit * place
    return value


@dataclass(frozen=True)
class _Scored:
    rule: Rule
    plans: Sequence[Found]

    def order(self) -> tuple[int, float]:
        """Return the sort key of rules: the least memory, then its work."""
        return self.plans[-1].need, self.plans[-1].work


def _undominated(found: Iterable[Found]) -> list[Found]:
    """Return, in the order of work, the plans that need less memory than all with less work."""
    kept: list[Found] = []
    for each in sorted(found, key=lambda f: (f.work, f.need)):
        if not kept or each.need < kept[-1].need:
            kept.append(each)
    return kept


def _child(pool: Sequence[_Scored], values: Sequence[str], random: Random) -> Rule:
    """Return a rule whose numbers are each that of one of two parents, or a new one."""
    a, b = (min(random.choices(pool, k=2), key=_Scored.order).rule for _ in range(2))

    def either(one: float, other: float) -> float:
        return one if random.random() < 0.5 else other

    bias = {v: either(a.bias.get(v, 1.0), b.bias.get(v, 1.0)) for v in values}
    mixed = Rule(either(a.cost, b.cost), either(a.size, b.size), either(a.idle, b.idle), bias)
    return _changed(mixed, values, random, _CHANGED)


def _changed(rule: Rule, values: Sequence[str], random: Random, part: float) -> Rule:
    """Return a rule with about such a fraction of its numbers replaced."""

    def exponent(old: float) -> float:
        return random.uniform(0, 2) if random.random() < part else old

    def factor(old: float) -> float:
        return 2.0 ** random.uniform(-6, 6) if random.random() < part else old

    bias = {v: factor(rule.bias.get(v, 1.0)) for v in values}
    return Rule(exponent(rule.cost), exponent(rule.size), exponent(rule.idle), bias)
