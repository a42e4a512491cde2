"""Layered drawing of a directed acyclic graph (Sugiyama, Tagawa, Toda 1981), top to bottom.

Nodes get layers by longest paths, edges across several layers a bend in each, layers an order by
barycentres, and places that are the least squares of what neighbours want.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

GAP = 22.0
"""Between two nodes of a layer."""
BEND = 10.0
"""Width that an edge takes where it passes a layer."""
RISE = 34.0
"""Between two layers."""
SWEEPS = 8
MOST_BENDS = 40_000
"""Beyond so many bends in all, edges across layers are drawn straight."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """The centres of all nodes, the bends of all edges, and the size of it all."""

    centres: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def draw(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Place nodes of these sizes (width, height); each edge leads to a later node."""
    layers = _layers(len(sizes), edges)
    net = _bent(layers, edges, sizes)
    rows = _ordered(net)
    places = _placed(net, rows)
    left = min((places[k] - net.widths[k] / 2 for k in range(len(net.widths))), default=0.0)
    heights = [max((net.heights[k] for k in row), default=0.0) for row in rows]
    middles = list(_middles(heights))
    points = [(places[k] - left, middles[net.layer[k]]) for k in range(len(net.widths))]
    return Drawing(
        tuple(points[: len(sizes)]),
        tuple(tuple(points[k] for k in chain) for chain in net.chains),
        max((x + net.widths[k] / 2 for k, (x, _) in enumerate(points)), default=0.0),
        sum(heights) + RISE * max(len(heights) - 1, 0),
    )


def _middles(heights: Sequence[float]) -> Iterator[float]:
    top = 0.0
    for height in heights:
        yield top + height / 2
        top += height + RISE


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's layer: the longest path to it; sources stand just above their readers."""
    layers = [0] * count
    for a, b in sorted(edges, key=lambda e: e[1]):
        layers[b] = max(layers[b], layers[a] + 1)
    below: dict[int, int] = {}
    targets = {b for _, b in edges}
    for a, b in edges:
        below[a] = min(below.get(a, layers[b]), layers[b])
    for k in range(count):
        if k not in targets and k in below:
            layers[k] = below[k] - 1
    return layers


@dataclass(frozen=True)
class _Net:
    """Nodes, then bends: sizes, layers, neighbours above and below; the bends of each edge."""

    widths: list[float]
    heights: list[float]
    layer: list[int]
    above: list[list[int]]
    below: list[list[int]]
    chains: list[list[int]]
    real: int


def _bent(
    layers: Sequence[int], edges: Sequence[tuple[int, int]], sizes: Sequence[Point]
) -> _Net:
    net = _Net([w for w, _ in sizes], [h for _, h in sizes], list(layers),
               [[] for _ in sizes], [[] for _ in sizes], [], len(sizes))  # fmt: skip
    straight = sum(max(layers[b] - layers[a] - 1, 0) for a, b in edges) > MOST_BENDS
    for a, b in edges:
        chain: list[int] = []
        for layer in () if straight else range(layers[a] + 1, layers[b]):
            chain.append(len(net.layer))
            net.layer.append(layer)
            net.widths.append(BEND)
            net.heights.append(0.0)
            net.above.append([])
            net.below.append([])
        for one, other in zip([a, *chain], [*chain, b], strict=True):
            net.below[one].append(other)
            net.above[other].append(one)
        net.chains.append(chain)
    return net


def _ordered(net: _Net) -> list[list[int]]:
    """Return the layers with their nodes in an order of few crossings."""
    rows: list[list[int]] = [[] for _ in range(max(net.layer, default=-1) + 1)]
    seen: set[int] = set()
    for root in sorted(range(len(net.layer)), key=lambda k: net.layer[k]):
        stack = [root]
        while stack:  # depth first: what belongs together stands together
            k = stack.pop()
            if k not in seen:
                seen.add(k)
                rows[net.layer[k]].append(k)
                stack += reversed(net.below[k])
    best, fewest = [list(row) for row in rows], _crossings(net, rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = net.above if down else net.below
        place = {k: float(i) for row in rows for i, k in enumerate(row)}
        for row in rows if down else reversed(rows):
            row.sort(key=lambda k: _mean(near[k], place, place[k]))
            place.update({k: float(i) for i, k in enumerate(row)})
        crossings = _crossings(net, rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _mean(neighbours: Sequence[int], place: Mapping[int, float], otherwise: float) -> float:
    if not neighbours:
        return otherwise
    return sum(place[n] for n in neighbours) / len(neighbours)


def _crossings(net: _Net, rows: Sequence[Sequence[int]]) -> int:
    """Count the crossings between neighbouring layers, by inversions (Barth et al. 2002)."""
    place = {k: i for row in rows for i, k in enumerate(row)}
    count = 0
    for row in rows:
        ends = [e for k in row for e in sorted(place[n] for n in net.below[k])]
        count += _inversions(ends)
    return count


def _inversions(values: Sequence[int]) -> int:
    size = max(values, default=-1) + 1
    tree = [0] * (size + 1)
    count = 0
    for number, value in enumerate(values):
        smaller, k = 0, value + 1
        while k:
            smaller += tree[k]
            k &= k - 1
        count += number - smaller
        k = value + 1
        while k <= size:
            tree[k] += 1
            k += k & -k
    return count


def _placed(net: _Net, rows: Sequence[Sequence[int]]) -> list[float]:
    """Return the middles of all nodes, from left to right."""
    places = [0.0] * len(net.layer)
    for row in rows:
        for k, x in zip(row, _spread(row, net, [0.0] * len(row)), strict=True):
            places[k] = x
    known = dict(enumerate(places))
    for sweep in range(3 * SWEEPS):
        down = sweep % 2 == 0
        near = net.above if down else net.below
        last = sweep >= 3 * SWEEPS - 2
        for row in rows if down else reversed(rows):
            wanted = [
                _pull(net.above[k] + net.below[k] if last else near[k], net, known, known[k])
                for k in row
            ]
            known.update(zip(row, _spread(row, net, wanted), strict=True))
    return [known[k] for k in range(len(places))]


def _pull(
    neighbours: Sequence[int], net: _Net, place: Mapping[int, float], otherwise: float
) -> float:
    """Return the mean place of the neighbours; nodes weigh more than bends."""
    if not neighbours:
        return otherwise
    weights = [_weight(net, n) for n in neighbours]
    return sum(w * place[n] for w, n in zip(weights, neighbours, strict=True)) / sum(weights)


def _weight(net: _Net, k: int) -> float:
    return 4.0 if k < net.real else 1.0


def _spread(row: Sequence[int], net: _Net, wanted: Sequence[float]) -> list[float]:
    """Return middles next to the wanted ones, in order and separate: least squares, pooled."""
    offsets, at = [], 0.0
    for i, k in enumerate(row):
        if i:
            bends = (row[i - 1] >= net.real) + (k >= net.real)
            at += (net.widths[row[i - 1]] + net.widths[k]) / 2 + GAP * (1.0, 0.7, 0.4)[bends]
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # sum of weighted wishes, weight, members
    for k, x, offset in zip(row, wanted, offsets, strict=True):
        weight = _weight(net, k)
        total, members = weight * (x - offset), 1
        while pools and pools[-1][0] / pools[-1][1] > total / weight:
            other = pools.pop()
            total, weight, members = total + other[0], weight + other[1], members + other[2]
        pools.append((total, weight, members))
    middles = [total / weight for total, weight, members in pools for _ in range(members)]
    return [m + o for m, o in zip(middles, offsets, strict=True)]
