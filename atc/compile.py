"""Compiles a model: one compilation, inside of what searches over compilations.

Each wrapper takes the compilation that it refines as an argument, so that nothing below this
module knows of anything above itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from atc.accuracy.bf16x3 import bf16x3_decided
from atc.accuracy.golden import selftested
from atc.accuracy.max_error import within_error
from atc.build.compilers import check_compilers
from atc.build.output_folder import check_folder
from atc.cache import Session
from atc.diagnostics import Diagnostics, remembering
from atc.farm.scheduler import open_scheduler
from atc.options.options import Options
from atc.pipeline.kept import KeptNetwork
from atc.pipeline.multi_target import multi_target
from atc.pipeline.pipeline import Compilation, Compile, compile_one
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.pipeline.within_rom import within_rom
from atc.quantize.calibrated import calibrated


def searching(compile_one: Compile) -> Compile:
    """Put a compilation inside of what searches over compilations where options ask for that."""
    kept_to_limits = bf16x3_decided(within_rom(compile_one))
    return calibrated(selftested(multi_target(within_error(kept_to_limits))))


compile_request = searching(compile_one)


def compile_model(
    options: Options, environ: Mapping[str, str] | None = None,
    diagnostics: Diagnostics | None = None, decisions: Decisions | None = None,
    session: Session | None = None, kept: KeptNetwork | None = None,
) -> Compilation:  # fmt: skip
    """Compile a model as the options say and write the output folder.

    `environ` is the environment that variables are read from, this process's by default;
    `decisions` are what the caller decided for it, `session` what its other compilations
    learned of the cache, which has `kept` as the place of all that is written. Raises AtcError; the
    output folder is then as it was before.
    """
    env = dict(os.environ) if environ is None else environ
    return compile_resolved(resolve_request(options, env, decisions), diagnostics, session, kept)


def compile_resolved(
    request: Request, diagnostics: Diagnostics | None = None, session: Session | None = None,
    kept: KeptNetwork | None = None,
) -> Compilation:  # fmt: skip
    """Compile what was resolved already; see `compile_model`."""
    options, diagnostics = request.options, diagnostics or Diagnostics()
    if options.cal_conf is not None or options.max_error or len(request.targets) > 1:
        check_folder(options.output, "--output")  # before anything long begins
        check_compilers(options, request.environ)
    if session is None and kept is not None:
        session = kept.session
    if session is not None:
        request = replace(request, session=session)
    of_farm: list[str] = []
    with ExitStack() as stack:
        farm = open_scheduler(options.scheduler, remembering(diagnostics, of_farm).warn)
        if farm is not None:
            stack.enter_context(farm)
        compile_it = searching(partial(compile_one, keep=kept.keep)) if kept else compile_request
        done = compile_it(replace(request, farm=farm), diagnostics)
    return replace(done, warnings=(*done.warnings, *of_farm)) if of_farm else done
