"""Direct convolution of bytes by ARM's I8MM: two pixels by two filters an instruction.

It sums the products of eight channels of each, two blocks of them, and adds them to four sums. The
pixels of a tile go in pairs; a pixel whose tap meets padding is zero, which is right for any zero
point: sums know which taps they meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atc.backends.cpu.conv.blocked import is_depthwise
from atc.backends.cpu.conv.dot_product import WORD, Elements, Words, in_words
from atc.backends.cpu.conv.filter_panels import PanelParams, StripedPanelParams
from atc.backends.cpu.conv.int8 import JOINED, ConvBytes, in_whole_words
from atc.backends.cpu.conv.word_reads import PairRead, Pixels
from atc.backends.cpu.matmul.int8 import PAIR_DEPTH, Reading
from atc.backends.kernel import Workload
from atc.backends.render.tile_geometry import geometry
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked

SHAPES = ((12, 2), (10, 2), (6, 3), (8, 2), (4, 4), (14, 1), (8, 1), (4, 1), (2, 4))
"""Pixels and vectors of a tile."""


def pair_reads(pixels: Pixels, first: int, second: int) -> Iterator[PairRead]:
    """Yield the reads of pairs of pixels' words, `first` and `second` elements on.

    `pixels` are accumulators c<number>: those of 2 n and 2 n + 1 make pair n. Words that follow
    each other, or every other one, are read as vectors, four of them where they can be.
    """
    places = {int(name[1:]): at for name, at in pixels}
    inside = range(min(places.values()), max(places.values()) + 1)
    pairs = sorted({n // 2 for n in places})
    while pairs:
        n, *pairs = pairs
        four = [places.get(k) for k in range(2 * n, 2 * n + 4)]
        vector = _vector(four, inside)
        if vector is None:
            words = [None if at is None else at + k for at in four[:2] for k in (first, second)]
            spots = ("&zero" if at is None else _place(at) for at in words)
            yield PairRead((), ((n, f"neon_gathered({', '.join(spots)})"),))
            continue
        load, at, mixed = vector
        loads = tuple((v, f"{load}({_place(at + k)})") for v, k in (("x", first), ("y", second)))
        made = tuple((n + k, f"neon_mixed_{part}(x, y)") for k, part in enumerate(mixed))
        yield PairRead(loads, made)
        pairs = pairs[len(mixed) - 1 :]


def _vector(four: Sequence[int | None], inside: range) -> tuple[str, int, tuple[str, ...]] | None:
    """Return the C function that loads four pixels' words or two's, from where, and which words of
    two such vectors make the pairs.

    None where no vector has them that ends at the last pixel, as it must not read beyond.
    """
    at, *others = four
    if at is None:
        return None
    if others == [at + WORD * k for k in (1, 2, 3)]:
        return "neon_words4", at, ("low", "high")
    if others[0] == at + WORD:
        return "neon_words2", at, ("low",)
    every_other = others == [at + 2 * WORD * k for k in (1, 2, 3)]
    for words, begin in (("even", at), ("odd", at - WORD)):
        if every_other and begin in inside and begin + 7 * WORD in inside:
            return f"neon_{words}_words", begin, ("low", "high")
        if others[0] == at + 2 * WORD and begin in inside and begin + 3 * WORD in inside:
            return "neon_words4", begin, (words,)
    return None


def _place(at: int) -> str:
    return f"a + {at}" if at else "a"


class ConvBytesTwoByTwo(ConvBytes):
    """Convolution of u8 or s8 by s8, two pixels times two filters: p pixels x nv vectors."""

    name = "conv_bytes_two_by_two"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """I8MM; known weights, blocks as wide as vectors, any padding."""
        able = "i8mm" in target.features and in_whole_words(w, target)
        return able and not is_depthwise(w) and not geometry(w, 1).plain

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[StripedPanelParams]:
        """Return all parameter sets: tiles that fit the registers."""
        return [StripedPanelParams(p=p, nv=nv) for p, nv in SHAPES if nv <= geometry(w, p).mb]

    def words(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> Words:
        """Return the convolution cut into words of two blocks."""
        return replace(in_words(w, params, PAIR_DEPTH), size=PAIR_DEPTH, joined=JOINED, together=2)

    def reading(self, w: Workload[ConvBlocked], target: Target) -> Reading:
        """Read bytes as they are."""
        return Reading(WORD, w.input(0).dtype is DType.INT8)

    def elements(
        self, w: Workload[ConvBlocked], words: Words, target: Target, read: Reading
    ) -> Elements:
        """Return how bytes are read and multiplied: by pairs of pixels."""
        dot = "neon_smmla" if read.signed else "neon_usmmla"
        elements = super().elements(w, words, target, read)
        return replace(elements, in_lanes=False, pair_reads=pair_reads, dot=dot)


KERNELS = (ConvBytesTwoByTwo(),)
