"""Float fallbacks of a quantized network, with reasons: a part of the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from atc.ir.graph import DType
from atc.program.steps import Call, Program, calls

_SUMS = (
    "integer kernels need bytes of one scale, weights of 8 bits with one scale per filter or "
    "column, and sums that fit 32 bits"
)
_BETWEEN = "interpolates between elements"
REASONS: Mapping[str, str] = {
    "Softmax": "exponentials and their sum have no integer form in the standard",
    "Attention": "its softmax has no integer form in the standard",
    "Normalize": "means and square roots have no integer form in the standard",
    "Recurrent": "its activations have no integer form in the standard",
    "Conv": _SUMS, "ConvBlocked": _SUMS, "ConvTranspose": _SUMS, "MatMul": _SUMS,
    "Resample": _BETWEEN, "GridSample": _BETWEEN, "RoiAlign": _BETWEEN,
    "Map": "between other nodes that compute in float, or not of one scale",
}  # fmt: skip
"""Why an op computes in float, by its kind."""


def float_fallbacks(
    program: Program, source: Sequence[Mapping[str, object]]
) -> list[dict[str, object]]:
    """Return the calls that read or write floats in a network that has quantized values.

    `source` is the model's own nodes; where none of them quantizes the list is empty.
    """
    if not any("Quantize" in str(n["op"]) or "QLinear" in str(n["op"]) for n in source):
        return []
    return [
        {"nodes": list(call.node.origin), "op": call.node.op.kind, "why": why}
        for call in calls(program.steps)
        for why in _reasons(call, program)
    ]


def _reasons(call: Call, program: Program) -> Iterator[str]:
    """Yield why a call computes in float, nothing where it doesn't."""
    read = [n for n in call.node.inputs if n and _is_float(n, program)]
    written = [n for n in call.node.outputs if _is_float(n, program)]
    outputs = {*program.output_bases}
    if not read and not written:
        return
    if not written:
        given = all(n in program.inputs for n in read)
        yield "an input of the network is float" if given else "what it reads is computed in float"
    elif not read:
        last = all(program.base(n) in outputs for n in written)
        yield "an output of the network is float" if last else "what reads it computes in float"
    else:
        yield REASONS.get(call.node.op.kind, "has no integer form")


def _is_float(name: str, program: Program) -> bool:
    """Return whether a value that is computed or given holds floats."""
    return name not in program.constants and program.types[name].dtype is DType.FLOAT
