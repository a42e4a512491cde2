"""`atc cache stats|verify|clear|why NAME`: what is in the op compiler cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atc import cache
from atc.backends.targets import get_target
from atc.errors import OptionError, one_line


def cache_command(
    words: tuple[str, ...], values: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, int]:
    """Run the command and return what it says and its exit status; raises OptionError."""
    root = cache.find_root(values["op_compiler_cache_dir"], environ)
    if root is None:
        raise OptionError(
            "no directory is given and HOME is not set", where="--op_compiler_cache_dir"
        )
    if values["json"] and words != ("stats",):
        raise OptionError("only atc cache stats has JSON", where="--json", hint="leave it out")
    option = "target" if values["target"] else "soc_version"
    target = get_target(values[option], option).name if values[option] else None
    match words:
        case ("stats",):
            stats = cache.cache_stats(root, target, environ=environ)
            return (cache.stats_json if values["json"] else cache.stats_text)(stats), 0
        case ("verify",):
            report = cache.verify_cache(root, target, environ=environ)
            return cache.verify_text(report), 0 if report.good else 1
        case ("clear",):
            return cache.clear_text(cache.clear_cache(root, target)), 0
        case ("why", kernel):
            found, note = _why(root, kernel, target, values, environ)
            if found.kernels:
                return cache.why_text(found) + note, 0
            raise OptionError(
                f"no entry is named '{one_line(kernel, 200)}'", where=str(root),
                hint="give a kernel's name, or the first digits of an entry's digest",
            )  # fmt: skip
    raise OptionError(
        "the commands are stats, verify, clear and why NAME", hint="see atc cache --help"
    )


def _why(
    root: Path, kernel: str, target: str | None, values: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[cache.WhyReport, str]:  # fmt: skip
    """Ask both tiers for a kernel; returns what they have, and lines about trouble."""
    warnings: list[str] = []
    remote = cache.open_remote(
        values["op_compiler_cache_remote"], access="read",
        trust=values["op_compiler_cache_trust"], environ=environ, warn=warnings.append,
    )  # fmt: skip
    found = cache.why(root, kernel, target, environ=environ, remote=remote)
    if remote is not None:
        remote.close()
    return found, "".join(f"warning: {text}\n" for text in warnings)
