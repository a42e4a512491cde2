"""Affine views against numpy's own strided arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from atc.dims import Symbol, dim, evaluate, maximum
from atc.ir.view import (
    Split,
    View,
    broadcast,
    compose,
    compose_refining,
    dense,
    gather_view,
    overlaps_itself,
    simplify_loops,
    split_loop,
)

SEEDS = range(200)


def read(flat: np.ndarray, shape: tuple[int, ...], view: View) -> np.ndarray:
    """Read element by element, the definition of a view."""
    index = np.indices(shape).reshape(len(shape), int(np.prod(shape)))
    strides = np.array(view.strides, int).reshape(-1, 1)
    return flat[view.offset + (index * strides).sum(0)].reshape(shape)


def random_movement(rng: np.random.Generator) -> tuple[tuple[int, ...], View, int]:
    """Return the shape and view of a random movement, and its source's size."""
    source = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    strides = list(dense(source).strides)
    shape, offset = list(source), 0
    for d, n in enumerate(source):
        match rng.integers(4):
            case 0 if n > 1:  # flip
                offset += (n - 1) * strides[d]
                strides[d] = -strides[d]
            case 1 if n > 2:  # slice with a step
                shape[d], offset, strides[d] = (n + 1) // 2, offset, strides[d] * 2
            case 2 if n == 1:  # expand
                shape[d], strides[d] = 3, 0
    perm = rng.permutation(len(shape))
    moved = View(tuple(strides[p] for p in perm), offset)
    return tuple(shape[p] for p in perm), moved, int(np.prod(source))


def factor(rng: np.random.Generator, size: int) -> tuple[int, ...]:
    """Return a random factorisation of a size: a reshape."""
    shape = []
    while size > 1:
        n = int(rng.choice([f for f in range(2, size + 1) if size % f == 0]))
        shape.append(n)
        size //= n
    return tuple(shape) or (1,)


@pytest.mark.parametrize("seed", SEEDS)
def test_composition_reads_what_the_two_movements_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner_shape, inner, size = random_movement(rng)
    flat = np.arange(size)
    middle = read(flat, inner_shape, inner).reshape(-1)
    loops = factor(rng, middle.size) if rng.integers(2) else inner_shape
    perm = rng.permutation(len(loops))
    outer = View(tuple(dense(loops).strides[p] for p in perm))
    shape = tuple(loops[p] for p in perm)
    expected = read(middle, shape, outer)
    found = compose_refining(shape, (outer,), 0, inner_shape, (inner,))
    if found is None:
        return
    refined, (same,), (through,) = found
    assert np.prod(refined) == np.prod(shape)
    np.testing.assert_array_equal(read(middle, refined, same).reshape(-1), expected.reshape(-1))
    np.testing.assert_array_equal(read(flat, refined, through).reshape(-1), expected.reshape(-1))


def test_most_random_compositions_are_affine() -> None:
    affine = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        inner_shape, inner, _ = random_movement(rng)
        found = compose_refining(inner_shape, (dense(inner_shape),), 0, inner_shape, (inner,))
        affine += found is not None
    assert affine == len(SEEDS)  # reading in the movement's own order always is


def test_a_loop_over_two_axes_is_split_to_read_their_transpose() -> None:
    transposed = View((1, 4))  # 3 x 4 read as 4 x 3
    assert compose((12,), View((1,)), (4, 3), [transposed]) == Split(0, 3)
    found = compose_refining((12,), (View((1,)),), 0, (4, 3), (transposed,))
    assert found == ((4, 3), (View((3, 1)),), (View((1, 4)),))


def test_a_window_that_wraps_around_a_row_is_no_view() -> None:
    transposed = View((1, 4))
    assert compose_refining((5,), (View((1,)),), 0, (4, 3), (transposed,)) is None


PAST = Symbol(0, "past", 0, 5)
past = dim(PAST)


def at(value: Sequence[int], extent: int) -> tuple[int, ...]:
    return tuple(evaluate(n, {PAST: extent}) for n in value)


def view_at(view: View, extent: int) -> View:
    return View(at(view.strides, extent), *at([view.offset], extent))


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("source", [(2, past, 3), (past, past + 1, 2)])
def test_what_may_be_empty_is_read_through_its_movement(
    source: tuple[int, ...], order: tuple[int, ...]
) -> None:
    moved = tuple(source[p] for p in order)
    inner = View(tuple(dense(source).strides[p] for p in order))
    outer = View(tuple(dense(moved).strides[p] for p in np.argsort(order)))  # moves it back
    found = compose_refining(source, (outer,), 0, moved, (inner,))
    assert found == (source, (outer,), (dense(source),))


def test_a_loop_of_parts_that_may_be_empty_is_split() -> None:
    inner = View((1, past))  # past x 4, read as 4 x past
    found = compose_refining((past * 4,), (View((1,)),), 0, (past, 4), (inner,))
    assert found is not None
    refined, (same,), (through,) = found
    for extent in range(6):
        flat, shape = np.arange(4 * extent), at(refined, extent)
        assert np.prod(shape) == flat.size
        middle = read(flat, (extent, 4), view_at(inner, extent)).reshape(-1)
        wanted = read(flat, shape, view_at(through, extent))
        np.testing.assert_array_equal(read(middle, shape, view_at(same, extent)), wanted)


def test_no_extent_divides_by_what_may_be_empty() -> None:
    assert compose((past,), View((1,)), (past,), [View((8 // past,))]) is None


def test_loops_stay_what_they_are_where_nothing_is_read() -> None:
    loops = (maximum(past, 1), past)  # one sum of nothing where past is 0, not none
    found = compose_refining(loops, (View((0, 1)),), 0, (past,), (View((2,)),))
    assert found == (loops, (View((0, 1)),), (View((0, 2)),))


@pytest.mark.parametrize("seed", range(50))
def test_simplified_loops_read_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, view, size = random_movement(rng)
    flat = np.arange(size)
    loops, (order, simple) = simplify_loops(shape, [dense(shape), view])
    assert 1 not in loops
    assert order.is_dense(loops)
    np.testing.assert_array_equal(
        read(flat, loops, simple).reshape(-1), read(flat, shape, view).reshape(-1)
    )


def test_loops_are_not_merged_across_a_barrier() -> None:
    assert simplify_loops((2, 3, 4), [dense((2, 3, 4))], [1])[0] == (2, 12)
    assert simplify_loops((2, 3, 4), [dense((2, 3, 4))])[0] == (24,)


@pytest.mark.parametrize("seed", range(50))
def test_constants_are_gathered_as_the_view_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, view, size = random_movement(rng)
    flat = rng.standard_normal(size).astype(np.float32)
    np.testing.assert_array_equal(gather_view(flat, shape, view), read(flat, shape, view))


def test_broadcast_follows_numpy() -> None:
    x = np.arange(3)
    view = broadcast((3, 1), (2, 3, 4))
    np.testing.assert_array_equal(read(x, (2, 3, 4), view), np.broadcast_to(x[:, None], (2, 3, 4)))


def test_bounds_cover_negative_steps() -> None:
    view = View((-4, 1), 8)
    assert view.bounds((3, 4)) == (0, 11)
    assert split_loop(view, 1, 2) == View((-4, 2, 1), 8)


def test_a_constant_scalar_read_through_a_view_stays_a_scalar() -> None:
    assert gather_view(np.array(2.5), (), View((), 0)).shape == ()
    assert gather_view(np.array([2.5, 3]), (), View((), 1)).tolist() == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_overlaps_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, view, _ = random_movement(rng)
    where = read(np.arange(200), shape, replace(view, offset=100))
    assert overlaps_itself(shape, view) or len(np.unique(where)) == where.size


@pytest.mark.parametrize("least", [0, 1])
def test_what_may_be_empty_does_not_overlap_for_that(least: int) -> None:
    rows = dim(Symbol(0, "rows", least, 4))
    assert not overlaps_itself((2, rows, 8), View((8 * rows, 8, 1)))
    assert not overlaps_itself((rows, 2, 8), View((8, 8 * rows, 1)))
    assert overlaps_itself((2, rows, 8), View((8, 8, 1)))
    assert overlaps_itself((2, rows, 8), View((8 * rows, 7, 1)))
