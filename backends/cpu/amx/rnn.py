"""Recurrent in AMX's tiles: bf16, or bf16x3, three products of numbers split into two bfloat16.

Before a step h is rounded or split into scratch; a group's sums are up to 32 rows of a few tiles of
columns, and their cells wait until the next products run beside them. In bf16x3 a row of sums that
isn't finite is summed once more in float, for parts of an infinity times parts of a number make
NaN. The weights lie in tiles in the order of use.

A tile product takes as long for one row as for 16, so that few rows are better off in vectors: the
costs say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atc.backends.cpu.amx.cost import PRODUCT, REACHED, STREAM, l2_share, splitting
from atc.backends.cpu.amx.matmul import BLOCK_END, ROW_END, STEP
from atc.backends.cpu.amx.row_blocks import SIDE
from atc.backends.cpu.matmul.cost import STREAM_AHEAD
from atc.backends.cpu.rnn.batch import (
    GROUPS,
    BatchedRecurrent,
    GroupParams,
    grouped,
    part_rows,
    phases_of,
)
from atc.backends.cpu.rnn.cells import Phase
from atc.backends.cpu.rnn.portable import Cut, padded
from atc.backends.kernel import Pack, Workload
from atc.backends.render.bfloat16 import in_parts
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.graph import Array
from atc.ir.ops import Recurrent

TILE = 256
"""Floats of a tile."""
MOST_SUMS = 4
"""Tiles of sums at a time: rows of tiles times columns of tiles."""
WAIT = 52.0
"""Cycles from one product to the next on the same sums."""


class RecurrentAmx(BatchedRecurrent[GroupParams]):
    """Products of h in tiles, one of bfloat16; a group is u tiles of units."""

    name = "recurrent_amx_bf16"
    template = "cpu/amx/rnn.c.j2"
    precision = "bf16"
    headers = ("bf16", "tiles")
    planes = 1

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Accept the workloads of the vector kernel with a known number of rows."""
        able = {"amx_tile", "amx_bf16"} <= target.features and not is_dynamic(w.op.batch)
        return able and super().accepts(w, target)

    def parameters(self, w: Workload[Recurrent], target: Target) -> Sequence[GroupParams]:
        """Tiles of units of a group, the best first."""
        op, largest = w.op, concrete(w)
        sets = [GroupParams(u=u) for u in GROUPS if (u - 1) * 16 < op.hidden]
        return sorted(sets, key=lambda p: self.cost(largest, p, target))[:2]

    def phases(
        self, w: Workload[Recurrent], params: GroupParams, target: Target
    ) -> tuple[Phase, ...]:
        """Return the products of a step; the tiles of a pass are as many as fit."""
        op, u = w.op, params.u
        tall = 2 if part_rows(op, self.cut(w, params, target))[0] > 16 else 1
        return phases_of(op, u, MOST_SUMS // tall)

    def shared_params(
        self, w: Workload[Recurrent], params: GroupParams, target: Target, threads: int
    ) -> Sequence[GroupParams]:
        """Into directions, groups of units, or rows where no tile is split."""
        found = super().shared_params(w, params, target, threads)
        return sorted(found, key=lambda p: self._spare(w, p, target))

    def _spare(self, w: Workload[Recurrent], params: GroupParams, target: Target) -> bool:
        """Return whether partitions of rows have more tiles than the whole."""
        op, cut = w.op, self.cut(w, params, target)
        return -(-part_rows(op, cut)[0] // 16) * cut.rows > -(-op.batch // 16)

    def rows(self, w: Workload[Recurrent], params: GroupParams, target: Target) -> int:
        """Return the rows of a partition, those included that fill its last tile."""
        return padded(part_rows(w.op, self.cut(w, params, target))[0], 16)

    def taken(self, w: Workload[Recurrent], params: GroupParams, target: Target) -> int:
        """Return the floats of rows of h, and of two blocks of sums."""
        op = w.op
        rows = self.rows(w, params, target)
        block = min(rows, SIDE) * 16 * self._widest(w, params, target)
        return -(-op.hidden // STEP) * rows * self.planes * 16 + 2 * block

    def _widest(self, w: Workload[Recurrent], params: GroupParams, target: Target) -> int:
        return max(p.vectors for p in self.phases(w, params, target))

    def panel(self, op: Recurrent, phase: Phase, lane: int) -> int:
        """Return the floats of a group's weights."""
        return -(-op.hidden // STEP) * self.planes * phase.vectors * TILE

    def packs(
        self, w: Workload[Recurrent], params: GroupParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack the weights in tiles by groups."""
        op, cut, units = w.op, self.cut(w, params, target), params.u * 16
        phases, planes = self.phases(w, params, target), self.planes
        return {1: lambda r: pack_tiles(op, r, cut, units, phases, planes)}

    def values(
        self, w: Workload[Recurrent], params: GroupParams, target: Target
    ) -> dict[str, object]:
        """Return steps, sizes, and the order of instructions, beside what all have."""
        op, rows = w.op, self.rows(w, params, target)
        steps = -(-op.hidden // STEP)
        phases, cut = self.phases(w, params, target), self.cut(w, params, target)
        blocks = -(-rows // SIDE)
        far = sum(self.panel(op, p, lanes(target)) for p in phases) * len(op.cells) * 4 * (
            -(-op.hidden // (params.u * 16))) > l2_share(target.machine)  # fmt: skip
        heights = {n for each in part_rows(op, cut) for n in _tiles(each)}
        return {
            **super().values(w, params, target), "planes": self.planes, "steps": steps,
            "rest": op.hidden - (steps - 1) * STEP, "tall": sorted(heights),
            "orders": {
                (tall, n): step_order(
                    tall, p.width, self.planes, -(-p.width * self.planes * 16 // blocks) * far)
                for tall in heights for n, p in enumerate(phases)
            },
            "lines": [-(-p.width * self.planes * 16 // blocks) * far for p in phases],
            "ahead": STREAM_AHEAD // 4 if blocks == 1 else 0,
            "each_of": [-(-min(rows, SIDE) // (steps * p.passes)) for p in phases],
            "room": min(rows, SIDE) * 16 * self._widest(w, params, target),
            "sums_at": steps * rows * self.planes * 16,
        }  # fmt: skip

    def cost(self, w: Workload[Recurrent], params: GroupParams, target: Target) -> float:
        """Cycles of tile products, splitting, what nothing hides of a block's end, and reading the
        weights; cells cost the same in all kernels, but run beside the products here."""
        op = w.op
        steps, tiles = -(-op.hidden // STEP), _tiles(op.batch)
        groups = -(-op.hidden // (params.u * 16))
        each = {1: 1, 2: 3}[self.planes]
        cycles = nbytes = 0.0
        phases = self.phases(w, params, target)
        for p in phases:
            panel = self.panel(op, p, lanes(target)) * 4
            for tall in tiles:
                sums = tall * p.width
                products = p.passes * steps * each * sums * max(PRODUCT, WAIT / sums)
                ends = BLOCK_END + tall * 16 * p.vectors * ROW_END / 2
                cycles += groups * (products + panel / REACHED + 0.2 * ends)
            nbytes += groups * panel
        streamed = nbytes / STREAM if nbytes * len(op.cells) > l2_share(target.machine) else 0.0
        copied = len(phases) * op.batch * steps * splitting(self.planes)
        return op.steps * len(op.cells) * (max(cycles, streamed) + copied)


class RecurrentAmxSplit(RecurrentAmx):
    """Products of h in tiles, three of split parts."""

    name = "recurrent_amx_bf16x3"
    precision = "bf16x3"
    planes = 2


def _tiles(rows: int) -> list[int]:
    """Return how many tiles of rows each block of up to 32 rows has."""
    return [2] * (rows // SIDE) + [-(-(rows % SIDE) // 16)] * (rows % SIDE > 0)


def pack_tiles(
    op: Recurrent, r: Array, cut: Cut, units: int, phases: Sequence[Phase], planes: int
) -> Array:
    """Return R [D, H, G * H] as tiles of pairs, by parts of the units and directions.

    [phases][groups][passes][H / 32][lower, upper][tiles of a pass][16 pairs][16 columns]; pair j of
    a step is of the numbers j and 16 + j. Only the upper, rounded to nearest, where planes is 1.
    """
    parts = []
    for phase, own in zip(phases, grouped(op, r, cut, units, 16), strict=True):
        deep = np.pad(own, ((0, 0), (0, 0), (0, -op.hidden % STEP), (0, 0), (0, 0)))
        cells = np.stack(in_parts(deep, planes), 2)  # [.., groups, planes, H, vectors, 16]
        steps = cells.reshape(*cells.shape[:3], -1, 2, 16, phase.passes, phase.width, 16)
        ordered = steps.transpose(0, 1, 6, 3, 2, 7, 5, 8, 4)
        packed = np.ascontiguousarray(ordered).view(np.float32)
        parts.append(packed.reshape(len(own), -1))
    return np.concatenate(parts, 1)


def step_order(tall: int, width: int, planes: int, lines: int) -> list[tuple[str, int, int, int]]:
    """Return a step's instructions for so many tiles of rows and of columns.

    ("A", register, row tile, plane), ("W", register, column tile, plane), ("dot", sums, A, W), each
    load before its first product, and after each product its share of the `lines` to ask for.
    Planes of A are upper, lower, those of W lower, upper.
    """
    rounds = [(0, 0)] if planes == 1 else [(0, 0), (0, 1), (1, 1)]
    order: list[tuple[str, int, int, int]] = []
    held: dict[int, tuple[int, int]] = {}
    products, done, asked = len(rounds) * tall * width, 0, 0
    for a_plane, w_plane in rounds:
        for column in range(width):
            for row in range(tall):
                needed = (("A", 4 + row, row, a_plane), ("W", 6 + column % 2, column, w_plane))
                for kind, register, index, plane in needed:
                    if held.get(register) != (index, plane):
                        order.append((kind, register, index, plane))
                        held[register] = (index, plane)
                order.append(("dot", row * width + column, 4 + row, 6 + column % 2))
                done += 1
                while asked < lines * done // products:
                    order.append(("ask", asked, 0, 0))
                    asked += 1
    return order


KERNELS = (RecurrentAmx(), RecurrentAmxSplit())
