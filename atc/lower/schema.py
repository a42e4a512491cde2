"""The element types that the standard allows an operator's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx

from atc.ir.graph import DType


@dataclass(frozen=True)
class _Input:
    name: str
    variable: str
    """Inputs of the same type variable have the same type."""
    kinds: frozenset[str]


@dataclass(frozen=True)
class _Signature:
    inputs: tuple[_Input, ...]
    homogeneous: bool
    """Whether all inputs in the place of a variadic last one have one type."""
    most: int | None
    """How many inputs there may be; None where the last one is variadic."""


EARLIER = frozenset(
    {("LayerNormalization", ""), ("MeanVarianceNormalization", ""), ("ThresholdedRelu", "")}
)
"""Operators that onnxruntime has had in the standard's domain since opset 1: it writes them."""


def type_error(op_type: str, domain: str, opset: int, types: Sequence[DType | None]) -> str:
    """Return what is wrong with a node's input types, '' where nothing is or nobody knows.

    `types` holds None for an absent input and for what isn't a tensor. Kinds are compared only, as
    more widths are covered than the standard asks for. What a later version of the operator takes
    is taken of an earlier one too; that the operator itself came later is wrong.
    """
    signature = _signature(op_type, domain, opset)
    if signature is None:
        return _too_new(op_type, domain, opset)
    if not signature.inputs:
        return ""
    if signature.most is not None and len(types) > signature.most:
        return f"{len(types)} inputs, of which the operator takes {signature.most}"
    bound: dict[str, tuple[int, DType]] = {}
    last = len(signature.inputs) - 1
    for k, dtype in enumerate(types):
        spec = signature.inputs[min(k, last)]
        if dtype is None:
            continue
        name = _name(dtype)
        if _kind(name) not in spec.kinds:
            return f"input {k} is {name}, which the operator doesn't take for {spec.name}"
        if k >= last and not signature.homogeneous:
            continue
        first, known = bound.setdefault(spec.variable, (k, dtype))
        if known is not dtype:
            return f"inputs {first} and {k} are {_name(known)} and {name} but must have one type"
    return ""


def _name(dtype: DType) -> str:
    return dtype.name.lower()


def _kind(name: str) -> str:
    """Return float, int, bool, string or what else a type is, by its name, be it in tensor(...)."""
    for kind in ("float", "int", "bool", "string"):
        if kind in name:
            return kind
    return "float" if "double" in name else name


def _too_new(op_type: str, domain: str, opset: int) -> str:
    """Return since when the standard has an operator that this opset lacks, '' for any other."""
    first = _first_opsets().get((op_type, domain))
    if first is None or first <= opset or (op_type, domain) in EARLIER:
        return ""
    return f"the operator came with opset {first}, the model imports {opset}"


@cache
def _first_opsets() -> dict[tuple[str, str], int]:
    """Return since which opset of its domain the standard has each operator."""
    first: dict[tuple[str, str], int] = {}
    every: Any = onnx.defs.get_all_schemas_with_history()
    for schema in every:
        key = (schema.name, schema.domain)
        first[key] = min(schema.since_version, first.get(key, schema.since_version))
    return first


@cache
def _signature(op_type: str, domain: str, opset: int) -> _Signature | None:
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)  # the stubs are incomplete
        newest = onnx.defs.get_schema(op_type, domain)
    except onnx.defs.SchemaError:
        return None
    later = {i.name: i for i in newest.inputs}
    inputs = []
    for each in schema.inputs:
        same = later.get(each.name, each)
        kinds = frozenset(map(_kind, (*each.types, *same.types)))
        inputs.append(_Input(each.name, each.type_str, kinds))
    variadic = _is_variadic(schema)
    limited = not (variadic or _is_variadic(newest))
    most = max(len(schema.inputs), len(newest.inputs)) if limited else None
    return _Signature(tuple(inputs), not variadic or schema.inputs[-1].is_homogeneous, most)


def _is_variadic(schema: Any) -> bool:
    return bool(schema.inputs) and schema.inputs[-1].option.name == "Variadic"
