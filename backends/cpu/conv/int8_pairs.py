"""Direct convolution of bytes where instructions sum two products in 16 bits: exact all the same.

Neighbouring weights are made so that two products fit 16 bits; see `pair_packing`. What that takes
off is multiplied on its own, word by word, before the rest is.

The bytes of some pixels are brought into the order of the pairs at once and go to the stack, from
where their words are broadcast: that is fewer shuffles, of which a core does fewer than loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.blocked import Tile, cheapest
from atc.backends.cpu.conv.dot_product import WORD, Elements, in_words
from atc.backends.cpu.conv.filter_panels import PanelParams, StripedPanelParams, ungrouped
from atc.backends.cpu.conv.int8 import (
    ConvBytes,
    byte_elements,
    byte_values,
    padded,
    shift,
    splits,
    word_of,
    zero_point,
)
from atc.backends.cpu.conv.pair_packing import (
    PLACE,
    STARTS,
    Orders,
    PairWords,
    Staging,
    packed_pairs,
)
from atc.backends.cpu.conv.word_reads import Pixels, Stage
from atc.backends.kernel import Pack, Workload
from atc.backends.render.tile_geometry import geometry, panels
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

WIDE = ((6, 4), (8, 3), (4, 4), (12, 2), (6, 2), (14, 1), (6, 1))
NARROW = ((3, 4), (4, 3), (6, 2), (12, 1), (6, 1))
"""Pixels and vectors of a tile, for 32 and for 16 registers."""
UNIT = 16
"""Channels of a step: four words."""
FEW = 192
"""Products of an output up to which channels are mirrored: of more, few weights are unsafe."""
SLOTS = {8: (0, 2, 1, 3), 16: (0, 1, 2, 3)}
"""Where four pixels' bytes go, by the channels of a block: see `avx_stage4`."""
UNSAFE, CHOICELESS = 16, 40
"""Products of an output up to which clipped weights cost half as much as all; where there are too
few channels to choose pairs from."""
STAGED = 2.0
"""What one instruction costs of those that bring words to the stack, from which others wait for
them; as a part of an instruction that multiplies."""


def sums_pairs(target: Target) -> bool:
    """Return whether a target has instructions that sum two products of bytes, and none of four."""
    return target.simd in ("avx2", "avx512") and splits(target)


def pair_sets(w: Workload[ConvBlocked], target: Target) -> list[tuple[int, int]]:
    """Return the pixels and vectors of tiles that fit the registers."""
    shapes = WIDE if target.vector_registers >= 32 else NARROW
    return [(p, nv) for p, nv in shapes if nv <= geometry(w, p).mb]


def pair_slowness(words: PairWords) -> float:
    """Return how many times as long pairs take as words that one instruction multiplies.

    That is three instructions a vector, one a word, those that bring words to the stack, and those
    of clipped weights: scaled by their greatest, weights of few products lie less close to zero.
    """
    most = UNSAFE if words.g.ic >= UNIT else CHOICELESS
    clipped = min(1.0, most / (words.depth * WORD))
    each = sum(n * (words.p // size % times) for size, n, times in words.staging)
    staged = STAGED * each * WORD / (words.p * words.unit_size)
    return 1.5 + (0.5 + staged) / words.nv + clipped


class ConvBytesPairs(ConvBytes):
    """Convolution of u8 or s8 by s8, two products summed in 16 bits: p pixels x nv vectors."""

    name = "conv_bytes_pairs"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes that `ConvBytes` takes; AVX2 or AVX-512, and no instruction that sums four."""
        if not sums_pairs(target) or not super().accepts(w, target):
            return False
        g = geometry(w, 1)  # places in x, and of the most entries there may be, are 32 bits
        entries = 2 * g.supers * g.mb * g.icb * g.taps * g.block // WORD * (PLACE + g.block * WORD)
        return max(g.icb * g.in_plane, entries) < 1 << 31

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[StripedPanelParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[StripedPanelParams]:
        """Return all parameter sets: tiles that fit the registers."""
        return [StripedPanelParams(p=p, nv=nv) for p, nv in pair_sets(w, target)]

    def striped_params(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> None:  # fmt: skip
        """Return None: the places of words that meet clipped weights are those in whole planes."""

    def packs(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with; see `packed_pairs`."""
        words, group = in_units(w, params, target), w.op.group
        zero = zero_point(w, target)
        return {1: lambda weights: packed_pairs(words, ungrouped(weights, words.g, group), zero)}

    def values(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the parts of the packed weights are."""
        words = in_units(w, params, target)
        elements = replace(byte_elements(w, words, target), stages=words.stages)
        return pair_values(w, words, target, elements)

    def cost(self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target) -> float:
        """Estimated cycles."""
        words = in_units(w, params, target)
        return words.cycles(target.machine) * pair_slowness(words)


@dataclass(frozen=True, kw_only=True)
class UnitWords(PairWords):
    """Words of blocks of channels, of which a step multiplies those of UNIT channels."""

    @property
    def staging(self) -> Staging:
        """Two pixels are read at once, or all of a vector twice as wide."""
        four, two, one = (4, 4, 4) if self.g.block == UNIT else (10, 10, 6)
        return (4, four, 64), (2, two, 2), (1, one, 2)

    @property
    def used(self) -> int:
        """The channels of the last step that have words."""
        return -(-(self.g.ic % UNIT) // WORD) * WORD or UNIT

    @property
    def order_size(self) -> int:
        """The places of a step's bytes, and what changes them."""
        return 2 * UNIT if self.mirrored else UNIT

    def bodies(self) -> list[dict[str, int]]:
        """Return the loops over input blocks: first, count, words in each, and blocks."""
        g, words = self.g, UNIT // WORD
        whole, rest = divmod(g.ic, UNIT)
        loops = (
            (0, whole, words, self.joined),
            (whole * self.joined, 1 if rest else 0, -(-rest // WORD), -(-rest // g.block)),
        )
        return [
            {"first": first, "count": count, "steps": n, "u": n, "blocks": blocks}
            for first, count, n, blocks in loops
            if count
        ]

    def units(self, panel: Array) -> Array:
        """Return [lanes, ic, taps] as [steps, taps, UNIT, lanes], zeros behind ic."""
        padded = np.pad(panel, ((0, 0), (0, -self.g.ic % UNIT), (0, 0)))
        return padded.reshape(len(panel), -1, UNIT, self.g.taps).transpose(1, 3, 2, 0)

    def places(self, step: Orders, tap: Orders, word: Orders) -> Orders:
        """Return where words of a step and a tap lie in x, in elements, or their channels."""
        if not self.places_known:
            return step * UNIT + word * WORD
        g = self.g
        kh, kw = np.divmod(tap, g.cols.kernel)
        pixel = kh * g.rows.dilation * g.cols.size + kw * g.cols.dilation
        block, lane = np.divmod(step * UNIT + word * WORD, g.block)
        found: Orders = block * g.in_plane + pixel * g.block + lane
        return found

    def orders(self, order: Orders, masks: Array) -> Array:
        """Return the places of bytes, and masks."""
        return np.concatenate([order, masks], -1) if self.mirrored else order

    def shuffles(self, alone: bool) -> list[tuple[str, str]]:
        """Return the vectors that shuffle and change bytes, of a step or a word: name, C."""
        read = "v_i32_broadcast" if alone else "avx_order"
        found = [("order", f"{read}(places)"), ("mask", f"{read}(places + {UNIT})")]
        return found if self.mirrored else found[:1]

    def stages(self, pixels: Pixels, blocks: int) -> list[Stage]:
        """Return how the bytes of pixels go to the stack: of four or two in a row at once."""
        found, at, block = list[Stage](), 0, self.g.block
        mask = "mask" if self.mirrored else "flip" if self.flipped else "v_i32_set1(0)"
        for chunk in in_a_row(pixels, block):
            n, first, to = len(chunk), chunk[0][1], UNIT * at
            other = first + (self.g.in_plane if blocks > 1 else 0)
            places = (place_at("to", to), place_at("a", first), place_at("a", other))
            order = SLOTS[block] if n == 4 else range(n)
            users = tuple(
                (name, place, tuple(range(to + UNIT * slot, to + UNIT * (slot + 1), WORD)))
                for (name, place), slot in zip(chunk, order, strict=True)
            )
            found.append(Stage((f"avx_stage{n}", *places, "order", mask), users))
            at += n
        return found


def in_units(w: Workload[ConvBlocked], params: PanelParams, target: Target) -> UnitWords:
    """Return the convolution as a kernel's parameters cut it."""
    words = in_words(w, params, WORD)
    g = words.g
    return UnitWords(
        g, words.p, words.nv, WORD, joined=UNIT // g.block, unit_size=UNIT, among=UNIT,
        mirrored=g.depth <= FEW and not padded(w), flipped=shift(w, target) != 0,
        places_known=not is_dynamic((g.in_plane, g.cols.size)),
    )  # fmt: skip


def in_a_row(pixels: Pixels, distance: int) -> list[Pixels]:
    """Return pixels in groups of four, two or one that lie so far from each other."""
    found, left = list[Pixels](), list(pixels)
    while left:
        places = [place for _, place in left]
        count = next(
            n for n in (4, 2, 1) if places[:n] == [places[0] + distance * k for k in range(n)]
        )
        found.append(left[:count])
        left = left[count:]
    return found


def place_at(pointer: str, offset: int) -> str:
    """Return a place in C, so far behind a pointer."""
    return f"{pointer} + {offset}" if offset else pointer


def pair_values(
    w: Workload[ConvBlocked], words: PairWords, target: Target, elements: Elements
) -> dict[str, object]:
    """Return what the template wants to know of a convolution in pairs."""

    def place(vector: int, tile: Tile, column: int) -> str:
        return start_of_pairs(words, vector)

    values = byte_values(w, words, target, elements, place=place if words.mirrored else None)
    return {**values, **places_of_pairs(w, words, target)}


def start_of_pairs(words: PairWords, vector: int) -> str:
    """Return the C expression of what a vector's sums start with."""
    return f"v_i32_load(starts + {vector * words.g.block})"


def places_of_pairs(
    w: Workload[ConvBlocked], words: PairWords, target: Target
) -> dict[str, object]:
    """Return where the parts of the packed weights are, and how words of x are read."""
    g, count = words.g, len(panels(words.g.mb, words.nv))
    orders = g.supers * g.mb * g.block * (STARTS + words.depth * WORD)
    of_panel = words.iterations * words.order_size
    index = orders + g.supers * count * of_panel
    shuffled = "avx_shuffled_word({}, order)"
    changed = f"v_i32_xor({shuffled}, mask)" if words.mirrored else word_of(w, target, shuffled)
    return {
        "panel_count": count, "panel_orders": of_panel, "order_size": words.order_size,
        "shuffles": words.shuffles, "staged_size": words.unit_size,
        "word": word_of(w, target, "v_i32_broadcast({})"),
        "shuffled": changed, "places_known": words.places_known,
        "orders": orders, "index": index, "entry": PLACE + g.block * WORD,
        "clipped": index + (g.supers * g.mb * g.taps + 1) * PLACE,
    }  # fmt: skip


KERNELS = (ConvBytesPairs(),)
