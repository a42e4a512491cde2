"""The op compiler cache and the store behind it, as options name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atc import __version__
from atc.cache import Cache, RemoteTier, Session, open_cache, open_remote
from atc.options.options import Options


def operator_cache(
    options: Options, environ: Mapping[str, str], target: str, warn: Callable[[str], None], *,
    mode: str | None = None, session: Session | None = None, remote: bool = True,
) -> Cache:  # fmt: skip
    """Open the op compiler cache of a target, in another `mode` than the options' if that is given.

    Without `remote` the store of several machines has no part in it.
    """
    mode = options.op_compiler_cache_mode if mode is None else mode
    wanted = remote and mode != "disable"
    tier = remote_store(options, environ, warn, session) if wanted else None
    return open_cache(
        mode, options.op_compiler_cache_dir, target,
        versions={"atc_version": __version__, "ops_version": __version__},
        environ=environ, warn=warn, remote=tier, session=session,
    )  # fmt: skip


def remote_store(
    options: Options, environ: Mapping[str, str], warn: Callable[[str], None],
    session: Session | None = None,
) -> RemoteTier | None:
    """Open the store that is asked after the caches on the disk; None where there is none."""
    return open_remote(
        options.op_compiler_cache_remote, access=options.op_compiler_cache_remote_access,
        trust=options.op_compiler_cache_trust, environ=environ, warn=warn, session=session,
    )  # fmt: skip
