"""The report of `atc verify` on a comparison."""

from __future__ import annotations

from atc.accuracy.compare import Verification
from atc.errors import one_line

HEADINGS = ("output", "type", "max abs", "max rel", "rmse", "mae", "cosine", "")


def table_rows(verification: Verification) -> list[tuple[str, ...]]:
    """Return a row of texts for each output, under HEADINGS."""
    return [
        (one_line(d.name, 60), d.type, f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", f"{d.rmse:.3g}",
         f"{d.mae:.3g}", f"{d.cosine:.9f}",
         "ok" if d.passed else "DIFFERS")
        for d in verification.differences
    ]  # fmt: skip


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
    rows = [HEADINGS, *table_rows(verification)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, summary(verification)])
