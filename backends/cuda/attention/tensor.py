"""CUDA kernels of Attention: on tensor cores, or for few queries with keys split over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from atc.backends.cuda.gpus import LAUNCH_NS, gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.products.sides import ROUNDED, SPLIT, Form
from atc.backends.cuda.products.tensor import SHARED
from atc.backends.cuda.products.views import aligned_chunks, is_along_rows, transposed
from atc.backends.kernel import KernelParams, Launch, Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.key_range import key_range
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic, upper_bound
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention
from atc.ir.view import View

ROWS, KEYS = 64, 32
"""Queries of a block, and keys that it processes at a time."""

CHUNK = 8
"""Numbers of a chunk of a tile's row."""

WIDEST, GROUP = 128, 64
"""The largest width of a query's result, and the part of it that is in fragments at a time."""


FEW_QUERIES, LEAST_PART, LANES = 8, 64, 8
"""Fewest queries that keep a warp busy, fewest keys of a block, threads that share a key."""


@dataclass(frozen=True, kw_only=True)
class PartParams(KernelParams):
    """The number of keys that a block processes."""

    keys: int


class TensorAttention(DeviceKernel[Attention]):
    """Tiled Attention: a block has a tile of queries and loops over tiles of keys.

    After T. Dao, "FlashAttention-2", 2023: the sums so far are rescaled when a larger score is
    found (online softmax), so that no scores are stored.
    """

    op = Attention
    template = "cuda/attention/attention_tensor.cu.j2"
    dynamic = True
    barriers = True
    tensor_cores = True
    form: Form

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Floats, enough queries for a warp, operands that fit in shared memory."""
        op = w.op
        floats = {t.dtype for t in w.inputs[:3] if t is not None} == {DType.FLOAT}
        parts = _depth(op) // 32 * (ROWS + KEYS) + -(-_width(op) // 32) * KEYS
        size = self.form.planes * 64 * parts
        able = gpu_of(target.device).tensor > 0 and size <= SHARED
        return (
            floats
            and able
            and min(upper_bound(op.queries), upper_bound(op.keys)) >= 8
            and op.width <= WIDEST
        )

    def launch(self, w: Workload[Attention], params: Params, target: Target) -> Launch:
        """Return a block for each tile, up to a limit."""
        return grid(_tiles(w.op), MOST_BLOCKS, 2 * ROWS)

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands, parts of numbers, and both epilogues."""
        op = w.op
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
            "own": self.form.words(["own[2 * k]", "own[2 * k + 1]"]),
            "weights": self.form.words(["even", "odd"]),
        }
        y = address(op.y_view, [*outer, "e"])
        rows = [*batch, ("tile_i", -(-op.queries // ROWS))]
        seen = key_range(w, outer[:-1], "first_i", "last_i").lines
        return {
            "op": op, "form": self.form, "rows": ROWS, "keys": KEYS, "depth": _depth(op),
            "width": _width(op), "groups": -(-_width(op) // GROUP), "tiles": _tiles(op),
            "indices": unravel("at", rows), "operands": tiles, "words": words, "y": y,
            "whole": not is_dynamic(op.keys) and op.keys % KEYS == 0,
            "scored": scored, "score": score, "after": after, "value": value, "seen": seen,
            "used": " ".join((*(t.place for t in tiles.values()), y, *scored, score, *after, value,
                              *seen, "tile_i")),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Return the seconds that tensor cores, exponentials and loads take, without overlap."""
        op, gpu, planes = w.op, gpu_of(target.device), self.form.planes
        products = (1, 3)[planes - 1] * ROWS * KEYS * (_depth(op) + _width(op))
        loads = (3 if _is_whole(op) else 8) * planes * KEYS * (_depth(op) + _width(op))
        step = products / (0.6 * gpu.tensor) + (20 * ROWS * KEYS + loads) / 128
        causal = key_range(w, [v for v, _ in loop_names("b", op.batch)], "", "").causal
        keys = max(op.keys - op.queries / 2, op.keys / 2) if causal else op.keys
        clocks = step * ceil(keys / KEYS) + 1000
        return seconds(w, gpu.compute_ns(_tiles(op), 2, clocks), gpu)


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


def _tiles(op: Attention) -> int:
    return prod(op.batch) * -(-op.queries // ROWS)


class AttentionSplit(TensorAttention):
    """Attention of floats split in two bfloat16."""

    name = "cuda_attention_bf16x3"
    precision = "bf16x3"
    form = SPLIT


class AttentionRounded(TensorAttention):
    """Attention of floats as bfloat16."""

    name = "cuda_attention_bf16"
    precision = "bf16"
    form = ROUNDED


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
        """Few queries and many keys, all operands of the type computed in."""
        types = {t.dtype for t in w.inputs[:3] if t is not None}
        few = upper_bound(w.op.queries) < FEW_QUERIES and upper_bound(w.op.keys) >= 2 * LEAST_PART
        return few and types in ({DType.FLOAT}, {DType.DOUBLE})

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
        return parts * (w.op.width + 2) * w.input(0).dtype.itemsize

    def values(
        self, w: Workload[Attention], params: PartParams, target: Target
    ) -> dict[str, object]:
        """Addresses of the operands, both epilogues, and how threads share the keys."""
        op, dtype, count = w.op, w.input(0).dtype, -(-w.op.keys // params.keys)
        rows = [*loop_names("b", op.batch), ("i", op.queries)]
        outer = [v for v, _ in rows]
        inner = replace(w, outputs=(TensorType(dtype, w.outputs[0].shape),))
        scored, score = epilogue_lines(op.scores, inner, "total", [*outer, "j"], 3)
        first = 3 + len(op.scores.views)
        after, value = epilogue_lines(op.result, w, "total", [*outer, "e"], first)
        places = {
            "q": address(op.q_view, [*outer, "p"]),
            "k": address(op.k_view, [*outer[:-1], "p", "j"]),
            "v": address(op.v_view, [*outer[:-1], "j", "e"]),
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
            "used": " ".join((*(places[n] for n in "qkv"), *scored, score, *seen)),
            "query_used": " ".join((places["y"], *after, value)),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: PartParams, target: Target) -> float:
        """Return the seconds for the parts and for combining them."""
        op, gpu = w.op, gpu_of(target.device)
        rows, count = _rows(op), -(-op.keys // params.keys)
        clocks = 4 * params.keys * (op.depth + op.width) / gpu.fmas + 1500
        joining = gpu.compute_ns(rows, 8, 40 * count + 500) + LAUNCH_NS
        joining += gpu.memory_ns(2 * rows * count * (op.width + 2) * w.input(0).dtype.itemsize)
        return seconds(w, gpu.compute_ns(rows * count, 8, clocks), gpu) + 1e-9 * joining


def _rows(op: Attention) -> int:
    """Return the number of queries in all batches."""
    return prod(op.batch) * op.queries


KERNELS = (AttentionSplit(), AttentionRounded(), AttentionParts())
