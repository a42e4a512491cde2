"""Reading and writing of packed activations between convolutions on tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from atc.backends.cpu.amx.flat_planes import Flat, Phase
from atc.backends.kernel import Workload
from atc.backends.packed_layout import LINE, PackedLayout
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.expr import address
from atc.backends.render.tile_geometry import Geometry, spatial_strides
from atc.backends.target import Target
from atc.dims import is_dynamic, upper_bound
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ConvBlocked
from atc.ir.view import View, dense


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

    @cached_property
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
        needs += [axis.pad, axis.out - axis.pad + axis.reach - axis.size]
    if is_dynamic(tuple(needs)):
        return None
    return max(needs) if upper_bound(g.cols.out - g.cols.size) <= max(needs) else None


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


@dataclass(frozen=True)
class Pointer:
    """A pointer that goes along with a block's results, from `start` on.

    It moves `step` numbers with each result, and `skip` more behind a row of them.
    """

    type: str
    name: str
    start: str
    step: int
    skip: int


class PlanesEpilogue(TileEpilogue):
    """An epilogue of results one after the other; operands (by their number there) may be planes,
    and so may be what is `wanted`."""

    def __init__(
        self,
        w: Workload[ConvBlocked],
        g: Geometry,
        target: Target,
        sums: DType,
        planes: Mapping[int, PackedLayout] | None = None,
        wanted: PackedLayout | None = None,
    ) -> None:
        super().__init__(w.op.epilogue, w, g, target, sums)
        self.planes, self.wanted = planes or {}, wanted

    def dense_bias(self) -> int | None:
        """Return the operand that sums may start with, if its vectors are contiguous in memory."""
        if self.bias is None or self.views[self.bias - 1].strides[-1] != 1:
            return None
        return self.bias if self.types[self.bias - 1] is self.sums else None

    def forget_bias(self) -> None:
        """Drop a bias from the operands that only the initial value of sums needs."""
        self.used = self.rest

    def bias_at(self, block: str) -> str:
        """Return the address of a block of the bias, by the C variable n."""
        assert self.bias is not None
        view = self.views[self.bias - 1]
        place = address(View(view.strides[:2], view.offset), ("n", f"({block})"))
        return f"x{self.bias + 1} + {place}"

    def bias_step(self) -> int:
        """Numbers from one block of the bias to the next."""
        assert self.bias is not None
        return self.views[self.bias - 1].strides[1]

    def pointers(self, row: str, col: str) -> list[Pointer]:
        """Return where results go and what is read for them, of all blocks of their channels.

        They start at C variables n and block, and at a pixel.
        """
        found, width = [], self.g.cols.out
        for k in (0, *self.used):
            const, name, base = ("const ", f"x{k + 1}", f"x{k + 1}") if k else ("", "to", "y0")
            dtype = self.types[k - 1] if k else self.out
            planes = self.planes.get(k) if k else self.wanted
            blocks, view = _read_planes(planes, dtype) if planes else (("block",), self._view(k))
            start = f"{base} + {address(view, ('n', *blocks, row, col))}"
            by_row, step = view.strides[-2:]
            skip = by_row - width * step if self.g.rows.out != 1 else 0
            found.append(Pointer(const + dtype.c, name, start, step, skip))
        return found

    def _view(self, k: int) -> View:
        """Return the strides of images, blocks, rows and columns of an operand, or of y."""
        if k:
            view = self.views[k - 1]
            return View((*view.strides[:2], *spatial_strides(view, self.g)), view.offset)
        g = self.g
        return View((g.supers * g.mb * g.out_plane, g.out_plane, g.cols.out * g.block, g.block), 0)

    def _step(self, k: int) -> int:
        """Numbers between two blocks of 16 channels of a pixel."""
        return LINE * 16 // self.planes[k].channels // self.types[k - 1].itemsize

    def _place(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        if k not in self.planes:
            return super()._place(k, row, column, vector)
        assert isinstance(vector, int)
        return f"x{k + 1}" + (f" + {vector * self._step(k)}" if vector else "")

    def _read(self, k: int, row: int | str, column: int | str, vector: int | str) -> str:
        if k not in self.planes or self.types[k - 1] is not DType.FLOAT:
            return super()._read(k, row, column, vector)
        place = self._place(k, row, column, vector)
        places = [place, *(f"{place} + {LINE // 4 * n}" for n in range(1, self.planes[k].parts))]
        *larger, number = [f"v_load_part({each})" for each in places]
        for part in reversed(larger):
            number = f"v_add({part}, {number})"
        return number


def _read_planes(p: PackedLayout, dtype: DType) -> tuple[tuple[str, str], View]:
    """Return what of C variable block counts planes and what in a pixel of these, and the strides
    of images, of both, of rows and of columns."""
    size, per = dtype.itemsize, p.channels // 16
    pixel, plane = p.pixel // size, p.plane // size
    images = p.blocks * plane if p.images != 1 else 0
    strides = (images, plane, LINE // per // size, p.pitch * pixel, pixel)
    return (f"block / {per}", f"block % {per}"), View(strides, p.first * pixel)
