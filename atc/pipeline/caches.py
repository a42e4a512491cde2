"""Where a compilation keeps what the next one needn't make again, as its options say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atc import __version__
from atc.backends.target import Target
from atc.cache import Cache, ProvedFiles, find_root, mode_under_debug, open_cache, open_proved
from atc.options.options import Options
from atc.pipeline.debug_build import Debugging


def operator_cache(
    options: Options, target: Target, debugging: Debugging, env: Mapping[str, str],
    warn: Callable[[str], None],
) -> Cache:  # fmt: skip
    """Open the op compiler cache of a target."""
    versions = {"atc_version": __version__, "ops_version": __version__}
    return open_cache(
        _mode(options, debugging), options.op_compiler_cache_dir, target.name,
        versions=versions, environ=env, warn=warn,
    )  # fmt: skip


def file_store(
    options: Options, debugging: Debugging, env: Mapping[str, str], name: str
) -> ProvedFiles | None:
    """Return where files of a kind (`TEMPLATES`, `ERRORS`) are kept, if operators are."""
    mode = _mode(options, debugging)
    root = None if mode == "disable" else find_root(options.op_compiler_cache_dir, env)
    return None if root is None else open_proved(root, name, env, fresh=mode == "force")


def _mode(options: Options, debugging: Debugging) -> str:
    return mode_under_debug(
        options.op_compiler_cache_mode, level=debugging.level,
        configured=bool(debugging.config.switches), listed=not debugging.of_all,
    )  # fmt: skip
