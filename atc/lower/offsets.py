"""Differences between values of a model that constants make: `i + 2` is one more than `i + 1`."""

from __future__ import annotations

import onnx_ir
import onnx_ir.convenience

from atc.lower.context import LoweringContext

LONGEST = 16
"""Nodes up to which a sum is followed."""


def difference(
    ctx: LoweringContext, value: onnx_ir.Value | None, base: onnx_ir.Value | None
) -> int | None:
    """Return how much more than another one a value of integers is, None where it isn't known."""
    (a, more), (b, less) = _split(ctx, value), _split(ctx, base)
    return more - less if a is b is not None else None


def _split(ctx: LoweringContext, value: onnx_ir.Value | None) -> tuple[onnx_ir.Value | None, int]:
    """Return the value to which constants are added, and their sum."""
    total = 0
    for _ in range(LONGEST):
        node = value.producer() if value is not None else None
        if node is None or node.op_type not in ("Add", "Sub", "Identity") or node.domain:
            break
        if node.op_type == "Identity":
            value = node.inputs[0]
            continue
        left, right = node.inputs
        step, rest = _integer(ctx, right), left
        if step is None and node.op_type == "Add":
            step, rest = _integer(ctx, left), right
        if step is None:
            break
        total, value = total + (step if node.op_type == "Add" else -step), rest
    return value, total


def _integer(ctx: LoweringContext, value: onnx_ir.Value | None) -> int | None:
    """Return the integer that a value is, or None."""
    maker = value.producer() if value is not None else None
    if maker is not None and maker.op_type == "CastLike" and not maker.domain:
        return _integer(ctx, maker.inputs[0])
    if value is None:
        return None
    array = ctx.b.value(ctx.bound(value))
    if array is None:  # in a body that isn't lowered yet
        tensor = onnx_ir.convenience.get_const_tensor(value)
        array = None if tensor is None else tensor.numpy()
    if array is None or array.size != 1 or array.dtype.kind not in "iu":
        return None
    return int(array.reshape(-1)[0])
