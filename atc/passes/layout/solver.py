"""Chooses a state for each of many variables so that single and pairwise costs add up to the least.

Variables are eliminated one by one (dynamic programming on a graph of any shape, Bertele and
Brioschi, "Nonserial Dynamic Programming", 1972), which is exact and quick on chains, trees and all
that has only a few more edges. Where the tables of that would grow too large, some variables are
held at the state they are in, the others are solved exactly, and so on with others held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]

ENTRIES = 1 << 16
"""Most entries of a table."""
ROUNDS = 8
"""Most times that variables are held and the others solved."""


@dataclass(frozen=True)
class Problem:
    """Costs of every variable's states, and of the states of pairs of variables (i < j).

    A cost may be infinite, for what is impossible.
    """

    single: tuple[tuple[float, ...], ...]
    pairs: Mapping[tuple[int, int], Table]

    def cost(self, states: Sequence[int]) -> float:
        """Return what a choice costs."""
        alone = sum(costs[s] for costs, s in zip(self.single, states, strict=True))
        return alone + float(sum(t[states[i], states[j]] for (i, j), t in self.pairs.items()))


@dataclass(frozen=True)
class Solution:
    """The states chosen; `exact` where no other choice costs less."""

    states: tuple[int, ...]
    cost: float
    exact: bool


def solve(
    problem: Problem, starts: Iterable[Sequence[int]] = (), entries: int = ENTRIES
) -> Solution:
    """Return the choice of least cost; where that isn't exact, one no worse than all `starts`."""
    guess = tuple(min(range(len(c)), key=c.__getitem__) for c in problem.single)
    best = min((guess, *map(tuple, starts)), key=problem.cost)
    held: frozenset[int] = frozenset()
    earlier: set[int] = set()
    for _ in range(ROUNDS):
        before = problem.cost(best)
        found, held = _Elimination(problem, best, entries).run(earlier)
        best = min((found, best), key=problem.cost)
        if not held or problem.cost(best) >= before and earlier & held:
            break
        earlier |= held
    return Solution(best, problem.cost(best), not held)


@dataclass(frozen=True)
class _Factor:
    """A table of costs over some variables, one axis each, in ascending order."""

    scope: tuple[int, ...]
    table: Table

    def over(self, scope: Sequence[int]) -> Table:
        """Return the table with an axis of length 1 for each other variable of a larger scope."""
        own = dict(zip(self.scope, self.table.shape, strict=True))
        return self.table.reshape([own.get(v, 1) for v in scope])

    def at(self, variable: int, state: int) -> _Factor:
        """Return the factor with a variable held."""
        axis = self.scope.index(variable)
        rest = (*self.scope[:axis], *self.scope[axis + 1 :])
        return _Factor(rest, np.asarray(self.table.take(state, axis)))


class _Elimination:
    """One walk that eliminates every variable, or holds it where its table would be too large."""

    def __init__(self, problem: Problem, start: Sequence[int], entries: int) -> None:
        self.start, self.entries = start, entries
        self.sizes = [len(c) for c in problem.single]
        self.factors: dict[int, _Factor] = {}
        self.of: list[set[int]] = [set() for _ in self.sizes]
        """The factors that a variable occurs in."""
        self.shared: list[Counter[int]] = [Counter() for _ in self.sizes]
        """How many of them a variable has in common with each of its neighbours."""
        self.joint = [1] * len(self.sizes)
        """How many entries the table has in which a variable meets all its neighbours."""
        self.numbers = count()
        for v, costs in enumerate(problem.single):
            self._add(_Factor((v,), np.array(costs, np.float64)))
        for pair, table in problem.pairs.items():
            self._add(_Factor(pair, table))

    def run(self, spared: Collection[int]) -> tuple[tuple[int, ...], frozenset[int]]:
        """Return the best states given those of the variables held, and which these are.

        `spared` are held only if no others would do.
        """
        order: list[tuple[int, tuple[int, ...], npt.NDArray[np.intp]]] = []
        held: set[int] = set()
        growth = {v: entries for v, entries in enumerate(self.joint) if self.sizes[v] > 1}
        least = [(entries, v) for v, entries in growth.items()]
        heapify(least)
        while growth:
            entries, variable = least[0]
            if growth.get(variable) != entries:  # it is gone, or has changed since
                heappop(least)
                continue
            if entries > self.entries:
                variable = max(growth, key=lambda v: (v not in spared, len(self.of[v]), -v))
                touched = self._hold(variable)
                held.add(variable)
            else:
                touched, choice = self._remove(variable)
                order.append((variable, touched, choice))
            del growth[variable]
            for v in touched:
                growth[v] = self.joint[v]
                heappush(least, (growth[v], v))
        states = list(self.start)
        for variable, rest, choice in reversed(order):
            states[variable] = int(choice[tuple(states[v] for v in rest)])
        return tuple(states), frozenset(held)

    def _hold(self, variable: int) -> tuple[int, ...]:
        """Hold a variable where it started; return its neighbours."""
        own = [self._take(key) for key in sorted(self.of[variable])]
        for factor in own:
            self._add(factor.at(variable, self.start[variable]))
        return tuple({v for f in own for v in f.scope} - {variable})

    def _remove(self, variable: int) -> tuple[tuple[int, ...], npt.NDArray[np.intp]]:
        """Eliminate a variable; return its neighbours and its best state for each of theirs."""
        own = [self._take(key) for key in sorted(self.of[variable])]
        scope = tuple(sorted({v for f in own for v in f.scope}))
        total = np.zeros([self.sizes[v] for v in scope])
        for factor in own:
            total = total + factor.over(scope)
        axis = scope.index(variable)
        rest = (*scope[:axis], *scope[axis + 1 :])
        self._add(_Factor(rest, total.min(axis)))
        return rest, total.argmin(axis)

    def _add(self, factor: _Factor) -> None:
        """File a factor with its variables of several states; one without is of no interest.

        Others would be axes of length 1, of which a table has at most 64.
        """
        scope = tuple(v for v in factor.scope if self.sizes[v] > 1)
        if scope:
            factor = _Factor(scope, factor.table.reshape([self.sizes[v] for v in scope]))
            key = next(self.numbers)
            self.factors[key] = factor
            for v in factor.scope:
                self.of[v].add(key)
                for near in factor.scope:
                    self.shared[v][near] += 1
                    if self.shared[v][near] == 1:
                        self.joint[v] *= self.sizes[near]

    def _take(self, key: int) -> _Factor:
        factor = self.factors.pop(key)
        for v in factor.scope:
            self.of[v].discard(key)
            for near in factor.scope:
                self.shared[v][near] -= 1
                if not self.shared[v][near]:
                    self.joint[v] //= self.sizes[near]
        return factor
