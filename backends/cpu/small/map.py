"""Elementwise arithmetic of bytes in fixed point, rounded back to bytes, and tables of bytes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from atc.backends.cpu.map.lookup_table import MapTable
from atc.backends.cpu.map.portable import in_place_operands
from atc.backends.cpu.small.fixed_point import FixedPoint, byte_bounds, fixed_point
from atc.backends.cpu.small.runs import instructions
from atc.backends.cpu.small.words import word_steps
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names, reader
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.view import dense

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
        plain = target.bytes_last and not is_dynamic(w.op.shape) and not w.op.coordinates
        return plain and _found(w) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return loops, declarations and the stored value, and those of elements in a row."""
        found, loops = _found(w), loop_names("i", w.op.shape)
        assert found is not None
        indices = [v for v, _ in loops]
        read = reader(w.op.views, [t.dtype if t else None for t in w.inputs], indices)
        lines, value = _element(found, read)
        values: dict[str, object] = {
            "loops": loops, "lines": lines, "value": value, "size": prod(w.op.shape), "each": [],
            "steps": found.steps, "vector": None, "words": [],
            "target": address(dense(w.op.shape), indices),
        }  # fmt: skip
        dense_ = all(not v.offset and v.is_dense(w.op.shape) for v in w.op.views)
        values["scalar"] = _element(found, _at("i"))
        if dense_ and instructions(target) == "mve":
            values["vector"] = _vector(found, w)
        if dense_ and instructions(target) == "dsp":
            values |= _words(found, w)
        if not dense_ or values["words"] or found.steps.guard:
            return values
        at = ["i", *(f"i + {k}" for k in range(1, AT_ONCE))]
        return values | {"each": [(a, *_element(found, _at(a))) for a in at]}

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Let the result overwrite an operand that is read where it goes."""
        return in_place_operands(w)

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the loops' cycles that compute floats."""
        return 0.4 * loop_cycles(w)


class MapTableBytes(MapTable):
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


def _at(index: str) -> Callable[[int], str]:
    return lambda k: f"x{k}[{index}]"


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
        operands.append(f"const q_sums {name} = q_load4_{sign}(x{atom.index} + k);")
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


KERNELS = (MapFixedPoint(), MapTableBytes())
