"""The files of a compilation, without calling a compiler for any of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atc.build.compilers import compiler_of
from atc.diagnostics import Diagnostics
from atc.options.options import Options
from atc.pipeline.lowering import read_model
from atc.pipeline.planning import plan_all
from atc.pipeline.request import resolve_request
from atc.pipeline.timing import optimise_by_times
from atc.pipeline.writing import write_project


def written(model: Path, **options: Any) -> Mapping[str, bytes]:
    """Return the project that `atc.compile` writes for a network called `net`, by paths."""
    request = resolve_request(
        Options(model=model, output=model.parent / "net", **options), os.environ
    )
    listen = Diagnostics()
    compiler = compiler_of(request.target, request.options, request.environ)
    models = [read_model(each, listen) for each in request.profiles]
    timed = optimise_by_times(models, request, compiler, listen)
    plans = plan_all(timed, request, listen, compiler)
    return write_project(plans, request, "0" * 64, listen).emission.files
