"""The C compilers that a compilation needs, by its options and the environment."""

from __future__ import annotations

from collections.abc import Mapping

from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.processes import Log, no_log
from atc.options.options import Options


def compiler_of(
    target: Target, options: Options, environ: Mapping[str, str], log: Log = no_log
) -> Compiler:
    """Return the compiler for a target as the options name it; ToolchainError if there is none."""
    timeout = options.compiler_timeout
    return find_compiler(target, environ, options.compiler_words, log=log, timeout=timeout)


def check_compilers(options: Options, environ: Mapping[str, str]) -> None:
    """Raise ToolchainError for a target without a compiler, before anything long begins."""
    for name in options.target.split(","):
        compiler_of(get_target(name, options.target_option), options, environ)
