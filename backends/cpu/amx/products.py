"""One step of a product of tiles as lines of C: loads, products, and prefetches between them.

Tiles 0 to 3 are sums, the rest operands. A load stands right before its first product, and the same
sum comes back every fourth product: that hides the products' latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINE = 64
"""Bytes of a cache line, and of a tile's row."""
TILE = 1024
"""Bytes of a tile."""

PRODUCTS = {
    1: ((0, 0),),
    2: ((0, 0), (0, 1), (1, 1)),
    3: ((0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (0, 2)),
}
"""Products by the parts that numbers are made of: (part of a pixel, upper first; part of a weight,
lower first). One or the other changes from each to the next, and weights are loaded once. What is
left out is less than is rounded off of a number."""


class Product(str):
    """The line of a product; other lines load."""

    __slots__ = ()


@dataclass(frozen=True)
class Ahead:
    """Cache lines that a step asks cache `level` for: so many, `offset` bytes behind a pointer."""

    pointer: str
    lines: int
    offset: int = 0
    level: int = 2

    def asks(self) -> list[str]:
        """Return the lines of C."""
        offsets = (self.offset + 64 * k for k in range(self.lines))
        places = (f"{self.pointer}{f' + {at}' if at else ''}" for at in offsets)
        return [f"v_prefetch_l{self.level}({place});" for place in places]


@dataclass(frozen=True)
class Step:
    """A step: which product, of how many parts a number is, pixels `pixel` bytes apart.

    It asks for what is read later (`ahead`); lower parts lie `lower_offset` bytes later. Of pixels
    (A) and weights (W) one may be `streamed` past the first cache, where the other stays.
    """

    dot: str
    parts: int
    tall: bool
    pixel: int
    ahead: tuple[Ahead, ...]
    lower_offset: int = 64
    streamed: str = ""

    def weights(self, tile: int, k: int) -> str:
        """Return the load of the k-th tile of the step's weights."""
        return f"{self._load('W')}({tile}, w{f' + {k * TILE}' if k else ''}, 64);"

    def pixels(self, tile: int, k: int, part: int = 0) -> str:
        """Return the load of the k-th 16 pixels."""
        at = 16 * k * self.pixel + self.lower_offset * part
        return f"{self._load('A')}({tile}, a{f' + {at}' if at else ''}, {self.pixel});"

    def _load(self, operand: str) -> str:
        return "TILE_STREAM" if operand == self.streamed else "TILE_LOAD"

    def product(self, total: int, a: int, b: int) -> Product:
        """Return the product of tiles a and b, added to a sum."""
        return Product(f"{self.dot}({total}, {a}, {b});")


def step_lines(s: Step) -> list[str]:
    """Return the lines of a step."""
    return _with_prefetches(s, _tall(s) if s.tall else _square(s))


def square_order(terms: Sequence[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Return the order of a step of 2 x 2 tiles: (kind, i, j), each load before its first product.

    Kind A loads the i-th tile of pixels of part j, W the i-th tile of weights of part j, and dot
    adds their product to sum (i, j). `terms` are as those of PRODUCTS.
    """
    order, loaded = list[tuple[str, int, int]](), (-1, -1)
    for part, weights in terms:
        pixels_change, weights_change = part != loaded[0], weights != loaded[1]
        order += [("A", 0, part)] * pixels_change + [("W", 0, weights)] * weights_change
        order += [("dot", 0, 0)] + [("W", 1, weights)] * weights_change + [("dot", 0, 1)]
        order += [("A", 1, part)] * pixels_change + [("dot", 1, 0), ("dot", 1, 1)]
        loaded = part, weights
    return order


def _square(s: Step) -> list[str]:
    """32 pixels x 32 channels."""
    lines = []
    for kind, i, j in square_order(PRODUCTS[s.parts]):
        match kind:
            case "A":
                lines.append(s.pixels(4 + i, i, j))
            case "W":
                lines.append(s.weights(6 + i, 2 * j + i))
            case _:
                lines.append(s.product(2 * i + j, 4 + i, 6 + j))
    return lines


def _tall(s: Step) -> list[str]:
    """64 pixels x 16 channels: weights stay, pixels go by."""
    lines, loaded = [], 0
    for part, weights in PRODUCTS[s.parts]:
        while loaded <= min(weights + 1, s.parts - 1):  # two of them at a time
            lines.append(s.weights(4 + loaded % 2, loaded))
            loaded += 1
        for k in range(4):
            tile = 6 + k % 2
            lines += [s.pixels(tile, k, part), s.product(k, tile, 4 + weights % 2)]
    return lines


def _with_prefetches(s: Step, lines: list[str]) -> list[str]:
    """Spread the prefetches over the products: in bursts they would only queue before the loads."""
    products = sum(isinstance(line, Product) for line in lines)
    asked = [ahead.asks() for ahead in s.ahead]
    found, done = [], 0
    for line in lines:
        found.append(line)
        if isinstance(line, Product):
            for asks in asked:
                found += (asks[k] for k in share(len(asks), done, products))
            done += 1
    return found


def share(count: int, k: int, products: int) -> range:
    """Return which of `count` prefetches come after the k-th of so many products."""
    return range(count * k // products, count * (k + 1) // products)
