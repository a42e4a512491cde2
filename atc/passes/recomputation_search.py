"""Searches for what to compute again: many rows of plans, each by a rule of its own.

The first row follows the rule of dynamic tensor rematerialization, the others weigh cost, size and
idle time differently. Rounds of a genetic algorithm may go on from there: a rule then has a factor
for each value, too, rules are crossed and changed, and a rule is as good as the plans that it leads
to (random keys: Bean, ORSA Journal on Computing 1994). All random numbers have one seed, and
nothing depends on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from heapq import merge
from random import Random

from atc.ir.graph import Graph
from atc.passes.rematerialize import (
    RematerializationGoal,
    Rule,
    droppable,
    rematerialized,
    work_again,
)

_ALL = 64
"""Plans of a row that are all looked at, before only some are."""
_NODES = 4_000_000
"""The time of a row grows as the square of its nodes: so many of them, and no more are begun."""
_ENDS = 3
"""Plans at the end of a row: how much memory they need in an arena isn't known well before."""
_SEED = 0
_CHANGED = 0.1
"""The part of a rule's numbers that change from one round to the next."""


@dataclass(frozen=True)
class Search:
    """How many rules are tried, genetic rounds after them, rules in the pool, and threads."""

    tries: int = 10
    rounds: int = 0
    pool: int = 20
    workers: int = 1


@dataclass(frozen=True)
class Found:
    """A graph that computes values again, the bytes that it needs, and the work of that."""

    graph: Graph
    need: int
    work: float
    end: bool = False
    """Whether it is one of those at the end of its row, which need least."""


def plans(
    graph: Graph, aim: RematerializationGoal, search: Search, *, complete: bool = False
) -> Iterator[Found]:
    """Yield graphs in the order of the work that they do again, least first.

    Those of the first row are all there; of the others the ends, and what needs less memory than
    all before it. The order depends on nothing but the graph, wish and search, so that whoever
    stops at the first one that fits does less work for more memory. More tries or rounds only add
    to them. With `complete`, all of them will be read.
    """
    rules = [_sampled(k) for k in range(min(search.tries, _most_rows(graph)))]
    rows: list[Iterable[Found]] = [_row(graph, replace(aim, rule=rule)) for rule in rules]
    if complete and search.workers > 1:
        with ThreadPoolExecutor(search.workers) as threads:
            rows = list(threads.map(list, rows))
    if rules and search.rounds:
        rows += _bred(graph, aim, search, rules)
    tagged = (_tagged(row, k == 0) for k, row in enumerate(rows))
    least: int | None = None
    for found, first in merge(*tagged, key=lambda pair: pair[0].work):
        better = least is None or found.need < least
        if better:
            least = found.need
        if first or better or found.end:
            yield found


def _tagged(row: Iterable[Found], first: bool) -> Iterator[tuple[Found, bool]]:
    for found in row:
        yield found, first


def _most_rows(graph: Graph) -> int:
    return max(1, _NODES // max(1, len(graph.nodes)) ** 2)


def _row(graph: Graph, aim: RematerializationGoal) -> Iterator[Found]:
    """Yield plans of more and more work: all of the first 64, then every second, of twice as many
    every fourth, ..., and the ends.
    """
    ahead: deque[tuple[int, Found]] = deque()
    for k, (changed, need) in enumerate(rematerialized(graph, aim)):
        if len(ahead) == _ENDS:
            turn, found = ahead.popleft()
            if turn % (1 << (turn // _ALL).bit_length()) == 0:
                yield found
        if k:
            ahead.append((k, Found(changed, need, work_again(changed))))
    for _, found in ahead:
        yield replace(found, end=True)


def _sampled(number: int) -> Rule:
    """Return one of the rules that are tried: exponents from 0 to 2, spread evenly (Halton)."""
    if number == 0:
        return Rule()
    cost, size, idle = (2 * _radical_inverse(number, base) for base in (2, 3, 5))
    return Rule(cost, size, idle)


def _radical_inverse(number: int, base: int) -> float:
    """Return the number with its digits mirrored at the point, which lies between 0 and 1."""
    value, place = 0.0, 1.0
    while number:
        place /= base
        number, digit = divmod(number, base)
        value += digit * place
    return value


@dataclass(frozen=True)
class _Scored:
    rule: Rule
    need: int
    work: float


def _bred(
    graph: Graph, aim: RematerializationGoal, search: Search, rules: Sequence[Rule]
) -> list[list[Found]]:
    """Return a row of each round: what no other plan so far beats in work and memory, and ends."""
    random, values = Random(_SEED), droppable(graph)
    rows: list[list[Found]] = []
    best: list[Found] = []
    pool: list[_Scored] = []
    fresh = range(search.pool - len(rules))
    born = [*rules, *(_changed(Rule(), values, random, 1.0) for _ in fresh)]
    with ThreadPoolExecutor(search.workers) as threads:
        for turn in range(search.rounds + 1):
            if turn:
                born = [_child(pool, values, random) for _ in range(search.pool)]
            wishes = [replace(aim, rule=rule) for rule in born]
            made = list(threads.map(lambda w: _undominated(_row(graph, w)), wishes))
            scored = (_Scored(r, m[-1].need, m[-1].work) for r, m in zip(born, made, strict=True)
                      if m)  # fmt: skip
            pool = sorted([*pool, *scored], key=lambda s: (s.need, s.work))[: search.pool]
            if not pool:
                break
            row = _undominated(found for row in made for found in row)
            best = _undominated([*best, *row])
            rows.append([f for f in row if f.end or any(f is b for b in best)])
    return rows


def _undominated(found: Iterable[Found]) -> list[Found]:
    """Return, in the order of work, those that need less memory than all of less work."""
    kept: list[Found] = []
    for each in sorted(found, key=lambda f: (f.work, f.need)):
        if not kept or each.need < kept[-1].need:
            kept.append(each)
    return [*kept[:-_ENDS], *(f if f.end else replace(f, end=True) for f in kept[-_ENDS:])]


def _child(pool: Sequence[_Scored], values: Sequence[str], random: Random) -> Rule:
    """Return a rule each number of which is that of one of two parents, or a new one."""
    a, b = (
        min(random.choices(pool, k=2), key=lambda s: (s.need, s.work)).rule for _ in range(2)
    )

    def either(one: float, other: float) -> float:
        return one if random.random() < 0.5 else other

    bias = {v: either(a.bias.get(v, 1.0), b.bias.get(v, 1.0)) for v in values}
    mixed = Rule(either(a.cost, b.cost), either(a.size, b.size), either(a.idle, b.idle), bias)
    return _changed(mixed, values, random, _CHANGED)


def _changed(rule: Rule, values: Sequence[str], random: Random, part: float) -> Rule:
    """Return a rule of which about such a part of its numbers are new."""

    def exponent(old: float) -> float:
        return random.uniform(0, 2) if random.random() < part else old

    def factor(old: float) -> float:
        return 2.0 ** random.uniform(-6, 6) if random.random() < part else old

    bias = {v: factor(rule.bias.get(v, 1.0)) for v in values}
    return Rule(exponent(rule.cost), exponent(rule.size), exponent(rule.idle), bias)
