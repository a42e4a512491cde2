"""Weights whose products, two by two, fit 16 bits: what that takes off comes apart.

`vpmaddubsw` adds two products of u8 x s8 in 16 bits and saturates, which it doesn't have to where
the positive weights of a pair add up to 128 at most and the negative ones to -128 at least. So
those channels are paired that leave few pairs of weights unsafe; of some pairs one channel is
mirrored, 255 - x with the weight's opposite in the place of x with the weight, which makes two
large weights of one sign two of different ones; and what still is unsafe is clipped. What clipping
took off, an entry, meets the word of x as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby
from math import prod
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from atc.backends.cpu.conv.dot_product import WORD, Words
from atc.backends.cpu.conv.word_reads import Pixels, Stage
from atc.backends.render.tile_geometry import panels
from atc.ir.graph import Array

Weights = npt.NDArray[np.int16]
Orders = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Staging = tuple[tuple[int, int, int], ...]
"""Groups of pixels: how many are in one, its instructions, and more groups than there can be."""

MATCHED = 8
"""Channels whose best pairs are found at once."""
AT_ONCE = 1 << 18
"""Weights that are paired at a time, at least a panel of them: that needs little memory."""
NEVER = 1e6
"""The cost of a pair that mustn't be."""
HIGHEST, LOWEST = 128, -128
"""Bounds of the positive and of the negative weights of a pair: 255 times them are 16 bits."""
MOST = 255
"""What a mirrored byte is taken off."""
STARTS, PLACE = 4, 4
"""Bytes of what a sum starts with; of the place of a word, before the weights that it meets."""


@dataclass(frozen=True, kw_only=True)
class PairWords(Words):
    """A convolution cut into words, in steps of `unit_size` channels, paired among `among` of them.

    Those of a row of taps count as channels where x is plain.
    """

    unit_size: int
    among: int
    mirrored: bool
    """Whether channels may be mirrored."""
    flipped: bool
    """Whether bytes of x are signed: then they are read as 128 larger."""
    places_known: bool = True
    """Whether it is known where in x a channel of a tap is."""

    @property
    def staging(self) -> Staging:
        """Return the groups of pixels whose step goes to the stack together."""
        raise NotImplementedError

    @property
    def order_size(self) -> int:
        """The bytes that say how a step's channels are shuffled and changed."""
        raise NotImplementedError

    @property
    def used(self) -> int:
        """The channels of the last step that have words."""
        return self.unit_size

    def units(self, panel: Array) -> Array:
        """Return weights of some filters as [steps, taps, channels of a step, lanes]."""
        raise NotImplementedError

    def places(self, step: Orders, tap: Orders, word: Orders) -> Orders:
        """Return where words of a step and a tap lie in x, in elements, or their channels."""
        raise NotImplementedError

    def orders(self, order: Orders, masks: Array) -> Array:
        """Return `order_size` bytes for each step and tap: [.., channels] of both."""
        raise NotImplementedError

    def shuffles(self, alone: bool) -> list[tuple[str, str]]:
        """Return the vectors that shuffle and change bytes, of a step or a word: name, C."""
        raise NotImplementedError

    def stages(self, pixels: Pixels, blocks: int) -> list[Stage]:
        """Return how the bytes of pixels of a step, of so many blocks, go to the stack."""
        raise NotImplementedError


@dataclass(frozen=True)
class Entries:
    """Weights that clipping took off: numbers of output block and tap, places in x, words' own."""

    keys: Orders
    places: Orders
    weights: Array


def packed_pairs(words: PairWords, dense: Array, zero: int) -> Array:
    """Return weights [supers, filters, ..] as tiles read them, in a row of bytes.

    That is what the sums start with, for x with a zero point; the safe weights in the order of use;
    for each panel, step and tap the order of its bytes; for each output block and tap where its
    first entry is, in bytes; and the entries: the place of a word in x (or its first channel where
    places aren't known), and weights.
    """
    g = words.g
    starts = -zero * dense.astype(np.int64).reshape(*dense.shape[:2], -1).sum(-1)
    safe, orders, entries = list[Array](), list[Array](), list[Entries]()
    first = 0
    for panel in _panels(words, dense):
        safe.append(_in_use(panel.kept, words))
        masks = np.where(panel.mirrored, 255, 0) ^ (128 if words.flipped else 0)
        order = words.orders(panel.order, masks)
        orders.append(order.astype(np.uint8).reshape(-1).view(np.int8))
        of_mirrored = (panel.kept * panel.mirrored[..., np.newaxis]).sum((0, 1, 2))
        starts[panel.bundle, panel.filters] -= MOST * of_mirrored
        entries += _entries(panel.lost, words, panel.vectors, first)
        first += panel.vectors * g.taps
    index, apart = _sorted(entries, first, PLACE + g.block * WORD)
    heads = starts.astype(np.int32).reshape(-1).view(np.int8)
    return np.concatenate([heads, *safe, *orders, index.view(np.int8), apart.reshape(-1)])


@dataclass(frozen=True)
class _Panel:
    """Some filters of a bundle with pairs made safe: [steps, taps, channels], with lanes last.

    Weights that are `kept` are in the order of pairs, what was taken off in that of channels.
    """

    bundle: int
    filters: slice
    vectors: int
    kept: Weights
    mirrored: Flags
    order: Orders
    lost: Weights


def _panels(words: PairWords, dense: Array) -> Iterator[_Panel]:
    """Yield the panels of weights; those of as many vectors are paired together."""
    g = words.g
    cuts = [*zip(range(0, g.mb, words.nv), panels(g.mb, words.nv), strict=True)]
    every = [(bundle, m, n) for bundle in range(len(dense)) for m, n in cuts]
    for vectors, group in groupby(every, key=itemgetter(2)):
        lanes = vectors * g.block
        alike = [(bundle, slice(m * g.block, m * g.block + lanes)) for bundle, m, _ in group]
        together = max(1, AT_ONCE // (lanes * prod(dense.shape[2:])))
        for k in range(0, len(alike), together):
            yield from _paired(words, dense, alike[k : k + together], vectors)


def _paired(
    words: PairWords, dense: Array, places: Sequence[tuple[int, slice]], vectors: int
) -> Iterator[_Panel]:
    """Yield panels of some filters, made safe."""
    channels = np.stack([words.units(dense[place]) for place in places]).astype(np.int16)
    order, mirrored = _pairings(channels, words)
    index, sign = order[..., np.newaxis], 1 - 2 * mirrored[..., np.newaxis].astype(np.int16)
    paired = np.take_along_axis(channels, index, 3) * sign
    of_steps = paired.reshape(-1, *paired.shape[2:]), order.reshape(-1, *order.shape[2:])
    kept = _clipped_together(*of_steps, vectors).reshape(paired.shape)
    lost = np.zeros_like(channels)
    np.put_along_axis(lost, index, (paired - kept) * sign, 3)
    for place, *made in zip(places, kept, mirrored, order, lost, strict=True):
        yield _Panel(*place, vectors, *made)


def _sorted(entries: list[Entries], count: int, size: int) -> tuple[Array, Array]:
    """Return where the entries of each block and tap begin, in bytes, and these, [n, size]."""
    index = np.zeros(count + 1, np.int32)
    if not entries:
        return index, np.zeros((0, size), np.int8)
    keys = np.concatenate([e.keys for e in entries])
    places = np.concatenate([e.places for e in entries]).astype(np.int32)
    weights = np.concatenate([e.weights for e in entries])
    index[1:] = np.bincount(keys, minlength=count).cumsum() * size
    rank = np.argsort(keys, kind="stable")
    return index, np.concatenate([places[:, np.newaxis].view(np.int8), weights], 1)[rank]


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


def _pairings(channels: Weights, words: PairWords) -> tuple[Orders, Flags]:
    """Return [panels, steps, taps, channels]: an order in which few pairs are unsafe, and which
    channels of it are mirrored, the second of a pair where that leaves fewer."""
    among, groups = words.among, words.unit_size // words.among
    flat = channels.reshape(-1, among, channels.shape[-1])
    same, opposite = _unsafe(flat, words.mirrored)
    costs = np.minimum(same, opposite)
    position = np.arange(words.unit_size).reshape(groups, among)
    used = np.ones((len(channels), len(flat) // len(channels), among), np.bool_)
    used[:, -words.g.taps * groups :] = np.tile(position < words.used, (words.g.taps, 1))
    has_word = used.reshape(-1, among)
    costs[has_word[:, :, np.newaxis] != has_word[:, np.newaxis]] = NEVER
    order = _best_order(costs)
    pairs = order.reshape(len(flat), -1, 2)
    behind = ~np.take_along_axis(has_word, pairs[..., 0], 1)  # pairs that no word is of: last
    rank = np.argsort(behind, -1, kind="stable")[..., np.newaxis]
    pairs = np.take_along_axis(pairs, rank, 1)
    rows = np.arange(len(flat))[:, np.newaxis]
    at = rows, pairs[..., 0], pairs[..., 1]
    second = opposite[at] < same[at]
    mirrored = np.stack([np.zeros_like(second), second], -1)
    first = np.tile(position[:, 0], len(flat) // groups)[:, np.newaxis, np.newaxis]
    shape = channels.shape[:4]
    return (pairs + first).reshape(shape), mirrored.reshape(shape)


def _unsafe(flat: Weights, mirrored: bool) -> tuple[npt.NDArray[np.float32], ...]:
    """Return how many pairs of weights are unsafe for channels i and j, and with j mirrored.

    `flat` is [n, channels, lanes]. Weights are unsafe if their magnitudes add up to more than 128:
    as they are if their signs are the same, mirrored if they aren't.
    """
    count, among, lanes = flat.shape
    by_lane = np.ascontiguousarray(flat.transpose(2, 1, 0))
    size, negative = np.abs(by_lane).astype(np.uint8), by_lane < 0
    room = (HIGHEST - size).astype(np.uint8)
    kind = np.uint8 if lanes < 256 else np.uint16
    same = np.zeros((among, among, count), np.float32)
    opposite = np.full_like(same, NEVER)
    for i in range(among - 1):
        behind = slice(i + 1, among)
        unsafe = size[:, i, np.newaxis] > room[:, behind]
        differ = unsafe & (negative[:, i, np.newaxis] != negative[:, behind])
        found = [each.view(np.uint8).sum(0, kind) for each in (unsafe ^ differ, differ)]
        same[i, behind] = same[behind, i] = found[0]
        if mirrored:
            opposite[i, behind] = opposite[behind, i] = found[1]
    same, opposite = (np.ascontiguousarray(each.transpose(2, 0, 1)) for each in (same, opposite))
    least = (flat == LOWEST).any(-1)  # no byte is its opposite
    opposite[least[:, :, np.newaxis] | least[:, np.newaxis]] = NEVER
    return same, opposite


def _best_order(costs: npt.NDArray[np.float32]) -> Orders:
    """Return an order of channels whose pairs cost little.

    Where there are more than MATCHED, pairs are improved in two halves at a time, cut in all ways
    that the bits of their numbers give.
    """
    among = costs.shape[1]
    order = np.tile(np.arange(among), (len(costs), 1))
    numbers = np.arange(among // 2)
    cuts = (4, 2, 1, 6, 5, 3, 7) if among > MATCHED else (0,)
    for mask in cuts:
        odd = np.array([(k & mask).bit_count() % 2 for k in numbers.tolist()])
        for half in (0, 1):
            pairs = numbers[odd == half]
            if pairs.size:
                places = np.stack([2 * pairs, 2 * pairs + 1], -1).reshape(-1)
                order[:, places] = _best_pairs(order[:, places], costs)
    return order


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
    """Return weights [.., channels, lanes], neighbours made safe."""
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
    meets = (word[..., np.newaxis] == np.arange(order.shape[-1] // WORD)).astype(np.int64)
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


def _in_use(kept: Weights, words: PairWords) -> Array:
    """Return [steps, taps, channels, lanes] in the order of use, as bytes.

    That is [steps][taps][word][lanes][channels of a word], less the words behind the last channel.
    """
    steps, taps, size, lanes = kept.shape
    shape = (steps, taps, size // WORD, WORD, lanes)
    every = kept.astype(np.int8).reshape(shape).transpose(0, 1, 2, 4, 3)
    last = every[-1:, :, : -(-words.used // WORD)]
    return np.concatenate([every[:-1].reshape(-1), last.reshape(-1)])


def _entries(lost: Weights, words: PairWords, vectors: int, first: int) -> Iterator[Entries]:
    """Yield what clipping took off, of vectors and taps from number `first` on.

    Words are those of x here, each in two parts where a pair of them wouldn't be safe.
    """
    g, size = words.g, words.unit_size
    left = lost
    while left.any():
        part = _clipped(left)
        left = left - part
        shaped = part.astype(np.int8).reshape(-1, g.taps, size // WORD, WORD, vectors, g.block)
        step, tap, word, vector = np.nonzero(shaped.any((3, 5)))
        weights = shaped[step, tap, word, :, vector].transpose(0, 2, 1)  # [entry][lane][channel]
        keys = first + vector * g.taps + tap
        yield Entries(keys, words.places(step, tap, word), weights.reshape(len(keys), -1))
