"""The tables and bars of the page: layers, fast-run's candidates, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from atc.tools.report_page.data import Page, Step
from atc.tools.report_page.text import bytes_text, percent, short, time_text

MOST_CANDIDATE_ROWS = 40
_FARTHEST = 16.0
"""Candidates that take longer, as a multiple of the best, stand at the chart's right end."""


@dataclass(frozen=True)
class Row:
    """A layer of the table: texts, and what the bars and the sorting need."""

    number: int
    title: str
    op: str
    kernel: str
    tuned: bool
    time: str
    share: float
    share_text: str
    rate: str
    peak: float
    peak_text: str
    sort: tuple[float, float, float]
    tip: str


def layer_rows(page: Page) -> tuple[Row, ...]:
    """Return a row for each kernel call, in order."""
    return tuple(
        Row(
            s.number, short(s.title, 72), s.record["op"], s.record["kernel"],
            s.record["tier"] == "tuned", "" if s.ns is None else time_text(s.ns),
            s.share or 0.0, percent(s.share), f"{s.gflops:.1f}" if s.gflops else "",
            min(s.of_peak or 0.0, 1.0), percent(s.of_peak, 0),
            (s.ns if s.ns is not None else s.share or 0.0, s.gflops or 0.0, s.of_peak or 0.0),
            s.title,
        )
        for s in page.steps
    )  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A candidate: its place from 0 to 1 and the text under the mouse; failed ones have no time."""

    at: float
    chosen: bool
    failed: bool
    tip: str


@dataclass(frozen=True)
class WorkloadCandidates:
    """The candidates of one workload, used by `count` calls."""

    title: str
    winner: str
    count: int
    dots: tuple[Dot, ...]
    best: str
    gain: str


@dataclass(frozen=True)
class CandidateChart:
    """All workloads with a choice. `unit` says whether times were measured or estimated."""

    rows: tuple[WorkloadCandidates, ...]
    hidden: int
    unit: str


def candidate_chart(page: Page) -> CandidateChart:
    """Return the candidates of every distinct workload that has more than one."""
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in page.steps:
        groups.setdefault((step.record["symbol"], str(step.record["operands"])), []).append(step)
    measured = any(len(s.record["measurements"]) > 1 for s in page.steps)
    rows = []
    for steps in groups.values():
        found = _candidates(steps[0].record, measured)
        if len(found) > 1:
            weight = sum(s.share or 0.0 for s in steps)
            rows.append((weight, _contest(steps, found)))
    rows.sort(key=lambda row: -row[0])
    shown = tuple(row for _, row in rows[:MOST_CANDIDATE_ROWS])
    return CandidateChart(shown, len(rows) - len(shown), "measured" if measured else "estimated")


def _candidates(
    record: Mapping[str, Any], measured: bool
) -> list[tuple[str, float | None, str]]:
    """Return label, time or cost (None: can't be chosen), and the reason."""
    if measured:
        return [(m["kernel"], m["ns"], m["reason"]) for m in record["measurements"]]
    return [(e["kernel"], e["cost"], "") for e in record["estimates"]]


def _contest(
    steps: Sequence[Step], found: Sequence[tuple[str, float | None, str]]
) -> WorkloadCandidates:
    record = steps[0].record
    best = min((t for _, t, _ in found if t is not None), default=1.0) or 1.0
    times = [t for _, t, _ in found if t is not None]
    unit = bool(record["measurements"])
    return WorkloadCandidates(
        short(" ".join((record["op"], *(t or "-" for t in record["operands"][:2]))), 64),
        record["kernel"], len(steps),
        tuple(sorted(_dots(found, best, record["candidate"], unit), key=lambda d: d.chosen)),
        time_text(best) if unit else "",
        f"{max(times) / best:.1f}×" if len(times) > 1 else "",
    )  # fmt: skip


def _dots(
    found: Sequence[tuple[str, float | None, str]], best: float, chosen: str, unit: bool
) -> Iterator[Dot]:
    for label, cost, reason in found:
        if cost is None:
            yield Dot(1.0, False, True, f"{label}\n{reason}")
            continue
        ratio = max(cost / best, 1.0)
        at = min(log2(ratio) / log2(_FARTHEST), 1.0)
        estimate = f"{time_text(cost)}, " if unit else ""
        yield Dot(round(at, 4), label == chosen, False, f"{label}\n{estimate}{ratio:.2f}× the best")


@dataclass(frozen=True)
class Bar:
    """A labelled part of a whole, from 0 to 1."""

    label: str
    part: float
    text: str
    kind: str = ""


def size_bars(page: Page) -> tuple[Bar, ...]:
    """Return the parts of the library: weights, code, the rest."""
    weights = page.memory["weights_bytes"]
    code = page.sizes.code if page.sizes else 0
    inside = weights if weights <= page.library_bytes else 0
    rest = max(page.library_bytes - inside - code, 0)
    parts = [("weights", weights), ("code", code), ("tables, symbols", rest)]
    total = sum(n for _, n in parts) or 1
    return tuple(
        Bar(name, n / total, bytes_text(n), name.split(",")[0]) for name, n in parts if n
    )


def code_bars(page: Page) -> tuple[Bar, ...]:
    """Return the twelve largest kernels of the library."""
    if page.sizes is None:
        return ()
    labels: dict[str, str] = {}
    uses: dict[str, int] = {}
    for step in page.steps:
        symbol = step.record["symbol"]
        labels[symbol] = step.record["kernel"]
        uses[symbol] = uses.get(symbol, 0) + 1
    sizes = sorted(((n, s) for s in labels if (n := page.sizes.of(s))), reverse=True)[:12]
    largest = max((n for n, _ in sizes), default=1)
    return tuple(
        Bar(f"{short(labels[s], 64)} × {uses[s]}" if uses[s] > 1 else short(labels[s], 64),
            n / largest, bytes_text(n), "code")
        for n, s in sizes
    )  # fmt: skip
