"""Derivatives of ONNX operators on whole axes and matrices: spectra, determinants, caches."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.ir.graph import DType
from atc.lower.concat_pad import pad
from atc.lower.elementwise import compute
from atc.lower.gradient.derivatives import Step, derives, times, zeros
from atc.lower.indexed_access import take

MOST = 24
"""Rows of the largest matrix whose determinant has a gradient: it takes those of all minors."""


@derives("DFT")
def spectrum(step: Step) -> list[str]:
    """Apply the transposed transform: the inverse one without its factor, and the other way."""
    at, b, shape = step.at, step.ctx.b, step.shape(0)
    rank, parts = len(shape), shape[-1]
    if step.opset < 20:
        axis = at.axis(at.int("axis", 1), rank)
    else:
        axis = at.axis(at.ints_const(2, "the axis")[0] if at.has(2) else -2, rank)
    inverse, onesided = at.int("inverse"), at.int("onesided")
    length = b.shape(step.y)[axis]
    if onesided and not inverse:
        length = at.ints_const(1, "the length")[0] if at.has(1) else shape[axis]
    back = {"inverse": 1 - inverse, "onesided": int(inverse and onesided)}
    on = (b.constant(np.asarray(k, np.int64)) for k in (length, axis))
    g = step.op("DFT", step.g, *on, attributes=back)
    dtype = b.type(step.g).dtype.numpy
    factors = np.full(b.shape(g)[axis], 1 / length if inverse else length, dtype)
    if inverse and onesided:  # all but the ends stand for their mirror images, too
        factors[1 : (length + 1) // 2] *= 2
    factors = factors.reshape([-1 if d == axis else 1 for d in range(rank)])
    g = compute(step.ctx, times, g, b.constant(factors))
    more = [n - m for n, m in zip(shape, b.shape(g), strict=True)]
    more[-1] = parts - 2
    return [pad(b, g, [0] * rank, more)]


@derives("Det")
def determinant(step: Step) -> list[str]:
    """Return g times the cofactors, which singular matrices have, too."""
    b, shape = step.ctx.b, step.shape(0)
    n, batch = shape[-1], prod(shape[:-2])
    if n == 1:
        return [b.reshape(step.g, shape)]
    step.at.require(n <= MOST, f"the gradient of a Det of more than {MOST} rows")
    rest = np.array([[k for k in range(n) if k != i] for i in range(n)])
    places = rest[:, None, :, None] * n + rest[None, :, None, :]
    minors = take(b, b.reshape(step.inputs[0], (batch, n * n)), 1, places.reshape(-1))
    found = step.op("Det", b.reshape(minors, (batch, n, n, n - 1, n - 1)))
    sign = (1 - 2 * (np.indices((n, n)).sum(0) % 2)).astype(b.type(step.g).dtype.numpy)
    cofactors = compute(step.ctx, times, found, b.constant(sign))
    g = compute(step.ctx, times, b.reshape(step.g, (batch, 1, 1)), cofactors)
    return [b.reshape(g, shape)]


@derives("TensorScatter")
def written(step: Step) -> list[str]:
    """Give the cache what wasn't replaced, the update what is in its place."""
    at, b, (shape, update) = step.at, step.ctx.b, (step.shape(0), step.shape(1))
    axis = at.axis(at.int("axis", -2), len(shape))
    start = step.inputs[2] if at.has(2) else b.constant(np.zeros(shape[0], np.int64))
    first = b.reshape(b.cast(start, DType.INT64), [shape[0], *[1] * (len(shape) - 1)])
    along = [-1 if d == axis else 1 for d in range(len(shape))]
    indices = step.op("Add", first, b.constant(np.arange(update[axis]).reshape(along)))
    size = b.constant(np.asarray(shape[axis], np.int64))
    if at.str("mode", "linear") == "circular":
        indices = step.op("Mod", indices, size)
    places = b.expand(indices, update)
    more = {"axis": axis}
    kept = step.op("ScatterElements", step.g, places,
                   zeros(b, update, b.type(step.g).dtype), attributes=more)  # fmt: skip
    return [kept, step.op("GatherElements", step.g, places, attributes=more)]
