"""Instructions of a step of a product in AMX's tiles, with prefetches between them."""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.cpu.amx.products import share, square_order

Instruction = tuple[str, int, int]


def step_orders(
    terms: Sequence[tuple[int, int]], lines: int
) -> dict[int, list[Instruction]]:
    """Return a step's instructions by row tiles: (kind, i, j), each load before its first product.

    A i is row tile i % 2 of plane i // 2, W i column tile i % 2 of plane i // 2; dot adds the
    product of tiles i and j. After each product come its share of the `lines` of the next panel:
    bursts would jam what the tiles wait for.
    """
    found = {}
    for tiles in (1, 2):
        order: list[Instruction] = []
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


def row_order(
    terms: Sequence[tuple[int, int]], columns: int, part: int, pieces: int
) -> list[list[Instruction]]:
    """Return a step of one row of up to four tiles, in so many pieces.

    Instructions are (kind, i, j): A loads tile i from j floats of the row on, W tile i from j
    floats of the panel on, whose parts lie `part` floats apart; dot adds the product of tiles 4 and
    j to sum i. Panels are loaded three products before they are multiplied: in a window full of
    vectors loads begin late.
    """
    dots = [(n, upper, part * lower + 256 * n) for upper, lower in terms for n in range(columns)]
    loads = [("W", 5 + k % 3, place) for k, (_, _, place) in enumerate(dots)]
    order, loaded = list[Instruction]([("A", 4, 0), *loads[:3]]), 0
    for k, (n, upper, _) in enumerate(dots):
        if upper != loaded:
            order.append(("A", 4, 16 * upper))
            loaded = upper
        order += [("dot", n, 5 + k % 3), *loads[k + 3 : k + 4]]
    return in_pieces(order, pieces)


def in_pieces(order: Sequence[Instruction], pieces: int) -> list[list[Instruction]]:
    """Return instructions in so many pieces, between which vectors compute."""
    return [[order[k] for k in share(len(order), piece, pieces)] for piece in range(pieces)]
