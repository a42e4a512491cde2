"""`--cal_conf`: a model that is quantised, as `atc quantize` does it, before it is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.files.temporary import temporary_folder
from atc.options.files import lines_of, read_text, wrong
from atc.options.table.quantize import QUANTIZE
from atc.pipeline.pipeline import Compilation, Compile
from atc.pipeline.request import Request
from atc.quantize.quantize import Job, quantize_model
from atc.quantize.weights import quantize_weights


def calibrated(inner: Compile) -> Compile:
    """Wrap a compilation: with `--cal_conf` the model is quantised before it is compiled."""

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        options = request.options
        if options.cal_conf is None:
            return inner(request, diagnostics)
        calibration = read_calibration(options.cal_conf)
        diagnostics.stage("quantising the model")
        with temporary_folder("calibration") as folder:
            weights_alone = calibration.get("weights") == "int4"
            kind, shapes = ("int4", {}) if weights_alone else ("int8", options.input_shape)
            result = Path(folder, f"{options.model.stem}_{kind}.onnx")
            job = Job(
                options.model, result, framework=options.framework, weight=options.weight,
                input_shape=shapes, target=options.target, **calibration,
            )  # fmt: skip
            if weights_alone:
                quantize_weights(job)
            else:
                quantize_model(job, inner)
            quantised = request.with_options(
                model=result, framework="", weight=None, cal_conf=None,
                input_shape=options.input_shape if weights_alone else {},
            )
            return inner(quantised, diagnostics)

    return compile


def read_calibration(path: Path) -> dict[str, Any]:
    """Return what a file of lines name=value says of calibration, by a Job's fields.

    Raises OptionError, which names the line, for what `atc quantize` doesn't take.
    """
    known = {s.name: s for s in QUANTIZE if s.group == "Calibration"}
    found: dict[str, Any] = {}
    for number, line in lines_of(read_text(path, "cal_conf")):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name not in known:
            raise wrong(
                f"unknown setting '{line}'", path, "cal_conf", line=number,
                hint=f"lines are name=value, names are {', '.join(known)}",
            )  # fmt: skip
        try:
            found[name] = known[name].parse(value)
        except OptionError as error:
            raise wrong(f"{name}: {error.message}", path, "cal_conf", line=number) from None
    if "calibration" not in found and found.get("weights") != "int4":
        raise wrong("names no inputs to calibrate with", path, "cal_conf",
                    hint="add a line calibration=PATH")  # fmt: skip
    return found
