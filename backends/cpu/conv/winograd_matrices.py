"""Winograd's matrices for F(m, 3), and their C: fewer multiplications for 3x3 windows.

Lavin & Gray, "Fast algorithms for convolutional neural networks", 2016; Winograd, "Arithmetic
complexity of computations", 1980. For a filter g and inputs d the m outputs are
A^T ((G g) * (B^T d)), and in two dimensions A^T ((G g G^T) * (B^T d B)) A. The matrices follow from
polynomial interpolation at m + 1 points and infinity; they are derived in exact fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from atc.backends.render.expr import literal
from atc.ir.graph import Array, DType

_HALF = Fraction(1, 2)
POINTS: Mapping[int, Sequence[Fraction | int]] = {
    2: (0, 1, -1),
    4: (0, 1, -1, 2, -2),
    6: (0, 1, -1, 2, -2, _HALF, -_HALF),
}
"""Interpolation points by the outputs of a tile; opposite ones stand side by side."""

Row = tuple[Fraction, ...]


@dataclass(frozen=True)
class Arithmetic:
    """The vectors that transforms compute with, and the functions for them, in C."""

    vector: str
    add: str
    subtract: str


FLOATS = Arithmetic("vf32", "v_add", "v_sub")
INTEGERS = Arithmetic("vi32", "v_i32_add", "v_i32_sub")


@dataclass(frozen=True)
class Matrices:
    """A^T (m x n), G (n x 3) and B^T (n x n) for n = m + 2 inputs."""

    output: tuple[Row, ...]
    filter: tuple[Row, ...]
    input: tuple[Row, ...]


def _product(roots: Sequence[Fraction | int]) -> list[Fraction]:
    """Return the coefficients of the product of (x - root), the constant one first."""
    poly = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *poly]
        poly = [a - root * b for a, b in zip(shifted, [*poly, Fraction(0)], strict=True)]
    return poly


@cache
def matrices(m: int) -> Matrices:
    """Return the matrices of F(m, 3)."""
    points = POINTS[m]
    zero = Fraction(0)
    filters, inputs = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        filters.append(tuple(Fraction(p) ** k / scale for k in range(3)))
        inputs.append((*_product(others), zero))
    filters.append((zero, zero, Fraction(1)))
    inputs.append(tuple(_product(points)))
    outputs = tuple(
        (*(Fraction(p) ** i for p in points), Fraction(int(i == m - 1))) for i in range(m)
    )
    return Matrices(outputs, tuple(filters), tuple(inputs))


@cache
def with_plain_filters(m: int) -> Matrices:
    """Return those of F(m, 3) whose filters' transform has rows (1 / |p|, ±1, |p|) for points ±p.

    A pair of points shares its sums so. The outputs' transform scales instead, which is less work
    where a run transforms more filters than tiles.
    """
    of = matrices(m)
    scales = tuple(next((x for x in row[1:] if x), row[0]) for row in of.filter)
    scales = tuple(-x if p < 0 else x for x, p in zip(scales, (*POINTS[m], 0), strict=True))
    return Matrices(
        tuple(tuple(x * s for x, s in zip(row, scales, strict=True)) for row in of.output),
        tuple(tuple(x / s for x in row) for row, s in zip(of.filter, scales, strict=True)),
        of.input,
    )


def transform_filters(w: Array, m: int) -> Array:
    """Return G g G^T of filters [A, B, 3, 3] as [n * n, A, B], computed in double."""
    components = np.empty((len(matrices(m).filter) ** 2, *w.shape[:2]), w.dtype)
    for k, transformed in enumerate(transformed_filters(w, m)):
        components[:, k] = transformed
    return components


def transformed_filters(w: Array, m: int) -> Iterator[Array]:
    """Yield [n * n, B] in double for each of A; see `transform_filters`."""
    g = np.array([[float(x) for x in row] for row in matrices(m).filter])
    for filters in w:  # one by one they stay in the cache, and need no threads
        taps = filters.reshape(-1, 9).T.astype(np.float64, order="C")
        down = (g @ taps.reshape(3, -1)).reshape(-1, 3, taps.shape[1])
        yield (g @ down).reshape(-1, taps.shape[1])


def combinations(rows: Sequence[Row], x: str, y: str, of: Arithmetic = FLOATS) -> list[str]:
    """Return C declarations of vectors y0, y1, ... = rows times the vectors x0, x1, ...

    Rows for opposite points have equal even and opposite odd parts (or the reverse), which are
    computed once for both.
    """
    lines: list[str] = []
    k = 0
    while k < len(rows):
        parts = _even_and_odd(rows[k], rows[k + 1]) if k + 1 < len(rows) else None
        if parts is None:
            lines.append(f"const {of.vector} {y}{k} = {_sum(rows[k], x, of)};")
            k += 1
            continue
        lines.append(f"const {of.vector} {y}{k}s = {_sum(parts[0], x, of)};")
        lines.append(f"const {of.vector} {y}{k}d = {_sum(parts[1], x, of)};")
        lines.append(f"const {of.vector} {y}{k} = {of.add}({y}{k}s, {y}{k}d);")
        lines.append(f"const {of.vector} {y}{k + 1} = {of.subtract}({y}{k}s, {y}{k}d);")
        k += 2
    return lines


def _even_and_odd(a: Row, b: Row) -> tuple[Row, Row] | None:
    """Return the part that two rows share and the part in which they are opposite."""
    pairs = list(zip(a, b, strict=True))
    if any(abs(x) != abs(y) for x, y in pairs):
        return None
    same = tuple(x if x == y else Fraction(0) for x, y in pairs)
    opposite = tuple(x if x != y else Fraction(0) for x, y in pairs)
    return (same, opposite) if any(same) and any(opposite) else None


def by_points(rows: Sequence[Row], x: str, y: str, of: Arithmetic = FLOATS) -> list[str]:
    """Return C declarations of y0, y1, ... = A^T x, by sums and differences of opposite points."""
    pairs = [(k, k + 1) for k in range(1, len(rows[0]) - 1, 2)]
    lines = []
    for a, b in pairs:
        lines.append(f"const {of.vector} {y}s{a} = {of.add}({x}{a}, {x}{b});")
        lines.append(f"const {of.vector} {y}d{a} = {of.subtract}({x}{a}, {x}{b});")
    for i, row in enumerate(rows):
        terms = [(row[0], f"{x}0")]
        terms += [(row[a], f"{y}{'d' if i % 2 else 's'}{a}") for a, _ in pairs]
        terms.append((row[-1], f"{x}{len(row) - 1}"))
        lines.append(f"const {of.vector} {y}{i} = {_terms(terms, of)};")
    return lines


def _sum(row: Row, x: str, of: Arithmetic) -> str:
    return _terms([(c, f"{x}{k}") for k, c in enumerate(row)], of)


def _terms(terms: Sequence[tuple[Fraction, str]], of: Arithmetic) -> str:
    """Return the C expression of a sum of products; a term with factor 1 comes first, if any.

    Of integers a positive one does, so that nothing is negated.
    """
    whole = of is INTEGERS
    known = sorted((t for t in terms if t[0]), key=lambda t: (t[0] != 1, whole and t[0] < 0))
    factor, first = known[0]
    text = first if factor == 1 else _times(factor, first, of)
    for factor, x in known[1:]:
        if abs(factor) == 1 or of is INTEGERS:
            function = of.add if factor > 0 else of.subtract
            text = f"{function}({text}, {_times(abs(factor), x, of)})"
        else:
            function = "v_fma" if factor > 0 else "v_fnma"
            text = f"{function}({_number(abs(factor))}, {x}, {text})"
    return text


def _times(factor: Fraction, x: str, of: Arithmetic) -> str:
    """Return the C expression of a multiple: of integers by shifts, as factors are small."""
    if factor == 1:
        return x
    if of is FLOATS:
        return f"v_mul({_number(factor)}, {x})"
    whole = int(abs(factor))
    bits = [k for k in range(whole.bit_length()) if whole >> k & 1]
    text, *others = [f"v_i32_shl({x}, {k})" if k else x for k in bits]
    for other in others:
        text = f"{of.add}({text}, {other})"
    return text if factor > 0 else f"{of.subtract}(v_i32_set1(0), {text})"


def _number(factor: Fraction) -> str:
    return f"v_set1({literal(float(factor), DType.FLOAT)})"


@cache
def filter_lines(m: int) -> tuple[str, ...]:
    """Return the one-dimensional filters' transform d -> v in C, for products that are scaled."""
    return tuple(combinations(with_plain_filters(m).filter, "d", "v"))


@cache
def input_lines(m: int) -> tuple[str, ...]:
    """Return the one-dimensional inputs' transform d -> v in C."""
    return tuple(combinations(matrices(m).input, "d", "v"))


@cache
def output_lines(m: int, plain_filters: bool = False) -> tuple[str, ...]:
    """Return the one-dimensional products' transform d -> r in C."""
    of = with_plain_filters(m) if plain_filters else matrices(m)
    return tuple(by_points(of.output, "d", "r"))
