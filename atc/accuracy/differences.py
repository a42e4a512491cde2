"""The difference of an output from a reference's, and whether it passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atc.ir.graph import Array

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # a rounding more or less is no mistake


@dataclass(frozen=True)
class Difference:
    """The difference of one output from the reference.

    `max_rel` is the largest difference as a part of the reference's largest magnitude, `cosine`
    of the angle between both outputs, `rmse` and `mae` the root of the mean square and the mean
    magnitude of the differences. 8-bit integers may differ by one step, others not at all.
    """

    name: str
    type: str
    max_abs: float
    max_rel: float
    cosine: float
    passed: bool
    rmse: float = float("inf")
    mae: float = float("inf")


def compare(name: str, got: Array, expected: Array, tolerance: float) -> Difference:
    """Compare one output with what it should be."""
    got, expected = (a.astype(object) if a.dtype.kind in "US" else a for a in (got, expected))
    shown = f"{expected.dtype} {list(expected.shape)}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        shown = f"{got.dtype} {list(got.shape)}, not {shown}"
        return Difference(name, shown, float("inf"), float("inf"), 0.0, False)
    if expected.dtype.kind == "O":
        same = np.array_equal(got, expected)
        error = 0.0 if same else float("inf")
        return Difference(name, shown, error, error, float(same), same, error, error)
    a, b = got.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    finite = np.isfinite(b)
    same_rest = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if not (same_rest and np.isfinite(a[finite]).all()):
        return Difference(name, shown, float("inf"), float("inf"), 0.0, False)
    a, b = a[finite], b[finite]
    max_abs = float(np.max(np.abs(a - b), initial=0.0))
    max_rel = max_abs / (float(np.max(np.abs(b), initial=0.0)) or 1.0)
    if expected.dtype.kind in "iu" and expected.dtype.itemsize == 1:
        passed = max_abs <= 1
    elif expected.dtype.kind in "iub":
        passed = np.array_equal(got, expected)
    else:
        passed = max_rel <= max(tolerance, _EPSILON.get(expected.dtype.name, 0.0))
    errors = a - b
    rmse = float(np.sqrt(np.mean(errors**2))) if errors.size else 0.0
    mae = float(np.mean(np.abs(errors))) if errors.size else 0.0
    return Difference(name, shown, max_abs, max_rel, _cosine(a, b), passed, rmse, mae)


def plain_form(array: Array, laid_out: bool, expected: Any) -> Array | None:
    """Return a result in the reference's shape; None where it has none.

    One that is `laid_out` may have its channels in blocks, [N, C / b, *spatial, b].
    """
    shape = np.shape(expected)
    if array.shape == shape:
        return array
    if laid_out and len(shape) >= 2 and array.ndim == len(shape) + 1:
        joined = np.moveaxis(array, -1, 2)
        channels = joined.reshape(array.shape[0], -1, *shape[2:])[:, : shape[1]]
        return channels if channels.shape == shape else None
    return array.reshape(shape) if array.size == np.size(expected) else None


def _cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0:
        return 1.0 if np.array_equal(a, b) else 0.0
    return float(np.dot(a, b)) / lengths
