"""Instructions of a step of a product in AMX's tiles, with prefetches between them."""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.cpu.amx.products import share, square_order


def step_orders(
    terms: Sequence[tuple[int, int]], lines: int
) -> dict[int, list[tuple[str, int, int]]]:
    """Return a step's instructions by row tiles: (kind, i, j), each load before its first product.

    A i is row tile i % 2 of plane i // 2, W i column tile i % 2 of plane i // 2; dot adds the
    product of tiles i and j. After each product come its share of the `lines` of the next panel:
    bursts would jam what the tiles wait for.
    """
    found = {}
    for tiles in (1, 2):
        order: list[tuple[str, int, int]] = []
        kept = [x for x in square_order(terms) if x[0] == "W" or x[1] < tiles]
        products = sum(kind == "dot" for kind, _, _ in kept)
        done = 0
        for kind, i, j in kept:
            if kind != "dot":
                order.append((kind, 2 * j + i, 0))
                continue
            order.append((kind, i, j))
            order += [("ask", k, 0) for k in share(lines, done, products)]
            done += 1
        found[tiles] = order
    return found
