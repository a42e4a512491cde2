"""The algorithm policy: the kernel that measuring chose for each workload, as a text for review.

A build that measures writes it; a build that doesn't replays it and makes the same library. Lines
are sorted, so that a file under version control changes only where a choice does:

    digest | nanoseconds | candidate | workload

With threads there are lines of calls too, which have `N partitions` in the candidate's place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path

from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.errors import OptionError, not_written, one_line, way_out
from atc.fast_run.task import workload_digest
from atc.files.regular import regular
from atc.files.temporary import temporary_folder
from atc.ir.text import op_text
from atc.select.cost import CYCLES
from atc.select.select import Limits, Measurement, Timings, candidates

OPTION = "--fast_run_algo_policy"
HEADER = "# atc algo policy 1: digest | nanoseconds | candidate | workload"
_SUMMARY = 160


@dataclass(frozen=True)
class Pick:
    """The candidate of a workload, its time in ns, and what the workload is, for people."""

    label: str
    ns: float
    summary: str

    @property
    def partitions(self) -> int:
        """The number of threads that share the call, where the line says that; else 0."""
        found = re.fullmatch(r"(\d{1,4}) (?:partitions|pieces)", self.label)  # as once called
        return int(found[1]) if found else 0


Policy = Mapping[str, Pick]
"""Picks by the digests of their workloads."""


def read_policy(path: Path) -> dict[str, Pick]:
    """Return a file's lines; raises OptionError that names the file and the line."""
    try:
        text = regular(path).read_text("utf-8")
    except OSError as error:
        raise OptionError(
            f"can't read {path}: {error.strerror}", where=OPTION,
            hint="add --fast_run to write it" if error.errno == ENOENT else way_out(error),
        ) from None  # fmt: skip
    except UnicodeDecodeError:
        raise OptionError(f"{path} is not a text file", where=OPTION) from None
    lines = text.split("\n")
    if lines[0].strip() != HEADER:
        raise OptionError(
            f"{path} is not an algorithm policy: its first line is '{one_line(lines[0], 60)}'",
            where=OPTION, hint="write it anew with --fast_run",
        )  # fmt: skip
    return dict(
        _read_line(line, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    )


def _read_line(line: str, where: str) -> tuple[str, Pick]:
    parts = [part.strip() for part in line.split("|", 3)]
    with suppress(ValueError):
        digest, ns, label, summary = parts
        if re.fullmatch("[0-9a-f]{16}", digest) and label and 0 <= float(ns) < math.inf:
            return digest, Pick(label, float(ns), summary)
    raise OptionError(
        f"wrong line in an algorithm policy: '{one_line(line, 80)}'", where=where,
        hint=f"the form is{HEADER.partition(':')[2]}",
    )  # fmt: skip


def write_policy(path: Path, policy: Policy) -> None:
    """Replace a file as a whole; raises OptionError where it can't be written."""
    rows = sorted((p.summary, d, f"{d} | {p.ns:.1f} | {p.label}") for d, p in policy.items())
    text = "".join(f"{line}\n" for line in (HEADER, *(f"{row} | {s}" for s, _, row in rows)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder("policy", path.parent, hidden=True) as folder:
            (folder / "new").write_text(text, "utf-8")
            (folder / "new").replace(path)
    except OSError as error:
        raise not_written(path, error, OPTION) from None


def add_to_policy(path: Path, policy: Policy) -> None:
    """Write entries into a file that may hold others; raises OptionError where that can't be."""
    write_policy(path, {**(read_policy(path) if path.exists() else {}), **policy})


def picks(timings: Timings, target: Target, price: float = CYCLES) -> dict[str, Pick]:
    """Return the candidate of least time and memory's price of every measured workload.

    `price`: cycles for a byte.
    """
    found: dict[str, Pick] = {}
    for w, measured in timings.items():
        times = [(m.cost(price), m.time_ns, m.label) for m in measured if m.time_ns is not None]
        if times:
            _, ns, label = min(times, key=lambda time: time[0] or 0.0)
            found[_short(w, target)] = Pick(label, ns, workload_summary(w))
    return found


def partitions_pick(count: int, ns: float, w: Workload) -> Pick:
    """Return the line that says how many threads share the call of a workload."""
    return Pick(f"{count} partitions", ns, workload_summary(w))


def replay(
    todo: Iterable[Workload], policy: Policy, target: Target, limits: Limits,
    warn: Callable[[str], None],
) -> Timings:  # fmt: skip
    """Return what a policy says of these workloads, as if its picks alone had been measured.

    A pick that is no longer a candidate is a warning, and the workload is left out.
    """
    timings: dict[Workload, tuple[Measurement, ...]] = {}
    for w in dict.fromkeys(todo):
        pick = policy.get(_short(w, target))
        if pick is None:
            continue
        if pick.label in {c.label for c in candidates(w, target, limits)}:
            timings[w] = (Measurement(pick.label, pick.ns),)
        else:
            warn(
                f"{OPTION}: '{one_line(pick.label, 80)}' is not a candidate for "
                f"{workload_summary(w)} any more"
            )
    return timings


def uncovered(
    todo: Iterable[Workload], timings: Timings, target: Target, limits: Limits
) -> list[Workload]:
    """Return the workloads that have a choice of candidates and no times."""
    return [
        w
        for w in dict.fromkeys(todo)
        if w not in timings and len(candidates(w, target, limits)) > 1
    ]


def workload_summary(w: Workload) -> str:
    """Return a workload in a line: the op, its operands' types and its attributes, cut."""
    types = ", ".join("-" if t is None else str(t) for t in w.inputs)
    results = ", ".join(map(str, w.outputs))
    attributes = op_text(w.op).removeprefix(w.op.kind)
    return one_line(f"{w.op.kind} {types} -> {results} {attributes}", _SUMMARY)


def _short(w: Workload, target: Target) -> str:
    return workload_digest(w, target)[:16]
