"""Direct convolution of bytes where instructions sum two products in 16 bits: exact all the same.

`vpmaddubsw` adds two products of u8 x s8 in 16 bits and saturates, which it doesn't have to where
the positive weights of a pair add up to 128 at most and the negative ones to -128 at least. So the
weights are known to be safe when compiling, or are made so: channels of a block are paired so that
few pairs of weights aren't, whose order the bytes of a pixel are shuffled into as they are read,
and weights that still aren't are clipped. What clipping took off is multiplied on its own, word by
word, before the rest is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from atc.backends.cpu.conv.word_reads import WordReads
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
PAIRED = 8
"""Channels among which pairs are chosen: two words."""
HIGHEST, LOWEST = 128, -128
"""Bounds of the positive and of the negative weights of a pair: 255 times them are 16 bits."""
UNSAFE = 40
"""Products of an output up to which clipped weights cost half as much as all."""
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
        words, group = in_words(w, params, WORD), w.op.group
        zero = zero_point(w, target)

        def pack(weights: Array) -> Array:
            dense = ungrouped(weights, words.g, group)
            return behind_starts(packed_pairs(words, dense), dense, zero)

        return {1: pack}

    def values(
        self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the parts of the packed weights are."""
        words = in_words(w, params, WORD)
        reads = WordReads(word_of(w, target, "avx_shuffled_bytes({}, order)"))
        elements = replace(byte_elements(w, words, target), paired=True, reads=reads)
        g, count = words.g, len(panels(words.g.mb, words.nv))
        orders = g.supers * g.mb * g.block * (STARTS + words.depth * WORD)
        index = orders + g.supers * count * words.iterations * g.block
        return {
            **byte_values(w, words, target, elements), "panel_count": count,
            "word": word_of(w, target, "v_i32_broadcast({})"),
            "orders": orders, "index": index, "entry": PLACE + g.block * WORD,
            "clipped": index + (g.supers * g.mb * g.taps + 1) * PLACE,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: StripedPanelParams, target: Target) -> float:
        """Estimated cycles: three instructions a vector, one a word, and those of clipped weights.

        Scaled by their greatest, weights of few products lie less close to zero.
        """
        words = in_words(w, params, WORD)
        clipped = min(1.0, UNSAFE / words.g.depth)
        return words.cycles(target.machine) * (1.5 + 0.5 / params.nv + clipped)


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
            kept = _clipped(paired)
            safe.append(_in_use(kept, words))
            orders.append(_as_controls(order, words))
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
    """Return [lanes, ic, taps] as [input blocks * halves, taps, PAIRED, lanes], zeros behind ic."""
    g = words.g
    padded = np.pad(panel, ((0, 0), (0, -g.ic % g.block), (0, 0))).astype(np.int16)
    return padded.reshape(len(panel), -1, PAIRED, g.taps).transpose(1, 3, 2, 0).copy()


@cache
def _matchings() -> tuple[Orders, npt.NDArray[np.float32]]:
    """Return all ways to pair PAIRED channels: [ways, PAIRED], and [pairs, ways], 1 where used."""
    ways = np.array([sum(pairs, ()) for pairs in _matched(tuple(range(PAIRED)))])
    number = {pair: k for k, pair in enumerate(combinations(range(PAIRED), 2))}
    used = np.zeros((len(number), len(ways)), np.float32)
    for way, order in enumerate(ways.tolist()):
        for k in range(0, PAIRED, 2):
            used[number[order[k], order[k + 1]], way] = 1
    return ways, used


def _matched(left: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    if not left:
        yield ()
    for k in range(1, len(left)):
        for rest in _matched(left[1:k] + left[k + 1 :]):
            yield ((left[0], left[k]), *rest)


def _orders(panel: Weights, words: Words) -> Orders:
    """Return [.., taps, PAIRED]: the order of channels in which the fewest pairs are unsafe."""
    ways, used = _matchings()
    unsafe = [
        _excess(panel[:, :, i], panel[:, :, j]).astype(bool).sum(-1)
        for i, j in combinations(range(PAIRED), 2)
    ]
    costs = np.stack(unsafe, -1).astype(np.float32) @ used
    if words.g.ic % PAIRED in range(1, WORD + 1):  # the last block may be a single word
        last = words.g.ic // PAIRED
        costs[last, :, ways[:, :WORD].max(1) >= WORD] = np.inf
    best: Orders = ways[costs.argmin(-1)]
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


def _in_use(kept: Weights, words: Words) -> Array:
    """Return [input blocks * halves, taps, PAIRED, lanes] in the order of use, as bytes.

    That is [input block][taps][word][lanes][channels of a word], less the words behind ic.
    """
    g, lanes = words.g, kept.shape[-1]
    halves = g.block // PAIRED
    shape = (g.icb, halves, g.taps, PAIRED // WORD, WORD, lanes)
    order = kept.astype(np.int8).reshape(shape).transpose(0, 2, 1, 3, 5, 4)
    whole, rest = divmod(g.ic, g.block)
    every = order.reshape(g.icb, g.taps, g.block // WORD, lanes, WORD)
    last = every[whole:, :, : -(-rest // WORD)]
    return np.concatenate([every[:whole].reshape(-1), last.reshape(-1)])


def _as_controls(order: Orders, words: Words) -> Array:
    """Return orders [input blocks * halves, taps, PAIRED] as [input block][taps][places]."""
    g = words.g
    halves = g.block // PAIRED
    shaped = order.reshape(g.icb, halves, g.taps, PAIRED)
    places = shaped + PAIRED * np.arange(halves)[:, np.newaxis, np.newaxis]
    return places.transpose(0, 2, 1, 3).astype(np.int8).reshape(-1)


def _entries(
    lost: Weights, words: Words, vectors: int
) -> Iterator[tuple[Orders, Orders, Array]]:
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
        some = shaped.any((3, 5))
        eighth, tap, word, vector = np.nonzero(some)
        channel = eighth * PAIRED + word * WORD
        kh, kw = np.divmod(tap, g.cols.kernel)
        pixel = kh * g.rows.dilation * g.cols.size + kw * g.cols.dilation
        block, lane = np.divmod(channel, g.block)
        weights = shaped[eighth, tap, word, :, vector].transpose(0, 2, 1)  # [entry][lane][channel]
        yield (
            vector * g.taps + tap,
            block * g.in_plane + pixel * g.block + lane,
            weights.reshape(len(vector), -1),
        )


KERNELS = (ConvBytesPairs(),)
