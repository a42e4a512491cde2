"""The report of `atc verify` on a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from atc.accuracy.compare import Verification
from atc.accuracy.differences import Difference
from atc.errors import one_line

HEADINGS = ("output", "type", "max abs", "max rel", "rmse", "mae", "cosine", "")
LAYERS = ("node", *HEADINGS[1:])


def table_rows(
    differences: Sequence[Difference], marks: tuple[str, str] = ("ok", "DIFFERS")
) -> list[tuple[str, ...]]:
    """Return a row of texts for each output, under HEADINGS; `marks` are for right and wrong."""
    return [
        (one_line(d.name, 60), d.type, f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", f"{d.rmse:.3g}",
         f"{d.mae:.3g}", f"{d.cosine:.9f}",
         marks[not d.passed])
        for d in differences
    ]  # fmt: skip


def layer_rows(verification: Verification) -> list[tuple[str, ...]]:
    """Return a row of texts for each node, under LAYERS."""
    return table_rows(verification.layers, ("", "differs"))


def summary(verification: Verification) -> str:
    """Return what was compared, in one line."""
    passed = sum(d.passed for d in verification.differences)
    if verification.precision:
        kept = "kept" if verification.passed else "not kept"
        return (
            f"precision {verification.precision}: the largest error is {verification.error:.2g} of "
            f"the output's scale against {verification.reference} ({verification.inputs}); the "
            f"bound of {verification.tolerance:g} is {kept}"
        )
    return (
        f"{passed} of {len(verification.differences)} outputs agree with "
        f"{verification.reference} ({verification.inputs}, tolerance {verification.tolerance:g})"
    )


def verification_text(verification: Verification) -> str:
    """Return the comparison as a plain table."""
    layers = [*_lines([LAYERS, *layer_rows(verification)]), ""] if verification.layers else []
    outputs = _lines([HEADINGS, *table_rows(verification.differences)])
    return "\n".join([*layers, *outputs, summary(verification)])


def _lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
