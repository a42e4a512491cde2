"""Direct convolution of bytes in channel blocks: exact INT32 sums of u8 x s8, four at a time.

The tiles are those of the float kernel; a step multiplies four channels of a pixel, broadcast as
one word, by vectors of four weights a lane. Signed bytes are read as unsigned ones 128 larger; what
that and the zero point add to every sum is taken off where the sums start. NEON's dot product is
one of signed bytes: there unsigned ones are read as signed ones 128 smaller.

Where no instruction does that, weights are integers of 16 bits: those of the even channels of a
word, then those of the odd ones, which meet the word's bytes, unpacked once for all vectors.
RISC-V multiplies a number that is no vector: there a word is four bytes one after the other, each
times a vector of weights, and signed ones stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from atc.backends.cpu.conv.blocked import PanelParams, cheapest, is_depthwise, ungrouped
from atc.backends.cpu.conv.dot_product import WORD, Words, in_words, tile_sets
from atc.backends.cpu.conv.word_reads import WordReads
from atc.backends.cpu.matmul.int8 import DOT_FEATURES, Reading, bytewise, reading
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import geometry
from atc.backends.render.vector_expr import lanes, typed_epilogue
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

SPLIT_WIDE = ((4, 4), (7, 3), (12, 2), (8, 2), (4, 3), (4, 2), (2, 4), (14, 1), (8, 1))
SPLIT_NARROW = ((2, 4), (4, 2), (3, 2), (1, 4), (6, 1), (4, 1))
"""Pixels and vectors of a tile of split words, for 32 and for 16 registers."""
BYTEWISE = ((7, 2), (6, 2), (4, 3), (3, 4), (4, 2), (2, 4), (14, 1), (6, 1), (4, 1))
"""Pixels and vectors of a tile whose bytes are read one by one, for 16 registers."""


def reading_of(w: Workload[ConvBlocked], target: Target) -> Reading:
    """Return how the bytes of x are read.

    As signed ones in words only where taps that meet padding, which are left out, are zero then.
    """
    read = reading(target)
    if splits(target):
        return replace(read, signed=False)
    kept = w.op.zero + replace(read, signed=True).shift(w.input(0).dtype) == 0 or not _padded(w)
    return read if kept else replace(read, signed=False)


def shift(w: Workload[ConvBlocked], target: Target) -> int:
    """Return how much larger than they are bytes of x are read.

    Signed ones one at a time are 128 larger where taps that meet padding are zero then.
    """
    if bytewise(target) and w.input(0).dtype is DType.INT8 and w.op.zero == -128 and _padded(w):
        return 128
    return reading_of(w, target).shift(w.input(0).dtype)


def zero_point(w: Workload[ConvBlocked], target: Target) -> int:
    """Return the zero point of x as its bytes are read."""
    return w.op.zero + shift(w, target)


def splits(target: Target) -> bool:
    """Return whether words are unpacked: where four products are many instructions."""
    return not target.features & DOT_FEATURES


def deinterleaved(target: Target) -> bool:
    """Return whether the weights of a pair lie in the halves of a vector, not side by side.

    NEON multiplies four numbers of 16 bits by one and adds the products to four sums.
    """
    return target.simd == "neon"


def in_int8x4(words: Words, target: Target) -> Words:
    """Return words of bytes with weights as they are multiplied on a target."""
    return replace(words, size=2 * WORD) if splits(target) else words


def int8x4_sets(w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
    """Return all parameter sets: tiles that fit the registers."""
    if not splits(target):
        return tile_sets(w, target)
    narrow = BYTEWISE if bytewise(target) else SPLIT_NARROW
    shapes = SPLIT_WIDE if target.vector_registers >= 32 else narrow
    return [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]


def int8x4_cycles(target: Target, words: Words) -> float:
    """Estimate the cycles of all tiles; split words take longer, and to be read and split."""
    cycles = words.cycles(target.machine)
    if words.size == WORD:
        return cycles
    if deinterleaved(target):  # four words at once
        return cycles * (2 + (0.75 / words.nv + 1 / words.p) / 2)
    return cycles * (2 + 1 / words.nv)


def packed_int8x4(words: Words, dense: Array, target: Target) -> Array:
    """Return weights in the order of use, in a row of bytes; see `Words.pack`."""
    packed = words.pack(dense)
    if words.size == WORD:
        return packed
    if bytewise(target):
        bytes_ = packed.reshape(-1, words.g.block, WORD).swapaxes(1, 2)
        return bytes_.astype(np.int16).reshape(-1).view(np.int8)
    pairs = packed.reshape(-1, words.g.block, WORD // 2, 2)  # [..][lane][pair][even or odd]
    order = (0, 3, 2, 1) if deinterleaved(target) else (0, 3, 1, 2)
    return pairs.transpose(order).astype(np.int16).reshape(-1).view(np.int8)


def pack_bytes(w: Array, words: Words, group: int, zero: int, target: Target) -> Array:
    """Return weights [M, C / group, *kernel] as bytes in the order in which the tiles read them.

    They are behind what each filter's sums start with.
    """
    dense = ungrouped(w, words.g, group)
    return behind_starts(packed_int8x4(words, dense, target), dense, zero)


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


class ConvBytes(Kernel[ConvBlocked, PanelParams]):
    """Convolution of u8 or s8 by s8 with tiles of p pixels x nv vectors."""

    name = "conv_bytes"
    op = ConvBlocked
    template = "cpu/conv/dot_product.c.j2"
    portable = False
    batches = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Known weights, blocks as wide as vectors; where taps meet padding, a zero point of 0."""
        if not in_whole_words(w, target) or is_depthwise(w):
            return False
        return not geometry(w, 1).plain and (not _padded(w) or zero_point(w, target) == 0)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, int8x4_sets(w, target), w, target, 5)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
        """Return all parameter sets."""
        return int8x4_sets(w, target)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with."""
        op = w.op
        words, zero = in_int8x4(in_words(w, params, WORD), target), zero_point(w, target)
        return {1: lambda weights: pack_bytes(weights, words, op.group, zero, target)}

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles; signed bytes become unsigned as they are read."""
        return byte_values(w, in_int8x4(in_words(w, params, WORD), target), target)

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        return int8x4_cycles(target, in_int8x4(in_words(w, params, WORD), target))


def byte_values(w: Workload[ConvBlocked], words: Words, target: Target) -> dict[str, object]:
    """Return what the template wants to know of a convolution of bytes, cut into words."""
    op = w.op
    g, single = words.g, bytewise(target)
    flipped = shift(w, target) != 0
    epilogue = TileEpilogue(op.epilogue, w, g, target, DType.INT32)
    started, as_int16 = zero_point(w, target) != 0, words.size > WORD
    starts = g.supers * g.mb * g.block * 4
    packed = f"(const int16_t *)(const void *)(x1 + {starts})" if as_int16 else "x1"
    by_lane = _lane_dot(w, words, target)
    dot = by_lane or ("v_dot2" if as_int16 else reading_of(w, target).dot)
    load = "v_i32_load((const int32_t *)(const void *)({}))"
    return {
        **words.values(), "element": w.input(0).dtype.c, "as_int16": as_int16 and not single,
        "bytewise": single, "weight": "int16_t" if as_int16 else "int8_t",
        "dot": "rvv_add_products" if single else dot, "in_lanes": by_lane != "",
        "result": w.outputs[0].dtype.c, "sums": "vi32",
        "reads": _reads(w, target, by_lane != ""),
        "load": "rvv_load_i16({})" if single else load,
        "flip": "v_i32_set1((int32_t)0x80808080u)" if flipped and not single else "",
        "start": lambda vector: _start(vector, g.block, epilogue, started), "started": started,
        "starts": 0 if as_int16 else starts, "source": "x0", "packed": packed,
        "converted": False, "epilogue": epilogue,
    }  # fmt: skip


def word_of(w: Workload[ConvBlocked], target: Target, read: str) -> str:
    """Return the C expression of words of x as they are multiplied, from that which reads them."""
    return f"v_i32_xor({read}, flip)" if shift(w, target) else read


def _reads(w: Workload[ConvBlocked], target: Target, in_lanes: bool) -> WordReads:
    if bytewise(target):
        return WordReads("(int16_t)(a[{1}] + 128)" if shift(w, target) else "a[{1}]")
    one = word_of(w, target, "v_i32_broadcast({})")
    if not in_lanes:
        return WordReads(one)
    two, four = word_of(w, target, "neon_words2({})"), word_of(w, target, "neon_words4({})")
    return WordReads(one, two, four, WORD)


def _lane_dot(w: Workload[ConvBlocked], words: Words, target: Target) -> str:
    """Return the function that multiplies by a lane of words of x; empty where none does."""
    if deinterleaved(target) and words.size > WORD:
        return "neon_dot2_lane"
    if reading_of(w, target).signed:
        return "neon_dot4_lane"
    return "neon_usdot4_lane" if "i8mm" in target.features else ""


def _start(vector: int, block: int, epilogue: TileEpilogue, started: bool) -> str:
    """Return the C expression that a vector of sums starts with."""
    at = f" + {vector * block}" if vector else ""
    bias, least = epilogue.start(vector), f"v_i32_load(starts{at})"
    if not started:
        return bias
    return least if epilogue.bias is None else f"v_i32_add({least}, {bias})"


def _padded(w: Workload[ConvBlocked]) -> bool:
    """Return whether any tap meets padding."""
    g = geometry(w, 1)
    return any(a.interior != (0, a.out) for a in (g.rows, g.cols))


KERNELS = (ConvBytes(),)
