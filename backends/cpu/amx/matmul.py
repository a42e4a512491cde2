"""MatMul in AMX's tiles: bf16, or of numbers split into several bfloat16 (bf16x3, bf16x6).

A block of 32 x 32 results is four tiles. A is rounded or split into scratch when the network runs,
B when compiling where it is constant. Three of the four products of two parts are summed, and six
of the nine of three (amx.products); where a result isn't finite, its row is recomputed in plain
float, for parts of an infinity times parts of a number make NaN. A block's epilogue waits until the
next block's products run beside it.

Blocks, order and prefetch as measured on Sapphire Rapids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.backends.cpu.amx.cost import (
    COMPARED,
    FIRST,
    PRODUCT,
    REACHED,
    SPILLED,
    STREAM,
    end_cycles,
    far_cycles,
    l2_share,
    splitting,
)
from atc.backends.cpu.amx.products import LINE, PRODUCTS
from atc.backends.cpu.amx.row_blocks import SIDE, RowBlock, cut_rows
from atc.backends.cpu.amx.step_orders import Instruction, step_orders
from atc.backends.cpu.matmul.cost import STREAM_AHEAD, fetching
from atc.backends.cpu.matmul.operands import (
    batch_base,
    gathered_b,
    is_float_product,
    kept_batch,
    packed_base,
    read_mode,
)
from atc.backends.cpu.matmul.text import EpilogueFunctions, wrapped
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.machine import Machine
from atc.backends.render.bfloat16 import in_parts
from atc.backends.render.loops import loop_names
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.ir.view import dense

STEP = 32
"""The depth of a step of products."""
DEEP, DEPTH_BLOCK = 1024, 768
"""The depth above which it is blocked where numbers are split, and the largest block."""
LEAST, MANY = 8, 128
"""The steps of a part of the depth, whose panel of B the first cache holds, that are worth sums
which wait for the rest, and the rows."""
TRANSPOSED, GATHERED = 64.0, 300.0
"""Cycles to transpose a tile of a panel of B, and to read a tile's numbers one by one."""
OPEN = 4
"""Blocks of rows among which requests for a panel are shared where the run may have more."""
ROW_END, BLOCK_END = 12.0, 90.0
"""Cycles to finish a row of a block, and to store its tiles and begin another."""


@dataclass(frozen=True)
class Elements:
    """Elements of tiles and of sums: the C types of A in scratch, of B in tiles, and of sums.

    An element has `size` bytes; a pair of bfloat16 is one. Numbers consist of `planes` parts.
    """

    a: str
    b: str
    sums: str
    size: int
    depth: int
    """Numbers of a row of a step of products."""
    dot: str
    """The product of tiles."""
    load: str
    """What reads a vector of sums."""
    planes: int = 1
    terms: tuple[tuple[int, int], ...] = ((0, 0),)
    """Which part of A meets which of B, in the order of a step."""

    @property
    def b_planes(self) -> int:
        """Parts of a number of B."""
        return 1 + max(b for _, b in self.terms)

    @property
    def line(self) -> int:
        """Elements of a row of a tile."""
        return LINE // self.size

    @property
    def row(self) -> int:
        """Elements of a row of A for a step."""
        return self.line * self.planes

    @property
    def step(self) -> int:
        """Elements of a panel of B for a step."""
        return SIDE * self.line * self.b_planes


PAIRS = Elements("float", "float", "float", 4, STEP, "TILE_DOT_BF16", "v_load")
"""Numbers rounded to bfloat16."""
SPLIT_PAIRS = replace(PAIRS, planes=2, terms=PRODUCTS[2])
"""Numbers split into two, for three products."""
WHOLE_PAIRS = replace(PAIRS, planes=3, terms=PRODUCTS[3])
"""Numbers split into three, for six products."""


class TiledMatMul(Kernel[MatMul]):
    """MatMul in tiles of some elements."""

    op = MatMul
    template = "cpu/amx/matmul.c.j2"
    portable = False
    dynamic = True
    bitwise_reproducible = True
    elements: Elements

    def shape(self, w: Workload[MatMul], target: Target) -> Shape:
        """Return how a product is cut."""
        return shape_of(w, self.elements, target)

    def text(self, w: Workload[MatMul], outer: tuple[str, ...]) -> Text:
        """Return the C of the functions' heads, with the variables of the batch loops."""
        raise NotImplementedError

    def placing(self, op: MatMul) -> float:
        """Return the cycles to place a row of A in scratch for a step."""
        raise NotImplementedError

    def scratch(self, w: Workload[MatMul], params: Params, target: Target) -> int:
        """Reserve a block of A's rows, two of results, a panel of B, and sums of depth blocks."""
        return self.elements.size * self.shape(w, target).room

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Sizes, how both operands are read, the order of a step, and the epilogue."""
        op, e, mode, shape = w.op, self.elements, read_mode(w), self.shape(w, target)
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        text = self.text(w, outer)
        bk, bn = op.b_view.strides[-2:]
        shared = shape.largest > 1
        lines = -(-e.step // e.line // min(shape.largest, OPEN if shape.open else shape.largest))
        all_lines = -(-e.step // e.line)
        functions = shape.functions(lines, target.machine)
        if shared and shape.open:
            orders = step_orders(e.terms, all_lines)
            functions += [(f"multiply_few_{n}", n, orders[n], all_lines, "") for n in (1, 2)]
        panel = f"split_panel(all_b + g * {SIDE * bn}, split_b, "
        return {
            "batch": batch, "op": op, "e": e, "mode": mode, "shape": shape, "text": text,
            "multiplying": functions, "lines": lines, "shared": shared,
            "asked": STREAM_AHEAD // e.size, "each": -(-SIDE // shape.deep),
            "exact": e.planes > 1, "first_panel": 0, "last_panel": shape.panels, "room": "scratch",
            "place_panel": panel + f"{op.n} - g * {SIDE} < {SIDE} ? {op.n} - g * {SIDE} : {SIDE})",
            "epilogues": text.finish.functions(op.n >= 16, op.n % 16 != 0),
            "a_type": w.input(0).dtype.c, "y_type": w.outputs[0].dtype.c,
            "a_base": batch_base(op.a_view, outer),
            "am": op.a_view.strides[-2], "ak": op.a_view.strides[-1], "bk": bk, "bn": bn,
            "b_base": packed_base(op.batch, op.b_view, outer, shape.packed) if mode == "packed"
            else batch_base(op.b_view, outer), "y_base": batch_base(dense(op.loops), outer),
            "rest": op.k - (shape.steps - 1) * e.depth, "place": "split_rows",
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: Params, target: Target) -> float:
        """Cycles of products, placing both operands, epilogues, and waiting for memory."""
        op, e, mode, shape = w.op, self.elements, read_mode(w), self.shape(w, target)
        blocks, machine = -(-op.m // SIDE) * shape.panels, target.machine
        step = step_cycles(e)
        cycles = blocks * (shape.steps * step + 2 * SIDE * end_cycles(w))
        if mode == "packed":
            packed = shape.packed * e.size
            reread = sum(b.count for b in shape.blocks) - 1 if packed > l2_share(machine) else 0
            cycles += fetching(machine, packed) + reread * packed / STREAM
        else:
            cycles += shape.panels * shape.steps * panel_cycles(mode, e.planes)
            cycles += op.k * op.n * 4 / SPILLED if op.k * op.n * 4 > l2_share(machine) else 0.0
        a = op.m * op.k * w.input(0).dtype.itemsize
        cycles += op.m * shape.steps * self.placing(op)
        cycles += a / FIRST if w.constant[0] else far_cycles(machine, a)
        return COMPARED * prod(op.batch) * (cycles + 600.0)


class MatMulAmx(TiledMatMul):
    """float MatMul in tiles, one product of bfloat16."""

    name = "matmul_amx_bf16"
    precision = "bf16"
    headers = ("bf16", "tiles")
    elements = PAIRS

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats, and an epilogue in vectors."""
        able = {"amx_tile", "amx_bf16"} <= target.features and is_float_product(w)
        able = able and knows_matrices(w)
        return able and vector_epilogue(w.op.epilogue, w, target, 2)

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Tiles of constant B in the order of use."""
        op, planes = w.op, self.elements.planes
        deep = self.shape(w, target).together
        return {1: lambda b: pack_tiles(op, b, planes, deep)} if w.constant[1] else {}

    def text(self, w: Workload[MatMul], outer: tuple[str, ...]) -> Text:
        """Functions know both operands where rows may be recomputed."""
        operands = (("const float *", "all_a"), ("const float *", "all_b"))
        own = operands if self.elements.planes > 1 else ()
        rounded = self.precision != "bf16x6"  # which has all bits
        finish = EpilogueFunctions(w.op.epilogue, outer, 2, rounded=rounded)
        return Text(finish, self.elements, own)

    def placing(self, op: MatMul) -> float:
        """Round or split numbers, which may have to be gathered."""
        gathering = 0.0 if op.a_view.strides[-1] == 1 else GATHERED / 2
        return splitting(self.elements.planes) + gathering


class MatMulAmxSplit(MatMulAmx):
    """float MatMul in tiles, three products of split parts."""

    name = "matmul_amx_bf16x3"
    precision = "bf16x3"
    elements = SPLIT_PAIRS


class MatMulAmxWhole(MatMulAmx):
    """float MatMul in tiles, six products of split parts."""

    name = "matmul_amx_bf16x6"
    precision = "bf16x6"
    elements = WHOLE_PAIRS


def step_cycles(e: Elements) -> float:
    """Return the cycles of a step of 32 x 32 results."""
    return 4 * len(e.terms) * PRODUCT + SIDE * LINE * e.planes / REACHED


def panel_cycles(mode: str, planes: int) -> float:
    """Return the cycles to split a step of a panel of B, 32 x 32 numbers, by how they lie."""
    pairs = SIDE * (splitting(planes) + planes)
    return pairs + {"rows": 0.0, "columns": 2 * planes * TRANSPOSED}.get(mode, 4 * GATHERED)


Function = tuple[str, int, list[Instruction], int, str]
"""A function that multiplies a block: its name, row tiles, the instructions of a step, how many
lines of the next panel that asks for, and the operand, if any, that passes by the first cache."""


@dataclass(frozen=True)
class Shape:
    """Steps of the depth, of a block of it, panels of 32 columns, blocks of rows.

    Of several blocks of the depth all panels meet one before the next, or (`inner`) a panel meets
    all of them before the next panel. Sizes and places are in elements of A in scratch, or of B in
    tiles.
    """

    e: Elements
    steps: int
    deep: int
    panels: int
    blocks: tuple[RowBlock, ...]
    split_b: bool
    """Whether a panel of B lies in scratch, too."""
    starts: int = 0
    """What packed B begins with, before its tiles."""
    inner: bool = False

    @property
    def kinds(self) -> set[int]:
        """Tiles of blocks of rows: 2, 1 or both."""
        return {kind for block in self.blocks for kind in block.kinds}

    @property
    def open(self) -> bool:
        """Whether only the run counts rows."""
        return any(block.open for block in self.blocks)

    @property
    def largest(self) -> int:
        """Blocks of 32 rows that share a panel of B."""
        return -(-self.blocks[0].most // SIDE)

    @property
    def parts(self) -> int:
        """Blocks of the depth."""
        return self.steps // self.deep

    @property
    def together(self) -> int:
        """Steps of a panel that lie together in packed B."""
        return self.steps if self.inner else self.deep

    def functions(self, lines: int, machine: Machine) -> list[Function]:
        """Return those that multiply a block, which ask for so many lines in a step."""
        orders, stream = step_orders(self.e.terms, lines), self._streamed(machine)
        return [(f"multiply_{n}", n, orders[n], lines, stream) for n in sorted(self.kinds)]

    def _streamed(self, machine: Machine) -> str:
        """Return which operand, if any, passes by the other one, which has the first cache: rows
        of A, where several blocks of them meet a panel of B that it holds."""
        held = self.deep * self.e.step * self.e.size <= machine.l1_kept
        return "A" if held and self.largest > 1 else ""

    @property
    def packed(self) -> int:
        """The size of a batch of packed B."""
        return self.starts + self.panels * self.steps * self.e.step

    @property
    def sums(self) -> int:
        """The place of the sums in scratch, behind a block of A's rows."""
        return self.steps * self.blocks[0].most * self.e.row

    @property
    def panel(self) -> int:
        """The place of a panel of B, behind the sums of two blocks."""
        return self.sums + 2 * self._block

    @property
    def kept(self) -> int:
        """The place of the sums of blocks of the depth."""
        return self.panel + self.split_b * self.steps * self.e.step

    @property
    def room(self) -> int:
        """The size of scratch."""
        panels = 1 if self.inner else self.panels
        return self.kept + (self.parts > 1) * panels * self.largest * self._block

    @property
    def _block(self) -> int:
        return SIDE * SIDE * 4 // self.e.size


def shape_of(w: Workload[MatMul], e: Elements, target: Target, starts: int = 0) -> Shape:
    """Return how a product is cut."""
    op, machine = w.op, target.machine
    steps, panels = -(-op.k // e.depth), -(-op.n // SIDE)
    deep, inner = steps, False
    if e.planes > 1 and op.k > DEEP and w.constant[1]:
        deep = largest_divisor(steps, DEPTH_BLOCK // STEP)
        deep = deep if 2 * deep * STEP >= DEPTH_BLOCK else steps
    elif e.planes == 1 and w.constant[1] and max_value(op.m) >= MANY:
        near = largest_divisor(steps, max(1, machine.l1_kept // (e.step * e.size)))
        inner = LEAST <= near < steps
        deep = near if inner else steps
    # a block, as deep as is multiplied by all of B, is in a cache meanwhile
    blocks = cut_rows(op.m, (steps if inner else deep) * e.planes * LINE, l2_share(machine))
    return Shape(e, steps, deep, panels, blocks, not w.constant[1], starts, inner)


def knows_matrices(w: Workload[MatMul]) -> bool:
    """Return whether the run decides no more than rows of A and batches of what isn't packed."""
    op = w.op
    packed = (kept_batch(op.batch, op.b_view), op.b_view) if w.constant[1] else ()
    return not is_dynamic((op.k, op.n, op.a_view.strides[-2:], op.b_view.strides[-2:], packed))


def pack_tiles(op: MatMul, b: Array, planes: int, deep: int) -> Array:
    """Return constant B [*batch, k, n] as tiles of pairs.

    [*batch][k / deep][n / 32][deep / 32][part, lowest first][2 tiles][16 pairs][16 columns]; pair j
    of a step is of the numbers j and 16 + j. One part, rounded to nearest, where planes is 1.
    """
    steps, panels = -(-op.k // STEP), -(-op.n // SIDE)
    full = gathered_b(op, b).reshape(-1, op.k, op.n)
    padded = np.zeros((len(full), steps * STEP, panels * SIDE), np.float32)
    padded[:, : op.k, : op.n] = full
    shape = (planes, -1, steps // deep, deep, 2, 16, panels, 2, 16)
    ordered = np.stack(in_parts(padded, planes)).reshape(shape).transpose(1, 2, 6, 3, 0, 7, 5, 8, 4)
    return np.ascontiguousarray(ordered).view(np.float32)[..., 0]


@dataclass(frozen=True)
class Text:
    """The C of the functions' heads, calls and stores.

    Functions hand on `own` variables, (type, name), to those that finish rows.
    """

    finish: EpilogueFunctions
    e: Elements
    own: tuple[tuple[str, str], ...] = ()
    started: bool = False
    """Whether sums start with numbers of their columns."""

    @property
    def _outer(self) -> list[str]:
        """Variables of the batch loops that the epilogue reads, under the same names."""
        return [v for v in self.finish.places if v in self.finish.outer]

    @property
    def given(self) -> str:
        """The last arguments of every call."""
        names = [name for _, name in self.own]
        return ", ".join([*names, *self._outer, "all_y", *self.finish.extras])

    def head(self, start: str, *parameters: str) -> str:
        """Return a function's head with these parameters and what the epilogue needs."""
        own = [f"{type_}{name}" for type_, name in self.own]
        own += [f"ptrdiff_t {v}" for v in self._outer]
        _, (_, *operands) = self.finish.parameters
        return wrapped(start, [*parameters, *own, f"{self.finish.result.c} *all_y", *operands])

    def multiply(self, name: str, shared: bool, blocked: bool) -> str:
        """Return the head of a function that multiplies a block."""
        e = self.e
        parameters = [f"const {e.a} *a", f"const {e.b} *b", "ptrdiff_t step"]
        parameters += [f"const {e.b} *next"] * shared + [f"const {e.sums} *before"] * blocked
        start = f"static K_NOINLINE void {name}("
        return self.head(start, *parameters, f"{e.sums} *sums", "waiting *w")

    def store(self, vector: int, part: int = 0) -> str:
        """Return the statement that finishes and stores a row's vector, or some lanes of it."""
        at = f" + {16 * vector}" if vector else ""
        value = f"{self.e.load}(sums{at})"
        if self.started:
            value = f"v_i32_add({value}, v_i32_load(starts + j{at}))"
        return self.finish.store(f"y{at}", value, 0, 16 * vector, part)


KERNELS = (MatMulAmx(), MatMulAmxSplit(), MatMulAmxWhole())
