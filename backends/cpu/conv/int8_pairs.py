"""Direct convolution of bytes where instructions sum two products in 16 bits: exact all the same.

`vpmaddubsw` adds two products of u8 x s8 in 16 bits and saturates, which it doesn't have to where
the positive weights of a pair add up to 128 at most and the negative ones to -128 at least. So the
weights are known to be safe when compiling, or are made so: of 16 channels those are paired that
leave few pairs of weights unsafe, and weights that still are unsafe are clipped. What clipping took
off is multiplied on its own, word by word, before the rest is.

The bytes of some pixels are brought into that order at once and go to the stack, from where their
words are broadcast: that is fewer shuffles, of which a core does fewer than loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from atc.backends.cpu.conv.blocked import StripedPanelParams, cheapest, ungrouped
from atc.backends.cpu.conv.dot_product import WORD, Words, in_words
from atc.backends.cpu.conv.int8 import (
    ConvBytes,
    behind_starts,
    byte_elements,
    byte_values,
    splits,
    word_of,
    zero_point,
)
from atc.backends.cpu.conv.word_reads import Pixels, Stage
from atc.backends.kernel import Pack, Workload
from atc.backends.render.tile_geometry import geometry, panels
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

Weights = npt.NDArray[np.int16]
Orders = npt.NDArray[np.int64]

WIDE = ((6, 4), (8, 3), (4, 4), (12, 2), (6, 2), (14, 1), (6, 1))
NARROW = ((3, 4), (4, 3), (6, 2), (12, 1), (6, 1))
"""Pixels and vectors of a tile, for 32 and for 16 registers."""
PAIRED = 16
"""Channels among which pairs are chosen: four words."""
MATCHED = 8
"""Channels of these whose best pairs are found at once."""
STACK = 4096
"""Bytes of pixels that a tile has on the stack."""
NEVER = 1e6
"""The cost of a pair that mustn't be."""
SLOTS = {8: (0, 2, 1, 3), 16: (0, 1, 2, 3)}
"""Where four pixels' bytes go, by the channels of a block: see `avx_stage4`."""
HIGHEST, LOWEST = 128, -128
"""Bounds of the positive and of the negative weights of a pair: 255 times them are 16 bits."""
UNSAFE, CHOICELESS = 16, 40
"""Products of an output up to which clipped weights cost half as much as all; where there are too
few channels to choose pairs from."""
STARTS, PLACE = 4, 4
"""Bytes of what a sum starts with; of the place of a word, before the weights that it meets."""


class ConvBytesPairs(ConvBytes):
    """Convolution of u8 or s8 by s8, two products summed in 16 bits: p pixels x nv vectors."""

    name = "conv_bytes_pairs"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes that `ConvBytes` takes; AVX2 or AVX-512, and no instruction that sums four."""
        able = target.simd in ("avx2", "avx512") and splits(target)
        if not able or not super().accepts(w, target):
            return False
        g = geometry(w, 1)  # places in x, and of the most entries there may be, are 32 bits
        entries = 2 * g.supers * g.mb * g.icb * g.taps * g.block // WORD * (PLACE + g.block * WORD)
        return max(g.icb * g.in_plane, entries) < 1 << 31

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[StripedPanelParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[StripedPanelParams]:
        """Return all parameter sets: tiles that fit the registers."""
        shapes = WIDE if target.vector_registers >= 32 else NARROW
        return [StripedPanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]

    def striped_params(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> None:  # fmt: skip
        """Return None: the places of words that meet clipped weights are those in whole planes."""

    def packs(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with; see `packed_pairs`."""
        words, group = in_units(w, params), w.op.group
        zero = zero_point(w, target)

        def pack(weights: Array) -> Array:
            dense = ungrouped(weights, words.g, group)
            return behind_starts(packed_pairs(words, dense), dense, zero)

        return {1: pack}

    def values(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the parts of the packed weights are."""
        words = in_units(w, params)
        g, count = words.g, len(panels(words.g.mb, words.nv))

        def stages(pixels: Pixels) -> list[Stage]:
            return staged(pixels, g.block)

        elements = replace(byte_elements(w, words, target), stages=stages)
        orders = g.supers * g.mb * g.block * (STARTS + words.depth * WORD)
        index = orders + g.supers * count * words.iterations * PAIRED
        return {
            **byte_values(w, words, target, elements), "panel_count": count,
            "word": word_of(w, target, "v_i32_broadcast({})"),
            "shuffled": word_of(w, target, "avx_shuffled_word({}, order)"),
            "orders": orders, "index": index, "entry": PLACE + g.block * WORD,
            "clipped": index + (g.supers * g.mb * g.taps + 1) * PLACE,
            "together": max(1, STACK // (g.taps * PAIRED * words.p)),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target) -> float:
        """Estimated cycles: three instructions a vector, one a word, and those of clipped weights.

        Scaled by their greatest, weights of few products lie less close to zero.
        """
        words = in_units(w, params)
        most = UNSAFE if words.g.ic >= PAIRED else CHOICELESS
        clipped = min(1.0, most / words.g.depth)
        return words.cycles(target.machine) * (1.5 + 0.5 / params.nv + clipped)


@dataclass(frozen=True)
class UnitWords(Words):
    """A convolution cut into words, of which a step multiplies those of PAIRED channels."""

    def bodies(self) -> list[dict[str, int]]:
        """Return the loops over input blocks: first, count, words in each, and blocks."""
        g, words = self.g, PAIRED // WORD
        whole, rest = divmod(g.ic, PAIRED)
        loops = (
            (0, whole, words, self.joined),
            (whole * self.joined, 1 if rest else 0, -(-rest // WORD), -(-rest // g.block)),
        )
        return [
            {"first": first, "count": count, "steps": n, "u": n, "blocks": blocks}
            for first, count, n, blocks in loops
            if count
        ]


def in_units(w: Workload[ConvBlocked], params: StripedPanelParams) -> UnitWords:
    """Return the convolution as a kernel's parameters cut it."""
    words = in_words(w, params, WORD)
    return UnitWords(words.g, words.p, words.nv, WORD, joined=PAIRED // words.g.block)


def staged(pixels: Pixels, block: int) -> list[Stage]:
    """Return how the bytes of pixels go to the stack: of four or two in a row at once."""
    found, left, at = list[Stage](), list(pixels), 0
    while left:
        first = left[0][1]
        places = [place for _, place in left]
        count = next(n for n in (4, 2, 1) if places[:n] == [first + block * k for k in range(n)])
        slots = SLOTS[block] if count == 4 else range(count)
        users = tuple((left[k][0], PAIRED * (at + slots[k])) for k in range(count))
        found.append(Stage(f"avx_stage{count}", first, at * PAIRED, users))
        left, at = left[count:], at + count
    return found


def packed_pairs(words: Words, dense: Array) -> Array:
    """Return weights [supers, blocks * block, ic, taps] as tiles read them, in a row of bytes.

    That is the safe weights in the order of `Words.pack`, for each panel, input block and tap the
    places of its bytes in their order, for each output block and tap where its first entry of
    clipped weights is, in bytes, and these entries: the place of a word in x, and weights.
    """
    g = words.g
    safe, orders, clipped = list[Array](), list[Array](), list[Array]()
    keys, places = list[Orders](), list[Orders]()
    first = 0
    for filters in dense:
        for m, n in zip(range(0, g.mb, words.nv), panels(g.mb, words.nv), strict=True):
            panel = _by_words(filters[m * g.block : (m + n) * g.block], words)
            order = _orders(panel, words)
            paired = np.take_along_axis(panel, order[..., np.newaxis], 2)
            kept = _clipped_together(paired, order, n)
            safe.append(_in_use(kept, words))
            orders.append(order.astype(np.int8).reshape(-1))
            lost = np.zeros_like(panel)
            np.put_along_axis(lost, order[..., np.newaxis], paired - kept, 2)
            for key, place, weights in _entries(lost, words, n):
                keys.append(first + key)
                places.append(place)
                clipped.append(weights)
            first += n * g.taps
    index = np.zeros(g.supers * g.mb * g.taps + 1, np.int32)
    entries = np.zeros((0, PLACE + g.block * WORD), np.int8)
    if keys:
        key, place = np.concatenate(keys), np.concatenate(places).astype(np.int32)
        rank = np.argsort(key, kind="stable")
        bytes_ = place[:, np.newaxis].view(np.int8)
        entries = np.concatenate([bytes_, np.concatenate(clipped)], 1)[rank]
        counts = np.bincount(key, minlength=len(index) - 1)
        index[1:] = counts.cumsum() * entries.shape[1]
    parts = (*safe, *orders, index.view(np.int8), entries.reshape(-1))
    return np.concatenate(parts)


def _by_words(panel: Array, words: Words) -> Weights:
    """Return [lanes, ic, taps] as [steps, taps, PAIRED, lanes], zeros behind ic."""
    g = words.g
    padded = np.pad(panel, ((0, 0), (0, -g.ic % PAIRED), (0, 0))).astype(np.int16)
    return padded.reshape(len(panel), -1, PAIRED, g.taps).transpose(1, 3, 2, 0).copy()


@cache
def _matchings() -> tuple[Orders, npt.NDArray[np.float32]]:
    """Return the ways to pair MATCHED channels, [ways, MATCHED], and [pairs, ways], 1 if used."""
    ways = np.array([sum(pairs, ()) for pairs in _matched(tuple(range(MATCHED)))])
    number = {pair: k for k, pair in enumerate(combinations(range(MATCHED), 2))}
    used = np.zeros((len(number), len(ways)), np.float32)
    for way, order in enumerate(ways.tolist()):
        for k in range(0, MATCHED, 2):
            used[number[order[k], order[k + 1]], way] = 1
    return ways, used


def _matched(left: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    if not left:
        yield ()
    for k in range(1, len(left)):
        for rest in _matched(left[1:k] + left[k + 1 :]):
            yield ((left[0], left[k]), *rest)


def _orders(panel: Weights, words: Words) -> Orders:
    """Return [steps, taps, PAIRED]: an order of channels in which few pairs are unsafe.

    Pairs are improved in two halves at a time, cut in all ways that the bits of their numbers give.
    """
    lanes = panel.shape[-1]
    flat = panel.reshape(-1, PAIRED, lanes)
    costs = np.zeros((len(flat), PAIRED, PAIRED), np.float32)
    for i, j in combinations(range(PAIRED), 2):
        unsafe = np.abs(flat[:, i] + flat[:, j]) > HIGHEST
        costs[:, i, j] = costs[:, j, i] = np.count_nonzero(unsafe, -1)
    used = -(-(words.g.ic % PAIRED) // WORD) * WORD or PAIRED  # the last step has fewer words
    last = costs[-words.g.taps :]
    last[:, :used, used:] = last[:, used:, :used] = NEVER
    order = np.tile(np.arange(PAIRED), (len(flat), 1))
    numbers = np.arange(PAIRED // 2)
    for mask in (4, 2, 1, 6, 5, 3, 7):
        odd = np.array([(k & mask).bit_count() % 2 for k in numbers.tolist()])
        for half in (0, 1):
            pairs = numbers[odd == half]
            places = np.stack([2 * pairs, 2 * pairs + 1], -1).reshape(-1)
            order[:, places] = _best_pairs(order[:, places], costs)
    behind = order.reshape(-1, PAIRED // 2, 2)[..., 0] >= used  # pairs that no word is of: last
    behind[: len(flat) - words.g.taps] = False
    rank = np.argsort(behind, -1, kind="stable")
    pairs = np.take_along_axis(order.reshape(-1, PAIRED // 2, 2), rank[..., np.newaxis], 1)
    return pairs.reshape(panel.shape[:3])


def _best_pairs(channels: Orders, costs: npt.NDArray[np.float32]) -> Orders:
    """Return channels [.., MATCHED] in the order of pairs that cost the least."""
    ways, used = _matchings()
    firsts, seconds = np.array(list(combinations(range(MATCHED), 2))).T
    rows = np.arange(len(channels))[:, np.newaxis]
    of_pairs = costs[rows, channels[:, firsts], channels[:, seconds]]
    best: Orders = np.take_along_axis(channels, ways[(of_pairs @ used).argmin(-1)], 1)
    return best


def _excess(a: Weights, b: Weights) -> Weights:
    """Return what a must lose so that a pair is safe; numbers of 8 bits in 16."""
    total = a + b
    excess: Weights = np.maximum(total - HIGHEST, 0) + np.minimum(total - LOWEST, 0)
    return excess


def _clipped(paired: Weights) -> Weights:
    """Return weights [.., PAIRED, lanes], neighbours made safe."""
    kept = paired.copy()
    kept[..., ::2, :] -= _excess(paired[..., ::2, :], paired[..., 1::2, :])
    return kept


def _clipped_together(paired: Weights, order: Orders, vectors: int) -> Weights:
    """Return weights made safe where what is taken off meets few words of x, of each vector.

    Of a pair that weight loses whose word meets more weights of unsafe pairs.
    """
    even, odd = paired[..., ::2, :], paired[..., 1::2, :]
    excess = _excess(even, odd)
    if not excess.any():
        return paired
    shape = (*excess.shape[:-1], vectors, -1)
    count = np.count_nonzero(excess.reshape(shape), -1)  # [steps, taps, pairs, vectors]
    word = order // WORD
    meets = (word[..., np.newaxis] == np.arange(PAIRED // WORD)).astype(np.int64)
    either = np.maximum(meets[..., ::2, :], meets[..., 1::2, :])
    met = np.einsum("stpw,stpv->stvw", either, count)
    of_even, of_odd = (
        np.take_along_axis(met, word[:, :, np.newaxis, k::2], 3).transpose(0, 1, 3, 2)
        for k in (0, 1)
    )
    from_even = np.broadcast_to((of_even >= of_odd)[..., np.newaxis], excess.reshape(shape).shape)
    first = np.where(from_even.reshape(excess.shape), excess, 0).astype(np.int16)
    kept = paired.copy()
    kept[..., ::2, :] -= first
    kept[..., 1::2, :] -= excess - first
    return kept


def _in_use(kept: Weights, words: Words) -> Array:
    """Return [steps, taps, PAIRED, lanes] in the order of use, as bytes.

    That is [steps][taps][word][lanes][channels of a word], less the words behind ic.
    """
    g, lanes = words.g, kept.shape[-1]
    shape = (len(kept), g.taps, PAIRED // WORD, WORD, lanes)
    every = kept.astype(np.int8).reshape(shape).transpose(0, 1, 2, 4, 3)
    whole, rest = divmod(g.ic, PAIRED)
    last = every[whole:, :, : -(-rest // WORD)]
    return np.concatenate([every[:whole].reshape(-1), last.reshape(-1)])


def _entries(lost: Weights, words: Words, vectors: int) -> Iterator[tuple[Orders, Orders, Array]]:
    """Yield of what clipping took off: number of vector and tap, place in x, weights of words.

    Words are those of x here, each in two parts where a pair of them wouldn't be safe.
    """
    if not lost.any():
        return
    g = words.g
    left = lost
    while left.any():
        part = _clipped(left)
        left = left - part
        shaped = part.astype(np.int8).reshape(-1, g.taps, PAIRED // WORD, WORD, vectors, g.block)
        step, tap, word, vector = np.nonzero(shaped.any((3, 5)))
        channel = step * PAIRED + word * WORD
        kh, kw = np.divmod(tap, g.cols.kernel)
        pixel = kh * g.rows.dilation * g.cols.size + kw * g.cols.dilation
        block, lane = np.divmod(channel, g.block)
        weights = shaped[step, tap, word, :, vector].transpose(0, 2, 1)  # [entry][lane][channel]
        yield (
            vector * g.taps + tap,
            block * g.in_plane + pixel * g.block + lane,
            weights.reshape(len(vector), -1),
        )


KERNELS = (ConvBytesPairs(),)
