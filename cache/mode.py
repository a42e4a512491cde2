"""The three modes of the op compiler cache and what a debug build makes of them."""

from __future__ import annotations

from atc.errors import OptionError, one_line

MODES = ("enable", "force", "disable")
DEFAULT_MODE = "disable"

MODE_HELP = (
    "reuse compiled operators from disk. enable: use stored ones, compile and store the others "
    "(recommended for everyday work). force: delete this target's stored ones first, then compile "
    "and store all; for a changed interpreter, library or tuning base; never while other "
    "compilations run, it deletes what they use. disable (default): read and write nothing. "
    "For a final release build disable or force is recommended."
)


def check_mode(mode: str) -> None:
    """Raise OptionError (E10001) unless `mode` is one of MODES, spelled exactly so."""
    if mode not in MODES:
        raise OptionError(
            f"invalid cache mode '{one_line(mode, 40)}'",
            where="--op_compiler_cache_mode",
            hint=f"use one of {', '.join(MODES)}",
        )


def mode_under_debug(
    mode: str, *, level: int = 0, configured: bool = False, listed: bool = False
) -> str:
    """Return the mode that applies to a build with debug options.

    `level` is --op_debug_level, `configured` says that --op_debug_config switches something on,
    `listed` that it does so for listed operators only. Debugging every operator turns the cache
    off, even `force`: a hit would leave gaps in the compile logs, and debug objects aren't worth
    the room. With a list the mode stays; the caller passes `bypass=True` for what is listed.
    """
    check_mode(mode)
    return "disable" if level != 0 or (configured and not listed) else mode
