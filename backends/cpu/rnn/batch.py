"""Recurrent in vectors, all rows of a step together: each weight is read once for many rows.

A step's products come a group of units at a time, with all gates of these units, so that the cells
follow while the sums are in the L1 cache. Before a step h is copied, or rounded to pairs of
bfloat16, for the cells write the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from atc.backends.cpu.matmul.cost import row_tiles, tile_cycles
from atc.backends.cpu.rnn.cells import Phase, cells_of, kind_of, resets_of, size_of
from atc.backends.cpu.rnn.portable import (
    Cut,
    CutParams,
    cut_of,
    overwritten,
    padded,
    products,
    shared_params,
    work_split_of,
)
from atc.backends.cpu.rnn.vectors import streaming_cycles
from atc.backends.kernel import Kernel, Pack, Splittable, Workload, WorkSplit
from atc.backends.machine import CACHE_LINE
from atc.backends.render.bfloat16 import rounded_bits
from atc.backends.render.vector_expr import lanes, vectorisable
from atc.backends.target import Target
from atc.dims import concrete, max_value
from atc.ir.graph import Array, DType
from atc.ir.ops import Recurrent

WIDTHS, GROUPS = (8, 6, 4, 3, 2, 1), (1, 2, 4)
"""Vectors of a register tile, and of the units of a group, that are tried."""
MOST = 3
"""Parameter sets worth trying."""


def phases_of(op: Recurrent, u: int, widest: int) -> tuple[Phase, ...]:
    """Return the phases of a step for groups of u vectors of units."""
    return tuple(
        Phase(p.operand == "reset", p.first, p.gates, p.gates * u,
              max(n for n in range(1, widest + 1) if p.gates * u % n == 0))
        for p in products(op, 1)
    )  # fmt: skip


def grouped(op: Recurrent, r: Array, cut: Cut, units: int, lane: int) -> list[Array]:
    """Return R [D, H, G * H] by phases, zeros where there are no units.

    They are [parts * D][groups][H][gates * units / lanes][lanes]; a group has all its gates.
    """
    directions, hidden = len(op.cells), op.hidden
    block = padded(cut.block, units)
    gates = r.reshape(directions, hidden, op.gates, hidden)
    parts = []
    for part in range(cut.units):
        own = gates[..., part * cut.block : part * cut.block + cut.block]
        parts.append(np.pad(own, ((0, 0),) * 3 + ((0, block - own.shape[-1]),)))
    split = np.stack(parts).reshape(-1, hidden, op.gates, block // units, units)
    ordered = np.moveaxis(split, 3, 1)
    return [
        ordered[:, :, :, p.first : p.first + p.gates].reshape(
            *ordered.shape[:3], p.gates * units // lane, lane
        )
        for p in products(op, 1)
    ]


@dataclass(frozen=True, kw_only=True)
class GroupParams(CutParams):
    """Those of groups of u vectors of units."""

    u: int


@dataclass(frozen=True, kw_only=True)
class BatchParams(GroupParams):
    """Those of register tiles of mr rows by nv vectors."""

    nv: int
    mr: int


GroupT = TypeVar("GroupT", bound=GroupParams)


class BatchedRecurrent(Kernel[Recurrent, GroupT], Splittable[Recurrent, GroupT]):
    """The common part of kernels that compute all rows of a step together."""

    op = Recurrent
    portable = False
    dynamic = True
    fewest = 2
    """Rows from which on it pays."""
    integers = False
    """Whether weights are bytes, and h becomes such."""

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Floats, constant weights of the kernel's kind, rows enough, cells in vectors."""
        op = w.op
        if max_value(op.batch) < self.fewest or bool(op.scales) is not self.integers:
            return False
        operands = (w.inputs[0], *w.outputs)
        floats = all(t is not None and t.dtype is DType.FLOAT for t in operands)
        cells = (e for c in op.cells for e in (c.hidden, c.memory, c.reset) if e is not None)
        wide = lanes(target) > 1
        return floats and w.constant[1] and wide and all(map(vectorisable, cells))

    def phases(self, w: Workload[Recurrent], params: GroupT, target: Target) -> tuple[Phase, ...]:
        """Return the products of a step."""
        raise NotImplementedError

    def cut(self, w: Workload[Recurrent], params: GroupT, target: Target) -> Cut:
        """Return the partitions of a call, parts of units in whole groups."""
        return cut_of(w.op, params, params.u * lanes(target))

    def shared_params(
        self, w: Workload[Recurrent], params: GroupT, target: Target, threads: int
    ) -> Sequence[GroupT]:
        """Into directions, rows, or groups of units."""
        op, weights = w.op, w.input(1)
        found = shared_params(target.machine, op, weights, threads, params.u * lanes(target))
        return [cut.cut(params) for cut in found]

    def work_split(self, w: Workload[Recurrent], params: GroupT, target: Target) -> WorkSplit:
        """Partitions of units wait for each other at each step."""
        return work_split_of(w.op, self.cut(w, params, target))

    def taken(self, w: Workload[Recurrent], params: GroupT, target: Target) -> int:
        """Return the floats of the rows of h that a partition multiplies, and of waiting sums."""
        raise NotImplementedError

    def panel(self, op: Recurrent, phase: Phase, lane: int) -> int:
        """Return the floats of a group's weights."""
        raise NotImplementedError

    def scratch(self, w: Workload[Recurrent], params: GroupT, target: Target) -> int:
        """Rows of h for each partition; behind them what all share: the h of a step and of the next
        one for parts of units, the reset h and the sums that its cells wait with."""
        op, cut = w.op, self.cut(w, params, target)
        own = padded(self.taken(w, params, target), CACHE_LINE // 4)
        shared = (2 * (cut.units > 1) + resets_of(op)) * max_value(size_of(op))
        return 4 * (cut.partitions * own + shared)

    def overwrites(
        self, w: Workload[Recurrent], params: GroupT
    ) -> Mapping[int, tuple[int, ...]]:
        """Let states be replaced where they lie."""
        return overwritten(w, params)

    def values(self, w: Workload[Recurrent], params: GroupT, target: Target) -> dict[str, object]:
        """Sizes and strides, what the partitions have, and the cells."""
        op, cut, lane = w.op, self.cut(w, params, target), lanes(target)
        phases, units = self.phases(w, params, target), params.u * lane
        directions, hidden = len(op.cells), op.hidden
        rows = part_rows(op, cut)
        kinds = list(dict.fromkeys(kind_of(c) for c in op.cells))
        panels = [self.panel(op, p, lane) for p in phases]
        groups = -(-cut.block // units)
        reverse = [c.reverse for c in op.cells]
        return {
            "op": op, "lanes": lane, "units": units, "phases": phases, "panels": panels,
            "weight": "int8_t" if self.integers else "float",
            "own": padded(self.taken(w, params, target), CACHE_LINE // 4), "size": size_of(op),
            "begins": [groups * sum(panels[:k]) for k in range(len(panels))],
            "weights": groups * sum(panels), "sides": cut.sides, "parts": cut.units,
            "partitions": cut.partitions, "block": cut.block, "rows": rows, "row_parts": cut.rows,
            "state_row": (directions if op.batch_major else 1) * hidden,
            "state_side": (1 if op.batch_major else op.batch) * hidden,
            "given_width": op.gates * hidden, "resets": resets_of(op),
            "reverse": str(reverse[0]).lower() if len(set(reverse)) == 1
            else f"d == {reverse.index(True)}", "reverses": any(reverse),
            "initial": [w.inputs[i] is not None for i in (4, 5)],
            "lengths": w.inputs[3] is not None, "last": len(w.outputs) - 1,
            "cells": [
                {"kind": k, "phase": n, **cells_of(op, cell, p, n, params.u, cut, lane)}
                for k, cell in enumerate(kinds) for n, p in enumerate(phases)
            ],
            "kind_of": [kinds.index(kind_of(c)) for c in op.cells],
        }  # fmt: skip


def part_rows(op: Recurrent, cut: Cut) -> list[int]:
    """Return how many rows partitions have: all but the last one, and that, where it differs."""
    each = -(-op.batch // cut.rows)
    return list(dict.fromkeys((each, op.batch - (cut.rows - 1) * each)))


class RecurrentBatch(BatchedRecurrent[BatchParams]):
    """Floats in register tiles of mr rows by nv vectors; a group is u vectors of units."""

    name = "recurrent_batch"
    template = "cpu/rnn/batch.c.j2"
    bf16 = False

    def parameters(self, w: Workload[Recurrent], target: Target) -> Sequence[BatchParams]:
        """Tiles that fill the registers."""
        largest = concrete(w)
        sets = list(_tiles(w.op, target))
        return sorted(sets, key=lambda p: self.cost(largest, p, target))[:MOST]

    def phases(
        self, w: Workload[Recurrent], params: BatchParams, target: Target
    ) -> tuple[Phase, ...]:
        """Return the products of a step."""
        return phases_of(w.op, params.u, params.nv)

    def depth(self, op: Recurrent) -> int:
        """Return the steps of a sum."""
        return -(-op.hidden // 2) if self.bf16 else op.hidden

    def stride(self, op: Recurrent, lane: int) -> int:
        """Return the floats from row to row of the copied h; rows a page apart would crowd."""
        whole = padded(self.depth(op), lane)
        return whole + lane * (whole % 1024 == 0)

    def taken(self, w: Workload[Recurrent], params: BatchParams, target: Target) -> int:
        """Return the floats of rows of h, and of a tile's sums."""
        widest = max(p.vectors for p in self.phases(w, params, target))
        sums = params.mr * widest * lanes(target)
        return self._rows(w, params, target) + sums

    def _rows(self, w: Workload[Recurrent], params: BatchParams, target: Target) -> int:
        op = w.op
        rows = part_rows(op, self.cut(w, params, target))[0]
        return max_value(rows) * self.stride(op, lanes(target))

    def column(self, op: Recurrent) -> int:
        """Return the elements of a packed column of weights."""
        return self.depth(op)

    def panel(self, op: Recurrent, phase: Phase, lane: int) -> int:
        """Return the elements of a group's weights."""
        return self.column(op) * phase.vectors * lane

    def deep(self, op: Recurrent, own: Array) -> Array:
        """Return weights [.., groups, H, vectors, lanes] as the steps of a sum read them."""
        return _as_bf16x2(own) if self.bf16 else own

    def packs(
        self, w: Workload[Recurrent], params: BatchParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack the weights by groups."""
        return {1: lambda r: self._pack(w, params, target, r)}

    def _pack(self, w: Workload[Recurrent], params: BatchParams, target: Target, r: Array) -> Array:
        """Return R as [parts * D][phases][groups][passes][depth][vectors of a pass]."""
        op, cut, lane = w.op, self.cut(w, params, target), lanes(target)
        parts = []
        phases = self.phases(w, params, target)
        by_phase = grouped(op, r, cut, params.u * lane, lane)
        for phase, own in zip(phases, by_phase, strict=True):
            deep = self.deep(op, own)
            split = deep.reshape(*deep.shape[:3], phase.passes, -1)
            parts.append(np.moveaxis(split, 3, 2).reshape(len(own), -1))
        return np.concatenate(parts, 1)

    def values(
        self, w: Workload[Recurrent], params: BatchParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles beside what all kernels of rows together have."""
        op, lane = w.op, lanes(target)
        found = super().values(w, params, target)
        cut, mr = self.cut(w, params, target), params.mr
        tiles = [row_tiles(n, mr) for n in part_rows(op, cut)]
        heights = sorted({t.rows for each in tiles for t in each})
        shapes = {(p.width, p.vectors) for p in self.phases(w, params, target)}
        return {
            **found, "tiles": tiles, "depth": self.depth(op), "column": self.column(op),
            "stride": self.stride(op, lane),
            "sums_at": self._rows(w, params, target),
            "multiplies": [(h, *shape) for shape in sorted(shapes) for h in heights],
            "hidden_whole": op.hidden // (2 * lane) * 2 * lane, "bf16": self.bf16,
        }  # fmt: skip

    def cost(self, w: Workload[Recurrent], params: BatchParams, target: Target) -> float:
        """Cycles of all tiles, or of reading the weights; cells cost the same in all kernels."""
        op, lane, mr = w.op, lanes(target), params.mr
        depth = self.depth(op)
        machine = target.machine.of_pairs if self.bf16 else target.machine
        far = int(op.batch * self.stride(op, lane) * 4 > machine.l1_kept)
        groups = -(-op.hidden // (params.u * lane))
        cycles = nbytes = 0.0
        for phase in self.phases(w, params, target):
            tiles = sum(
                t.count * tile_cycles(machine, t.rows, phase.width, lane, depth, 1, far)
                for t in row_tiles(op.batch, mr)
            )
            cycles += groups * phase.passes * tiles
            nbytes += groups * self.panel(op, phase, lane) * (1 if self.integers else 4)
        copied = op.batch * op.hidden / lane * 2
        each = max(cycles, streaming_cycles(machine, nbytes, len(op.cells))) + copied
        return op.steps * len(op.cells) * each


class RecurrentBf16(RecurrentBatch):
    """Pairs of bfloat16 with AVX512_BF16, two products a lane; sums are float32."""

    name = "recurrent_bf16"
    precision = "bf16"
    headers = ("bf16",)
    bf16 = True
    fewest = 1

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Accept the workloads of the float kernel."""
        return "avx512_bf16" in target.features and super().accepts(w, target)


def _tiles(op: Recurrent, target: Target) -> Iterator[BatchParams]:
    """Yield tiles of at most as many sums as there are registers beside those of the weights."""
    seen = set()
    for nv in WIDTHS:
        for u in GROUPS:
            if u > 1 and (u - 1) * lanes(target) >= op.hidden:
                continue
            phases = phases_of(op, u, nv)
            widest = max(p.width for p in phases)
            high = min((target.vector_registers - 1 - widest) // widest, max_value(op.batch))
            if high < 1 or (u, key := tuple(p.width for p in phases)) in seen:
                continue
            seen.add((u, key))
            yield BatchParams(u=u, nv=widest, mr=row_tiles(max_value(op.batch), high)[0].rows)


def _as_bf16x2(own: Array) -> Array:
    """Return [.., H, vectors, lanes] rounded to bfloat16, two numbers along H in each word."""
    odd = own.shape[2] % 2
    full = np.pad(own, ((0, 0), (0, 0), (0, odd), (0, 0), (0, 0)))
    split = rounded_bits(full).reshape(*own.shape[:2], -1, 2, *own.shape[3:])
    return np.ascontiguousarray(np.moveaxis(split, 3, -1)).view(np.float32)[..., 0]


KERNELS = (RecurrentBatch(), RecurrentBf16())
