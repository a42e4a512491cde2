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


def calibrated(inner: Compile) -> Compile:
    """Wrap a compilation: with `--cal_conf` the model is quantised before it is compiled."""

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        options = request.options
        if options.cal_conf is None:
            return inner(request, diagnostics)
        said = read_calibration(options.cal_conf)
        diagnostics.stage("quantising the model")
        with temporary_folder("calibration") as folder:
            result = Path(folder, f"{options.model.stem}_int8.onnx")
            quantize_model(Job(
                options.model, result, framework=options.framework, weight=options.weight,
                input_shape=options.input_shape, target=options.target, **said,
            ), inner)  # fmt: skip
            quantised = request.with_options(
                model=result, framework="", weight=None, input_shape={}, cal_conf=None
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
                f"'{line}' is none of its lines", path, "cal_conf", line=number,
                hint=f"lines are name=value, names are {', '.join(known)}",
            )  # fmt: skip
        try:
            found[name] = known[name].parse(value)
        except OptionError as error:
            raise wrong(f"{name}: {error.message}", path, "cal_conf", line=number) from None
    if "calibration" not in found:
        raise wrong("names no inputs to calibrate with", path, "cal_conf",
                    hint="add a line calibration=PATH")  # fmt: skip
    return found
