"""Reading and writing of packed activations between convolutions on tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from atc.backends.cpu.amx.flat_planes import Flat, Phase
from atc.backends.kernel import Workload
from atc.backends.packed_layout import LINE, PackedLayout
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import Geometry
from atc.backends.target import Target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ConvBlocked
from atc.ir.view import dense


@dataclass(frozen=True)
class FlatGiven(Flat):
    """The planes that a convolution was given: taps read them as they are."""

    planes: PackedLayout

    @cached_property
    def phases(self) -> list[Phase]:
        """None of its own."""
        return []

    @cached_property
    def pitch(self) -> int:
        """Pixels from one row of a plane to the next."""
        return self.planes.pitch

    @property
    def size(self) -> int:
        """Pixels of a plane."""
        return self.planes.size

    def shifts(self) -> list[int]:
        """For each tap, the pixel that the first row of the products meets."""
        rows, cols = self.g.rows, self.g.cols
        down = [k * rows.dilation - rows.pad for k in range(rows.kernel)]
        right = [k * cols.dilation - cols.pad for k in range(cols.kernel)]
        return [self.planes.first + a * self.pitch + b for a in down for b in right]


def border_of(g: Geometry) -> int | None:
    """Return the border with which taps can read planes as they are; None where they can't."""
    if (g.rows.stride, g.cols.stride) != (1, 1):
        return None
    needs = [0]
    for axis in (g.rows, g.cols):
        needs += [axis.pad, axis.out - axis.pad + (axis.kernel - 1) * axis.dilation - axis.size]
    return max(needs) if g.cols.out <= g.cols.size + max(needs) else None


def is_shortcut(w: Workload[ConvBlocked], index: int) -> bool:
    """Return whether an operand is read number by number where the results go."""
    op, y = w.op, w.outputs[0]
    k = index - (len(w.inputs) - len(op.epilogue.views))
    type_ = w.inputs[index]
    if k < 0 or type_ is None or type_.shape != y.shape:
        return False
    view = op.epilogue.views[k]
    pairs = zip(y.shape, view.strides, dense(y.shape).strides, strict=True)
    return view.offset == 0 and all(n == 1 or own == step for n, own, step in pairs)


def planes_of(
    type_: TensorType, channels: int, parts: int, fill: int | None
) -> PackedLayout | None:
    """Return the planes of a blocked tensor, None where its channels don't fill their blocks."""
    images, blocks, rows, columns, block = type_.shape
    if blocks * block % channels:
        return None
    return PackedLayout(images, blocks * block // channels, rows, columns, channels, parts, fill)


class PlanesEpilogue(TileEpilogue):
    """An epilogue, some of whose operands (by their number there) are planes."""

    def __init__(
        self,
        w: Workload[ConvBlocked],
        g: Geometry,
        target: Target,
        sums: DType,
        planes: Mapping[int, PackedLayout],
    ) -> None:
        super().__init__(w.op.epilogue, w, g, target, sums)
        self.planes = planes

    def _step(self, k: int) -> int:
        """Numbers between two blocks of 16 channels of a pixel."""
        return LINE * 16 // self.planes[k].channels // self.types[k - 1].itemsize

    def _block(self, k: int) -> str:
        if k not in self.planes:
            return super()._block(k)
        p, size = self.planes[k], self.types[k - 1].itemsize
        per = p.channels // 16
        place = f"block / {per} * {p.plane // size} + block % {per} * {self._step(k)}"
        return place if p.images == 1 else f"n * {p.blocks * p.plane // size} + {place}"

    def _place(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        if k not in self.planes:
            return super()._place(k, row, column, vector)
        p, size = self.planes[k], self.types[k - 1].itemsize
        pixel = f"{row} * {p.pitch} + {column}" + (f" + {p.first}" if p.first else "")
        offset = f" + {vector * self._step(k)}" if isinstance(vector, int) and vector else ""
        return f"x{k + 1} + ({pixel}) * {p.pixel // size}{offset}"

    def _read(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        if k not in self.planes or self.types[k - 1] is not DType.FLOAT:
            return super()._read(k, row, column, vector)
        place = self._place(k, row, column, vector)
        places = [place, *(f"{place} + {LINE // 4 * n}" for n in range(1, self.planes[k].parts))]
        *larger, number = [f"v_load_part({each})" for each in places]
        for part in reversed(larger):
            number = f"v_add({part}, {number})"
        return number


