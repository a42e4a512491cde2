"""MatMul of bytes in register tiles: exact INT32 sums of u8 x s8, four products a lane at a time.

A step of a tile broadcasts four neighbouring bytes of a row of A as one word and multiplies it by
vectors of four bytes of each column of B. B lies in panels of nv vectors: packed when compiling
where it is constant, else a panel at a time in scratch. Signed A is read as unsigned bytes 128
larger, unsigned B as signed ones 128 less: with p and q the zero points so moved,

    sum (a - p)(b - q) = sum ab - p sum b - q sum a + k p q

so that sums start with what depends on the column and what depends on the row.

NEON without I8MM multiplies signed bytes alone: there unsigned A is read as signed bytes 128 less.
It reads four words of a row at once and multiplies by lanes; without dot products, by the lower and
the upper half of a vector of B, with sums of their own: two words at a time where B is known to
have no -128, since two products fit 16 bits then. With I8MM one instruction multiplies two rows by
two columns of constant B, eight products each: a step is of eight bytes.
On RISC-V a step broadcasts nothing: a byte of A, with its sign, multiplies vectors of B's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import (
    WAITED,
    PhasedParams,
    asks_ahead,
    column_panels,
    crowding,
    row_tiles,
    tile_count,
    tile_cycles,
    vector_kinds,
    while_fetching,
)
from atc.backends.cpu.matmul.int8_text import BytesEpilogueFunctions, TileText, has_typed_epilogue
from atc.backends.cpu.matmul.operands import (
    batch_base,
    gathered_b,
    is_packed,
    packed_base,
    read_mode,
)
from atc.backends.cpu.matmul.prefetch import Prefetch, requests
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.stored_weights import Weights
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.errors import InternalError
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.view import dense

WORD = 4
"""Bytes of a word: products that a step sums."""
WIDTHS = (2, 3, 4, 1)
LANE_WIDTHS = (2, 3, 1)
"""Those of products by lanes: with more GCC moves sums from register to register."""
STREAMING_WIDTHS = (8, 6, 4, 2, 3, 1)
"""Vectors of a panel, the most useful first; for one or two rows what B streams through best."""
BYTES = frozenset({DType.UINT8, DType.INT8})
LEAN_FEATURES = frozenset({"avx_vnni", "avx512_vnni", "i8mm"})
"""Features with which v_dot4 is one instruction."""
DOT_FEATURES = LEAN_FEATURES | {"asimddp"}
"""Features with which it is little more; else it takes about `SPLIT` times as long."""
SPLIT = 4.5
DEEPEST = 1 << 15
"""The depth up to which no sum of a row times a zero point leaves INT32."""
SPARE, SPARE_SPLIT = 2, 5
"""Registers beside sums and B: a word and a mask, and those that a v_dot4 of more needs."""
FEW = 2
"""Rows up to which all words of a step are read before vectors of B, where pairs are summed."""
PAIR_DEPTH = 8
"""Bytes of two rows and of two columns that one instruction of I8MM multiplies."""
UNROLLED = 4
"""Bytes of a row whose steps are unrolled where each is a step of its own."""


def operand_type(w: Workload[MatMul], index: int) -> DType:
    """Return the type of operand `index`."""
    return w.input(index).dtype


def bytewise(target: Target) -> bool:
    """Return whether each byte is a factor of its own, not four of them a word.

    RISC-V multiplies vectors by numbers that aren't.
    """
    return target.simd == "rvv"


@dataclass(frozen=True)
class Reading:
    """A way to read the bytes of A: `word` of them at a time, as signed ones or as unsigned ones.

    One at a time they are what they are.
    """

    word: int = WORD
    signed: bool = False

    @property
    def dot(self) -> str:
        """The C function that adds the products of a word."""
        return "neon_dot4" if self.signed else "v_dot4"

    def shift(self, dtype: DType) -> int:
        """Return how much larger than they are bytes are read."""
        if self.word == 1 or (dtype is DType.INT8) == self.signed:
            return 0
        return -128 if self.signed else 128

    def fits(self, zero: int) -> bool:
        """Return whether a byte, as it is read, may be `zero`."""
        return self.word == 1 or 0 <= zero + 128 * self.signed < 256


def reading(target: Target) -> Reading:
    """Return how a target reads the bytes of A."""
    return Reading(1 if bytewise(target) else WORD, multiplies_signed(target))


def reading_of(w: Workload[MatMul], target: Target) -> Reading:
    """Return how the bytes of A are read for a product; by pairs of rows, as they are."""
    if by_row_pairs(w, target):
        return Reading(PAIR_DEPTH, operand_type(w, 0) is DType.INT8)
    return reading(target)


def by_row_pairs(w: Workload[MatMul], target: Target) -> bool:
    """Return whether instructions multiply two rows by two columns: I8MM, where B is packed."""
    rows = max_value(w.op.m)
    return "i8mm" in target.features and w.constant[1] and rows >= 2


def multiplies_signed(target: Target) -> bool:
    """Return whether only bytes that are both signed have an instruction: NEON without I8MM."""
    return in_lanes(target) and "i8mm" not in target.features


def in_lanes(target: Target) -> bool:
    """Return whether instructions multiply by a lane of a vector."""
    return target.simd == "neon"


def lane_dot(target: Target) -> str:
    """Return the C function of four products with a lane, empty where there is none."""
    if not in_lanes(target) or not target.features & DOT_FEATURES:
        return ""
    return "neon_usdot4_lane" if "i8mm" in target.features else "neon_dot4_lane"


def pair_dot(w: Workload[MatMul], target: Target) -> str:
    """Return the C function of two rows times two columns, empty where there is none."""
    if not by_row_pairs(w, target):
        return ""
    return "neon_smmla" if reading_of(w, target).signed else "neon_usmmla"


def in_pairs(w: Workload[MatMul], target: Target) -> bool:
    """Return whether pairs of products are summed in 16 bits."""
    return w.narrow and in_lanes(target) and not target.features & DOT_FEATURES


def _largest_pairs(nv: int, registers: int) -> int:
    """Return how many rows of nv vectors the registers hold, whose sums are of halves.

    Beside them there are four words of B's vectors and of a row or, of few rows, four words of each
    and two of a vector.
    """
    few = [r for r in range(1, FEW + 1) if r * (2 * nv + WORD) + WORD <= registers]
    return max((registers - 6 - WORD * nv) // (2 * nv), *few, 0)


def _largest_tile(nv: int, w: Workload[MatMul], target: Target) -> tuple[int, int]:
    """Return how many rows of nv vectors the registers hold, and how many registers sums get."""
    registers = target.vector_registers
    if in_pairs(w, target):
        return _largest_pairs(nv, registers), registers
    if by_row_pairs(w, target):  # each row has a register, B and what is moved have four
        return (registers - 4) // (nv + 1) // 2 * 2, registers
    if bytewise(target):  # vectors of B are half as long
        room = registers - (1 + -(-nv // 2))
        return room // nv, room
    if in_lanes(target):  # rows have a register each, and without dot products sums have two
        halves = 1 if lane_dot(target) else 2
        room = registers - 1 - nv
        return room // (halves * nv + 1), room
    lean = LEAN_FEATURES & target.features
    room = registers - (SPARE + nv if lean else SPARE_SPLIT + 2 * nv)
    return room // nv, room


def zeros(w: Workload[MatMul], read: Reading = Reading()) -> tuple[int, int]:  # noqa: B008, a value
    """Return the zero points of A, as it is read, and of B as signed bytes."""
    op = w.op
    p = op.a_zero + read.shift(operand_type(w, 0))
    return p, op.b_zero - (128 if operand_type(w, 1) is DType.UINT8 else 0)


def pack_int8x4(
    w: Workload[MatMul], b: Array, width: int, read: Reading = Reading()  # noqa: B008, a value
) -> Array:
    """Return constant B as bytes [*batch][INT32 starts [n], panels [n / width][k / 4][width][4]].

    With words that aren't of 4 bytes, k is in steps of those.

    The starts are there where A's zero point isn't 0. Batches that B broadcasts over are kept once;
    columns and depth are filled up with zeros.
    """
    op, (p, q), word = w.op, zeros(w, read), read.word
    full = gathered_b(op, b).reshape(-1, op.k, op.n).astype(np.int64)
    signed = full - 128 if operand_type(w, 1) is DType.UINT8 else full
    panels, depth = -(-op.n // width), -(-op.k // word)
    padded = np.zeros((len(full), depth * word, panels * width), np.int8)
    padded[:, : op.k, : op.n] = signed
    words = padded.reshape(-1, depth, word, panels, width).transpose(0, 3, 1, 4, 2)
    parts = [words.reshape(len(padded), -1)]
    if p:
        starts = np.zeros((len(padded), panels * width), np.int64)
        starts[:, : op.n] = op.k * p * q - p * signed.sum(1)
        parts.insert(0, starts.astype(np.int32).view(np.int8))
    return np.ascontiguousarray(np.concatenate(parts, 1)).view(b.dtype)


class MatMulBytes(Kernel[MatMul, PhasedParams]):
    """MatMul of bytes, mr x nv register tiles; `phases` are partial sums of a small tile."""

    name = "matmul_bytes"
    op = MatMul
    template = "cpu/matmul/int8.c.j2"
    portable = False
    dynamic = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Bytes, zero points that a byte holds, and an epilogue in vectors.

        The run may decide any extent where the rows of A are dense, but for those of constant B.
        """
        op = w.op
        types = {None if t is None else t.dtype for t in w.inputs[:2]}
        if lanes(target) < 2 or op.accumulator is not DType.INT32 or not types <= BYTES:
            return False
        if 0 in (*op.loops, op.k) or (w.constant[1] and not is_packed(w)):
            return False
        if is_dynamic(w) and op.a_view.strides[-1] != 1:
            return False
        read = reading_of(w, target)
        p, q = zeros(w, read)
        small = read.fits(p) and -128 <= q < 128 and (q == 0 or max_value(op.k) <= DEEPEST)
        return small and has_typed_epilogue(op.epilogue, w, 2)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[PhasedParams]:
        """Tiles that fill the registers."""
        op, width, twos = w.op, lanes(target), by_row_pairs(w, target)
        native = bool(DOT_FEATURES & target.features) and not twos
        busy, found = target.machine.sums(target.vector_bytes), list[PhasedParams]()
        widths = LANE_WIDTHS if lane_dot(target) and not twos else WIDTHS
        rows = max_value(op.m)
        for nv in STREAMING_WIDTHS if rows <= 2 else widths:
            most, registers = _largest_tile(nv, w, target)
            high = min(most, rows)
            if high < 1 or nv > -(-max_value(op.n) // width):
                continue
            mr = row_tiles(op.m, high)[0].rows
            mr += mr % 2 if twos and mr < high else 0
            room = (registers - mr * in_lanes(target)) // (mr * nv)
            deep = native and not is_dynamic(op.k)
            phases = max(1, min(-(-busy // (mr * nv)), room, 4, op.k // WORD)) if deep else 1
            found.append(PhasedParams(mr=mr, nv=nv, phases=phases))
        return found

    def packs(
        self, w: Workload[MatMul], params: PhasedParams, target: Target
    ) -> Mapping[int, Pack]:
        """Words of constant B in the order of use."""
        width, read = params.nv * lanes(target), reading_of(w, target)

        def pack(b: Array) -> Array:
            if w.narrow and int(b.min()) == -128:
                raise InternalError("weights of -128 in a product of narrow ones")
            return pack_int8x4(w, b, width, read)

        return {1: pack} if w.constant[1] else {}

    def scratch(self, w: Workload[MatMul], params: PhasedParams, target: Target) -> int:
        """Reserve a panel of B with its starts, the starts of rows, and A where its rows aren't
        dense."""
        return _Scratch(w, params.nv * lanes(target), reading_of(w, target)).size

    def values(
        self, w: Workload[MatMul], params: PhasedParams, target: Target
    ) -> dict[str, object]:
        """Panels, tiles, how both operands are read, and the epilogue."""
        op, read = w.op, reading_of(w, target)
        word, shift, (p, q) = read.word, read.shift(operand_type(w, 0)), zeros(w, read)
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        width = params.nv * lanes(target)
        panels = column_panels(op.n, params.nv, lanes(target))
        tiles = row_tiles(op.m, params.mr)
        memory, ahead = _Scratch(w, width, read), _requests(w, params, target)
        inside = is_dynamic((op.k, op.n, memory.row))
        finish = BytesEpilogueFunctions(op.epilogue, outer, 2, open=inside, w=w)
        text = TileText(finish, w, lanes(target), p != 0, q != 0, ahead)
        y = address(dense(op.loops), [*outer, "i", "j"])
        depth = -(-op.k // word)
        return {
            "batch": batch, "op": op, "p": p, "q": q, "width": width, "mode": read_mode(w),
            "lanes": lanes(target), "phases": params.phases, "depth": depth, "word_bytes": word,
            "whole": op.k // word, "rest": op.k % word, "unrolled": UNROLLED, "memory": memory,
            "tiles": tiles, "panels": panels, "prefetch": ahead,
            "functions": [text.function(p, t) for p in panels for t in tiles], "start": text.start,
            "epilogues": finish.functions(*vector_kinds(panels)),
            "arguments": text.arguments(f"y0 + {y}"),
            "a_type": operand_type(w, 0).c, "b_type": operand_type(w, 1).c,
            "shift": f" {'+' if shift > 0 else '-'} 128" if shift else "", "dot": read.dot,
            "by_lane": lane_dot(target), "halves": in_lanes(target) and not lane_dot(target),
            "pairs": in_pairs(w, target), "few": FEW, "pair_dot": pair_dot(w, target),
            "flip_b": operand_type(w, 1) is DType.UINT8,
            "a_base": batch_base(op.a_view, outer),
            "b_base": self._b_base(w, outer, width, read),
            "am": memory.row, "start_bytes": 4 * memory.columns,
            "dims": ", const int64_t *dims" * is_dynamic((op.k, op.a_view, op.b_view)),
        }  # fmt: skip

    def _b_base(
        self, w: Workload[MatMul], outer: tuple[str, ...], width: int, read: Reading
    ) -> str:
        """Return where a batch of B begins, in packed B or in the operand."""
        op, word = w.op, read.word
        if not w.constant[1]:
            return batch_base(op.b_view, outer)
        columns = -(-op.n // width) * width
        size = columns * (-(-op.k // word) * word + (4 if zeros(w, read)[0] else 0))
        return packed_base(op.batch, op.b_view, outer, size)

    def cost(self, w: Workload[MatMul], params: PhasedParams, target: Target) -> float:
        """Cycles of all tiles, of packing, and of waiting for memory."""
        op, mode = w.op, read_mode(w)
        mr, nv, phases = params.mr, params.nv, params.phases
        native = bool(DOT_FEATURES & target.features)
        depth, width = -(-op.k // WORD), lanes(target)
        machine, pairs, twos = target.machine, in_pairs(w, target), by_row_pairs(w, target)
        if pairs or twos:  # three instructions, or half of one
            machine = replace(machine, fmas=machine.fmas * (2 if twos else 1 / 3))
        rate = machine.fma_rate(width * 4)
        far = 0 if op.m * op.k <= machine.l1_kept else 1
        panels = column_panels(op.n, nv, width)
        cycles = 0.0
        for panel in panels:
            for t in row_tiles(op.m, mr):
                each = tile_cycles(
                    machine, t.rows + t.rows % 2 * twos, panel.vectors, width, depth, phases, far,
                    at_once=WORD if in_lanes(target) else 1,
                )
                if not native and not pairs:
                    each += depth * t.rows * panel.vectors / rate * (SPLIT - 1)
                each += t.rows * panel.vectors * 3.0  # bytes out take more than floats
                cycles += panel.count * t.count * each
        cycles *= crowding(machine, mr, op.a_view.strides[-2])
        columns = sum(p.count * p.vectors for p in panels) * width
        if far:  # every panel reads A from the L2 cache
            cycles += op.m * op.k / machine.l2.rate * columns / (nv * width)
        per_word = {"rows": 12.0 / width, "columns": 2.0, "any": 8.0}
        cycles += depth * columns * per_word.get(mode, 0)
        if mode == "packed":  # what tiles share comes between their products
            cycles = while_fetching(machine, cycles, op.k * op.n)
        return prod(op.batch) * cycles


def _requests(w: Workload[MatMul], params: PhasedParams, target: Target) -> Prefetch | None:
    """Return what tiles ask for of packed B, of whose next panel each has a share.

    None where B is near, or a step of the depth isn't a word of rows that share a panel.
    """
    op, words, tiles = w.op, w.op.k // WORD, tile_count(row_tiles(w.op.m, params.mr))
    if not w.constant[1] or params.phases > 1 or in_lanes(target) or bytewise(target):
        return None
    products = max_value(op.m) * op.k * op.n / WORD
    if not words or not asks_ahead(target.machine, op.k * op.n, products, lanes(target), WAITED):
        return None
    width = params.nv * lanes(target) * WORD
    whole = partial(largest_divisor, words)
    return requests(op.m, max_value(tiles), width, Weights(DType.INT8), target.machine, whole)


class _Scratch:
    """The layout of scratch, in bytes; `row` is the distance between rows of A."""

    def __init__(self, w: Workload[MatMul], width: int, read: Reading) -> None:
        op, (p, q), word = w.op, zeros(w, read), read.word
        copied, depth = not w.constant[1], -(-op.k // word)
        self.columns = -(-op.n // width) * width
        self.copies_a = op.a_view.strides[-1] != 1 and op.k > 1
        self.starts = depth * word * width if copied else 0
        self.rows = self.starts + (4 * width if copied and p else 0)
        self.a = self.rows + (4 * max_value(op.m) if q else 0)
        self.row = depth * word if self.copies_a else op.a_view.strides[-2]
        self.size = self.a + (max_value(op.m) * self.row if self.copies_a else 0)


KERNELS = (MatMulBytes(),)
