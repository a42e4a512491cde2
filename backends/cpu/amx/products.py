"""One step of a product of tiles as lines of C: loads, products, and prefetches between them.

Tiles 0 to 3 are sums, the rest operands. A load stands right before its first product, and the same
sum comes back every fourth product: that hides the products' latency.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE = 1024
"""Bytes of a tile."""


class Product(str):
    """The line of a product; other lines load."""

    __slots__ = ()


@dataclass(frozen=True)
class Step:
    """A step: which product, of how many parts a number is, pixels `pixel` bytes apart.

    `lines` of the next panel are prefetched; lower parts lie `lower_offset` bytes later.
    """

    dot: str
    parts: int
    tall: bool
    pixel: int
    lines: int
    lower_offset: int = 64

    def weights(self, tile: int, k: int) -> str:
        """Return the load of the k-th tile of the step's weights."""
        return f"TILE_LOAD({tile}, w{f' + {k * TILE}' if k else ''}, 64);"

    def pixels(self, tile: int, k: int, part: int = 0) -> str:
        """Return the load of the k-th 16 pixels."""
        at = 16 * k * self.pixel + self.lower_offset * part
        return f"TILE_LOAD({tile}, a{f' + {at}' if at else ''}, {self.pixel});"

    def product(self, total: int, a: int, b: int) -> Product:
        """Return the product of tiles a and b, added to a sum."""
        return Product(f"{self.dot}({total}, {a}, {b});")


def step_lines(s: Step) -> list[str]:
    """Return the lines of a step."""
    if s.tall:
        lines = _tall(s)
    elif s.parts == 2:
        lines = _split(s)
    else:
        lines = [
            s.pixels(4, 0), s.weights(6, 0), s.product(0, 4, 6), s.weights(7, 1),
            s.product(1, 4, 7), s.pixels(5, 1), s.product(2, 5, 6), s.product(3, 5, 7),
        ]  # fmt: skip
    return _with_prefetches(s, lines)


def _split(s: Step) -> list[str]:
    """Upper * lower, upper * upper, lower * upper, of 32 pixels x 32 channels."""
    return [
        s.pixels(4, 0), s.weights(6, 0), s.product(0, 4, 6), s.weights(7, 1), s.product(1, 4, 7),
        s.pixels(5, 1), s.product(2, 5, 6), s.product(3, 5, 7),
        s.weights(6, 2), s.product(0, 4, 6), s.weights(7, 3), s.product(1, 4, 7),
        s.product(2, 5, 6), s.product(3, 5, 7),
        s.pixels(4, 0, 1), s.product(0, 4, 6), s.product(1, 4, 7),
        s.pixels(5, 1, 1), s.product(2, 5, 6), s.product(3, 5, 7),
    ]  # fmt: skip


def _tall(s: Step) -> list[str]:
    """64 pixels x 16 channels: weights stay, pixels go by."""
    lines = [s.weights(4, 0)]
    rounds = [(4, 0)]
    if s.parts == 2:
        lines.append(s.weights(5, 1))
        rounds = [(4, 0), (5, 0), (5, 1)]
    for weights, part in rounds:
        for k in range(4):
            tile = 6 + k % 2
            lines += [s.pixels(tile, k, part), s.product(k, tile, weights)]
    return lines


def _with_prefetches(s: Step, lines: list[str]) -> list[str]:
    """Spread the prefetches over the products: in bursts they would only queue before the loads."""
    products = sum(isinstance(line, Product) for line in lines)
    found, done, asked = [], 0, 0
    for line in lines:
        found.append(line)
        done += isinstance(line, Product)
        while asked < s.lines * done // products:
            found.append(f"v_prefetch_l2(next{f' + {64 * asked}' if asked else ''});")
            asked += 1
    return found
