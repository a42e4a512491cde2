"""The solver against trying everything, on small random problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atc.passes.layout.solver import Problem, solve


def problem(rng: np.random.Generator, edges: float) -> Problem:
    """A few variables of up to three states; some pairs of states are impossible."""
    sizes = [int(n) for n in rng.integers(1, 4, rng.integers(1, 8))]
    pairs = {
        (i, j): rng.integers(0, 20, (sizes[i], sizes[j])).astype(float)
        for i, j in itertools.combinations(range(len(sizes)), 2)
        if rng.random() < edges
    }
    for table in pairs.values():
        table[rng.random(table.shape) < 0.1] = np.inf
    single = tuple(tuple(float(c) for c in rng.integers(0, 20, n)) for n in sizes)
    return Problem(single, pairs)


def least(given: Problem) -> float:
    return min(given.cost(s) for s in itertools.product(*(range(len(c)) for c in given.single)))


@pytest.mark.parametrize("edges", [0.2, 0.5, 1.0])
def test_the_solution_costs_no_more_than_any_choice(edges: float) -> None:
    rng = np.random.default_rng(0)
    for given in (problem(rng, edges) for _ in range(60)):
        found = solve(given)
        assert found.exact
        assert found.cost == given.cost(found.states) == least(given)


def test_with_small_tables_the_solution_is_no_worse_than_where_it_started() -> None:
    rng = np.random.default_rng(1)
    hits, total = 0, 40
    for given in (problem(rng, 0.8) for _ in range(total)):
        start = tuple(int(rng.integers(len(c))) for c in given.single)
        found = solve(given, [start], entries=12)
        assert found.cost == given.cost(found.states) <= given.cost(start)
        assert not found.exact or found.cost == least(given)
        hits += found.cost == least(given)
    assert hits > total / 2


def test_long_chains_with_shortcuts_are_exact() -> None:
    rng = np.random.default_rng(2)
    count = 600
    pairs = {(i, i + d): rng.random((3, 3)) for d in (1, 4) for i in range(count - d)}
    found = solve(Problem(tuple((0.0,) * 3 for _ in range(count)), pairs))
    assert found.exact
    other = rng.integers(0, 3, (100, count))
    assert found.cost < min(Problem(tuple((0.0,) * 3 for _ in range(count)), pairs).cost(s)
                            for s in other.tolist())  # fmt: skip


def test_a_state_beside_many_variables_of_one_state_costs_what_they_add() -> None:
    count = 100  # more than the axes that an array may have
    pairs = {(0, k): np.array([[float(k)], [1.0]]) for k in range(1, count)}
    pairs[1, 2] = np.array([[5.0]])
    found = solve(Problem(((0.0, 3.0), *[(2.0,)] * (count - 1)), pairs))
    assert found.exact
    assert found.states == (1, *[0] * (count - 1))
    assert found.cost == 3 + 2 * (count - 1) + (count - 1) + 5
