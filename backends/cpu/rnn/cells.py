"""The cells of recurrent kernels that compute all rows of a step together, in vectors of units."""

from __future__ import annotations

from dataclasses import dataclass, field

from atc.backends.cpu.rnn.portable import Cut
from atc.backends.machine import CACHE_LINE
from atc.backends.render.expr import address, behind
from atc.backends.render.vector_expr import render_vector
from atc.ir.expr import Expr, Input, walk
from atc.ir.ops import Cell, Recurrent
from atc.ir.view import View


@dataclass(frozen=True)
class Phase:
    """A product of a step, of h or of the reset h: gates from `first` on, for groups of units.

    A group's results are `vectors` of all gates, computed `width` at a time.
    """

    reset: bool
    first: int
    gates: int
    vectors: int
    width: int

    @property
    def passes(self) -> int:
        """The number of passes over a group's rows."""
        return self.vectors // self.width


@dataclass(frozen=True)
class Units:
    """The units from i on in C, of a group of so many: a vector, or `count` of them if not empty.

    It keeps which elements behind i have been used, of which pointers.
    """

    group: int
    count: str
    used: set[tuple[str, int]] = field(default_factory=set)

    def load(self, pointer: str, offset: int = 0) -> str:
        """Return the C of a vector of what a pointer has for the units."""
        self.used.add((pointer, offset))
        place = f"{pointer} + i{f' + {offset}' if offset else ''}"
        return f"v_load_n({place}, {self.count})" if self.count else f"v_load({place})"

    def load_sums(self, gate: int) -> str:
        """Return the C of a vector of the sums of a phase's gate."""
        at = gate * self.group
        return f"v_load(sums{f' + {at}' if at else ''})"

    def store(self, pointer: str, value: str) -> str:
        """Return the C that stores a vector of results."""
        self.used.add((pointer, 0))
        if self.count:
            return f"v_store_n({pointer} + i, {value}, {self.count});"
        return f"v_store({pointer} + i, {value});"


def size_of(op: Recurrent) -> int:
    """Return the elements of the states of all rows and directions."""
    return len(op.cells) * op.batch * op.hidden


def kind_of(cell: Cell) -> tuple[Expr | None, ...]:
    """Return the formulas of a cell: of h, of c and of the reset h."""
    return cell.hidden, cell.memory, cell.reset


def waiting_gates(op: Recurrent, first: int) -> list[int]:
    """Return the gates before `first` whose recurrent shares the cells read at last."""
    if op.cells[0].reset is None:
        return []
    exprs = [e for c in op.cells for e in (c.hidden, c.memory) if e is not None]
    read = {e.index - op.gates for x in exprs for e in walk(x) if isinstance(e, Input)}
    return sorted(g for g in read if 0 <= g < first)


def resets_of(op: Recurrent) -> int:
    """Return how many numbers of each unit wait from the first phase to the second."""
    if op.cells[0].reset is None:
        return 0
    return 1 + len(waiting_gates(op, op.gates - 1))


def _places(op: Recurrent) -> dict[str, str]:
    """Return what pointers of a row of the cells are in C, by their names."""
    directions, units = len(op.cells), op.hidden
    out = (directions * units, op.steps * directions * units)
    if not op.batch_major:
        out = (directions * op.batch * units, units)
    state = f"b * {(directions if op.batch_major else 1) * units}"
    found = {
        "given": f"const float *const given = {_given(op, 'b')};",
        "before": "const float *const before = l->before + b * l->row;",
        "c": f"float *const c = l->c + {state};",
        "h": f"float *const h = l->h + {state};",
        "after": f"float *const after = l->after + {state};",
        "out": f"float *const out = l->out + {address(View(out), ['t', 'b'])};",
        "reset": f"float *const reset = l->resets + {state};",
    }
    for k, gate in enumerate(waiting_gates(op, op.gates - 1)):
        at = (k + 1) * size_of(op)
        found[f"sums{gate}"] = f"float *const sums{gate} = l->resets + {at} + {state};"
    return found


def _given(op: Recurrent, row: str) -> str:
    """Return where the inputs' shares of step t of a row lie in C."""
    width = len(op.cells) * op.gates * op.hidden
    steps = (width, op.steps * width) if op.batch_major else (op.batch * width, width)
    return behind("l->given", address(View(steps), ["t", row]))


def cells_of(
    op: Recurrent, cell: tuple[Expr | None, ...], phase: Phase, number: int, u: int, cut: Cut,
    lane: int,
) -> dict[str, object]:  # fmt: skip
    """Return the cells of a phase: of a whole vector of units, of the last ones, and pointers."""
    rest = op.hidden % lane
    last = number == int(op.cells[0].reset is not None)
    units = Units(u * lane, "")
    body = _cell(op, cell, phase, last, cut, units)
    tail = _cell(op, cell, phase, last, cut, Units(u * lane, str(rest))) if rest else []
    pointers = {name for name, _ in units.used}
    return {
        "body": body, "tail": tail,
        "places": [text for name, text in _places(op).items() if name in pointers], "last": last,
        "over": _over(op, cut, last), "timed": not pointers.isdisjoint({"given", "out"}),
        "given": _given(op, "at"), "asks": _asked(op, units),
    }  # fmt: skip


def _asked(op: Recurrent, units: Units) -> list[int]:
    """Return where the lines of a group's inputs lie, from the group's first unit on."""
    read = {offset for name, offset in units.used if name == "given"}
    inside = units.group if op.hidden % units.group == 0 else 1
    return sorted(at + k for at in read for k in range(0, inside, CACHE_LINE // 4))


def _over(op: Recurrent, cut: Cut, last: bool) -> list[str]:
    """Return the C lines of a group in a row that has no step s any more."""
    places = _places(op)
    each = "for (ptrdiff_t i = j; i < end; i++)"
    if not last:
        return [places["reset"], f"{each} reset[i] = 0.0f;"]
    lines = []
    if op.sequence:
        lines += ["const ptrdiff_t t = l->s;", places["out"], f"{each} out[i] = 0.0f;"]
    if cut.units > 1:
        lines += [places["before"], places["after"], f"{each} after[i] = before[i];"]
    return lines


def _cell(
    op: Recurrent, cell: tuple[Expr | None, ...], phase: Phase, last: bool, cut: Cut, units: Units
) -> list[str]:  # fmt: skip
    """Return the C lines of some units."""
    hidden, memory, reset = cell

    def read(k: int) -> str:
        gate, own = k - op.gates, k - op.state
        if k < op.gates:
            return units.load("given", k * op.hidden)
        if gate < phase.first:
            return units.load(f"sums{gate}")
        if gate < op.gates:
            return units.load_sums(gate - phase.first)
        if own == 2:
            return "memory"
        if own < 2:
            return units.load(("before", "c")[own])
        return units.load("l->vectors", (own - 3) * op.hidden)

    if not last:
        assert reset is not None
        lines, value = render_vector(reset, read, "r")
        waiting = waiting_gates(op, op.gates - 1)
        kept = [units.store(f"sums{g}", read(op.gates + g)) for g in waiting]
        return [*lines, units.store("reset", value), *kept]
    lines = []
    if memory is not None:
        lines, value = render_vector(memory, read, "m")
        lines.append(f"const vf32 memory = {value};")
    assert hidden is not None
    shared, value = render_vector(hidden, read, "v")
    results = ["h", *["after"] * (cut.units > 1), *["out"] * op.sequence]
    lines += [*shared, f"const vf32 next = {value};"]
    lines += [units.store("c", "memory")] if memory is not None else []
    return [*lines, *(units.store(name, "next") for name in results)]
