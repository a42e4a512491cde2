"""CUDA kernels of Attention on tensor cores: scores never leave a block's registers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.tensor import HALVES, ROUNDED, SHARED, Form
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import finish, loop_names
from atc.backends.target import Target
from atc.dims import high
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention

ROWS, KEYS = 64, 32
"""Queries of a block, and keys that it looks at a time."""

WIDEST, GROUP = 128, 64
"""Results of a query at most, and of how many of them there are fragments at a time."""


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
        return {
            "op": op, "form": self.form, "rows": ROWS, "depth": _depth(op), "width": _width(op),
            "groups": -(-_width(op) // GROUP), "tiles": _tiles(op),
            "indices": unravel("at", tiles), "numbers": numbers, "y": y, "scored": scored,
            "score": score, "after": after, "value": value,
            "used": " ".join((*places.values(), y, *scored, score, *after, value, "tile_i")),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Return the seconds that tensor cores, exponentials and loads take, one after another."""
        op, gpu, planes = w.op, gpu_of(target.device), self.form.planes
        products = (1, 3)[planes - 1] * ROWS * KEYS * (_depth(op) + _width(op))
        loads = 8 * planes * KEYS * (_depth(op) + _width(op))
        step = products / (0.6 * gpu.tensor) + (24 * ROWS * KEYS + loads) / 128
        clocks = step * -(-op.keys // KEYS) + 1000
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


KERNELS = (AttentionSplit(), AttentionRounded())
