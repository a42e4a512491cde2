"""Patterns that MegEngine 1.13's dump writes by mistake; they are translated as they stand.

With its default options it stores clip(x, lo, hi) as min(max(x, lo), lo), and sign(x) with the
sign negated. The file is what MegEngine's own loader computes, so it stays, with a warning.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from atc.errors import one_line

_HINT = "MegEngine 1.13 writes it so by mistake; dump with no_change_graph=True to avoid it"


def suspicion(value: ir.Value, name: str) -> str | None:
    """Return a warning about the operator that computes `value`, None for nearly all."""
    node = value.producer()
    if node is None or len(node.inputs) != 2:
        return None
    name = one_line(name, 200)
    first, second = node.inputs
    if first is None or second is None:
        return None
    if node.op_type == "Min" and (_is_low(first, second) or _is_low(second, first)):
        return f"{name} clips to an empty range; {_HINT}"
    if node.op_type == "Sub" and _is_negated_sign(first, second):
        return f"{name} is the negative sign of its input; {_HINT}"
    return None


def _is_low(bound: ir.Value, value: ir.Value) -> bool:
    """Say whether `value` is the maximum of something and the same constant as `bound`."""
    node = value.producer()
    if node is None or node.op_type != "Max":
        return False
    return any(operand is not None and _same(operand, bound) for operand in node.inputs)


def _same(one: ir.Value, other: ir.Value) -> bool:
    if one.const_value is None or other.const_value is None:
        return False
    if one.const_value.size != 1 or other.const_value.size != 1:
        return False
    return bool(np.array_equal(one.const_value.numpy(), other.const_value.numpy()))


def _is_negated_sign(first: ir.Value, second: ir.Value) -> bool:
    """Say whether the operands are (x < 0) and (0 < x) as numbers."""
    below, above = _compared(first), _compared(second)
    if below is None or above is None or below[0] is not above[1]:
        return False
    zeros = (below[1], above[0])
    return all(_is_zero(value) for value in zeros)


def _compared(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return x and y of a number that says x < y."""
    cast = value.producer()
    less = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    node = less.producer() if less is not None else None
    if node is None or node.op_type != "Less":
        return None
    x, y = node.inputs
    return None if x is None or y is None else (x, y)


def _is_zero(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()
