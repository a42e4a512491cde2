"""`atc verify`, and `--verify` after a compilation: a library beside a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atc.accuracy.compare import Verification, check_inputs, subject_of, verify_library
from atc.diagnostics import Diagnostics
from atc.files.temporary import temporary_folder
from atc.options.options import make_options
from atc.options.resolve import Resolved
from atc.pipeline.request import Request, resolve_request


def verify(resolved: Resolved, diagnostics: Diagnostics) -> Verification:
    """Compare the library that is named, or what the options compile, with a reference."""
    values: dict[str, Any] = resolved.values
    chosen = {name: values[name] for name in ("tolerance", "seed", "float64")}
    with temporary_folder("verify") as folder:
        options = make_options({**values, "output": Path(folder, "net")})
        library: Path | None = values["library"]
        if library is None:
            from atc.compile import compile_model  # late: a library needs no compiler
            from atc.pipeline.input_types import input_types

            types = input_types(options) if values["input"] else None
            if types is not None:
                check_inputs(values["input"], types)
            library = compile_model(options, resolved.environ, diagnostics).folder
        return compare(
            resolve_request(options), library, diagnostics, inputs=values["input"], **chosen
        )


def compare(
    request: Request, library: Path, diagnostics: Diagnostics, **chosen: Any
) -> Verification:
    """Compare a library of the request's model with a reference."""
    diagnostics.stage("comparing with a reference")
    return verify_library(subject_of(request), library, **chosen)
