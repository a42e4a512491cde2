"""Common parts of direct convolutions of elements narrower than 32 bits, in words of channels.

The tiles are those of the float kernel; a step multiplies a word of a pixel, its next channels that
fill 32 bits, broadcast, by vectors of such words of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.conv.blocked import NARROW, WIDE, tile_values
from atc.backends.cpu.conv.cost import image_cycles
from atc.backends.cpu.conv.filter_panels import PanelParams, StripedPanelParams
from atc.backends.cpu.conv.word_reads import PairRead, Pixels, Stage, WordReads
from atc.backends.kernel import Workload
from atc.backends.machine import CACHE_LINE, Machine
from atc.backends.render.tile_geometry import (
    Geometry,
    geometry,
    largest_divisor,
    panels,
    tile_count,
)  # fmt: skip
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

WORD = 4
"""Bytes of a word."""
UNROLLED = 4
"""Words whose steps are unrolled."""


@dataclass(frozen=True, kw_only=True)
class Elements:
    """C types, functions and formats: how words are read, multiplied and summed."""

    x: str
    """The type of elements of x."""
    weight: str
    result: str
    sums: str
    reads: WordReads
    """Reads of words of x."""
    load: str
    """What reads a vector of words of weights at {0}."""
    dot: str
    """The function that multiplies and adds."""
    in_lanes: bool = False
    """Whether that wants the lane of x, too."""
    flip: str = ""
    """A vector that `reads` use, if any."""
    as_int16: bool = False
    """Whether bytes are multiplied as integers of 16 bits, even ones and odd ones."""
    bytewise: bool = False
    """Whether each byte of a word meets a vector of weights of its own."""
    halves: str = ""
    """Whether both halves of a vector of weights are multiplied on their own, for sums that are
    added at the end: "singly", or "pairs", two words at a time."""
    stages: Callable[[Pixels, int], Sequence[Stage]] | None = None
    """How pixels' bytes of so many blocks are shuffled where pairs of products are summed in 16
    bits; see `int8_pairs`."""
    pair_reads: Callable[[Pixels, int, int], Iterable[PairRead]] | None = None
    """Reads of pairs of pixels' words, so many elements on and so many, where `dot` multiplies two
    pixels by two filters and a word is of two blocks; see `int8_two_by_two`."""


BY_TWO = "neon_dot2_lane"
"""What multiplies one element of a word after the other, so that idle ones needn't be."""


@dataclass(frozen=True)
class Words:
    """A convolution cut into tiles of p pixels x nv vectors, `per` elements to a word."""

    g: Geometry
    p: int
    nv: int
    per: int
    size: int = WORD
    """Bytes of a word of weights."""
    joined: int = 1
    """Blocks of input channels that a step reads, each of them a word."""
    together: int = 1
    """Pixels of a row that instructions multiply together."""
    idle: int = 0
    """Elements of the last word of a row of taps that are none of the window's."""

    @property
    def depth(self) -> int:
        """The words of weights that one output meets."""
        return self.g.taps * -(-self.g.ic // self.per)

    @property
    def unit(self) -> int:
        """The elements of a whole block of input channels under a tap."""
        return self.g.block

    @property
    def iterations(self) -> int:
        """The number of steps of a tile: blocks of input channels, those joined as one, by taps."""
        return -(-self.g.icb // self.joined) * self.g.taps

    @property
    def lines(self) -> int:
        """Lines of the next panel that each iteration prefetches; 0 where tiles are many."""
        return self.lines_of(tile_count(self.g, self.p))

    def lines_of(self, tiles: int) -> int:
        """Return those lines where so many tiles share a panel."""
        size = self.nv * self.g.block * self.g.block * self.joined * self.size // self.per
        share = size / CACHE_LINE / tiles
        return -(-size // (CACHE_LINE * tiles)) if share > 0.2 else 0

    def bodies(self) -> list[dict[str, int]]:
        """Return the loops over input blocks: first, count, words in each, unrolled ones, and the
        blocks that each reads."""
        if self.joined > 1:
            whole, rest = divmod(self.g.icb, self.joined)
            joined = ((0, whole, self.joined), (whole * self.joined, 1, rest))
            cuts = [(first, count, n * self.g.block, n) for first, count, n in joined]
        else:
            whole, rest = divmod(self.g.ic, self.g.block)
            cuts = [(0, whole, self.g.block, 1), (whole, 1, rest, 1)]
        most = max(UNROLLED, self.joined)
        return [
            {
                "first": first, "count": count, "steps": n, "u": largest_divisor(n, most),
                "blocks": blocks,
            }  # fmt: skip
            for first, count, channels, blocks in cuts
            if count and (n := -(-channels // self.per))
        ]

    def values(self, e: Elements) -> dict[str, object]:
        """Return the geometry, the tiles and the loops over them, for the template."""
        g = self.g
        return {
            **tile_values(g, self.p, self.nv, self.together),
            "bodies": self.bodies(), "words": self.depth, "per": self.per, "unit": self.unit,
            "e": e, "joined": self.joined,
            "idle": self.idle if e.dot == BY_TWO else 0,
            "apart": g.in_plane if self.joined > 1 else self.per,
            **self.prefetched(self.lines),
        }  # fmt: skip

    def prefetched(self, lines: int) -> dict[str, object]:
        """Return how tiles prefetch the next panel, so many lines in each iteration."""
        line = CACHE_LINE * self.per // self.size
        return {"lines": lines, "line": line, "share": lines * line * self.iterations}

    def pack(self, dense: Array) -> Array:
        """Return weights [supers, blocks * block, ic, taps] in the order of use.

        That is [supers][panel][input blocks of a step][taps][word][vectors * block][per], zeros
        where nothing is.
        """
        g, unit, parts = self.g, self.g.block * self.joined, list[Array]()
        whole = g.ic // unit * unit
        for filters in dense:
            for m, n in zip(range(0, g.mb, self.nv), panels(g.mb, self.nv), strict=True):
                panel = filters[m * g.block : (m + n) * g.block]
                for part, size in ((panel[:, :whole], unit), (panel[:, whole:], g.ic - whole)):
                    if part.size:
                        units = part.reshape(len(panel), -1, size, g.taps)
                        idle = -size % self.per
                        padded = np.pad(units, ((0, 0), (0, 0), (0, idle), (0, 0)))
                        words = padded.reshape(*units.shape[:2], -1, self.per, g.taps)
                        parts.append(words.transpose(1, 4, 2, 0, 3).reshape(-1))
        return np.concatenate(parts)

    def cycles(self, machine: Machine) -> float:
        """Estimate the cycles of all tiles."""
        g = self.g
        cycles = image_cycles(machine, g, self.p, self.nv, self.depth, multiple=self.together)
        return g.batch * g.supers * cycles


def in_words(w: Workload[ConvBlocked], params: PanelParams, per: int) -> Words:
    """Return the convolution as a kernel's parameters cut it."""
    p, nv = params.p, params.nv
    striped = params if isinstance(params, StripedPanelParams) else None
    return Words(geometry(w, p, striped), p, nv, per)


def tile_sets(w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
    """Return all parameter sets: tiles that fit the registers."""
    shapes = WIDE if target.vector_registers >= 32 else NARROW
    return [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]
