"""The geometry of register tiles: how the outputs of a blocked convolution are cut into them.

A tile is R rows x C columns of outputs times NV vectors of output channels, all in registers. Which
of its taps fall into the padding is known here, so nothing is copied and nothing is tested at run
time: a tap of a border tile simply computes fewer pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby

from atc.backends.kernel import StripedParams, Workload
from atc.backends.render.axis import SINGLE, Axis, plane_axes
from atc.ir.ops import ConvBlocked
from atc.ir.view import View


@dataclass(frozen=True)
class Geometry:
    """A blocked convolution in numbers; a one-dimensional one has one row.

    `supers` groups are computed one after the other; `ic` and `mb` are the input channels and
    output blocks of one.
    """

    batch: int
    block: int
    supers: int
    ic: int
    mb: int
    rows: Axis
    cols: Axis
    plain: bool
    flat: bool = False
    """Whether rows and columns are one dense axis of the tensors, cut anew."""
    x_rows: int = 0
    y_rows: int = 0
    """The rows of x and of y that memory holds; 0: all."""
    plane: int = 0
    """The pixels of x, where they aren't those of its rows."""

    @property
    def icb(self) -> int:
        """Input blocks of one group."""
        return -(-self.ic // self.block)

    @property
    def taps(self) -> int:
        """Taps of the window."""
        return self.rows.kernel * self.cols.kernel

    @property
    def depth(self) -> int:
        """Products summed for each output."""
        return self.ic * self.taps

    @property
    def planes(self) -> int:
        """Input blocks of an image, or its channels where x is plain."""
        return self.supers * (self.ic if self.plain else self.icb)

    @property
    def in_pixel(self) -> int:
        """Elements of an input block at one pixel."""
        return 1 if self.plain else self.block

    @property
    def in_plane(self) -> int:
        """Elements of one input block, or of one channel where x is plain."""
        rows = self.x_rows or self.rows.size
        pixels = self.plane or rows * self.cols.size
        return pixels * self.in_pixel

    @property
    def out_plane(self) -> int:
        """Elements of one output block."""
        return (self.y_rows or self.rows.out) * self.cols.out * self.block

    @property
    def first_x(self) -> str:
        """The number taken off a row of x, in C."""
        return " - x_first" if self.x_rows else ""

    @property
    def first_y(self) -> str:
        """The number taken off a row of y, in C."""
        return " - y_first" if self.y_rows else ""

    @property
    def result(self) -> str:
        """The place in y of pixel (row, col), in C."""
        row = f"(row{self.first_y})" if self.first_y else "row"
        return f"y + ({row} * {self.cols.out} + col) * {self.block}"

    @property
    def flops(self) -> int:
        """Multiplications and additions, padded channels included."""
        outputs = self.batch * self.supers * self.mb * self.out_plane
        return 2 * outputs * self.depth


def super_groups(group: int, ic: int, oc: int, block: int) -> int:
    """Return how many groups are computed as one dense convolution.

    Both sides of such a bundle fill whole blocks; where no bundle does, all groups are one.
    """
    for q in range(1, group + 1):
        if group % q == 0 and ic * q % block == 0 and oc * q % block == 0:
            return q
    return group


@lru_cache(1 << 12)  # estimates of all tiles of a kernel ask for the same few
def geometry(
    w: Workload[ConvBlocked], pixels: int, params: StripedParams | None = None, *,
    recut: bool = True,
) -> Geometry:  # fmt: skip
    """Return the geometry of a ConvBlocked for tiles of `pixels` outputs.

    Pointwise ones become rows of about that many pixels where that comes out even, else one row;
    not so without `recut` or where `params` are those of stripes.
    """
    op, x, weights, y = w.op, w.input(0), w.input(1), w.outputs[0]
    block, window = y.shape[-1], op.window
    axes = plane_axes(window, y.shape[2:-1], x.shape[2 : 2 + window.rank])
    held = params.rows_held if params else ()
    merge = all(rows_merge(v, axes[-1].out) for v in op.epilogue.views)
    flat = recut and not held and _is_flat(axes) and merge
    rows, cols = _recut(axes[0].out * axes[1].out, pixels) if flat else axes
    oc = weights.shape[0] // op.group
    q = super_groups(op.group, weights.shape[1], oc, block)
    return Geometry(
        y.shape[0], block, op.group // q, weights.shape[1] * q, -(-oc * q // block), rows, cols,
        len(x.shape) == op.plain, flat, *held,
    )  # fmt: skip


def in_rows(g: Geometry, pixels: int) -> Geometry:
    """Return a convolution along one axis as one of rows of about that many pixels.

    Taps then reach into the next rows. As it was where there is padding or that comes out uneven.
    """
    cols = g.cols
    if g.rows != SINGLE or g.flat or cols.interior != (0, cols.out):
        return g
    rows, row = _recut(cols.out, pixels)
    if rows.out == 1:
        return g
    step = row.out * cols.stride
    across = Axis(row.out, step, cols.kernel, cols.stride, cols.dilation, open=True)
    return replace(g, rows=rows, cols=across, flat=True, plane=cols.size)


def _is_flat(axes: Sequence[Axis]) -> bool:
    return all((a.kernel, a.stride, a.pad) == (1, 1, 0) and a.out == a.size for a in axes)


def rows_merge(view: View, cols: int) -> bool:
    """Return whether an operand's rows of so many columns lie one behind the other."""
    return len(view.strides) < 5 or view.strides[2] == view.strides[3] * cols


def _recut(total: int, pixels: int) -> tuple[Axis, Axis]:
    widths = [n for n in range(pixels, 2 * pixels // 3, -1) if total % n == 0]
    width = widths[0] if widths else total
    rows = total // width
    return Axis(rows, rows), Axis(width, width)


def spatial_strides(view: View, g: Geometry) -> tuple[int, int]:
    """Return what one row and one column of outputs mean in an operand of the epilogue."""
    column = view.strides[-2]
    if g.flat:
        return column * g.cols.out, column
    return (view.strides[2] if len(view.strides) == 5 else 0), column


@dataclass(frozen=True)
class Columns:
    """`count` tiles of `width` columns from column `first`; `taps[k]` are tap k's pixels."""

    first: int
    count: int
    width: int
    taps: tuple[tuple[int, ...], ...]

    @property
    def whole(self) -> bool:
        """Whether every tap meets every pixel."""
        return all(len(t) == self.width for t in self.taps)


def cut_columns(axis: Axis, width: int, multiple: int = 1) -> list[Columns]:
    """Cut the columns into tiles of at most `width`, as equal as can be, and group equal ones.

    All tiles but the last are multiples of `multiple` wide, as `width` is.
    """
    return list(_cut_columns(axis, width, multiple))


@cache  # costs are asked for thousands of times, of some dozen axes
def _cut_columns(axis: Axis, width: int, multiple: int) -> tuple[Columns, ...]:
    count = -(-axis.out // width)
    small, larger = divmod(-(-axis.out // multiple), count)
    tiles = []
    at = 0
    for k in range(count):
        n = min(multiple * (small + (k < larger)), axis.out - at)
        taps = tuple(
            tuple(c for c in range(n) if axis.valid(at + c, t)) for t in range(axis.kernel)
        )
        tiles.append((at, n, taps))
        at += n
    groups = []
    for (n, taps), members in groupby(tiles, key=lambda t: (t[1], t[2])):
        same = list(members)
        groups.append(Columns(same[0][0], len(same), n, taps))
    return tuple(groups)


def tile_rows(g: Geometry, pixels: int) -> int:
    """Return the rows of a tile: more than one where the rows are short."""
    low, high = g.rows.interior
    return int(max(1, min(pixels // g.cols.out, high - low)))


def largest_divisor(n: int, most: float) -> int:
    """Return the largest divisor of n up to `most`, at least 1."""
    return next((d for d in range(int(min(n, most)), 0, -1) if n % d == 0), 1)


def panels(mb: int, nv: int) -> list[int]:
    """Return the vectors of each panel of output blocks: all `nv` but the last."""
    return [min(nv, mb - m) for m in range(0, mb, nv)]


def panel_groups(mb: int, nv: int) -> list[tuple[int, int, int]]:
    """Return panels of equal width together: (vectors of each, panels, first output block)."""
    found = [(nv, mb // nv, 0), (int(mb % nv), 1, mb // nv * nv)]  # widths are text
    return [group for group in found if group[0] and group[1]]


def tile_row_counts(g: Geometry, pixels: int) -> list[tuple[int, int]]:
    """Return (rows of a tile, tiles of that many rows) of one image."""
    r = tile_rows(g, pixels)
    low, high = g.rows.interior
    full = (high - low) // r
    single = g.rows.out - full * r
    return [(r, full), (1, single)] if single else [(r, full)]


def tile_count(g: Geometry, pixels: int) -> int:
    """Return the tiles of one image that share a panel of weights."""
    across = sum(c.count for c in cut_columns(g.cols, pixels))
    return across * sum(times for _, times in tile_row_counts(g, pixels))
