"""Elementwise arithmetic of bytes, rounded to bytes again, in fixed point."""

from __future__ import annotations

from atc.backends.cpu.map.portable import in_place_operands
from atc.backends.cpu.small.fixed_point import FixedPoint, byte_bounds, fixed_point
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names, reader
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.ops import Map
from atc.ir.view import dense


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
        """Return loops, declarations and the stored value."""
        found, loops = _found(w), loop_names("i", w.op.shape)
        assert found is not None
        indices = [v for v, _ in loops]
        read = reader(w.op.views, [t.dtype if t else None for t in w.inputs], indices)
        names = [f"v{k}" for k in range(len(found.atoms))]
        operands = [
            f"const int32_t {name} = {read(atom.index)};"
            for name, atom in zip(names, found.atoms, strict=True)
            if isinstance(atom, Input)
        ]
        lines, value = found.lines(names, "v")
        return {
            "loops": loops, "lines": [*operands, *lines], "value": value,
            "target": address(dense(w.op.shape), indices),
        }  # fmt: skip

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Let the result overwrite an operand that is read where it goes."""
        return in_place_operands(w)

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the loops' cycles that compute floats."""
        return 0.4 * loop_cycles(w)


def _found(w: Workload[Map]) -> FixedPoint | None:
    return fixed_point(w.op.expr, byte_bounds)


KERNELS = (MapFixedPoint(),)
