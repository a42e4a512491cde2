"""Propagation of packed layouts: images pass from call to call as the planes the next one wants.

A tensor becomes planes where the kernel that makes it can write them and all that read it can read
them: then nothing is copied or converted in between. Where any reader is of another kind, each
kernel that wants planes makes its own, as part of its call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from atc.backends.packed_layout import Planes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Graph, Node, TensorType
from atc.select.select import Choice, Selection


@dataclass(frozen=True)
class HandedOver:
    """A selection whose kernels pass packed layouts on, and the types of the values in them."""

    selection: Selection
    types: Mapping[str, TensorType]


def hand_over(graph: Graph, selection: Selection, target: Target, threads: int) -> HandedOver:
    """Return the selection with packed layouts where they save a copy; subgraphs stay."""
    wanted = _wanted(graph, selection, target)
    found = {}
    for node in graph.nodes:
        planes = wanted.get(node.outputs[0]) if len(node.outputs) == 1 else None
        if planes is None or (threads > 1 and planes.images > 1):  # images are cut among threads
            continue
        choice = selection.get(node.outputs[0])
        if choice and _gives(choice, planes, target):
            found[node.outputs[0]] = planes
    changed = dict(selection)
    for node in graph.nodes:
        if node.outputs and node.outputs[0] in selection:
            inputs = {k: found[v] for k, v in enumerate(node.inputs) if v in found}
            y = found.get(node.outputs[0])
            if inputs or y:
                changed[node.outputs[0]] = _changed(selection[node.outputs[0]], inputs, y)
    types = {value: planes.type(graph.types[value]) for value, planes in found.items()}
    return HandedOver(changed, types)


def _wanted(graph: Graph, selection: Selection, target: Target) -> dict[str, Planes]:
    """Return the layout that suits all readers of a value, where one of them would copy it."""
    readers: dict[str, list[Planes | None]] = {v: [None] for v in graph.outputs}
    copied: set[str] = set()
    for node in graph.nodes:
        planes = _read(node, selection, target)
        copied.update(node.inputs[:1] if 0 in planes else ())
        for index, value in enumerate(node.inputs):
            readers.setdefault(value, []).append(planes.get(index))
    joined = {v: _joined(each) for v, each in readers.items() if v in copied}
    return {v: planes for v, planes in joined.items() if planes is not None}


def _read(node: Node, selection: Selection, target: Target) -> Mapping[int, Planes]:
    choice = selection.get(node.outputs[0]) if node.outputs else None
    if choice is None or is_dynamic(choice.workload):
        return {}
    kernel = choice.candidate.kernel
    return kernel.reads_planes(choice.workload, choice.candidate.params, target)


def _gives(choice: Choice, planes: Planes, target: Target) -> bool:
    kernel, params = choice.candidate.kernel, choice.candidate.params
    return kernel.gives_planes(choice.workload, params, target, planes)


def _joined(each: list[Planes | None]) -> Planes | None:
    def join(one: Planes | None, other: Planes | None) -> Planes | None:
        return one.joined(other) if one and other else None

    return reduce(join, each)


def _changed(choice: Choice, inputs: Mapping[int, Planes], y: Planes | None) -> Choice:
    candidate = choice.candidate
    params = candidate.kernel.in_planes(candidate.params, inputs, y)
    return replace(choice, candidate=replace(candidate, params=params))
