"""Portable kernel of Recurrent: one row and direction at a time, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from atc.backends.kernel import Kernel, KernelParams, Pack, Splittable, Workload, WorkSplit
from atc.backends.machine import CACHE_LINE, Machine
from atc.backends.render.expr import literal
from atc.backends.render.recurrent import formulas, places
from atc.backends.target import Target
from atc.dims import Dim
from atc.ir.expr import Call, walk
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Recurrent

FUNCTION = 40
"""Cycles of a function of one number, beyond those that it has a share in a vector's."""
COLUMNS = 16
"""Units whose products are summed together: one cache line of floats."""




def padded(columns: int, width: int) -> int:
    """Return a number of columns rounded up to whole panels."""
    return -(-columns // width) * width


@dataclass(frozen=True)
class Cut:
    """A layer in partitions: some of the directions, and some of the rows or of the units of each.

    Directions and rows know nothing of each other. Units need what all of them were, so that
    partitions of them wait for each other at each step.
    """

    sides: int = 1
    rows: int = 1
    units: int = 1
    block: int = 0
    """Units of a part, less in the last one."""

    @property
    def partitions(self) -> int:
        """Return their number."""
        return self.sides * self.rows * self.units


@dataclass(frozen=True, kw_only=True)
class CutParams(KernelParams):
    """Those of a layer in partitions, see `Cut`."""

    sides: int = 1
    rows: int = 1
    units: int = 1

    def cut(self, params: CutT) -> CutT:
        """Return other parameters with this one's partitions."""
        return replace(params, sides=self.sides, rows=self.rows, units=self.units)


CutT = TypeVar("CutT", bound=CutParams)


def cut_of(op: Recurrent, params: CutParams, step: int) -> Cut:
    """Return the cut that parameters say; parts of the units begin at multiples of `step`."""
    sides, rows, units = params.sides, params.rows, params.units
    block = padded(-(-op.hidden // units), step) if units > 1 else op.hidden
    return Cut(sides, rows, units, block)


def shared_params(
    machine: Machine, op: Recurrent, weights: TensorType, threads: int, step: int
) -> list[CutParams]:
    """Return the parameters of cuts into at most so many partitions, the best first.

    None where how many rows there are is known only at run time.
    """
    if isinstance(op.batch, Dim):
        return []
    directions = len(op.cells)
    sides = directions if threads % directions == 0 else 1
    each = threads // sides
    rows = _parts(op.batch, each)
    units = _parts(-(-op.hidden // step), each)
    by_rows, by_units = CutParams(sides=sides, rows=rows), CutParams(sides=sides, units=units)
    kept = weights.nbytes // directions <= machine.l2.size // 2  # from step to step
    near = rows == each and kept
    ordered = [by_rows, by_units] if near or each == 1 else [by_units, by_rows]
    return [*ordered, CutParams(sides=directions)]


def _parts(extent: int, most: int) -> int:
    """Return how many parts of equal size, less of the last one, an extent has at most."""
    return -(-extent // -(-extent // most))


def overwritten(w: Workload[Recurrent], params: CutParams) -> dict[int, tuple[int, ...]]:
    """Return which state each last one may overwrite.

    Whoever computes some of the units reads all of the first h.
    """
    found = {0: 4} if params.units == 1 else {}
    if w.op.has_memory:
        found[1] = 5
    return {k: (i,) for k, i in found.items() if w.inputs[i] is not None}


def work_split_of(op: Recurrent, cut: Cut) -> WorkSplit:
    """Return how often partitions wait for others: twice a step where a reset h is multiplied."""
    phases = 1 if op.cells[0].reset is None else 2
    return WorkSplit(cut.partitions, op.steps * phases if cut.units > 1 else 1)


@dataclass(frozen=True)
class Product:
    """A product of h, or of the reset h, with the recurrent weights of some gates."""

    operand: str
    first: int
    """The first gate."""
    gates: int
    weights: int
    """Elements before its panels in a direction's packed weights."""
    result: int
    """Elements before its result in the scratch."""


def products(op: Recurrent, units: int, width: int = COLUMNS) -> list[Product]:
    """Return the products of one step for so many units.

    The last gate's is separate where a reset h enters it.
    """
    if op.cells[0].reset is None:
        return [Product("h", 0, op.gates, 0, 0)]
    most = op.gates - 1
    size = padded(most * units, width)
    return [Product("h", 0, most, 0, 0), Product("reset", most, 1, size * op.hidden, size)]


def shares(op: Recurrent, units: int, width: int = COLUMNS) -> int:
    """Return how many elements the results of a step's products take, in whole panels."""
    return sum(padded(p.gates * units, width) for p in products(op, units, width))


def pack_panels(op: Recurrent, r: Array, cut: Cut, width: int = COLUMNS) -> Array:
    """Return R [D, H, G * H] as zero-padded panels.

    They are [parts of the units][D][products][columns / width][H][width].
    """
    directions, hidden, block = len(op.cells), op.hidden, cut.block
    gates = r.reshape(directions, hidden, op.gates, hidden)
    gates = np.pad(gates, ((0, 0), (0, 0), (0, 0), (0, cut.units * block - hidden)))
    blocks = np.moveaxis(gates.reshape(*gates.shape[:3], cut.units, block), 3, 0)
    parts = []
    for p in products(op, block, width):
        own = blocks[..., p.first : p.first + p.gates, :]
        own = own.reshape(*own.shape[:3], p.gates * block)
        wide = np.pad(own, ((0, 0), (0, 0), (0, 0), (0, -own.shape[-1] % width)))
        split = wide.reshape(*wide.shape[:3], -1, width)
        parts.append(np.moveaxis(split, 2, 3).reshape(cut.units * directions, -1))
    return np.concatenate(parts, 1)


@dataclass(frozen=True)
class ScratchLayout:
    """The scratch of a layer in elements: what each partition has, and behind it what all share."""

    results: int
    """A partition's results of products, of all rows where the reset h is multiplied later."""
    own: int
    """What a partition has in all: these results, a row's reset h, its h in bytes."""
    shared: int
    """The h of a step and of the next, and the reset h."""

    @staticmethod
    def of(op: Recurrent, cut: Cut, width: int, itemsize: int) -> ScratchLayout:
        """Return what a cut layer needs; partitions don't meet in a line of the cache."""
        states = len(op.cells) * op.batch
        parted, reset = cut.units > 1, op.cells[0].reset is not None
        results = shares(op, cut.block, width) * (states if parted and reset else 1)
        own = results + op.hidden + (-(-op.hidden // itemsize) if op.scales else 0)
        own = padded(own, CACHE_LINE // itemsize) if cut.partitions > 1 else own
        return ScratchLayout(results, own, (2 + reset) * states * op.hidden if parted else 0)

    def elements(self, cut: Cut) -> int:
        """Return how many there are in all."""
        return cut.partitions * self.own + self.shared


class RecurrentRows(Kernel[Recurrent, CutParams], Splittable[Recurrent, CutParams]):
    """Any Recurrent in plain C; constant weights are packed into column panels."""

    name = "recurrent"
    op = Recurrent
    template = "cpu/rnn/portable.c.j2"
    dynamic = True

    def parameters(self, w: Workload[Recurrent], target: Target) -> Sequence[CutParams]:
        """Return the whole as one partition."""
        return (CutParams(),)

    def shared_params(
        self, w: Workload[Recurrent], params: CutParams, target: Target, threads: int
    ) -> Sequence[CutParams]:
        """Into directions, rows, or units of constant weights."""
        op, weights = w.op, w.input(1)
        found = shared_params(target.machine, op, weights, threads, COLUMNS)
        return [p for p in found if w.constant[1] or p.units == 1]

    def work_split(self, w: Workload[Recurrent], params: CutParams, target: Target) -> WorkSplit:
        """Partitions of units wait for each other at each step."""
        op = w.op
        return work_split_of(op, cut_of(op, params, COLUMNS))

    def scratch(self, w: Workload[Recurrent], params: CutParams, target: Target) -> int:
        """Reserve the recurrent shares of a row, its reset h, and h in bytes: a ScratchLayout."""
        op, itemsize = w.op, w.outputs[0].dtype.itemsize
        cut = cut_of(op, params, COLUMNS)
        return ScratchLayout.of(op, cut, COLUMNS, itemsize).elements(cut) * itemsize

    def packs(
        self, w: Workload[Recurrent], params: CutParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack constant weights."""
        op = w.op
        cut = cut_of(op, params, COLUMNS)
        return {1: lambda r: pack_panels(op, r, cut)} if w.constant[1] else {}

    def overwrites(
        self, w: Workload[Recurrent], params: CutParams
    ) -> Mapping[int, tuple[int, ...]]:
        """Let states be replaced where they lie."""
        return overwritten(w, params)

    def values(
        self, w: Workload[Recurrent], params: CutParams, target: Target
    ) -> dict[str, object]:
        """Addresses of the operands, and each direction's formulas."""
        op = w.op
        packed, cut = w.constant[1], cut_of(op, params, COLUMNS)
        weights = (shares(op, cut.block) if packed else op.gates * op.hidden) * op.hidden
        return {
            **frame(w, cut, COLUMNS), "nb": COLUMNS, "packed": packed, "alternates": False,
            "products": [
                (p.operand, p.weights if packed else p.first * op.hidden,
                 p.gates * cut.block, p.result)
                for p in products(op, cut.block)
            ],
            "panel": COLUMNS * op.hidden if packed else COLUMNS,
            "stride": COLUMNS if packed else op.gates * op.hidden,
            "directions": [
                {**places(op, d), **direction_weights(op, cut, d, weights),
                 **formulas(cell, w.outputs[0].dtype, _reader(op, d, cut))}
                for d, cell in enumerate(op.cells)
            ],
        }  # fmt: skip

    def cost(self, w: Workload[Recurrent], params: CutParams, target: Target) -> float:
        """Return a cycle for each multiplication, and those of functions beyond vectors'."""
        op = w.op
        products = len(op.cells) * op.gates * op.hidden**2
        return float(op.steps * op.batch * (products + op.hidden * FUNCTION * _functions(op)))


def _functions(op: Recurrent) -> int:
    """Return how many functions, of those that aren't a few instructions, a step's cells compute
    for a unit of each direction."""
    parts = {e for c in op.cells for e in (c.hidden, c.memory, c.reset) if e is not None}
    found = {e for part in parts for e in walk(part) if isinstance(e, Call)}
    return len(op.cells) * sum(e.fn in ("Exp", "Sigmoid", "Softplus", "Tanh") for e in found)


def frame(w: Workload[Recurrent], cut: Cut, width: int) -> dict[str, object]:
    """Return what the template needs beside products and directions."""
    op, type_ = w.op, w.outputs[0].dtype
    layout = ScratchLayout.of(op, cut, width, type_.itemsize)
    return {
        "op": op, "type": type_.c, "weight": "int8_t" if op.scales else type_.c,
        "scales": [literal(s, DType.FLOAT) for s in op.scales],
        "sides": cut.sides, "rows": cut.rows, "units": cut.units, "partitions": cut.partitions,
        "block": cut.block, "last": op.hidden - (cut.units - 1) * cut.block,
        "part_rows": -(-op.batch // cut.rows) if cut.rows > 1 else op.batch,
        "phased": cut.units > 1 and op.cells[0].reset is not None,
        "shares": shares(op, cut.block, width), "own": layout.own, "reset_at": layout.results,
        "bytes_at": layout.results + op.hidden, "size": len(op.cells) * op.batch * op.hidden,
        "lengths": w.inputs[3] is not None, "initial": [w.inputs[i] is not None for i in (4, 5)],
        "sequence": f"y{len(w.outputs) - 1}",
    }  # fmt: skip


def direction_weights(op: Recurrent, cut: Cut, d: int, weights: int) -> dict[str, object]:
    """Return where direction d's weights begin, of so many elements each, in those of its part."""
    if cut.units == 1:
        return {"d": d, "weights": d * weights}
    own = f"part * {len(op.cells) * weights}"
    return {"d": d, "weights": f"{own} + {d * weights}" if d else own}


def place_of(op: Recurrent, d: int, k: int, cut: Cut, width: int = COLUMNS) -> tuple[str, int]:
    """Return the C pointer and the offset from it where Input(k) of direction d's cell lies.

    That is at the first unit of the partition. The new memory has no place but a name, `memory`.
    """
    gates, units = op.gates, op.hidden
    if k < gates:
        return "given", k * units
    if k < 2 * gates:
        gate = k - gates
        part = next(p for p in reversed(products(op, cut.block, width)) if gate >= p.first)
        return "recurrent", part.result + (gate - part.first) * cut.block
    names = ("h", "c", "memory")
    if k < op.state + len(names):
        return names[k - op.state], 0
    vectors = "(x2 + first)" if cut.units > 1 else "x2"
    return vectors, (d * op.vectors + k - op.state - len(names)) * units


def _reader(op: Recurrent, d: int, cut: Cut) -> Callable[[int], str]:
    """Return how C reads Input(k) of the cell's expressions at unit j."""

    def read(k: int) -> str:
        array, offset = place_of(op, d, k, cut)
        if array == "memory":
            return array
        return f"{array}[{offset} + j]" if offset else f"{array}[j]"

    return read


KERNELS = (RecurrentRows(),)
