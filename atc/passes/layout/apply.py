"""Rewrite a graph by the forms chosen for its nodes, with one reorder per value and layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from atc.ir.graph import Alias, Array, Graph, Node, Op, TensorType, prune, reads, type_of
from atc.passes.layout.choice import Choices, moving_map, widening
from atc.passes.layout.forms import (
    Argument,
    Held,
    Layout,
    Moved,
    Read,
    Scene,
    Widened,
    reorders,
)  # fmt: skip
from atc.passes.rewriting import fresh_name


def apply(found: Choices, states: Sequence[int]) -> Graph:
    """Return the graph in which every node has the form of that number."""
    graph = found.scene.graph
    if not any(states):
        return graph
    state = _Rewriting(found.scene, dict(graph.types), dict(graph.constants))
    for node, forms, chosen in zip(graph.nodes, found.forms, states, strict=False):
        form = forms[chosen]
        if not chosen:
            for name in dict.fromkeys(reads(node)):
                state.value(name, Layout.PLAIN)
            state.nodes.append(node)
            continue
        inputs = tuple(state.argument(a) for a in form.arguments)
        output, *others = node.outputs
        if form.layout is not Layout.PLAIN:
            output = state.result(output, form.layout)
        state.nodes.append(replace(node, op=form.op, inputs=inputs, outputs=(output, *others)))
    for name in graph.outputs:
        state.value(name, Layout.PLAIN)
    return prune(
        replace(
            graph, nodes=tuple(state.nodes), types=state.types, constants=state.constants,
            aliases={**graph.aliases, **state.aliases},
        )  # fmt: skip
    )


@dataclass
class _Rewriting:
    """The graph being rewritten: the layouts in which values exist."""

    scene: Scene
    types: dict[str, TensorType]
    constants: dict[str, Array]
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Layout] = field(default_factory=dict)
    """The layout in which a value is computed, if that isn't the plain one."""
    names: dict[tuple[str, Layout], str] = field(default_factory=dict)
    """The name of a value in a layout in which it exists, or will exist."""
    kept: dict[tuple[str, bytes], str] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def result(self, name: str, layout: Layout) -> str:
        """Name the result of a node in its layout."""
        self.made[name] = layout
        return self._named(name, layout)

    def _named(self, name: str, layout: Layout) -> str:
        type_ = self.scene.laid_out(self.scene.type(name), layout)
        self.names[name, layout] = self._new(f"{name}{layout.value}", type_, name)
        return self.names[name, layout]

    def _new(self, hint: str, type_: TensorType, of: str = "") -> str:
        """Name a new value; it may be `of` another one, in another layout."""
        name = fresh_name(self.types, hint)
        self.types[name] = type_
        if of:
            self.aliases[name] = Alias("layout", of)
        return name

    def argument(self, argument: Argument) -> str:
        """Return the name of an operand, which is computed here if needed."""
        match argument:
            case Read(name, layout):
                return self.value(name, layout) if name else name
            case Held(name, array):
                return self._constant(name, array)
            case Moved(name, _, shape, layout):
                type_ = TensorType(self.scene.type(name).dtype, shape)
                moved = self._new(f"{name}.moved", type_)
                self._add(moving_map(argument, type_), self.value(name, Layout.PLAIN), moved)
                return self._steps(moved, type_, Layout.PLAIN, layout)
            case Widened(name):
                op, type_ = widening(argument, self.scene.type(name))
                wide = self._new(f"{name}.wide", type_)
                self._add(op, self.value(name, Layout.PLAIN), wide)
                return wide

    def value(self, name: str, layout: Layout) -> str:
        """Return a value's name in a layout; its reorder is added here if needed."""
        source = self.made.get(name, Layout.PLAIN)
        if layout is source:
            return self.names.get((name, layout), name)
        if (name, layout) not in self.names:
            final = name if layout is Layout.PLAIN else ""
            start = self.names.get((name, source), name)
            type_ = self.scene.type(name)
            self.names[name, layout] = self._steps(start, type_, source, layout, final, name)
        return self.names[name, layout]

    def _steps(
        self, name: str, plain: TensorType, source: Layout, to: Layout, final: str = "",
        of: str = "",
    ) -> str:  # fmt: skip
        """Add the nodes from one layout to another; the last result is called `final`, if given.

        The others are the value `of`, if that is given.
        """
        steps = reorders(self.scene, plain, source, to)
        for k, (op, type_) in enumerate(steps):
            last = k == len(steps) - 1
            result = final if last and final else self._new(
                f"{name}{to.value or '.plain'}", type_, of
            )
            self._add(op, name, result)
            name = result
        return name

    def _add(self, op: Op, source: str, result: str) -> None:
        self.nodes.append(Node(op, (source,), (result,)))

    def _constant(self, hint: str, array: Array) -> str:
        """Add a constant; equal ones are added once."""
        array = np.ascontiguousarray(array)
        key = (hint, str(array.shape).encode() + array.tobytes())
        if key not in self.kept:
            self.kept[key] = self._new(f"{hint}{Layout.BLOCKS.value}", type_of(array))
            self.constants[self.kept[key]] = array
        return self.kept[key]
