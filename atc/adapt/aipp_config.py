"""`--insert_op_conf`: ATC's description of image preprocessing, as text in protobuf's notation.

Fields and ranges are those of Ascend's documentation of AIPP; what no static configuration of this
compiler can mean is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from atc.errors import OptionError, one_line
from atc.files.regular import regular

CHANNELS: Mapping[str, int] = {
    "YUV420SP_U8": 3, "XRGB8888_U8": 4, "RGB888_U8": 3, "YUV400_U8": 1,
}  # fmt: skip
"""Channels of a pixel, by image format."""

_FORMATS = (
    "UNDEFINED", "YUV420SP_U8", "XRGB8888_U8", "RGB888_U8", "YUV400_U8", "NC1HWC0DI_FP16",
    "NC1HWC0DI_S8", "ARGB8888_U8", "YUYV_U8", "YUV422SP_U8", "AYUV444_U8", "RAW10", "RAW12",
    "RAW16", "RAW24", "RGB16", "RGB20", "RGB24", "RGB8_IR", "RGB16_IR", "RGB24_IR",
)  # fmt: skip
_MODES = ("undefined", "static", "dynamic")
_SWITCHES = (
    "support_rotation", "csc_switch", "rbuv_swap_switch", "ax_swap_switch", "single_line_mode",
    "crop", "resize", "padding",
)  # fmt: skip
_SIZES = (
    "src_image_size_w", "src_image_size_h", "load_start_pos_w", "load_start_pos_h", "crop_size_w",
    "crop_size_h", "resize_output_w", "resize_output_h", "left_padding_size", "right_padding_size",
    "top_padding_size", "bottom_padding_size",
)  # fmt: skip
_MATRIX = tuple(f"matrix_r{r}c{c}" for r in range(3) for c in range(3))
_BIASES = tuple(f"{side}_bias_{k}" for side in ("output", "input") for k in range(3))
_COUNTS = ("related_input_rank", "max_src_image_size", "raw_rgbir_to_f16_n")
_SOURCE_MAX, _PADDING_MAX, _HALF_MAX = 4096, 32, 65504


@dataclass(frozen=True)
class Aipp:
    """One image's way into one input: sizes are (width, height), 0 where left to the model.

    `matrix` is None without colour conversion; its unit is 1/256. Four values per channel field.
    """

    where: str
    """The file and line that say so."""
    format: str
    rank: int
    name: str
    edges: tuple[int, ...]
    source: tuple[int, int]
    start: tuple[int, int] | None
    crop: tuple[int, int]
    resize: tuple[int, int] | None
    padding: tuple[int, int, int, int]
    """Left, right, top, bottom."""
    padding_value: float
    swap_rb: bool
    swap_x: bool
    matrix: tuple[tuple[int, ...], ...] | None
    input_bias: tuple[int, ...]
    output_bias: tuple[int, ...]
    mean: tuple[float, ...]
    minimum: tuple[float, ...]
    reciprocal: tuple[float, ...]

    @property
    def channels(self) -> int:
        """Channels of the image's pixels."""
        return CHANNELS[self.format]


def read_aipp(path: Path) -> tuple[Aipp, ...]:
    """Return the configurations of a file; OptionError E10052 with the line of what is wrong."""
    try:
        text = regular(path).read_text("utf-8")
    except OSError as error:
        raise OptionError(
            f"can't be read: {error.strerror}", where=str(path), code="E10052",
            hint="give --insert_op_conf a file with aipp_op { ... }",
        ) from None  # fmt: skip
    except UnicodeDecodeError as error:
        raise _wrong(path, f"byte {error.start} is not UTF-8") from None
    message = _messages()()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line = error.GetLine() or 1
        reason = re.sub(r"^\d+:\d+ : ", "", str(error))
        raise _wrong(path, f"line {line}: {one_line(reason, 200)}") from None
    if not message.aipp_op:
        raise _wrong(path, "holds no aipp_op { ... }")
    lines = [text.count("\n", 0, m.start()) + 1 for m in re.finditer(r"(?m)^[^#\n]*aipp_op", text)]
    return tuple(
        _checked(op, path, lines[k] if k < len(lines) else 1)
        for k, op in enumerate(message.aipp_op)
    )


def _wrong(path: Path, problem: str, hint: str = "") -> OptionError:
    return OptionError(problem, where=str(path), hint=hint, code="E10052")


# ------------------------------------------------------------------------------------- grammar


@cache
def _messages() -> Any:
    """Return the class of protobuf messages that the grammar is made of."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="atc/aipp.proto", package="atc.aipp", syntax="proto2"
    )
    op = file.message_type.add(name="AippOpParams")
    for title, words in (("InputFormat", _FORMATS), ("AippMode", _MODES)):
        enum = op.enum_type.add(name=title)
        for number, word in enumerate(words):
            enum.value.add(name=word, number=number)

    def add(name: str, kind: int, repeated: bool = False, type_name: str = "") -> None:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        op.field.add(
            name=name, number=len(op.field) + 1, type=kind, label=label, type_name=type_name or None
        )

    add("aipp_mode", field.TYPE_ENUM, type_name=".atc.aipp.AippOpParams.AippMode")
    add("input_format", field.TYPE_ENUM, type_name=".atc.aipp.AippOpParams.InputFormat")
    add("related_input_name", field.TYPE_STRING)
    add("input_edge_idx", field.TYPE_UINT32, repeated=True)
    for name in _COUNTS:
        add(name, field.TYPE_UINT32)
    for name in _SWITCHES:
        add(name, field.TYPE_BOOL)
    for name in _SIZES:
        add(name, field.TYPE_INT32)
    for name in (*_MATRIX, *_BIASES):
        add(name, field.TYPE_INT32, repeated=True)
    for name in ("padding_value", "cpadding_value", *_channel("mean"), *_channel("min")):
        add(name, field.TYPE_FLOAT)
    for name in _channel("var_reci"):
        add(name, field.TYPE_FLOAT, repeated=True)
    root = file.message_type.add(name="InsertNewOps")
    root.field.add(
        name="aipp_op", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
        type_name=".atc.aipp.AippOpParams",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("atc.aipp.InsertNewOps"))


def _channel(stem: str) -> tuple[str, ...]:
    return tuple(f"{stem}_chn_{k}" for k in range(4))


# -------------------------------------------------------------------------------------- meaning


Require = Callable[..., None]


def _checked(op: Any, path: Path, line: int) -> Aipp:
    """Return what a message means; `line` is where it begins."""
    where = f"{path}, line {line}"

    def require(condition: bool, problem: str, hint: str = "") -> None:
        if not condition:
            raise OptionError(problem, where=where, hint=hint, code="E10052")

    require(op.aipp_mode != 0, "aipp_mode is missing", "give aipp_mode: static")
    require(
        op.aipp_mode == 1,
        "aipp_mode dynamic has no counterpart: parameters are constants of the compiled code",
        "give aipp_mode: static, and compile once per configuration",
    )
    format_ = _FORMATS[op.input_format]
    require(format_ in CHANNELS, f"input_format {format_} is not supported",
            f"use one of {', '.join(CHANNELS)}")  # fmt: skip
    _check_switches(op, format_, require)
    _check_sizes(op, format_ == "YUV420SP_U8", require)
    _check_numbers(op, require)
    return _meaning(op, format_, where)


def _check_switches(op: Any, format_: str, require: Require) -> None:
    require(not op.ax_swap_switch or format_ == "XRGB8888_U8",
            "ax_swap_switch is for XRGB8888_U8 only")  # fmt: skip
    require(not op.rbuv_swap_switch or format_ != "YUV400_U8",
            "rbuv_swap_switch has nothing to swap in YUV400_U8")  # fmt: skip
    require(not op.csc_switch or format_ != "YUV400_U8",
            "csc_switch needs three channels, YUV400_U8 has one")  # fmt: skip


def _check_sizes(op: Any, even: bool, require: Require) -> None:
    for name in _SIZES:
        low = 1 if op.resize and name.startswith("resize_output") else 0
        most = _PADDING_MAX if "padding" in name else _SOURCE_MAX
        size = getattr(op, name)
        require(low <= size <= most, f"{name} is {size}, it must be {low} to {most}")
        halved = even and name.startswith(("src_", "load_"))
        require(not (halved and size % 2), f"{name} is {size}, with YUV420SP_U8 it must be even")


def _check_numbers(op: Any, require: Require) -> None:
    for name in (*_MATRIX, *_BIASES):
        low, high = (-32768, 32767) if name in _MATRIX else (0, 255)
        value = _only(op, name)
        require(low <= value <= high, f"{name} is {value}, it must be {low} to {high}")
    for name in (*_channel("mean"), *_channel("min"), *_channel("var_reci"), "padding_value"):
        value = _only(op, name)
        require(abs(value) <= _HALF_MAX, f"{name} is {value:g}, half precision ends at {_HALF_MAX}")


def _meaning(op: Any, format_: str, where: str) -> Aipp:
    matrix = [int(_only(op, name)) for name in _MATRIX]
    sides = ("left", "right", "top", "bottom")
    left, right, top, bottom = (getattr(op, f"{side}_padding_size") for side in sides)
    return Aipp(
        where=where, format=format_, rank=op.related_input_rank, name=op.related_input_name,
        edges=tuple(op.input_edge_idx), source=(op.src_image_size_w, op.src_image_size_h),
        start=(op.load_start_pos_w, op.load_start_pos_h) if op.crop else None,
        crop=(op.crop_size_w, op.crop_size_h) if op.crop else (0, 0),
        resize=(op.resize_output_w, op.resize_output_h) if op.resize else None,
        padding=(left, right, top, bottom) if op.padding else (0, 0, 0, 0),
        padding_value=op.padding_value, swap_rb=op.rbuv_swap_switch, swap_x=op.ax_swap_switch,
        matrix=tuple(tuple(matrix[3 * r : 3 * r + 3]) for r in range(3)) if op.csc_switch else None,
        input_bias=tuple(int(_only(op, f"input_bias_{k}")) for k in range(3)),
        output_bias=tuple(int(_only(op, f"output_bias_{k}")) for k in range(3)),
        mean=tuple(getattr(op, n) for n in _channel("mean")),
        minimum=tuple(getattr(op, n) for n in _channel("min")),
        reciprocal=tuple(_only(op, n, 1.0) for n in _channel("var_reci")),
    )  # fmt: skip


def _only(op: Any, name: str, default: float = 0) -> float:
    """Return a field's value; where the format lets it stand several times, the first."""
    value = getattr(op, name)
    if isinstance(value, int | float):
        return value
    return value[0] if value else default
