"""CUDA kernels of Attention: on tensor cores, or for few queries, whose keys blocks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from atc.backends.cuda.gpus import LAUNCH_NS, gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.tensor import HALVES, ROUNDED, SHARED, Form
from atc.backends.kernel import KernelParams, Launch, Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.key_range import key_range
from atc.backends.render.loops import finish, loop_names
from atc.backends.target import Target
from atc.dims import concrete, high
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention

ROWS, KEYS = 64, 32
"""Queries of a block, and keys that it looks at a time."""

WIDEST, GROUP = 128, 64
"""Results of a query at most, and of how many of them there are fragments at a time."""


FEW_QUERIES, LEAST_PART, LANES = 8, 64, 8
"""Queries from which on a warp has work; keys of a block at least; threads that share a key."""


@dataclass(frozen=True, kw_only=True)
class PartParams(KernelParams):
    """The keys that a block looks at."""

    keys: int


class TensorAttention(DeviceKernel[Attention]):
    """Attention in tiles: a block has some queries, and takes the keys in turn.

    After T. Dao, "FlashAttention-2", 2023: what is summed so far is scaled down where a new score
    is the largest, so that no score is kept.
    """

    op = Attention
    template = "cuda/attention_tensor.cu.j2"
    dynamic = True
    barriers = True
    tensor_cores = True
    form: Form

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Floats, queries enough for a warp, operands that shared memory has room for."""
        op = w.op
        floats = {t.dtype for t in w.inputs[:3] if t is not None} == {DType.FLOAT}
        size = self.form.planes * 64 * (_depth(op) // 32 * (ROWS + KEYS) + _width(op))
        able = gpu_of(target.device).tensor > 0 and size <= SHARED
        return floats and able and min(high(op.queries), high(op.keys)) >= 8 and op.width <= WIDEST

    def launch(self, w: Workload[Attention], params: Params, target: Target) -> Launch:
        """Return a block for each tile, up to a limit."""
        return grid(_tiles(w.op), MOST_BLOCKS, 2 * ROWS)

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands, parts of numbers, and both epilogues."""
        op = w.op
        batch = loop_names("b", op.batch)
        outer = [*(v for v, _ in batch), "i"]
        inner = replace(w, outputs=(TensorType(DType.FLOAT, w.outputs[0].shape),))
        scored, score = finish(op.scores, inner, "total", [*outer, "j"], 3)
        after, value = finish(op.result, w, "total", [*outer, "e"], 3 + len(op.scores.views))
        places = {
            "q": f"x0[{address(op.q_view, [*outer, 'p'])}]",
            "k": f"x1[{address(op.k_view, [*outer[:-1], 'p', 'j'])}]",
            "v": f"x2[{address(op.v_view, [*outer[:-1], 'j', 'e'])}]",
        }  # fmt: skip
        parts = self.form.numbers
        numbers: dict[str, list[object]] = {
            name: [n.format(value=place) for n in parts] for name, place in places.items()
        }
        numbers["p"] = [(n.format(value="even"), n.format(value="odd")) for n in parts]
        y = address(op.y_view, [*outer, "e"])
        tiles = [*batch, ("tile_i", -(-op.queries // ROWS))]
        seen = key_range(w, outer[:-1], "first_i", "last_i").lines
        return {
            "op": op, "form": self.form, "rows": ROWS, "depth": _depth(op), "width": _width(op),
            "groups": -(-_width(op) // GROUP), "tiles": _tiles(op),
            "indices": unravel("at", tiles), "numbers": numbers, "y": y, "scored": scored,
            "score": score, "after": after, "value": value, "seen": seen,
            "used": " ".join((*places.values(), y, *scored, score, *after, value, *seen, "tile_i")),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Return the seconds that tensor cores, exponentials and loads take, one after another."""
        op, gpu, planes = w.op, gpu_of(target.device), self.form.planes
        products = (1, 3)[planes - 1] * ROWS * KEYS * (_depth(op) + _width(op))
        loads = 8 * planes * KEYS * (_depth(op) + _width(op))
        step = products / (0.6 * gpu.tensor) + (24 * ROWS * KEYS + loads) / 128
        causal = key_range(w, [v for v, _ in loop_names("b", op.batch)], "", "").causal
        keys = max(op.keys - op.queries / 2, op.keys / 2) if causal else op.keys
        clocks = step * ceil(keys / KEYS) + 1000
        return seconds(w, gpu.compute_ns(_tiles(op), 2, clocks), gpu)


def _depth(op: Attention) -> int:
    return -(-op.depth // 32) * 32


def _width(op: Attention) -> int:
    step = 16 if op.width <= GROUP else GROUP
    return -(-op.width // step) * step


def _tiles(op: Attention) -> int:
    return prod(op.batch) * -(-op.queries // ROWS)


class AttentionSplit(TensorAttention):
    """Attention of floats in halves."""

    name = "cuda_attention_bf16x3"
    precision = "bf16x3"
    form = HALVES


class AttentionRounded(TensorAttention):
    """Attention of floats as bfloat16."""

    name = "cuda_attention_bf16"
    precision = "bf16"
    form = ROUNDED


class AttentionParts(DeviceKernel[Attention, PartParams]):
    """Attention of few queries: blocks look at parts of a query's keys, which are then joined.

    As in "Flash-Decoding", T. Dao and others, 2023: a word of a decoder has too few queries to keep
    a device busy. The order of all sums is always the same.
    """

    name = "cuda_attention_parts"
    op = Attention
    template = "cuda/attention_parts.cu.j2"
    dynamic = True
    barriers = True
    threads = 128

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Few queries and many keys, all operands of the type computed in."""
        types = {t.dtype for t in w.inputs[:3] if t is not None}
        few = high(w.op.queries) < FEW_QUERIES and high(w.op.keys) >= 2 * LEAST_PART
        return few and types in ({DType.FLOAT}, {DType.DOUBLE})

    def parameters(self, w: Workload[Attention], target: Target) -> Sequence[PartParams]:
        """Parts of several sizes, those that are estimated to take least time first."""
        sizes = (LEAST_PART << k for k in range(5))
        found = [PartParams(keys=n) for n in sizes if 2 * n <= high(w.op.keys)]
        largest = concrete(w)
        return sorted(found, key=lambda params: self.cost(largest, params, target))

    def launch(self, w: Workload[Attention], params: PartParams, target: Target) -> Launch:
        """Return a block for each part, and then for each query, up to a limit."""
        rows = _rows(w.op)
        first = grid(rows * -(-w.op.keys // params.keys), MOST_BLOCKS, self.threads)
        return replace(first, merge=min(high(rows), MOST_BLOCKS))

    def scratch(self, w: Workload[Attention], params: PartParams, target: Target) -> int:
        """Return what is found of every part."""
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
        scored, score = finish(op.scores, inner, "total", [*outer, "j"], 3)
        after, value = finish(op.result, w, "total", [*outer, "e"], 3 + len(op.scores.views))
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
            "indices": unravel("at", [*rows, ("part", count)]), "own_indices": unravel("at", rows),
            **places, "scored": scored, "score": score, "after": after, "value": value,
            "seen": seen, "exp": "exp" if wide else "expf", "fma": "fma" if wide else "fmaf",
            "used": " ".join((*(places[n] for n in "qkv"), *scored, score, *seen)),
            "own_used": " ".join((places["y"], *after, value)),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: PartParams, target: Target) -> float:
        """Return the seconds that the parts take, and joining them."""
        op, gpu = w.op, gpu_of(target.device)
        rows, count = _rows(op), -(-op.keys // params.keys)
        clocks = 4 * params.keys * (op.depth + op.width) / gpu.fmas + 1500
        joining = gpu.compute_ns(rows, 8, 40 * count + 500) + LAUNCH_NS
        joining += gpu.memory_ns(2 * rows * count * (op.width + 2) * w.input(0).dtype.itemsize)
        return seconds(w, gpu.compute_ns(rows * count, 8, clocks), gpu) + 1e-9 * joining


def _rows(op: Attention) -> int:
    """Return the queries of all batches."""
    return prod(op.batch) * op.queries


KERNELS = (AttentionSplit(), AttentionRounded(), AttentionParts())
