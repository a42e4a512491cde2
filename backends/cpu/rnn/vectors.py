"""Recurrent in vectors: products in register panels, the cell V_LANES units at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.rnn.portable import (
    Cut,
    CutParams,
    ScratchLayout,
    cut_of,
    direction_weights,
    frame,
    overwritten,
    pack_panels,
    padded,
    place_of,
    products,
    shared_params,
    shares,
    work_split_of,
)
from atc.backends.kernel import Kernel, Pack, Splittable, Workload, WorkSplit
from atc.backends.machine import CALL, Machine
from atc.backends.render.recurrent import places
from atc.backends.render.vector_expr import lanes, render_vector, vectorisable
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.expr import Expr
from atc.ir.graph import Array, DType
from atc.ir.ops import Cell, Recurrent

WORD = 4
"""Bytes of a word: products that a step of integers sums."""
DEEPEST = 1 << 15
"""Units up to which sums of products of bytes fit 32 bits."""


@dataclass(frozen=True, kw_only=True)
class PanelParams(CutParams):
    """Those of panels of nv vectors."""

    nv: int


def _width(params: PanelParams, target: Target) -> int:
    """Return the columns of a panel."""
    return params.nv * lanes(target)


class RecurrentVectors(Kernel[Recurrent, PanelParams], Splittable[Recurrent, PanelParams]):
    """A Recurrent of floats with constant weights."""

    name = "recurrent_simd"
    op = Recurrent
    template = "cpu/rnn/vectors.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Constant weights, cells of functions that the vocabulary has."""
        op = w.op
        floats = all(t.dtype is DType.FLOAT for t in w.outputs) and op.hidden <= DEEPEST
        cells = (e for c in op.cells for e in (c.hidden, c.memory, c.reset) if e is not None)
        wide = lanes(target) > 1
        return floats and w.constant[1] and wide and all(map(vectorisable, cells))

    def parameters(self, w: Workload[Recurrent], target: Target) -> Sequence[PanelParams]:
        """Vectors of a panel: as many as fill the pipeline, unless padding outweighs it."""
        sets = [PanelParams(nv=nv) for nv in _WAITING]
        largest = concrete(w)
        return sorted(sets, key=lambda p: self.cost(largest, p, target))

    def shared_params(
        self, w: Workload[Recurrent], params: PanelParams, target: Target, threads: int
    ) -> Sequence[PanelParams]:
        """Into directions, rows, or units, with panels for so many units."""
        op, weights = w.op, w.input(1)
        found = []
        for cut in shared_params(target.machine, op, weights, threads, lanes(target)):
            block = cut_of(op, cut, lanes(target)).block
            sets = (cut.cut(replace(params, nv=nv)) for nv in _WAITING)
            found.append(min(sets, key=lambda p: _work(op, block, p, target)))
        return found

    def work_split(self, w: Workload[Recurrent], params: PanelParams, target: Target) -> WorkSplit:
        """Partitions of units wait for each other at each step."""
        op = w.op
        return work_split_of(op, cut_of(op, params, lanes(target)))

    def scratch(self, w: Workload[Recurrent], params: PanelParams, target: Target) -> int:
        """Reserve the recurrent shares of a row, its reset h, and h in bytes: a ScratchLayout."""
        op = w.op
        cut = cut_of(op, params, lanes(target))
        return ScratchLayout.of(op, cut, _width(params, target), 4).elements(cut) * 4

    def packs(
        self, w: Workload[Recurrent], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack the weights."""
        op = w.op
        pack, cut = pack_int8x4 if op.scales else pack_panels, cut_of(op, params, lanes(target))
        return {1: lambda r: pack(op, r, cut, _width(params, target))}

    def overwrites(
        self, w: Workload[Recurrent], params: PanelParams
    ) -> Mapping[int, tuple[int, ...]]:
        """Let states be replaced where they lie."""
        return overwritten(w, params)

    def values(
        self, w: Workload[Recurrent], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Addresses of the operands, and each direction's formulas."""
        op = w.op
        width, cut = _width(params, target), cut_of(op, params, lanes(target))
        words = -(-op.hidden // WORD)
        depth = WORD * (words + 1) if op.scales else op.hidden  # of a column in its panel
        rest = (op.hidden - (cut.units - 1) * cut.block) % lanes(target)
        hidden_rest = op.hidden % lanes(target)
        return {
            **frame(w, cut, width), "nv": params.nv, "lanes": lanes(target), "width": width,
            "products": [
                (p.operand, p.weights // op.hidden * depth, padded(p.gates * cut.block, width),
                 p.result)
                for p in products(op, cut.block, width)
            ],
            "alternates": not op.scales and (is_dynamic(op.steps) or op.steps > 1),
            "words": words, "hidden_whole": op.hidden - hidden_rest, "hidden_rest": hidden_rest,
            "whole": cut.block // lanes(target) * lanes(target), "rest": rest,
            "directions": [
                {**places(op, d),
                 **direction_weights(op, cut, d, shares(op, cut.block, width) * depth),
                 **_formulas(op, d, cell, cut, width, target)}
                for d, cell in enumerate(op.cells)
            ],
        }  # fmt: skip

    def cost(self, w: Workload[Recurrent], params: PanelParams, target: Target) -> float:
        """Cycles: few accumulators wait for each other, weights may come from far, panels begin."""
        op = w.op
        columns = shares(op, op.hidden, _width(params, target))
        each = (4 if op.scales else 1) * target.machine.fma_rate(target.vector_bytes)
        work = _work(op, op.hidden, params, target) / (each * lanes(target))
        size = columns * op.hidden * (1 if op.scales else 4)
        reading = streaming_cycles(target.machine, size, len(op.cells))
        panels = columns / _width(params, target) * (CALL + 1.5 * params.nv)
        return op.steps * op.batch * len(op.cells) * (work + reading + panels)


def streaming_cycles(machine: Machine, nbytes: float, directions: int) -> float:
    """Return the cycles to read a direction's weights once more, from where they stay meanwhile."""
    kept = nbytes * directions
    if kept <= machine.l1_kept:
        return 0.0
    levels = (machine.l2.size, machine.l2.rate), (machine.l3.size // 2, machine.far_rate)
    return nbytes / next((rate for size, rate in levels if kept <= size), machine.memory)


_WAITING = {8: 1.0, 6: 1.15, 4: 1.5, 3: 2.1, 2: 2.7, 1: 5.2}
"""How many times longer a product takes with so many vectors of a panel."""


def _work(op: Recurrent, units: int, params: PanelParams, target: Target) -> float:
    """Return the multiplications of a step for so many units, longer where they wait."""
    return shares(op, units, _width(params, target)) * op.hidden * _WAITING[params.nv]


def pack_int8x4(op: Recurrent, r: Array, cut: Cut, width: int) -> Array:
    """Return INT8 R [D, H, G * H] as panels of bytes: each column's INT32 sum, then words of 4
    bytes [ceil(H / 4)][width][4], filled up with zeros. They lie as those of pack_panels do."""
    panels = pack_panels(op, r, cut, width).reshape(cut.units * len(op.cells), -1, op.hidden, width)
    deep = np.pad(panels, ((0, 0), (0, 0), (0, -op.hidden % WORD), (0, 0)))
    sums = panels.sum(2, dtype=np.int32)[..., None].view(np.int8)
    words = deep.reshape(*deep.shape[:2], -1, WORD, width).swapaxes(3, 4)
    whole = np.concatenate([sums[:, :, None], words], 2)
    return np.ascontiguousarray(whole.reshape(len(whole), -1))


def _formulas(
    op: Recurrent, d: int, cell: Cell, cut: Cut, width: int, target: Target
) -> dict[str, object]:
    """Return the formulas of one direction: of whole vectors and of the units after them."""
    last = op.hidden - (cut.units - 1) * cut.block
    rest = last % lanes(target)
    return {
        "reverse": cell.reverse, "reset": bool(cell.reset), "memory": bool(cell.memory),
        "body": _cell(op, width, d, cell, cut, "j", ""),
        "tail": _cell(op, width, d, cell, cut, str(last - rest), str(rest)),
    }  # fmt: skip


def _cell(
    op: Recurrent, width: int, d: int, cell: Cell, cut: Cut, at: str, count: str
) -> dict[str, object]:
    """Return the formulas of the units from `at` on: a whole vector, or `count` of them."""

    def read(k: int) -> str:
        array, offset = place_of(op, d, k, cut, width)
        if array == "memory":
            return array
        place = " + ".join((array, *(p for p in (at, str(offset)) if p not in ("", "0"))))
        return f"v_load_n({place}, {count})" if count else f"v_load({place})"

    reset_lines, reset = _rendered(cell.reset, read, "r")
    lines, memory = _rendered(cell.memory, read, "m")
    shared, hidden = _rendered(cell.hidden, read, "v")
    if memory:
        lines.append(f"const vf32 memory = {memory};")
    return {
        "at": at, "count": count, "reset_lines": reset_lines, "reset": reset,
        "lines": [*lines, *shared], "hidden": hidden,
    }  # fmt: skip


def _rendered(expr: Expr | None, read: Callable[[int], str], prefix: str) -> tuple[list[str], str]:
    return render_vector(expr, read, prefix) if expr is not None else ([], "")


KERNELS = (RecurrentVectors(),)
