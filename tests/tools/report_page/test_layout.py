"""Layered drawings: nothing overlaps, edges lead down, chains are straight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atc.tools.report_page.layout import GAP, RISE, draw

Edges = list[tuple[int, int]]


def ladder(blocks: int) -> Edges:
    """Return a chain of blocks of two nodes, each with an edge around it, as residual nets have."""
    edges: Edges = []
    for k in range(blocks):
        edges += [(3 * k, 3 * k + 1), (3 * k + 1, 3 * k + 2), (3 * k + 2, 3 * k + 3)]
        edges.append((3 * k, 3 * k + 3))
    return edges


def drawn_at_random(nodes: int, seed: int) -> Edges:
    rng = np.random.default_rng(seed)
    pairs = {tuple(sorted(rng.choice(nodes, 2, replace=False))) for _ in range(2 * nodes)}
    return [(int(a), int(b)) for a, b in sorted(pairs)]


@pytest.mark.parametrize(
    "edges",
    [[], [(0, 1)], ladder(1), ladder(20), drawn_at_random(30, 0), drawn_at_random(60, 1),
     [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]],
)  # fmt: skip
def test_nothing_overlaps(edges: Edges) -> None:
    count = max((max(e) for e in edges), default=2) + 1
    sizes = [(60.0 + 7 * (k % 5), 37.0) for k in range(count)]
    drawing = draw(sizes, edges)
    boxes = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (x, y), (w, h) in zip(drawing.centres, sizes, strict=True)
    ]
    for a, b in itertools.combinations(boxes, 2):
        apart = a[2] <= b[0] - GAP / 2 or b[2] <= a[0] - GAP / 2
        assert apart or a[3] <= b[1] - RISE / 2 or b[3] <= a[1] - RISE / 2
    for left, top, right, bottom in boxes:
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= drawing.width + 1e-6
        assert bottom <= drawing.height + 1e-6
    for (a, b), bends in zip(edges, drawing.bends, strict=True):
        heights = [drawing.centres[a][1], *(y for _, y in bends), drawing.centres[b][1]]
        assert heights == sorted(heights)
        for x, y in bends:  # edges pass beside nodes, never behind them
            assert not any(b[0] < x < b[2] and b[1] < y < b[3] for b in boxes)


def test_a_chain_is_straight_and_a_residual_net_does_not_drift() -> None:
    chain = draw([(80.0, 37.0)] * 9, [(k, k + 1) for k in range(8)])
    assert len({round(x, 3) for x, _ in chain.centres}) == 1
    net = draw([(80.0, 37.0)] * 61, ladder(20))
    assert net.width < 3 * 80
