"""Charts of bars as SVG, from numbers alone: the same numbers are the same bytes.

usage: python tests/benchmarks/charts.py

draws atc/docs/images/speed.svg from atc/docs/speed.json, what compare.py measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "atc/docs"
COLOURS = ("#2f6fb3", "#b8c4d0", "#d9b382")
"""Of the series, the first of which is ours."""
_LABEL, _BARS, _VALUE = 230, 430, 60
_BAR, _GAP, _TOP = 11, 8, 54
_STYLE = (
    "text{font:12px sans-serif;fill:#57606a}.t{font:bold 14px sans-serif}.v{font-size:10px}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}}"
)


@dataclass(frozen=True)
class Row:
    """A label, and a bar for each series; None where nothing was measured."""

    label: str
    values: tuple[float | None, ...]


def bars(title: str, series: Sequence[str], rows: Sequence[Row], form: str = "{:.2f}") -> str:
    """Return horizontal bars, a group per row, as the text of an SVG file.

    `form` writes a value behind its bar. The longest bar is as wide as the chart.
    """
    longest = max((v for row in rows for v in row.values if v is not None), default=0.0) or 1.0
    group = _BAR * len(series) + _GAP
    width, height = _LABEL + _BARS + _VALUE, _TOP + group * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<text class="t" x="0" y="16">{escape(title)}</text>\n'
    ]
    for k, name in enumerate(series):
        x = _LABEL + 150 * k
        parts.append(
            f'<rect x="{x}" y="28" width="10" height="10" fill="{COLOURS[k]}"/>'
            f'<text x="{x + 15}" y="37">{escape(name)}</text>\n'
        )
    for place, row in enumerate(rows):
        top = _TOP + place * group
        middle = top + (group - _GAP) / 2 + 4
        parts.append(
            f'<text x="{_LABEL - 8}" y="{middle:g}" text-anchor="end">{escape(row.label)}</text>\n'
        )
        for k, value in enumerate(row.values):
            if value is None:
                continue
            long = max(1.0, _BARS * value / longest)
            y = top + k * _BAR
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{long:.1f}" height="{_BAR - 1}" '
                f'fill="{COLOURS[k]}"/><text x="{_LABEL + long + 4:.1f}" y="{y + 9}" '
                f'class="v">{escape(form.format(value))}</text>\n'
            )
    return "".join([*parts, "</svg>\n"])


def speed_chart(stored: Any) -> str:
    """Return the chart of runs in the time of one of onnxruntime's, from what is stored."""
    rows = [
        Row(
            row["model"],
            (row["onnxruntime"] / row["atc"], 1.0, row["onnxruntime"] / row["openvino"]),
        )
        for row in stored["rows"]
    ]
    engines = ("atc", f"onnxruntime {stored['onnxruntime']}", f"OpenVINO {stored['openvino']}")
    title = f"Speed, onnxruntime = 1: one core of an {stored['cpu']}, float32"
    return bars(title, engines, rows)


def main() -> None:
    """Draw the chart of stored speeds."""
    stored = json.loads((DOCS / "speed.json").read_text("utf-8"))
    (DOCS / "images").mkdir(exist_ok=True)
    (DOCS / "images/speed.svg").write_text(speed_chart(stored), "utf-8")


if __name__ == "__main__":
    main()
