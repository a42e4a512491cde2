"""`atc cache stats|verify|clear|why NAME`: what is in the op compiler cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atc import cache
from atc.backends.targets import get_target
from atc.errors import OptionError, one_line
from atc.options.parse import parse_arguments
from atc.options.resolve import resolve


def cache_command(argv: Sequence[str]) -> tuple[int, str]:
    """Run the command and return its exit status and what it says; raises OptionError."""
    arguments = parse_arguments(argv, "cache", words=2)
    resolved = resolve(arguments.given, "cache")
    values: dict[str, Any] = resolved.values
    environ = resolved.environ
    root = cache.find_root(values["op_compiler_cache_dir"], environ)
    if root is None:
        raise OptionError(
            "no directory is given and HOME is not set", where="--op_compiler_cache_dir"
        )
    if values["json"] and arguments.words != ("stats",):
        raise OptionError("only atc cache stats has JSON", where="--json", hint="leave it out")
    option = "target" if values["target"] else "soc_version"
    target = get_target(values[option], option).name if values[option] else None
    match arguments.words:
        case ("stats",):
            stats = cache.cache_stats(root, target, environ=environ)
            return 0, (cache.stats_json if values["json"] else cache.stats_text)(stats)
        case ("verify",):
            report = cache.verify_cache(root, target, environ=environ)
            return 0 if report.good else 1, cache.verify_text(report)
        case ("clear",):
            return 0, cache.clear_text(cache.clear_cache(root, target))
        case ("why", kernel):
            found, note = _why(root, kernel, target, values, environ)
            if found.kernels:
                return 0, cache.why_text(found) + note
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
