"""`atc verify`, and `--verify` after a compilation: a library beside a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atc.accuracy.compare import Verification, subject_of, verify_library
from atc.accuracy.run_inputs import check_inputs
from atc.backends.targets import get_target
from atc.devices.network import Device, DeviceNetwork, target_of
from atc.diagnostics import Diagnostics
from atc.files.temporary import temporary_folder
from atc.options.options import Options, make_options
from atc.options.resolve import Resolved
from atc.pipeline.request import Request, resolve_request


def verify(resolved: Resolved, diagnostics: Diagnostics) -> Verification:
    """Compare the library that is named, or what the options compile, with a reference."""
    values = resolved.values
    chosen = {name: values[name] for name in ("tolerance", "seed", "float64", "runs")}
    runner = str(values["runner"])
    with temporary_folder("verify") as folder:
        options = make_options({**values, "output": Path(folder, "net")})
        request = resolve_request(options, resolved.environ)
        library: Path | None = values["library"]
        if library is None:
            check_device(options, runner)
            from atc.compile import compile_resolved  # deferred: a library needs no compiler
            from atc.pipeline.input_types import input_types

            types = input_types(request) if values["input"] else None
            if types is not None:
                check_inputs(values["input"], types)
            library = compile_resolved(request, diagnostics).folder
        return compare(
            request, library, diagnostics, runner, inputs=values["input"], **chosen
        )  # fmt: skip


def check_device(options: Options, runner: str = "") -> None:
    """Raise OptionError, before anything is compiled, where no program for the target runs."""
    targets = [get_target(name, options.target_option) for name in options.target.split(",")]
    if not any(Device(each, runner).loads for each in targets):
        Device(targets[0], runner).check()


def compare(
    request: Request, library: Path, diagnostics: Diagnostics, runner: str = "", **chosen: Any
) -> Verification:  # fmt: skip
    """Compare a library of the request's model with a reference.

    `runner` is how a program around it is run, as --runner says it. Where this machine can load the
    library it does, unless that says otherwise.
    """
    target = target_of(library) if library.is_dir() else None
    device = Device(target, runner) if target is not None else None
    diagnostics.stage("comparing with a reference")
    if device is None or device.loads:
        return verify_library(subject_of(request), library, **chosen)
    device.check()

    def opened(folder: Path) -> DeviceNetwork:
        return DeviceNetwork(folder, device, request.environ, diagnostics.process)

    return verify_library(subject_of(request), library, opened=opened, **chosen)
