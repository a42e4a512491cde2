"""Propagate packed layouts: calls pass images as the planes that the next call needs.

A tensor becomes planes if the kernel that writes it can write them and all readers can read them:
then nothing is copied or converted in between. If there is any other reader, each kernel that needs
planes makes its own, as part of its call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from atc.backends.kernel import PacksActivations
from atc.backends.packed_layout import PackedLayout
from atc.backends.target import Target
from atc.ir.graph import Graph, Node, TensorType
from atc.select.select import Choice, Selection


@dataclass(frozen=True)
class PackedSelection:
    """A selection whose kernels pass on packed layouts, and the types of the values in them."""

    selection: Selection
    types: Mapping[str, TensorType]


def propagate_packed_layouts(
    graph: Graph, selection: Selection, target: Target, threads: int
) -> PackedSelection:
    """Return the selection with packed layouts where they save a copy; subgraphs stay."""
    wanted = _wanted(graph, selection, target)
    found = {}
    for node in graph.nodes:
        layout = wanted.get(node.outputs[0]) if len(node.outputs) == 1 else None
        if layout is None or (threads > 1 and layout.images != 1):  # images are cut among threads
            continue
        choice = selection.get(node.outputs[0])
        if choice and _gives(choice, layout, target):
            found[node.outputs[0]] = layout
    changed = dict(selection)
    for node in graph.nodes:
        if node.outputs and node.outputs[0] in selection:
            inputs = {k: found[v] for k, v in enumerate(node.inputs) if v in found}
            y = found.get(node.outputs[0])
            if inputs or y:
                changed[node.outputs[0]] = _changed(selection[node.outputs[0]], inputs, y)
    types = {value: layout.type(graph.types[value]) for value, layout in found.items()}
    return PackedSelection(changed, types)


def _wanted(graph: Graph, selection: Selection, target: Target) -> dict[str, PackedLayout]:
    """Return the layout that suits all readers of a value, if one of them would copy it."""
    readers: dict[str, list[PackedLayout | None]] = {v: [None] for v in graph.outputs}
    copied: set[str] = set()
    for node in graph.nodes:
        layout = _read(node, selection, target)
        copied.update(node.inputs[:1] if 0 in layout else ())
        for index, value in enumerate(node.inputs):
            readers.setdefault(value, []).append(layout.get(index))
    joined = {v: _joined(each) for v, each in readers.items() if v in copied}
    return {v: layout for v, layout in joined.items() if layout is not None}


def _read(node: Node, selection: Selection, target: Target) -> Mapping[int, PackedLayout]:
    choice = selection.get(node.outputs[0]) if node.outputs else None
    if choice is None:
        return {}
    kernel = choice.candidate.kernel
    if not isinstance(kernel, PacksActivations):
        return {}
    return kernel.accepted_layouts(choice.workload, choice.candidate.params, target)


def _gives(choice: Choice, layout: PackedLayout, target: Target) -> bool:
    kernel, params = choice.candidate.kernel, choice.candidate.params
    if not isinstance(kernel, PacksActivations):
        return False
    return kernel.produces_layout(choice.workload, params, target, layout)


def _joined(each: list[PackedLayout | None]) -> PackedLayout | None:
    def join(one: PackedLayout | None, other: PackedLayout | None) -> PackedLayout | None:
        return one.joined(other) if one and other else None

    return reduce(join, each)


def _changed(choice: Choice, inputs: Mapping[int, PackedLayout], y: PackedLayout | None) -> Choice:
    candidate = choice.candidate
    if not isinstance(candidate.kernel, PacksActivations):
        return choice
    params = candidate.kernel.packed_params(candidate.params, inputs, y)
    return replace(choice, candidate=replace(candidate, params=params))
