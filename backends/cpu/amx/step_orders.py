"""Instructions of a step of a product in AMX's tiles, by the parts of numbers that meet."""

from __future__ import annotations

from collections.abc import Sequence


def step_words(terms: Sequence[tuple[int, int]]) -> list[str]:
    """Return a step's loads and products, each load before its first product.

    A i is row tile i % 2 of plane i // 2, W i column tile i % 2 of plane i // 2, and ij the product
    of both tiles.
    """
    words, before = list[str](), (-1, -1)
    for a, b in terms:
        new_a, new_b = a != before[0], b != before[1]
        words += [f"A{2 * a}"] * new_a + [f"W{2 * b}"] * new_b + ["00"]
        words += [f"W{2 * b + 1}"] * new_b + ["01"] + [f"A{2 * a + 1}"] * new_a + ["10", "11"]
        before = a, b
    return words


def step_orders(
    terms: Sequence[tuple[int, int]], lines: int
) -> dict[int, list[tuple[str, int, int]]]:
    """Return a step's instructions by row tiles: (kind, i, j), as `step_words`.

    After each product come its share of the `lines` of the next panel: bursts would jam what the
    tiles wait for.
    """
    found = {}
    for tiles in (1, 2):
        order: list[tuple[str, int, int]] = []
        words = step_words(terms)
        kept = [x for x in words if not (tiles == 1 and _of_second(x))]
        products = sum(x[0].isdigit() for x in kept)
        done = asked = 0
        for word in kept:
            if word[0] in "AW":
                order.append((word[0], int(word[1]), 0))
                continue
            order.append(("dot", int(word[0]), int(word[1])))
            done += 1
            while asked < lines * done // products:
                order.append(("ask", asked, 0))
                asked += 1
        found[tiles] = order
    return found


def _of_second(word: str) -> bool:
    """Return whether an instruction is of the second row tile."""
    return word[0] == "1" or (word[0] == "A" and int(word[1]) % 2 == 1)
