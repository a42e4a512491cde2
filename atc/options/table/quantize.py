"""The options of `atc quantize`."""

from __future__ import annotations

from dataclasses import replace

from atc.errors import OptionError
from atc.options.table.atc_options import ATC_OPTIONS
from atc.options.table.setting import Setting
from atc.options.values import choice, integer, names, path, positive, required_path, switch


def percent(value: object) -> float:
    """Return a number above 0 and up to 100."""
    number = positive(value)
    if number > 100:
        raise OptionError(f"{number:g} is more than 100", code="E10013")
    return number


def block(value: object) -> int:
    """Return the size of a block of weights, a power of two."""
    number = int(str(integer(16, 256)(value)))
    if number & (number - 1):
        raise OptionError(f"{number} is not a power of two", code="E10013")
    return number


_SHARED = {s.name: s for s in ATC_OPTIONS}

QUANTIZE: tuple[Setting, ...] = (
    *(_SHARED[name] for name in ("model", "weight", "framework", "input_shape")),
    Setting("output", "Result", "the ONNX file to write", "FILE", required_path),
    Setting("calibration", "Calibration", "inputs that are like those to come: an .npy for a model "
            "of one input, an .npz with arrays by name, or a folder of them",
            "PATH", path,
            documentation="An array holds one input or, along its first axis, many."),
    Setting("weights", "Calibration", "the type of weights: int8, with activations of bytes, or "
            "int4, which leaves all else in float and needs no calibration",
            "int8|int4", choice(("int8", "int4")), "int8",
            documentation="MatMul nodes become MatMulNBits."),
    Setting("block", "Calibration", "weights of a column that share a scale with --weights=int4",
            "16|32|64|128|256", block, 32),
    Setting("symmetric", "Calibration", "with --weights=int4: no zero point for each block", "0|1",
            switch, True),
    Setting("method", "Calibration", "how a value's range follows from the inputs: all that "
            "occurs, all but a few outliers, or the range that keeps most information",
            "minmax|percentile|entropy", choice(("minmax", "percentile", "entropy")), "minmax"),
    Setting("percentile", "Calibration", "the part of values in per cent that --method=percentile "
            "keeps within the range", "P", percent, "99.99"),
    Setting("per_channel", "Calibration", "one scale per output channel of a weight, not one per "
            "weight", "0|1", switch, True),
    Setting("activations", "Calibration", "the type of values between operators; weights are int8",
            "uint8|int8", choice(("uint8", "int8")), "uint8"),
    Setting("keep_float", "Calibration", "nodes that stay in float", "NODE;NODE2", names),
    Setting("keep_worst", "Calibration", "keep so many nodes in float: those that add most noise",
            "N", integer(0), 0),
    Setting("labels", "Result", "compile the float and the quantised model and count how often "
            "each finds the right class: an .npz of inputs by name and one more array, the "
            "classes; or an .npy of classes for the calibration inputs", "FILE", path),
    replace(
        _SHARED["target"], group="Result", meaning="the processor to compile for with --labels"
    ),
    Setting("json", "Result", "print the result as JSON", "0|1", switch, False),
)  # fmt: skip
