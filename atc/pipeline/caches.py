"""The caches of a compilation, as its options say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atc.backends.toolchain.compiler import Compiler
from atc.build.caches import operator_cache
from atc.build.library import library_flags
from atc.build.objects import BuildContext
from atc.cache import (
    Cache,
    ContentStore,
    find_root,
    mode_under_debug,
    open_content_store,
)
from atc.diagnostics import Diagnostics
from atc.pipeline.request import Request


def cache_of(request: Request, warn: Callable[[str], None]) -> Cache:
    """Open the op compiler cache of a request's target."""
    return operator_cache(
        request.options, request.environ, request.target.name, warn,
        mode=_mode(request), session=request.session,
    )  # fmt: skip


def build_context(
    request: Request, compiler: Compiler, cache: Cache, diagnostics: Diagnostics
) -> BuildContext:
    """Return what objects are compiled with; the user's own flags come last and count."""
    flags = (*library_flags(compiler, request.target), *request.options.compiler_flags)
    workers = request.options.jobs or os.cpu_count() or 1
    return BuildContext(
        request.target, compiler, flags, cache, workers, diagnostics.process, request.farm
    )


@contextmanager
def open_build_context(
    request: Request, compiler: Compiler, diagnostics: Diagnostics
) -> Iterator[BuildContext]:
    """Open the op compiler cache for what objects are compiled with."""
    with cache_of(request, diagnostics.warn) as cache:
        yield build_context(request, compiler, cache, diagnostics)


def file_store(request: Request, name: str) -> ContentStore | None:
    """Return where files of a kind (`TEMPLATES`, `ERRORS`) are kept, if operators are."""
    mode, env = _mode(request), request.environ
    root = None if mode == "disable" else find_root(request.options.op_compiler_cache_dir, env)
    return None if root is None else open_content_store(root, name, env, fresh=mode == "force")


def _mode(request: Request) -> str:
    debugging = request.debugging
    return mode_under_debug(
        request.options.op_compiler_cache_mode, level=debugging.level,
        configured=bool(debugging.config.switches), listed=not debugging.of_all,
    )  # fmt: skip
