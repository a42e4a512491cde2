"""Runs a library built with --profile: the times of its kernel calls, as table, JSON and trace."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line, way_out
from atc.files.regular import regular
from atc.ir.graph import Array
from atc.runtime.network import Network
from atc.runtime.session import Session, need
from atc.runtime.shown import html_table

FORMAT = "atc profile 1"
_HEADINGS = ("nodes", "op", "kernel", "us", "of run", "GFLOP/s", "of peak", "GB/s")


@dataclass(frozen=True)
class Span:
    """The time of a kernel call: ns since its run began, and how long."""

    begin: int
    ns: int


@dataclass(frozen=True)
class CallProfile:
    """A kernel call: what it is, its median time in ns per run, how often a run calls it."""

    nodes: str
    op: str
    kernel: str
    operations: int
    bytes: int
    ns: float
    calls: int
    spans: tuple[Span, ...] = ()
    """One for each run that took part in the median; of a call in a loop, the latest."""


@dataclass(frozen=True)
class Profile:
    """All calls of a library in the order of its code; `run_ns` are the times of whole runs.

    `gflops_peak` is what the core can do at most, 0 where nobody measured it.
    """

    name: str
    run_ns: tuple[int, ...]
    calls: tuple[CallProfile, ...]
    gflops_peak: float = 0.0

    @property
    def median_ns(self) -> float:
        """The median time of a run."""
        return float(statistics.median(self.run_ns))

    @property
    def spread(self) -> float:
        """The distance of the slowest run from the fastest, as a part of the median."""
        return (max(self.run_ns) - min(self.run_ns)) / max(self.median_ns, 1.0)

    @property
    def inside(self) -> float:
        """The kernels' part of a run's time, the median over the runs."""
        parts = [
            sum(c.spans[k].ns for c in self.calls if k < len(c.spans)) / max(total, 1)
            for k, total in enumerate(self.run_ns)
        ]
        return float(statistics.median(parts))

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the profile: the calls, the longest first."""
        total = max(sum(c.ns for c in self.calls), 1.0)
        rows = [
            (c.nodes, c.op, c.kernel, f"{c.ns / 1e3:.2f}", f"{100 * c.ns / total:.1f} %")
            for c in sorted(self.calls, key=lambda c: -c.ns)
        ]
        headings = ("nodes", "op", "kernel", "us", "share")
        note = f"median of {len(self.run_ns)} runs: {self.median_ns / 1e3:.2f} us"
        return html_table(self.name, headings, rows, note)

    def share_of_peak(self, call: CallProfile) -> float | None:
        """Return the part of the core's peak that a call reaches, None where none is known."""
        if not (self.gflops_peak and call.operations and call.ns):
            return None
        return call.operations * call.calls / call.ns / self.gflops_peak


def profile_run(net: Network, feeds: Mapping[str, Array], runs: int, where: str) -> Profile:
    """Run a library `runs` times after a first one and return what its clock says.

    States are those of a first call each time. Raises OptionError for a library that was compiled
    without --profile, or that doesn't take the inputs together.
    """
    try:
        session = Session(net, feeds)
    except ValueError as error:  # shapes that don't fit each other
        raise OptionError(
            one_line(str(error), 300), where=where,
            hint="give arrays of shapes that it takes together: --input=\"x:x.npy;...\"",
        ) from None  # fmt: skip
    need(session, "profile_count", "profile", where)
    count = session.call("profile_count")
    totals: list[int] = []
    samples: list[list[Span]] = []
    repeats: list[int] = []
    stateful = session.has("reset")
    for run in range(runs + 1):
        if stateful:
            session.call("reset", session.context)
        session.call("profile_reset", session.context)
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        session.run()
        end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        times = session.call("profile_times", session.context)
        repeats = [int(times[k].runs) for k in range(count)]
        if run:  # the first one warms caches up
            totals.append(end - begin)
            samples.append([_span(times[k], begin) for k in range(count)])
    calls = tuple(
        _call(session, k, repeats[k], tuple(spans))
        for k, spans in enumerate(zip(*samples, strict=True))
    )
    return Profile(session.prefix, tuple(totals), calls)


def _span(times: Any, origin: int) -> Span:
    begin = max(int(times.begin) - origin, 0) if times.runs else 0
    return Span(begin, int(times.nanoseconds))


def _call(session: Session, index: int, repeats: int, spans: tuple[Span, ...]) -> CallProfile:
    info = session.call("profile_info", index)
    return CallProfile(
        session.text(info.nodes), session.text(info.op), session.text(info.kernel),
        int(info.operations), int(info.bytes),
        float(statistics.median(s.ns for s in spans)), repeats, spans,
    )  # fmt: skip


# ---- forms ---------------------------------------------------------------------------------------


def profile_json(profile: Profile) -> str:
    """Return a profile as `read_profile` takes it."""
    return json.dumps({"format": FORMAT, **asdict(profile)}, indent=1, ensure_ascii=True) + "\n"


def read_profile(path: Path) -> Profile:
    """Return the profile in a file; raises OptionError for anything else."""
    try:
        data = json.loads(regular(path).read_bytes())
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        calls = tuple(
            replace(CallProfile(**c), spans=tuple(Span(**s) for s in c["spans"]))
            for c in data.pop("calls")
        )
        return Profile(**{**data, "run_ns": tuple(map(int, data["run_ns"])), "calls": calls})
    except OSError as error:
        raise OptionError(
            f"can't read {path}: {error.strerror}", where="--profile", hint=way_out(error)
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{path} is not a profile: {one_line(str(error), 80)}", where="--profile",
            hint="write one with atc profile FOLDER --json=FILE",
        ) from None  # fmt: skip


def trace_json(profile: Profile) -> str:
    """Return all runs in the Trace Event Format, as chrome://tracing and Perfetto load it.

    Times are in microseconds; the runs stand one after the other.
    """
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": profile.name}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "runs"}},
    ]
    origin = 0.0
    for number, total in enumerate(profile.run_ns):
        events.append(_event(f"run {number + 1}", "run", origin, total / 1e3, {}))
        for call in profile.calls:
            if not call.calls or number >= len(call.spans):
                continue
            span = call.spans[number]
            arguments = {"op": call.op, "kernel": call.kernel, "calls": call.calls,
                         "operations": call.operations, "bytes": call.bytes}  # fmt: skip
            length = span.ns / call.calls / 1e3
            begin = origin + span.begin / 1e3
            events.append(_event(call.nodes, call.op, begin, length, arguments))
        origin += total / 1e3
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, ensure_ascii=True) + "\n"


def _event(
    name: str, category: str, begin: float, length: float, arguments: Mapping[str, object]
) -> dict[str, object]:
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category,
            "ts": round(begin, 3), "dur": round(length, 3), "args": dict(arguments)}  # fmt: skip


def profile_text(profile: Profile) -> str:
    """Return a table of the calls, the longest first, and the time of a run."""
    total = sum(c.ns for c in profile.calls) or 1.0
    rows = [_HEADINGS]
    for call in sorted(profile.calls, key=lambda c: -c.ns):
        peak = profile.share_of_peak(call)
        rate = call.operations * call.calls / call.ns if call.ns and call.operations else 0.0
        rows.append((
            one_line(call.nodes, 60), call.op, call.kernel, f"{call.ns / 1e3:.2f}",
            f"{call.ns / total:.1%}", f"{rate:.1f}" if rate else "",
            "" if peak is None else f"{peak:.0%}",
            f"{call.bytes * call.calls / call.ns:.1f}" if call.ns else "",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if k < 3 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.append(
        f"{profile.name}: {profile.median_ns / 1e3:.1f} us per run, the median of "
        f"{len(profile.run_ns)} (spread {profile.spread:.0%}); the kernels take "
        f"{profile.inside:.0%} of it"
    )
    return "\n".join(lines) + "\n"
