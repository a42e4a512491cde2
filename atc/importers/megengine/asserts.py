"""Dumps with test cases: each output is compared with an expected value, an extra input.

The comparisons and the expected inputs are dropped; the outputs are what was compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc.errors import ModelError
from atc.importers.megengine.dump import Dump, Operator

_SUFFIX = ":expect"


def without_asserts(dump: Dump) -> tuple[Dump, frozenset[str]]:
    """Return the dump with its own outputs, and the names of the expected inputs."""
    asserts = {op.outputs[0]: op for op in dump.operators if _is_assert(op)}
    inputs = {
        op.outputs[0]: op.tensors[0].name
        for op in dump.operators
        if op.kind == "Host2DeviceCopy" and op.outputs and op.tensors
    }
    if not asserts:
        return dump, frozenset()
    names = [
        _name(asserts[number], inputs, name) if number in asserts else name
        for number, name in zip(dump.outputs, dump.output_names, strict=True)
    ]
    outputs = [asserts[n].inputs[1] if n in asserts else n for n in dump.outputs]
    expected = {inputs[op.inputs[0]] for op in asserts.values() if op.inputs[0] in inputs}
    kept = tuple(op for op in dump.operators if not _is_assert(op))
    changed = replace(dump, operators=kept, outputs=tuple(outputs), output_names=tuple(names))
    return changed, frozenset(expected)


def _is_assert(operator: Operator) -> bool:
    if operator.kind != "AssertEqual":
        return False
    if len(operator.inputs) < 2 or len(operator.outputs) != 1:
        raise ModelError("AssertEqual compares two inputs", where=operator.where)
    return True


def _name(operator: Operator, inputs: Mapping[int, str], name: str) -> str:
    """Return the name of the compared variable, which that of the expected input begins with."""
    expected = inputs.get(operator.inputs[0], "")
    return expected.removesuffix(_SUFFIX) or name
