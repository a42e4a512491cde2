"""The reports of the cache as text for a terminal; pure functions, no time zone but UTC."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

from atc.cache.limits import MEBIBYTE, Limits
from atc.cache.manage import (
    CacheReport,
    ClearReport,
    FolderStats,
    StoredKernel,
    VerifyReport,
    WhyReport,
)
from atc.cache.proved import FOLDERS
from atc.cache.stats import CacheStats
from atc.errors import one_line


def run_text(stats: CacheStats) -> str:
    """Return what a run did with the cache: counts, then every kernel that was compiled."""
    lines = [
        f"op compiler cache ({stats.mode}): {stats.hits} hits, {stats.misses} misses, "
        f"{stats.bypassed} bypassed, {stats.stored} stored, {stats.aged} aged, "
        f"{stats.damaged} damaged"
    ]
    if stats.remote:
        counts = stats.remote_counts
        lines.append(
            f"  {stats.remote}: {counts.hits} of the hits, {counts.misses} not there, "
            f"{counts.stored} stored, {counts.damaged} refused"
        )
    lines += [
        f"  {event.outcome} {event.name} [{event.digest[:12]}]: {event.reason}"
        for event in stats.events
        if event.outcome != "hit"
    ]
    return _join(lines)


def stats_text(report: CacheReport) -> str:
    """Return the counts of `cache_stats`, a line per target."""
    lines = [f"{report.root}: {_limits(report.limits)}"]
    lines += [f"  warning: {warning}" for warning in report.warnings]
    lines += [_folder_line(folder) for folder in report.folders] or ["  empty"]
    return _join(lines)


def stats_json(report: CacheReport) -> str:
    """Return what `stats_text` shows as JSON; sizes in bytes, times in seconds since the epoch."""
    limits = report.limits
    data = {
        "root": str(report.root),
        "limits": {
            "megabytes": limits.megabytes if limits.ages else -1,
            "remain_percent": limits.remain_percent,
            "source": limits.source,
        },
        "warnings": list(report.warnings),
        "targets": [asdict(folder) for folder in report.folders],
    }
    return json.dumps(data, indent=1) + "\n"


def verify_text(report: VerifyReport) -> str:
    """Return the result of `verify_cache`, a line per damaged entry."""
    small = sum(flaw.target in FOLDERS for flaw in report.flaws)
    found = f"{report.checked} entries checked, {len(report.flaws) - small} damaged"
    if report.files:
        found += f"; {report.files} small files checked, {small} damaged"
    lines = [f"{report.root}: {found}"]
    if report.open_to_others:
        lines.append(f"  the cache is off: {report.open_to_others}")
    lines += [f"  {flaw.target} {flaw.digest}: {flaw.reason}" for flaw in report.flaws]
    return _join(lines)


def clear_text(report: ClearReport) -> str:
    """Return the result of `clear_cache`."""
    lines = [f"{report.root}: {report.entries} entries deleted, {_megabytes(report.size)}"]
    if report.kept_foreign:
        lines.append(f"  {report.kept_foreign} files that aren't the cache's were kept")
    lines += [f"  warning: a compilation is using the cache of {name}" for name in report.in_use]
    return _join(lines)


def why_text(report: WhyReport) -> str:
    """Return the entries that `why` found: their state, what changed and their whole key."""
    if not report.kernels:
        return _join([f"{report.root}: no entry is named '{one_line(report.query, 200)}'"])
    return "\n".join(_kernel_text(kernel) for kernel in report.kernels)


def _kernel_text(kernel: StoredKernel) -> str:
    lines = [
        f"{kernel.name or '(no name)'} [{kernel.digest}]",
        f"  {kernel.target}, {kernel.size} bytes, {_used(kernel)}",
        f"  {'damaged: ' + kernel.flaw if kernel.flaw else 'good'}",
    ]
    lines += [f"  remote: {kernel.remote}"] * bool(kernel.remote)
    lines += [f"  since the one before: {change}" for change in kernel.differences]
    if kernel.key:
        lines += [f"    {line}" for line in kernel.key.text().splitlines()]
    return _join(lines)


def _used(kernel: StoredKernel) -> str:
    return f"last used {_time(kernel.accessed)}" if kernel.accessed else "not on this machine"


def _folder_line(folder: FolderStats) -> str:
    parts = [f"  {folder.target}: {folder.entries} entries, {_megabytes(folder.size)}"]
    if folder.oldest_access is not None and folder.newest_access is not None:
        parts.append(f"used {_time(folder.oldest_access)} to {_time(folder.newest_access)}")
    if folder.unfinished:
        parts.append(f"{folder.unfinished} unfinished")
    if folder.foreign:
        parts.append(f"{folder.foreign} foreign files")
    return "\n".join([", ".join(parts), *_counts_lines(folder)])


def _counts_lines(folder: FolderStats) -> list[str]:
    counts = folder.counts
    if not any(counts.values()):
        return []
    lines = [f"    local: {counts['local_hits']} hits; {counts['misses']} compiled"]
    names = ("hits", "misses", "damaged", "stored")
    hits, misses, damaged, stored = (counts[f"remote_{name}"] for name in names)
    if hits or misses or damaged or stored:
        text = f"{hits} hits, {misses} misses, {damaged} refused, {stored} stored"
        lines.append(f"    remote: {text}")
    return lines


def _limits(limits: Limits) -> str:
    if not limits.ages:
        return f"never aged ({limits.source})"
    return (
        f"at most {limits.megabytes} MB per target, aged to {limits.remain_percent} % "
        f"({limits.source})"
    )


def _megabytes(size: int) -> str:
    return f"{size / MEBIBYTE:.1f} MB"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _join(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
