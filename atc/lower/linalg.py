"""Lowerings of linear algebra on small matrices."""

from __future__ import annotations

from math import prod

from atc.ir.graph import TensorType
from atc.ir.ops.linalg import Determinant, Inverse
from atc.lower.context import Site
from atc.lower.conv import widen
from atc.lower.registry import lowers


@lowers("Det")
def determinant(site: Site) -> str:
    """ONNX Det-22 of every matrix of a batch."""
    batch, n, wide = _matrices(site)
    type_ = TensorType(site.b.type(wide).dtype, site.shape(0)[:-2])
    return site.b.cast(site.b.emit1(Determinant(batch, n), [wide], type_), site.type(0).dtype)


@lowers("Inverse", domain="com.microsoft")
def inverse(site: Site) -> str:
    """com.microsoft Inverse of every matrix of a batch."""
    batch, n, wide = _matrices(site)
    y = site.b.emit1(Inverse(batch, n), [wide], site.b.type(wide))
    return site.b.cast(y, site.type(0).dtype)


def _matrices(site: Site) -> tuple[int, int, str]:
    """Return how many matrices there are, of how many rows, and the operand."""
    x = site.type(0)
    square = len(x.shape) >= 2 and x.shape[-1] == x.shape[-2]
    site.require(square, f"{x} is not a batch of square matrices")
    return prod(x.shape[:-2]), x.shape[-1], widen(site, site.input(0))
