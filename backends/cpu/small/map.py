"""Elementwise arithmetic of bytes in fixed point, rounded back to bytes, and tables of bytes."""

from __future__ import annotations

from collections.abc import Callable

from atc.backends.cpu.map.lookup_table import MapCopy, MapLookupTable
from atc.backends.cpu.map.portable import in_place_operands
from atc.backends.cpu.small.fixed_point import FixedPoint, byte_bounds, fixed_point
from atc.backends.cpu.small.rounded import ROUNDING, quantized_value
from atc.backends.cpu.small.runs import instructions
from atc.backends.cpu.small.words import word_steps
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address, behind, load, render_expr
from atc.backends.render.loops import loop_names, reader
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View, dense

AT_ONCE = 4
"""Elements of an iteration of the loop over elements in a row."""


class MapFixedPoint(Kernel[Map]):
    """A sum of bytes times scales, or a product of two."""

    name = "map_fixed_point"
    op = Map
    template = "cpu/small/map.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Return whether all operands are bytes and so is the result."""
        return _is_plain(w, target) and _found(w) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return loops, declarations and the stored value, and those of elements in a row."""
        found = _found(w)
        assert found is not None
        guard = found.steps.guard
        values = _loops(w, lambda read: _element(found, read), at_once=not guard) | {"guard": guard}
        if values["run"] and instructions(target) == "mve":
            values["vector"] = _vector(found, w)
        if values["run"] and instructions(target) == "dsp":
            values |= _words(found, w)
        return values

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Let the result overwrite an operand that is read where it goes."""
        return in_place_operands(w)

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the loops' cycles that compute floats."""
        return 0.4 * loop_cycles(w)


class MapQuantize(Kernel[Map]):
    """Floats that are rounded to bytes."""

    name = "map_quantize"
    op = Map
    template = "cpu/small/map.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Return whether floats are computed and quantized last."""
        return _is_plain(w, target) and quantized_value(w.op.expr) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return loops, declarations and the stored value, and those of elements in a row."""
        found = quantized_value(w.op.expr)
        assert found is not None

        def element(read: Callable[[int], str]) -> tuple[list[str], str]:
            lines, value = render_expr(found.value, read, rounding=ROUNDING)
            return lines, found.byte(value)

        return _loops(w, element, at_once=True) | {"guard": 0}

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the cycles of loops that round by calls."""
        return 0.5 * loop_cycles(w)


class MapCopyBytes(MapCopy):
    """Movement of bytes in runs of neighbours, which small C libraries copy one by one."""

    name = "map_copy_bytes"
    own = "q_copy_run"
    headers = ("small",)
    portable = True
    dynamic = False
    bitwise_reproducible = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Bytes that are moved in runs of a known length."""
        bytes_ = target.bytes_last and w.outputs[0].dtype in BYTES
        return bytes_ and self.moves_runs(w) and not is_dynamic(w.op.shape)


class MapLookupTableBytes(MapLookupTable):
    """A table of a byte's results, some bytes or a vector of them at a time."""

    name = "map_table_bytes"
    look_up = "q_lookup"
    headers = ("small",)
    portable = True
    dynamic = False
    bitwise_reproducible = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Bytes to bytes, read in runs, by a known table."""
        return target.bytes_last and self.is_table(w)


Element = Callable[[Callable[[int], str]], tuple[list[str], str]]
"""Gives the C lines and the value of an element, of operands that a function reads."""


def _loops(w: Workload[Map], element: Element, at_once: bool) -> dict[str, object]:
    """Return the loops of a Map for its template, with runs in which all operands lie in a row.

    `at_once` says whether a run's elements are computed some at a time.
    """
    op, loops = w.op, loop_names("i", w.op.shape)
    dtypes = [t.dtype if t else None for t in w.inputs]
    indices = [v for v, _ in loops]
    lines, value = element(reader(op.views, dtypes, indices))
    values: dict[str, object] = {
        "loops": loops, "lines": lines, "value": value, "run": 0, "each": [], "vector": None,
        "words": [], "less": [], "target": address(dense(op.shape), indices),
    }  # fmt: skip
    depth, run = _run(op)
    if run < AT_ONCE:
        return values
    outer = indices[:depth]
    rows = [address(View(v.strides[:depth], v.offset), outer) for v in op.views]
    to = address(View(dense(op.shape).strides[:depth]), outer)
    each = [None if t is None else t.c for t in dtypes]

    def at(index: str) -> tuple[list[str], str]:
        read = [load(t, f"r{k}[{index}]") if t else "" for k, t in enumerate(dtypes)]
        return element(read.__getitem__)

    places = ["i", *(f"i + {k}" for k in range(1, AT_ONCE))]
    return values | {
        "run": run, "outer": loops[:depth], "to": behind("y0", to), "made": w.outputs[0].dtype.c,
        "rows": [(k, each[k], behind(f"x{k}", row)) for k, row in enumerate(rows)],
        "scalar": at("i"), "each": [(i, *at(i)) for i in places] if at_once else [],
    }  # fmt: skip


def _is_plain(w: Workload[Map], target: Target) -> bool:
    """Return whether loops are of known extents, whose indices the elements don't ask for."""
    return target.bytes_last and not is_dynamic(w.op.shape) and not w.op.coordinates


def _run(op: Map) -> tuple[int, int]:
    """Return how many loops go around the runs that all operands lie in, and a run's size."""
    depth, run = len(op.shape), 1
    while depth and all(op.shape[depth - 1] == 1 or v.strides[depth - 1] == run for v in op.views):
        depth -= 1
        run *= op.shape[depth]
    return depth, run


def _element(found: FixedPoint, read: Callable[[int], str]) -> tuple[list[str], str]:
    """Return the C lines and the value of an element, of operands that `read` reads."""
    names = [f"v{k}" for k in range(len(found.atoms))]
    operands = [
        f"const int32_t {name} = {read(atom.index)};"
        for name, atom in zip(names, found.atoms, strict=True)
        if isinstance(atom, Input)
    ]
    lines, value = found.lines(names, "v")
    return [*operands, *lines], value


def _vector(found: FixedPoint, w: Workload[Map]) -> tuple[list[str], str]:
    """Return the C lines and the value of four elements in a row, in vectors."""
    names = [f"v{k}" for k in range(len(found.atoms))]
    operands = []
    for name, atom in zip(names, found.atoms, strict=True):
        assert isinstance(atom, Input)
        sign = "u" if w.input(atom.index).dtype is DType.UINT8 else "s"
        operands.append(f"const q_sums {name} = q_load4_{sign}(r{atom.index} + k);")
    lines, value = found.steps.vector_lines(names)
    return [*operands, *lines], value


def _words(found: FixedPoint, w: Workload[Map]) -> dict[str, object]:
    """Return the C of twice four elements in a row, and the zero points that it takes off."""
    steps = word_steps(found)
    if steps is None:
        return {}
    atoms = [(a.index, w.input(a.index).dtype) for a in found.atoms if isinstance(a, Input)]
    less = [(k, steps.less(k)) for k in range(len(atoms)) if steps.less(k)]
    return {"words": [steps.lines(atoms, i) for i in ("i", "i + 4")], "less": less}


def _found(w: Workload[Map]) -> FixedPoint | None:
    return fixed_point(w.op.expr, byte_bounds)


KERNELS = (MapFixedPoint(), MapQuantize(), MapCopyBytes(), MapLookupTableBytes())
