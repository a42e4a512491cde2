"""`--cal_conf`: a model that is quantised, as `atc quantize` does it, before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from atc.errors import OptionError
from atc.listener import Listener
from atc.option_files import lines_of, read_text, wrong
from atc.options import Options
from atc.quantize import Job, quantize_model
from atc.settings.quantize import QUANTIZE
from atc.temporary import temporary_folder


@contextmanager
def quantised_first(options: Options, heard: Listener) -> Iterator[Options]:
    """Give options that name the quantised model in place of the float one, while it is there."""
    assert options.cal_conf is not None
    said = read_calibration(options.cal_conf)
    heard.stage("quantising the model")
    with temporary_folder("calibration") as folder:
        result = Path(folder, f"{options.model.stem}_int8.onnx")
        quantize_model(Job(
            options.model, result, framework=options.framework, weight=options.weight,
            input_shape=options.input_shape, target=options.target, **said,
        ))  # fmt: skip
        yield replace(
            options, model=result, framework="", weight=None, input_shape={}, cal_conf=None
        )


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
        raise wrong("says nothing of inputs to calibrate with", path, "cal_conf",
                    hint="add a line calibration=PATH")  # fmt: skip
    return found
