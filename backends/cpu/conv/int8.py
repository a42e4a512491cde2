"""Direct convolution of bytes in channel blocks: exact INT32 sums of u8 x s8, four at a time.

The tiles are those of the float kernel; a step multiplies four channels of a pixel, broadcast as
one word, by vectors of four weights a lane. Signed bytes are read as unsigned ones 128 larger; what
that and the zero point add to every sum is taken off where the sums start. NEON's dot product is
one of signed bytes: there unsigned ones are read as signed ones 128 smaller.

Where no instruction does that, weights are integers of 16 bits: those of the even channels of a
word, then those of the odd ones, which meet the word's bytes, unpacked once for all vectors. NEON
without dot products multiplies by halves of vectors instead, whose sums of two products lie apart
until the end; two words at a time where no weight is -128, since two products fit 16 bits then.
RISC-V multiplies a number that is no vector: there a word is four bytes one after the other, each
times a vector of weights, and signed ones stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from atc.backends.cpu.conv.blocked import Tile, cheapest, ends_of_tiles, is_depthwise
from atc.backends.cpu.conv.dot_product import WORD, Elements, Words, in_words, tile_sets
from atc.backends.cpu.conv.filter_panels import PanelParams, StripedPanelParams, ungrouped
from atc.backends.cpu.conv.word_reads import WordReads
from atc.backends.cpu.matmul.int8 import (
    DOT_FEATURES,
    Reading,
    bytewise,
    in_lanes,
    multiplies_signed,
    reading,
)
from atc.backends.kernel import Kernel, Pack, Stripable, Workload
from atc.backends.machine import Machine
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import Geometry, geometry
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.errors import InternalError
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

SPLIT_WIDE = ((4, 4), (7, 3), (12, 2), (8, 2), (4, 3), (4, 2), (2, 4), (14, 1), (8, 1))
SPLIT_NARROW = ((2, 4), (4, 2), (3, 2), (1, 4), (6, 1), (4, 1))
"""Pixels and vectors of a tile of split words, for 32 and for 16 registers."""
BYTEWISE = ((7, 2), (6, 2), (4, 3), (3, 4), (4, 2), (2, 4), (14, 1), (6, 1), (4, 1))
"""Pixels and vectors of a tile whose bytes are read one by one, for 16 registers."""
HALVES_WIDE = ((4, 2), (3, 3), (2, 4), (5, 2), (8, 1), (4, 1), (2, 2), (1, 4))
HALVES_NARROW = ((4, 1), (2, 2), (3, 1), (1, 2), (2, 1))
"""Those of sums by halves of vectors."""
SPREAD, APART = 4, 1.1
"""Pixels whose words one instruction spreads over vectors; what other numbers take longer."""
JOINED = 4
"""Blocks of input channels that a step of NEON reads."""


Place = Callable[[int, Tile, int], str]
"""What gives the C expression of what a vector of a tile's column starts with."""


def reading_of(w: Workload[ConvBlocked], target: Target) -> Reading:
    """Return how the bytes of x are read.

    As signed ones in words only where taps that meet padding, which are left out, are zero then.
    """
    read = reading(target)
    if splits(target):
        return replace(read, signed=False)
    kept = w.op.zero + replace(read, signed=True).shift(w.input(0).dtype) == 0 or not padded(w)
    return read if kept else replace(read, signed=False)


def shift(w: Workload[ConvBlocked], target: Target, read: Reading | None = None) -> int:
    """Return how much larger than they are bytes of x are read.

    Signed ones one at a time are 128 larger where taps that meet padding are zero then.
    """
    if bytewise(target) and w.input(0).dtype is DType.INT8 and w.op.zero == -128 and padded(w):
        return 128
    return (read or reading_of(w, target)).shift(w.input(0).dtype)


def zero_point(w: Workload[ConvBlocked], target: Target, read: Reading | None = None) -> int:
    """Return the zero point of x as its bytes are read."""
    return w.op.zero + shift(w, target, read)


@dataclass(frozen=True)
class Starts:
    """The start of sums: minus the zero point times the weights of the taps inside the input.

    A table has a row for each number of rows of taps from the first on, where rows may meet
    padding, in it one for each set of columns that lie inside together, of a number per filter.
    """

    g: Geometry
    zero: int

    @cached_property
    def columns(self) -> list[tuple[int, ...]]:
        """The sets of columns of taps that lie inside the input, of all outputs."""
        a = self.g.cols
        if self.zero == 0:
            return [()]
        inside = (tuple(k for k in range(a.kernel) if a.valid(c, k)) for c in range(a.out))
        return list(dict.fromkeys(inside))

    @property
    def by_rows(self) -> bool:
        """Whether rows of taps may meet padding."""
        return self.zero != 0 and self.g.rows.interior != (0, self.g.rows.out)

    @property
    def row(self) -> int:
        """The numbers of a row of the table."""
        g = self.g
        return len(self.columns) * g.supers * g.mb * g.block

    @property
    def size(self) -> int:
        """The bytes of the table, which has a row even of zeros."""
        return 4 * self.row * (self.g.rows.kernel + 1 if self.by_rows else 1)

    def table(self, dense: Array) -> Array:
        """Return the bytes of the table for weights [supers, filters, ic, taps]."""
        rows, cols = self.g.rows.kernel, self.g.cols.kernel
        sums = -self.zero * dense.astype(np.int64).sum(-2).reshape(-1, rows, cols)
        each = np.stack([sums[:, :, list(k)].sum(-1) for k in self.columns])
        found = each.sum(-1)[np.newaxis]
        if self.by_rows:
            found = np.pad(each.cumsum(-1), ((0, 0), (0, 0), (1, 0))).transpose(2, 0, 1)
        table: Array = found.astype(np.int32).reshape(-1).view(np.int8)
        return table

    def place(self, vector: int, tile: Tile, column: int) -> str:
        """Return the C expression of what a column of a tile starts with."""
        inside = tuple(k for k, users in enumerate(tile.columns.taps) if column in users)
        at = self.columns.index(inside) * (self.row // len(self.columns)) + vector * self.g.block
        if not self.by_rows:
            return f"v_i32_load(starts + {at})"
        last, first = (f"v_i32_load(starts + ({k} * {self.row} + {at}))" for k in ("kh1", "kh0"))
        return f"v_i32_sub({last}, {first})"


def splits(target: Target) -> bool:
    """Return whether words are unpacked: where four products are many instructions."""
    return not target.features & DOT_FEATURES


def by_halves(target: Target) -> bool:
    """Return whether words are multiplied by halves of vectors: NEON without dot products."""
    return in_lanes(target) and splits(target)


def deinterleaved(target: Target) -> bool:
    """Return whether the weights of a pair lie in the halves of a vector, not side by side.

    NEON multiplies four numbers of 16 bits by one and adds the products to four sums.
    """
    return target.simd == "neon"


def in_int8x4(words: Words, target: Target) -> Words:
    """Return words of bytes with weights as they are multiplied on a target."""
    return replace(words, size=2 * WORD) if splits(target) else words


def unpacked(words: Words, target: Target) -> bool:
    """Return whether weights are integers of 16 bits, which meet unpacked words."""
    return words.size > WORD and splits(target)


def int8x4_sets(w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
    """Return all parameter sets: tiles that fit the registers."""
    if not splits(target):
        return tile_sets(w, target)
    narrow = BYTEWISE if bytewise(target) else SPLIT_NARROW
    shapes = SPLIT_WIDE if target.vector_registers >= 32 else narrow
    return [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]


def int8x4_cycles(target: Target, words: Words) -> float:
    """Estimate the cycles of all tiles."""
    return words.cycles(target.machine) * int8x4_slowness(target, words)


def int8x4_slowness(target: Target, words: Words) -> float:
    """Return how many times as long split words take, which are read and split first."""
    if not unpacked(words, target):
        return 1.0
    if deinterleaved(target):  # four words at once
        return 2 + (0.75 / words.nv + 1 / words.p) / 2
    return 2 + 1 / words.nv


def packed_int8x4(words: Words, dense: Array, target: Target) -> Array:
    """Return weights in the order of use, in a row of bytes; see `Words.pack`."""
    packed = words.pack(dense)
    if not unpacked(words, target):
        return packed
    if bytewise(target):
        bytes_ = packed.reshape(-1, words.g.block, WORD).swapaxes(1, 2)
        return bytes_.astype(np.int16).reshape(-1).view(np.int8)
    pairs = packed.reshape(-1, words.g.block, WORD // 2, 2)  # [..][lane][pair][even or odd]
    order = (0, 3, 2, 1) if deinterleaved(target) else (0, 3, 1, 2)
    return pairs.transpose(order).astype(np.int16).reshape(-1).view(np.int8)


def packed_behind(
    table: Callable[[Array], Array], words: Words, w: Workload[ConvBlocked], target: Target
) -> Mapping[int, Pack]:
    """Return how weights are packed in the order of use, behind a table of what sums start with.

    The table is made of weights [supers, filters, ic, taps].
    """
    group = w.op.group

    def pack(weights: Array) -> Array:
        if w.narrow and int(weights.min()) == -128:
            raise InternalError("weights of -128 in a convolution of narrow ones")
        dense = ungrouped(weights, words.g, group)
        return np.concatenate([table(dense), packed_int8x4(words, dense, target)])

    return {1: pack}


def behind_starts(packed: Array, dense: Array, zero: int) -> Array:
    """Return packed weights behind the INT32 that sums start with, for x with a zero point.

    They are minus the zero point times the sum of each filter of `dense`, [..., channels, taps].
    """
    starts = -zero * dense.astype(np.int64).sum((-2, -1))
    return np.concatenate([starts.astype(np.int32).reshape(-1).view(np.int8), packed])


def in_whole_words(w: Workload[ConvBlocked], target: Target) -> bool:
    """Return whether vectors of words can compute a convolution, which must be one of bytes."""
    bytes_ = w.op.accumulator is DType.INT32 and w.constant[1]
    if not bytes_ or w.outputs[0].shape[-1] != lanes(target):
        return False
    wide = lanes(target) > 1 and lanes(target) % WORD == 0 and w.op.window.rank <= 2
    return wide and typed_epilogue(w.op.epilogue, w, 2)


class ConvBytes(
    Kernel[ConvBlocked, StripedPanelParams], Stripable[ConvBlocked, StripedPanelParams]
):
    """Convolution of u8 or s8 by s8 with tiles of p pixels x nv vectors."""

    name = "conv_bytes"
    op = ConvBlocked
    template = "cpu/conv/dot_product.c.j2"
    portable = False
    batches = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Known weights, blocks as wide as vectors; where taps meet padding, a zero point of 0, or
        sums that know where they do."""
        if not in_whole_words(w, target) or is_depthwise(w) or geometry(w, 1).plain:
            return False
        return not padded(w) or multiplies_signed(target) or zero_point(w, target) == 0

    def words(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> Words:
        """Return the words of a convolution that reads blocks of channels; NEON joins some."""
        words = in_words(w, params, WORD)
        if not in_lanes(target):
            return in_int8x4(words, target)
        return replace(words, joined=min(JOINED, words.g.icb))

    def reading(self, w: Workload[ConvBlocked], target: Target) -> Reading:
        """Return how the bytes of x are read: as signed ones where only these are multiplied, for
        sums know where they meet padding."""
        return reading(target) if multiplies_signed(target) else reading_of(w, target)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[StripedPanelParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 5)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[StripedPanelParams]:
        """Return all parameter sets."""
        if not by_halves(target):
            return [StripedPanelParams(p=s.p, nv=s.nv) for s in int8x4_sets(w, target)]
        shapes = HALVES_WIDE if target.vector_registers >= 32 else HALVES_NARROW
        return [StripedPanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]

    def striped_params(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> StripedPanelParams | None:  # fmt: skip
        """Return the same tiles where RAM is scarce; elsewhere stripes cost more than they save."""
        words = self.words(w, params, target)
        late = TileEpilogue(w.op.epilogue, w, words.g, target, DType.INT32).deferred
        if not target.scarce_memory or w.op.window.rank != 2 or late:
            return None
        return replace(params, x_rows=x_rows, y_rows=y_rows)

    def stripe_ends(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> Sequence[int]:
        """Stripes cut no tile of several rows into single ones."""
        return ends_of_tiles(w, params)

    def packs(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with."""
        words = self.words(w, params, target)
        starts = Starts(words.g, zero_point(w, target, self.reading(w, target)))
        return packed_behind(starts.table, words, w, target)

    def values(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles; signed bytes become unsigned as they are read."""
        words, read = self.words(w, params, target), self.reading(w, target)
        return byte_values(w, words, target, self.elements(w, words, target, read), read)

    def elements(
        self, w: Workload[ConvBlocked], words: Words, target: Target, read: Reading
    ) -> Elements:
        """Return how bytes are multiplied: by halves of vectors where there is no more."""
        elements = byte_elements(w, words, target, read)
        if not by_halves(target):
            return elements
        halves = "pairs" if w.narrow else "singly"
        flip = "neon_flipped{0}({1}, flip)" if shift(w, target, read) else "{1}"
        two, four = (flip.format(n, f"neon_spread{n}({{}})") for n in (2, 4))
        reads = WordReads(word_of(w, target, "v_i32_broadcast({})", read), two, four, WORD)
        return replace(elements, halves=halves, in_lanes=False, reads=reads)

    def cost(self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target) -> float:
        """Estimated cycles."""
        words = self.words(w, params, target)
        return self.cycles(w, words, target, words.cycles)

    def cycles(
        self, w: Workload[ConvBlocked], words: Words, target: Target,
        of_tiles: Callable[[Machine], float],
    ) -> float:  # fmt: skip
        """Return the cycles of words from those of words that one instruction multiplies.

        By halves a word and a vector take three instructions or four.
        """
        machine = target.machine
        if not by_halves(target):
            return of_tiles(machine) * int8x4_slowness(target, words)
        cycles = of_tiles(replace(machine, fmas=machine.fmas / (3 if w.narrow else 4)))
        return cycles * (1 if words.p % SPREAD == 0 else APART)


def byte_elements(
    w: Workload[ConvBlocked], words: Words, target: Target, read: Reading | None = None
) -> Elements:
    """Return how bytes are multiplied on a target."""
    single, as_int16 = bytewise(target), unpacked(words, target)
    read = read or reading_of(w, target)
    flipped, by_lane = shift(w, target, read) != 0, _lane_dot(words, target, read)
    dot = by_lane or ("v_dot2" if as_int16 else read.dot)
    return Elements(
        x=w.input(0).dtype.c, weight="int16_t" if as_int16 else "int8_t",
        result=w.outputs[0].dtype.c, sums="vi32", reads=_reads(w, target, by_lane != "", read),
        load="rvv_load_i16({})" if single else "v_i32_load((const int32_t *)(const void *)({}))",
        dot="rvv_add_products" if single else dot, in_lanes=by_lane != "",
        flip="v_i32_set1((int32_t)0x80808080u)" if flipped and not single else "",
        as_int16=as_int16 and not single, bytewise=single,
    )  # fmt: skip


def byte_values(
    w: Workload[ConvBlocked], words: Words, target: Target, elements: Elements,
    read: Reading | None = None, place: Place | None = None,
) -> dict[str, object]:  # fmt: skip
    """Return what the template wants to know of a convolution of bytes, cut into words.

    Sums start with what is at `place`, if given, else with what a table of `Starts` has.
    """
    zero, as_int16 = zero_point(w, target, read), unpacked(words, target)
    epilogue = TileEpilogue(w.op.epilogue, w, words.g, target, DType.INT32)
    table = Starts(words.g, zero)
    weights = f"(const int16_t *)(const void *)(x1 + {table.size})"
    place = place or (table.place if zero else None)
    return {
        **words.values(elements), "start": _starting(epilogue, place), "started": bool(place),
        "starts": 0 if as_int16 else table.size, "source": "x0",
        "packed": weights if as_int16 else "x1", "converted": False, "epilogue": epilogue,
    }  # fmt: skip


def word_of(
    w: Workload[ConvBlocked], target: Target, words: str, read: Reading | None = None
) -> str:
    """Return the C expression of words of x as they are multiplied, from that which reads them."""
    return f"v_i32_xor({words}, flip)" if shift(w, target, read) else words


def _reads(
    w: Workload[ConvBlocked], target: Target, by_lane: bool, read: Reading
) -> WordReads:
    if bytewise(target):
        return WordReads("(int16_t)(a[{1}] + 128)" if shift(w, target, read) else "a[{1}]")
    one, two, four = (
        word_of(w, target, f"{name}({{}})", read)
        for name in ("v_i32_broadcast", "neon_words2", "neon_words4")
    )
    if not by_lane:
        return WordReads(one)
    return WordReads(one, two, four, WORD, paired=not splits(target))


def _lane_dot(words: Words, target: Target, read: Reading) -> str:
    """Return the function that multiplies by a lane of words of x; empty where none does."""
    if deinterleaved(target) and unpacked(words, target):
        return "neon_dot2_lane"
    if read.signed:
        return "neon_dot4_lane"
    return "neon_usdot4_lane" if "i8mm" in target.features else ""


def _starting(epilogue: TileEpilogue, place: Place | None) -> Place:
    """Return what gives the C expression that a vector of a tile's column starts with."""

    def start(vector: int, tile: Tile, column: int) -> str:
        return started(epilogue, place(vector, tile, column) if place else "", vector)

    return start


def started(epilogue: TileEpilogue, least: str, vector: int) -> str:
    """Return the C expression that a vector's sums start with, `least` and the epilogue's bias."""
    if not least:
        return epilogue.start(vector)
    return least if epilogue.bias is None else f"v_i32_add({least}, {epilogue.start(vector)})"


def padded(w: Workload[ConvBlocked]) -> bool:
    """Return whether any tap may meet padding."""
    g, rank = geometry(w, 1), w.op.window.rank
    size, out = w.input(0).shape[2 : 2 + rank], w.outputs[0].shape[2 : 2 + rank]
    if is_dynamic((size, out)):
        return not w.op.window.stays_inside(size, out)
    return any(a.interior != (0, a.out) for a in (g.rows, g.cols))


KERNELS = (ConvBytes(),)
