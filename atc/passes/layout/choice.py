"""The graph of choices: a form for every node, and the reorders that these need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from atc.dims import Undecided, concrete, is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import DType, Graph, Node, TensorType, reads
from atc.ir.ops import (
    Conv,
    ConvFilterGradient,
    Map,
    MatMul,
    Normalize,
    Pool,
    Reduce,
    Reshape,
)  # fmt: skip
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Concat, Pad
from atc.ir.ops.sampling import Resample
from atc.passes.layout.conv_forms import conv_forms, filter_gradient_forms, pool_forms
from atc.passes.layout.costs import Price, Task, estimate
from atc.passes.layout.forms import (
    LAID_OUT,
    Argument,
    Form,
    Held,
    Layout,
    Moved,
    Read,
    Scene,
    Widened,
    plain_form,
    reorders,
)  # fmt: skip
from atc.passes.layout.loop_forms import (
    concat_forms,
    map_forms,
    pad_forms,
    plain_loops,
    reduce_forms,
    resample_forms,
    reshape_forms,
)  # fmt: skip
from atc.passes.layout.normalize_forms import normalize_forms
from atc.passes.layout.solver import Problem, Table

RANGED = frozenset({DType.FLOAT, *BYTES})
"""Types of images that kernels in blocks take in a range of sizes."""
MARGIN = 1.25
"""The cost of a reorder as a multiple of its time: it evicts other values from the caches."""


@dataclass(frozen=True)
class Choices:
    """Every node's forms, in order of the graph, with the cost of each in cycles."""

    scene: Scene
    price: Price
    forms: tuple[tuple[Form, ...], ...]
    moves: dict[tuple[TensorType, Layout, Layout], float] = field(default_factory=dict)
    """The costs of reorders, cached."""

    @cached_property
    def costs(self) -> tuple[tuple[float, ...], ...]:
        """The cost of each form, without the reorders it needs."""
        return tuple(
            tuple(self._form_cost(node, form) for form in forms)
            for node, forms in zip(self.scene.graph.nodes, self.forms, strict=True)
        )

    @cached_property
    def makers(self) -> dict[str, int]:
        """The node that computes a value."""
        return {o: k for k, node in enumerate(self.scene.graph.nodes) for o in node.outputs}

    def cost(self, task: Task) -> float:
        """Return the cycles of one call, for the largest shapes if they aren't known."""
        known = self.price(task)
        return estimate(concrete(task), self.scene.width) if known is None else known

    def moving(self, name: str, source: Layout, to: Layout) -> float:
        """Return the cost of converting a value from one layout to another."""
        if source is to:
            return 0.0
        key = (self.scene.type(name), source, to)
        if key not in self.moves:
            self.moves[key] = self._moving(*key)
        return self.moves[key]

    def _moving(self, type_: TensorType, source: Layout, to: Layout) -> float:
        return MARGIN * sum(map(self.cost, self._reorder(type_, source, to)))

    def _reorder(self, type_: TensorType, source: Layout, to: Layout) -> Iterator[Task]:
        have = self.scene.laid_out(type_, source)
        for op, result in reorders(self.scene, type_, source, to):
            yield Task(op, (have,), (result,), (False,))
            have = result

    def conversions(self) -> tuple[Task, ...]:
        """Return the reorders whose costs were queried."""
        tasks = (task for move in self.moves for task in self._reorder(*move))
        return tuple(dict.fromkeys(tasks))

    def task(self, node: Node, form: Form) -> Task:
        """Return the task of a node in a form."""
        scene = self.scene
        types = tuple(self._type(argument) for argument in form.arguments)
        known = tuple(
            isinstance(a, Held) or isinstance(a, Read) and scene.constant(a.name) is not None
            for a in form.arguments
        )
        results = tuple(scene.laid_out(scene.type(o), form.layout) for o in node.outputs)
        return Task(form.op, types, results, known)

    def _type(self, argument: Argument) -> TensorType | None:
        scene = self.scene
        match argument:
            case Read(name, layout):
                return scene.laid_out(scene.type(name), layout) if name else None
            case Held():
                return argument.type
            case Moved(name, _, shape, layout):
                return scene.laid_out(TensorType(scene.type(name).dtype, shape), layout)
            case Widened(name, channels, missing):
                return TensorType(scene.type(name).dtype, (channels + missing,))

    def _form_cost(self, node: Node, form: Form) -> float:
        if node.op.subgraphs():
            return 0.0
        moved = sum(self._moved(a) for a in form.arguments if isinstance(a, Moved | Widened))
        return moved + self.cost(self.task(node, form))

    def _moved(self, argument: Moved | Widened) -> float:
        """Return the cost of rearranging an operand."""
        source = self.scene.type(argument.name)
        if isinstance(argument, Widened):
            op, made = widening(argument, source)
            return self.cost(Task(op, (source,), (made,), (False,)))
        have = TensorType(source.dtype, argument.shape)
        total = self.cost(Task(moving_map(argument, have), (source,), (have,), (False,)))
        steps = reorders(self.scene, have, Layout.PLAIN, argument.layout)
        return total + sum(self.cost(Task(op, (have,), (y,), (False,))) for op, y in steps)


def moving_map(argument: Moved, type_: TensorType) -> Map:
    """Return the node that copies a value through a view."""
    return Map(argument.shape, Input(type_.dtype, 0), (argument.view,))


def widening(argument: Widened, source: TensorType) -> tuple[Pad, TensorType]:
    """Return the node that pads the numbers of each channel with zeros, and its result's type."""
    op = Pad("constant", (argument.channels,), (0,), (argument.missing,))
    return op, TensorType(source.dtype, op.extents)


# ---- forms ---------------------------------------------------------------------------------------


def choices(scene: Scene, price: Price) -> Choices:
    """Return all forms of all nodes."""
    able: dict[str, frozenset[Layout]] = {}
    wanted = _wanted(scene)
    found: list[tuple[Form, ...]] = []
    for node in scene.graph.nodes:
        inner = tuple(shape[1:] for shape in _shapes(scene, node))
        forms = tuple(_ranged_forms(scene, node) if is_dynamic(inner)
                      else _decided(_forms(scene, node, able, wanted)))  # fmt: skip
        found.append(forms)
        for name in node.outputs:
            able[name] = frozenset(f.layout for f in forms)
    return Choices(scene, price, tuple(found))


def _wanted(scene: Scene) -> set[str]:
    """Return the values that a convolution, its gradient or pooling reads."""
    read = {
        node.inputs[0] for node in scene.graph.nodes if isinstance(node.op, Conv | Pool)
    }
    slopes = (n.inputs for n in scene.graph.nodes if isinstance(n.op, ConvFilterGradient))
    return read.union(*slopes)


def _shapes(scene: Scene, node: Node) -> tuple[tuple[int, ...], ...]:
    return tuple(scene.type(name).shape for name in (*node.inputs, *node.outputs) if name)


def _ranged_forms(scene: Scene, node: Node) -> Iterator[Form]:
    """Yield the forms of a node with dynamic extents other than the batch."""
    yield plain_form(node)
    type_ = scene.type(node.outputs[0]) if len(node.outputs) == 1 else None
    if type_ is None or is_dynamic(type_.shape[1:2]) or not scene.layable(type_):
        return
    x = scene.type(node.inputs[0]) if node.inputs and node.inputs[0] else type_
    if is_dynamic(x.shape[1:2]) or is_dynamic(x.shape[1:]) and x.dtype not in RANGED:
        return
    yield from _decided(_laid_out(scene, node, Layout.BLOCKS))


def _decided(forms: Iterator[Form]) -> Iterator[Form]:
    """Yield forms up to one that is right for only some shapes of a range."""
    with suppress(Undecided):
        yield from forms


def _forms(
    scene: Scene, node: Node, able: dict[str, frozenset[Layout]], wanted: set[str]
) -> Iterator[Form]:
    names = [i for i in node.inputs if i and scene.constant(i) is None]
    near = frozenset[Layout]().union(*(able.get(name, frozenset()) for name in names))
    if near & set(scene.others) and isinstance(node.op, Map | Reduce | MatMul):
        yield from plain_loops(scene, node)
    elif isinstance(node.op, Conv):
        yield from conv_forms(scene, node, node.op, Layout.PLAIN)
    elif isinstance(node.op, ConvFilterGradient):
        yield from filter_gradient_forms(scene, node, node.op)
    else:
        yield plain_form(node)
    if scene.batch_last and not isinstance(node.op, Conv | Pool):
        return  # others keep the model's layout
    if len(node.outputs) != 1 or not scene.layable(scene.type(node.outputs[0])):
        return
    if any(not scene.layable(scene.type(i), 0) for i in names[:1]):
        return
    for layout in scene.others:
        if layout is Layout.LAST and scene.type(node.outputs[0]).dtype not in LAID_OUT:
            continue
        if isinstance(node.op, Conv | Pool) or layout in near or node.outputs[0] in wanted:
            yield from _laid_out(scene, node, layout)


def _laid_out(scene: Scene, node: Node, layout: Layout) -> Iterator[Form]:
    """Yield the forms with a result in a layout other than the plain one."""
    channels = scene.type(node.outputs[0]).shape[1]
    if layout is Layout.BLOCKS and not isinstance(node.op, Conv) and 2 * channels < scene.width:
        return
    match node.op:
        case Conv():
            yield from conv_forms(scene, node, node.op, layout)
        case Pool():
            yield from pool_forms(scene, node, node.op, layout)
        case Map():
            yield from map_forms(scene, node, node.op, layout)
        case Reduce():
            yield from reduce_forms(scene, node, node.op, layout)
        case Concat():
            yield from concat_forms(scene, node, node.op, layout)
        case Normalize():
            yield from normalize_forms(scene, node, node.op, layout)
        case Pad():
            yield from pad_forms(scene, node, node.op, layout)
        case Resample():
            yield from resample_forms(scene, node, node.op, layout)
        case Reshape():
            yield from reshape_forms(scene, node, layout)


# ---- the problem ---------------------------------------------------------------------------------

Kept = Sequence[Sequence[int]]
"""The numbers of the forms that each node may have."""


def worthwhile(found: Choices) -> tuple[tuple[int, ...], ...]:
    """Return the forms that may be part of a cheapest choice.

    The others cost no less than some other form with all reorders that would replace them by it.
    """
    readers = _readers(found.scene.graph)
    return tuple(_worthwhile(found, k, readers) for k in range(len(found.forms)))


def _worthwhile(
    found: Choices, k: int, readers: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    node, forms, costs = found.scene.graph.nodes[k], found.forms[k], found.costs[k]
    if len(forms) < 2:
        return (0,)

    def instead(f: int, g: int) -> float:
        """Return the most that form g may cost more than form f by other reorders around it."""
        (name,), old, new = node.outputs, forms[f], forms[g]
        total = 0.0
        if new.layout is not old.layout:
            after = [(found.moving(name, new.layout, to), found.moving(name, old.layout, to))
                     for to in Layout]  # fmt: skip
            total += sum(max(more - less, 0.0) for more, less in after)
        for source in dict.fromkeys(i for i in node.inputs if i):
            if found.scene.constant(source) is None:
                total += before(source, _layouts(old, source), _layouts(new, source))
        return total

    def before(name: str, had: frozenset[Layout], want: frozenset[Layout]) -> float:
        """Return the most that an operand may cost more; values with other readers exist anyway."""
        maker = found.makers.get(name)
        made = {f.layout for f in found.forms[maker]} if maker is not None else {Layout.PLAIN}
        saved = had if len(readers[name]) == 1 else frozenset[Layout]()
        return max(
            sum(found.moving(name, source, to) for to in want - had)
            - sum(found.moving(name, source, to) for to in saved - want)
            for source in made
        )

    kept = sorted(range(len(forms)), key=costs.__getitem__)
    for f in reversed(kept[1:]):
        if any(costs[g] + instead(f, g) <= costs[f] for g in kept if g != f and costs[g] < inf):
            kept.remove(f)
    return tuple(sorted(kept))


def build_problem(found: Choices, kept: Kept) -> Problem:
    """Return the choice of forms and of copies in other layouts as a problem for the solver.

    The variables are the nodes in order, with the kept forms as states, then the copies: values
    with several readers in one layout each, where state 1 is a copy that exists.
    """
    build = _Building(found, kept)
    for name, readers in _readers(found.scene.graph).items():
        if found.scene.constant(name) is None:
            build.value(name, readers)
    return Problem(tuple(map(tuple, build.single)), build.pairs)


def completed(problem: Problem, states: Sequence[int]) -> tuple[int, ...]:
    """Return the states of all variables for those of the nodes, with the copies that they need."""
    needed = [costs[0] == inf for costs in problem.single]
    for (i, j), table in problem.pairs.items():
        if i < len(states) <= j and table[states[i], 0] == inf:
            needed[j] = True
    return (*states, *map(int, needed[len(states) :]))


class _Building:
    """A problem under construction."""

    def __init__(self, found: Choices, kept: Kept) -> None:
        self.found = found
        self.forms = [
            [forms[n] for n in own] for forms, own in zip(found.forms, kept, strict=True)
        ]
        self.single = [
            [costs[n] for n in own] for costs, own in zip(found.costs, kept, strict=True)
        ]
        self.pairs: dict[tuple[int, int], Table] = {}

    def value(self, name: str, readers: Sequence[int]) -> None:
        """Add the cost of having a value in the layouts in which its readers want it."""
        maker = self.found.makers.get(name)
        made = [Layout.PLAIN] if maker is None else [f.layout for f in self.forms[maker]]
        needs = [[_layouts(f, name) for f in self.forms[r]] for r in readers]
        output = name in self.found.scene.graph.ends
        every = set(made).union(*(layouts for need in needs for layouts in need))
        every |= {Layout.PLAIN} if output else set()
        if every == {Layout.PLAIN}:
            return
        if len(readers) == 1 and not output:
            self._direct(name, maker, made, readers[0], needs[0])
            return
        for layout in sorted(every, key=list(Layout).index):
            copy = len(self.single)
            costs = [self.found.moving(name, source, layout) for source in made]
            needed = output and layout is Layout.PLAIN
            self.single.append([inf if needed else 0.0, costs[0] if maker is None else 0.0])
            if maker is not None:
                self._add(maker, copy, [[0.0, cost] for cost in costs])
            for reader, need in zip(readers, needs, strict=True):
                self._add(reader, copy, [[inf if layout in want else 0.0, 0.0] for want in need])

    def _direct(
        self, name: str, maker: int | None, made: Sequence[Layout], reader: int,
        need: Sequence[frozenset[Layout]],
    ) -> None:  # fmt: skip
        """Add the cost of reorders between a value's producer and its only reader."""
        table = [
            [sum(self.found.moving(name, source, want) for want in wants) for wants in need]
            for source in made
        ]
        if maker is None:
            own = zip(self.single[reader], table[0], strict=True)
            self.single[reader] = [a + b for a, b in own]
        else:
            self._add(maker, reader, table)

    def _add(self, i: int, j: int, costs: Sequence[Sequence[float]]) -> None:
        table = np.array(costs, np.float64)
        if table.any():
            self.pairs[i, j] = self.pairs[i, j] + table if (i, j) in self.pairs else table


def _readers(graph: Graph) -> dict[str, list[int]]:
    """Return the nodes that read each value, in order."""
    found: dict[str, list[int]] = {name: [] for name in graph.outputs}
    for k, node in enumerate(graph.nodes):
        for name in dict.fromkeys(reads(node)):
            found.setdefault(name, []).append(k)
    return found


def _layouts(form: Form, name: str) -> frozenset[Layout]:
    """Return the layouts in which a form reads a value; subgraphs read plain ones."""
    found = frozenset(r.layout for r in form.reads() if r.name == name)
    return found or frozenset((Layout.PLAIN,))
