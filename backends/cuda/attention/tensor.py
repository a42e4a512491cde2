"""CUDA kernels of Attention: on tensor cores, or for few queries with keys split over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from atc.backends.cuda.attention.rows import computed
from atc.backends.cuda.gpus import LAUNCH_NS, gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.products.sides import ROUNDED, ROW, SPLIT, Form
from atc.backends.cuda.products.tensor import SHARED, STORED
from atc.backends.cuda.products.views import aligned_chunks, is_along_rows, transposed
from atc.backends.kernel import KernelParams, Launch, Workload
from atc.backends.render.expr import address, load, rounded
from atc.backends.render.key_range import key_range
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic, upper_bound
from atc.ir.expr import Const, Expr, walk
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View

WARPS = 4
"""Those of a block; each has 16 queries, or 32."""

CHUNK = 8
"""Numbers of a chunk of a tile's row."""

WIDEST, GROUP = 128, 64
"""The largest width of a query's result, and the part of it that is in fragments at a time."""

SUMS = 104
"""The most scores and results that a thread holds without spilling them."""

FEW_QUERIES, LEAST_PART, LANES = 8, 64, 8
"""Fewest queries that keep a warp busy, fewest keys of a block, threads that share a key."""


@dataclass(frozen=True, kw_only=True)
class PartParams(KernelParams):
    """The number of keys that a block processes."""

    keys: int


@dataclass(frozen=True, kw_only=True)
class AttentionTiles(KernelParams):
    """A block's `m` queries, the `n` keys of a step, and how many steps' keys there is room for."""

    m: int
    n: int
    stages: int = 1

    @property
    def rows(self) -> int:
        """Tiles of 16 queries of a warp."""
        return self.m // (16 * WARPS)


@dataclass(frozen=True)
class Weights:
    """Weights as they are multiplied: functions of a pair of them that give a word of each part.

    `rounded` is the C of `weight` as a float of fewer bits, where these functions don't round it
    so. They are 2^`shift` times as large: small ones are rounded less then.
    """

    parts: tuple[str, ...]
    rounded: str = "weight"
    shift: int = 0


class TensorAttention(DeviceKernel[Attention, AttentionTiles]):
    """Tiled Attention: a block has a tile of queries and loops over tiles of keys.

    After T. Dao, "FlashAttention-2", 2023: the sums so far are rescaled when a larger score is
    found (online softmax), so that no scores are stored.
    """

    op = Attention
    template = "cuda/attention/attention_tensor.cu.j2"
    dynamic = True
    barriers = True
    tensor_cores = True

    def form(self, w: Workload[Attention]) -> Form | None:
        """Return how operands are multiplied; None if they can't be."""
        raise NotImplementedError

    def weights(self, w: Workload[Attention]) -> Weights:
        """Return how weights are multiplied."""
        raise NotImplementedError

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Enough queries for a warp, operands that fit in shared memory."""
        op = w.op
        if gpu_of(target.device).tensor == 0 or self.form(w) is None or op.width > WIDEST:
            return False
        enough = min(upper_bound(op.queries), upper_bound(op.keys)) >= 8
        return enough and bool(self.parameters(w, target))

    def parameters(self, w: Workload[Attention], target: Target) -> Sequence[AttentionTiles]:
        """Tiles that fit in registers and shared memory, the fastest by estimate first."""
        op, found = w.op, list[AttentionTiles]()
        for m, n, stages in product((64, 128), (32, 64), (1, 2)):
            each = AttentionTiles(m=m, n=n, stages=stages)
            sums = 4 * each.rows * (n + _width(op)) // 8
            able = stages == 1 or self._is_copied(w)
            if able and sums <= SUMS and self._shared(w, each) <= SHARED:
                found.append(each)
        largest = concrete(w)
        return sorted(found, key=lambda params: self.cost(largest, params, target))

    def _form(self, w: Workload[Attention]) -> Form:
        form = self.form(w)
        assert form is not None
        return form

    def _shared(self, w: Workload[Attention], params: AttentionTiles) -> int:
        """Return the bytes of all tiles."""
        keys, depth, width = params.stages * params.n, _depth(w.op) // 32, -(-_width(w.op) // 32)
        return self._form(w).planes * ROW * (depth * (params.m + keys) + width * keys)

    def _is_copied(self, w: Workload[Attention]) -> bool:
        """Return whether keys and values are copied to shared memory without registers."""
        return self._form(w).stored and _is_whole(w.op)

    def launch(self, w: Workload[Attention], params: AttentionTiles, target: Target) -> Launch:
        """Return a block for each tile, up to a limit."""
        return grid(_tiles(w.op, params), MOST_BLOCKS, 32 * WARPS)

    def values(
        self, w: Workload[Attention], params: AttentionTiles, target: Target
    ) -> dict[str, object]:
        """Addresses of the operands, parts of numbers, and both epilogues."""
        op, form, weights = w.op, self._form(w), self.weights(w)
        batch = loop_names("b", op.batch)
        outer = [*(v for v, _ in batch), "i"]
        inner = replace(w, outputs=(TensorType(DType.FLOAT, w.outputs[0].shape),))
        scored, score = epilogue_lines(op.scores, inner, "total", [*outer, "j"], 3)
        first = 3 + len(op.scores.views)
        after, value = epilogue_lines(op.result, w, "total", [*outer, "e"], first)
        tiles = {
            "q": _tile("x0", op.q_view, [*outer, "p"], op.depth),
            "k": _tile("x1", transposed(op.k_view), [*outer[:-1], "j", "p"], op.depth),
            "v": _tile("x2", op.v_view, [*outer[:-1], "j", "e"], op.width),
        }
        words = {
            "own": form.words(["own[2 * k]", "own[2 * k + 1]"]),
            "weights": [f"{part}(even, odd)" for part in weights.parts],
        }
        y = address(op.y_view, [*outer, "e"])
        rows = [*batch, ("tile_i", -(-op.queries // params.m))]
        seen = key_range(w, outer[:-1], "first_i", "last_i").lines
        return {
            "op": op, "form": form, "m": params.m, "n": params.n, "stages": params.stages,
            "m_tiles": params.rows, "depth": _depth(op), "width": _width(op),
            "groups": -(-_width(op) // GROUP), "tiles": _tiles(op, params),
            "indices": unravel("at", rows), "operands": tiles, "words": words, "y": y,
            "whole": not is_dynamic(op.keys) and op.keys % params.n == 0,
            "scored": scored, "score": score, "after": after, "value": value, "seen": seen,
            "weights": weights, "paired": aligned_chunks(op.y_view, op.width) > 1,
            "type_y": w.outputs[0].dtype.c,
            "copied": form.stored and any(t.whole for t in tiles.values()),
            "used": " ".join((*(t.place for t in tiles.values()), y, *scored, score, *after, value,
                              *seen, "tile_i")),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: AttentionTiles, target: Target) -> float:
        """Return the seconds that tensor cores, shared memory, exponentials and loads take.

        What lies behind one another in a warp overlaps with other warps' only in part.
        """
        op, gpu, planes = w.op, gpu_of(target.device), self._form(w).planes
        m, n, depth, width = params.m, params.n, _depth(op), _width(op)
        once, again = (1, 3)[planes - 1], len(self.weights(w).parts) + planes - 1
        products = m * n * (once * depth + again * width) / (0.6 * gpu.tensor)
        read = 2 * planes * (m * depth + WARPS * n * (depth + width)) / 128
        copied = 0.75 if self._is_copied(w) else 3 if _is_whole(op) else 8
        scores = (20 + 2 * len(_terms(op.scores))) * m * n
        waited = 500 / self.resident(w, params, target) / params.stages**2
        step = max(products, read) + (scores + copied * planes * n * (depth + width)) / 128 + waited
        causal = key_range(w, [v for v, _ in loop_names("b", op.batch)], "", "").causal
        keys = max(op.keys - op.queries / 2, op.keys / 2) if causal else op.keys
        clocks = step * ceil(keys / n) + 1000
        resident = self.resident(w, params, target)
        return seconds(w, gpu.compute_ns(_tiles(op, params), resident, clocks), gpu)

    def resident(self, w: Workload[Attention], params: AttentionTiles, target: Target) -> int:
        """Return the estimated number of blocks that a multiprocessor runs at a time."""
        gpu, op, parts = gpu_of(target.device), w.op, len(self.weights(w).parts)
        registers = 4 * params.rows * (params.n + _width(op)) // 8 + 64 + 16 * parts * params.rows
        most = (1 << 16) // (32 * WARPS * min(registers, 255))
        return max(1, min(gpu.shared // (self._shared(w, params) + 1024), gpu.blocks, most))


def _terms(epilogue: Epilogue) -> list[Expr]:
    """Return what an epilogue computes and reads."""
    return [e for e in walk(epilogue.expr) if not isinstance(e, Const)]


@dataclass(frozen=True)
class _Tile:
    """An operand as C: its pointer, an element's place, whether chunks are contiguous and aligned.

    Neighbouring threads load neighbouring rows where these are neighbours in memory.
    """

    source: str
    place: str
    whole: bool
    along_rows: bool


def _is_whole(op: Attention) -> bool:
    """Return whether chunks of keys and values are contiguous and aligned."""
    sides = (transposed(op.k_view), op.depth), (op.v_view, op.width)
    return all(aligned_chunks(view, extent) >= CHUNK for view, extent in sides)


def _tile(source: str, view: View, indices: Sequence[str], extent: int) -> _Tile:
    """Return an operand over (*batch, rows, numbers), of so many numbers."""
    whole = aligned_chunks(view, extent) >= CHUNK
    return _Tile(source, address(view, indices), whole, is_along_rows(view))


def _depth(op: Attention) -> int:
    return -(-op.depth // 32) * 32


def _width(op: Attention) -> int:
    step = 16 if op.width <= GROUP else GROUP
    return -(-op.width // step) * step


def _tiles(op: Attention, params: AttentionTiles) -> int:
    return prod(op.batch) * -(-op.queries // params.m)


class AttentionStored(TensorAttention):
    """Attention of 16-bit floats: operands are multiplied as they are stored.

    Weights that are rounded to their type are one part, others two.
    """

    name = "cuda_attention_tensor"

    def form(self, w: Workload[Attention]) -> Form | None:
        """Return the function for the operands' type; None if weights have another one."""
        types = {t.dtype for t in w.inputs[:3] if t is not None}
        (dtype,) = types if len(types) == 1 else (DType.FLOAT,)
        able = dtype in STORED and w.op.weights in (None, dtype)
        return Form(STORED[dtype], 2) if able else None

    def weights(self, w: Workload[Attention]) -> Weights:
        """Return the parts of weights."""
        narrow = w.input(0).dtype is DType.FLOAT16
        parts = ("t_halves", "t_rests") if narrow else ("t_uppers", "t_lowers")
        return Weights(parts[: 1 if w.op.weights else 2], shift=15 if narrow else 0)


class _OfFloats(TensorAttention):
    """Attention of floats, which `floats` makes the operands of tensor cores of."""

    floats: Form

    def form(self, w: Workload[Attention]) -> Form | None:
        """Return the form if the operands are floats."""
        types = {t.dtype for t in w.inputs[:3] if t is not None}
        return self.floats if types == {DType.FLOAT} else None

    def weights(self, w: Workload[Attention]) -> Weights:
        """Return the same parts as of operands."""
        return Weights(self.floats.parts, rounded(w.op.weights, "weight"))


class AttentionSplit(_OfFloats):
    """Attention of floats split in two bfloat16."""

    name = "cuda_attention_bf16x3"
    precision = "bf16x3"
    floats = SPLIT


class AttentionRounded(_OfFloats):
    """Attention of floats as bfloat16."""

    name = "cuda_attention_bf16"
    precision = "bf16"
    floats = ROUNDED


class AttentionParts(DeviceKernel[Attention, PartParams]):
    """Attention of few queries: blocks process parts of a query's keys, which are then combined.

    As in "Flash-Decoding", T. Dao and others, 2023: a decoder's single token has too few queries
    to keep a device busy. The order of all sums is fixed.
    """

    name = "cuda_attention_parts"
    op = Attention
    template = "cuda/attention/attention_parts.cu.j2"
    dynamic = True
    barriers = True
    threads = 128

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Few queries and many keys, operands of one type of floats."""
        few = upper_bound(w.op.queries) < FEW_QUERIES and upper_bound(w.op.keys) >= 2 * LEAST_PART
        return few and computed(w) is not None

    def parameters(self, w: Workload[Attention], target: Target) -> Sequence[PartParams]:
        """Parts of several sizes, the fastest by estimate first."""
        sizes = (LEAST_PART << k for k in range(5))
        found = [PartParams(keys=n) for n in sizes if 2 * n <= upper_bound(w.op.keys)]
        largest = concrete(w)
        return sorted(found, key=lambda params: self.cost(largest, params, target))

    def launch(self, w: Workload[Attention], params: PartParams, target: Target) -> Launch:
        """Return a block for each part, and then for each query, up to a limit."""
        rows = _rows(w.op)
        first = grid(rows * -(-w.op.keys // params.keys), MOST_BLOCKS, self.threads)
        return replace(first, later=(min(upper_bound(rows), MOST_BLOCKS),))

    def scratch(self, w: Workload[Attention], params: PartParams, target: Target) -> int:
        """Return the bytes of the partial results."""
        parts = _rows(w.op) * -(-w.op.keys // params.keys)
        return parts * (w.op.width + 2) * w.input(0).dtype.computed.itemsize

    def values(
        self, w: Workload[Attention], params: PartParams, target: Target
    ) -> dict[str, object]:
        """Addresses of the operands, both epilogues, and how threads share the keys."""
        op, stored, count = w.op, w.input(0).dtype, -(-w.op.keys // params.keys)
        dtype = stored.computed
        rows = [*loop_names("b", op.batch), ("i", op.queries)]
        outer = [v for v, _ in rows]
        inner = replace(w, outputs=(TensorType(dtype, w.outputs[0].shape),))
        scored, score = epilogue_lines(op.scores, inner, "total", [*outer, "j"], 3)
        first = 3 + len(op.scores.views)
        after, value = epilogue_lines(op.result, w, "total", [*outer, "e"], first)
        places = {
            "q": load(stored, f"x0[{address(op.q_view, [*outer, 'p'])}]"),
            "k": load(stored, f"x1[{address(op.k_view, [*outer[:-1], 'p', 'j'])}]"),
            "v": load(stored, f"x2[{address(op.v_view, [*outer[:-1], 'j', 'e'])}]"),
            "y": address(op.y_view, [*outer, "e"]),
        }
        seen = key_range(w, outer[:-1], "i", "i").lines
        along = op.k_view.strides[-2] == 1 and op.depth >= LANES
        wide = dtype is DType.DOUBLE
        return {
            "op": op, "type": dtype.c, "rows": _rows(op), "count": count, "keys": params.keys,
            "lanes": LANES if along else 1, "stride": op.width + 2,
            "columns": min(1 << (op.width - 1).bit_length(), self.threads),
            "indices": unravel("at", [*rows, ("part", count)]),
            "query_indices": unravel("at", rows),
            **places, "scored": scored, "score": score, "after": after, "value": value,
            "seen": seen, "exp": "exp" if wide else "expf", "fma": "fma" if wide else "fmaf",
            "rounded": rounded(op.weights, "weight"),
            "used": " ".join((*(places[n] for n in "qkv"), *scored, score, *seen)),
            "query_used": " ".join((places["y"], *after, value)),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: PartParams, target: Target) -> float:
        """Return the seconds for the parts and for combining them."""
        op, gpu = w.op, gpu_of(target.device)
        rows, count = _rows(op), -(-op.keys // params.keys)
        clocks = 4 * params.keys * (op.depth + op.width) / gpu.fmas + 1500
        joining = gpu.compute_ns(rows, 8, 40 * count + 500) + LAUNCH_NS
        joining += gpu.memory_ns(2 * self.scratch(w, params, target))
        return seconds(w, gpu.compute_ns(rows * count, 8, clocks), gpu) + 1e-9 * joining


def _rows(op: Attention) -> int:
    """Return the number of queries in all batches."""
    return prod(op.batch) * op.queries


KERNELS = (AttentionStored(), AttentionSplit(), AttentionRounded(), AttentionParts())
