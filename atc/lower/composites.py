"""Composite values, sequences and optionals: their elements are a graph's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from atc.errors import UnsupportedError
from atc.ir.graph import Composite
from atc.lower.builder import Builder

COMPOSITES = "atc.composites"
"""Where the importer of ONNX keeps, if it split any input, which inputs stand for each: its own
name for a tensor, None for an optional without a value."""

MAP_KEYS = "atc.map_keys"
"""Where it keeps, in the `meta` of an input that is a map, the type of the keys."""

MAP_DOMAIN = "atc.map"
"""Of the operator by which it makes a map of keys and values."""


@dataclass(frozen=True)
class Outputs:
    """The values that a graph returns, what they are called, and which belong together."""

    values: tuple[str, ...]
    names: tuple[str, ...]
    composites: tuple[Composite, ...]


def output_tensors(b: Builder, names: Sequence[str], values: Sequence[str]) -> Outputs:
    """Replace each sequence by its elements, called `name_0`, `name_1`, ...

    A map becomes its keys and values, `name_keys` and `name_values`.
    """
    taken = {*names}
    found: list[str] = []
    called: list[str] = []
    composites: list[Composite] = []
    for name, value in zip(names, values, strict=True):
        parts = b.parts(value)
        if parts is None:
            found.append(value)
            called.append(name)
            continue
        elements = b.elements(parts)
        count = -1 if parts.names is None else len(elements)
        composites.append(Composite("output", name, len(found), count, parts.is_map))
        found += elements
        labels = ("keys", "values") if parts.is_map else range(len(elements))
        called += [_element_name(name, label, taken) for label in labels]
    return Outputs(tuple(found), tuple(called), tuple(composites))


def _element_name(name: str, label: int | str, taken: set[str]) -> str:
    text = f"{name}_{label}"
    while text in taken:
        text += "_"
    taken.add(text)
    return text


def input_composites(model: onnx_ir.Model, inputs: Sequence[str]) -> tuple[Composite, ...]:
    """Return the inputs that were sequences or optionals before the importer split them."""
    given: Mapping[str, Sequence[str] | None] = model.meta.get(COMPOSITES, {})
    maps = {node.outputs[0].name for node in model.graph if node.domain == MAP_DOMAIN}
    composites = []
    at = 0
    for name, parts in given.items():
        if parts == [name]:
            at += name in inputs  # not an initializer
            continue
        count = -1 if parts is None else len(parts)
        composites.append(Composite("input", name, at, count, name in maps))
        at += len(parts or ())
    return tuple(composites)


def refuse_composite(value: onnx_ir.Value, file: str) -> None:
    """Raise UnsupportedError for an input whose number of tensors isn't known."""
    name, kind = value.name or "", value.type
    if isinstance(kind, onnx_ir.OptionalType):
        raise UnsupportedError(
            f"input '{name}' is optional: whether it has a value is not known", where=file,
            hint=f'say so: --input_shape="{name}:none", or its shape as for other inputs',
        )  # fmt: skip
    if MAP_KEYS in value.meta:
        raise UnsupportedError(
            f"input '{name}' is a map of an unknown number of entries", where=file,
            hint=f'say how many it has: --input_shape="{name}:5"',
        )  # fmt: skip
    if isinstance(kind, onnx_ir.SequenceType):
        raise UnsupportedError(
            f"input '{name}' is a sequence of an unknown number of tensors", where=file,
            hint=f'give their shapes: --input_shape="{name}:[1,2][3]", or "{name}:empty"',
        )  # fmt: skip
