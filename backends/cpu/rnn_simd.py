"""Recurrent in vectors: products in register panels, the cell V_LANES units at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from atc.backends.cpu.expr import literal
from atc.backends.cpu.rnn import pack_panels, padded, place_of, places, products, shares
from atc.backends.cpu.vector_expr import lanes, render_vector, vectorisable
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.dims import concrete
from atc.expr import Expr
from atc.ir import Array, DType
from atc.ops import Cell, Recurrent

QUAD = 4
"""Bytes of a word: products that a step of integers sums."""
DEEPEST = 1 << 15
"""Units up to which sums of products of bytes fit 32 bits."""


def _width(params: Params, target: Target) -> int:
    """Return the columns of a panel."""
    return int(params["nv"]) * lanes(target)


class RecurrentVectors(Kernel):
    """A Recurrent of floats with constant weights."""

    name = "recurrent_simd"
    op = Recurrent
    template = "cpu/recurrent_simd.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Constant weights, cells of functions that the vocabulary has."""
        op = w.op
        assert isinstance(op, Recurrent)
        floats = all(t.dtype is DType.FLOAT for t in w.outputs) and op.hidden <= DEEPEST
        cells = (e for c in op.cells for e in (c.hidden, c.memory, c.reset) if e is not None)
        wide = lanes(target) > 1 and 2 * op.hidden >= lanes(target)
        return floats and w.constant[1] and wide and all(map(vectorisable, cells))

    def parameters(self, w: Workload, target: Target) -> Sequence[Params]:
        """Vectors of a panel: as many as fill the pipeline, unless padding outweighs it."""
        op = w.op
        assert isinstance(op, Recurrent)
        sets = [{"nv": nv} for nv in (8, 4, 2, 1)]
        largest = concrete(w)
        return sorted(sets, key=lambda p: self.cost(largest, p, target))

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        """The recurrent shares of one row, its reset h, and h in bytes."""
        op = w.op
        assert isinstance(op, Recurrent)
        floats = (shares(op, _width(params, target)) + op.hidden) * 4
        return floats + (padded(op.hidden, QUAD) if op.scales else 0)

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """Pack the weights."""
        op = w.op
        assert isinstance(op, Recurrent)
        pack = pack_quads if op.scales else pack_panels
        return {1: lambda r: pack(op, r, _width(params, target))}

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands, and each direction's formulas."""
        op = w.op
        assert isinstance(op, Recurrent)
        width = _width(params, target)
        whole = op.hidden // lanes(target) * lanes(target)
        quads = -(-op.hidden // QUAD)
        depth = QUAD * (quads + 1) if op.scales else op.hidden  # of a column in its panel
        return {
            "op": op, "nv": params["nv"], "lanes": lanes(target), "width": width,
            "products": [
                (p.operand, p.weights // op.hidden * depth, padded(p.columns, width), p.result)
                for p in products(op, width)
            ],
            "shares": shares(op, width), "weights": shares(op, width) * depth,
            "scales": [literal(s, DType.FLOAT) for s in op.scales], "quads": quads,
            "whole": whole, "rest": op.hidden - whole, "lengths": w.inputs[3] is not None,
            "directions": [
                {"d": d, "reverse": cell.reverse, **places(op, d),
                 "reset": bool(cell.reset), "memory": bool(cell.memory),
                 "body": _cell(op, width, d, cell, "j", ""),
                 "tail": _cell(op, width, d, cell, str(whole), str(op.hidden - whole))}
                for d, cell in enumerate(op.cells)
            ],
            "initial": [w.inputs[i] is not None for i in (4, 5)],
            "sequence": f"y{len(w.outputs) - 1}",
        }  # fmt: skip

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Against the scalar kernel's multiplications; few accumulators wait for each other."""
        op = w.op
        assert isinstance(op, Recurrent)
        waiting = {1: 4.0, 2: 2.0, 4: 1.2, 8: 1.0}[int(params["nv"])]
        work = op.steps * op.batch * len(op.cells) * shares(op, _width(params, target)) * op.hidden
        return work * waiting / ((8 if op.scales else 2) * lanes(target))


def pack_quads(op: Recurrent, r: Array, width: int) -> Array:
    """Return INT8 R [D, H, G * H] as panels [D][products][columns / width] of bytes: each column's
    INT32 sum, then [ceil(H / 4)][width][4], filled up with zeros."""
    panels = pack_panels(op, r, width).reshape(len(op.cells), -1, op.hidden, width)
    deep = np.pad(panels, ((0, 0), (0, 0), (0, -op.hidden % QUAD), (0, 0)))
    sums = panels.sum(2, dtype=np.int32)[..., None].view(np.int8)
    words = deep.reshape(*deep.shape[:2], -1, QUAD, width).swapaxes(3, 4)
    whole = np.concatenate([sums[:, :, None], words], 2)
    return np.ascontiguousarray(whole.reshape(len(op.cells), -1))


def _cell(op: Recurrent, width: int, d: int, cell: Cell, at: str, count: str) -> dict[str, object]:
    """Return the formulas of the units from `at` on: a whole vector, or `count` of them."""

    def read(k: int) -> str:
        array, offset = place_of(op, d, k, width)
        if array == "memory":
            return array
        place = " + ".join(p for p in (array, at, str(offset) if offset else "") if p)
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
