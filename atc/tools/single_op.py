"""`--singleop`: operators described in ATC's JSON become models of one node.

The file is a list of objects: {"op": "Add", "input_desc": [{"format": "ND", "shape": [3, 4],
"type": "float32"}, ...], "output_desc": [...], "attr": [{"name": "axis", "type": "int", "value":
1}]}. Operators are ONNX's, some of ATC's names are known too; an input with "is_const" and
"const_value" is a constant, one of type "UNDEFINED" is left out. "domain" and "name" are optional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from atc.errors import OptionError, one_line
from atc.files.regular import regular

NAMES: Mapping[str, str] = {
    "BiasAdd": "Add", "Maximum": "Max", "Minimum": "Min", "RealDiv": "Div", "Tanh": "Tanh",
}  # fmt: skip
"""ATC's names of operators that ONNX has under another."""

TYPES: Mapping[str, str] = {
    "bf16": "BFLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL", "double": "DOUBLE",
    "float": "FLOAT", "float16": "FLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "fp16": "FLOAT16", "fp32": "FLOAT", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "int8": "INT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "uint8": "UINT8",
}  # fmt: skip
FORMATS = ("ND", "NCHW", "NCDHW", "NCL", "RESERVED")
ABSENT = "UNDEFINED"
_MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class SingleOp:
    """A model of one operator, and the name of the folder that it is compiled into."""

    name: str
    model: onnx.ModelProto


def read_single_ops(path: Path) -> tuple[SingleOp, ...]:
    """Return the operators of a file; OptionError E10023 to E10030 as in ATC."""
    content = _content(path)
    if not isinstance(content, list) or not content:
        raise _wrong(path, "is not a list of operators", "E10025", hint='[{"op": "Add", ...}]')
    return tuple(_single_op(k, item, path) for k, item in enumerate(content))


def _content(path: Path) -> Any:
    if not path.exists():
        raise _wrong(path, "there is no such file", "E10023")
    try:
        with regular(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(path, f"can't be opened: {error.strerror}", "E10024") from None
    if len(data) > _MAX_BYTES:
        raise _wrong(path, f"is larger than {_MAX_BYTES} bytes", "E10025")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"is not JSON: {one_line(str(error), 100)}", "E10025") from None


def _wrong(path: Path, problem: str, code: str, hint: str = "") -> OptionError:
    return OptionError(problem, where=f"--singleop: {path}", hint=hint, code=code)


# ------------------------------------------------------------------------------------ one of them


def _single_op(number: int, item: Any, path: Path) -> SingleOp:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str) or not item["op"].strip():
        raise _wrong(path, f"operator {number} has no name", "E10026", hint='give "op": "Add"')
    op_type = NAMES.get(item["op"].strip(), item["op"].strip())
    label = f"operator {number} ({one_line(op_type, 60)})"

    def fail(problem: str, code: str, hint: str = "") -> OptionError:
        return _wrong(path, f"{label}: {problem}", code, hint)

    inputs = [
        _tensor(desc, f"input {k}", f"x{k}", fail)
        for k, desc in enumerate(_list(item, "input_desc"))
    ]
    outputs = [
        _tensor(desc, f"output {k}", f"y{k}", fail)
        for k, desc in enumerate(_list(item, "output_desc"))
    ]
    if not outputs:
        raise fail("has no output_desc", "E10027")
    attributes = dict(_attribute(a, fail) for a in _list(item, "attr"))
    domain = str(item.get("domain", ""))
    node = helper.make_node(
        op_type, [t.name if t else "" for t in inputs], [t.name if t else "" for t in outputs],
        str(item.get("name") or op_type), domain=domain, **attributes,
    )  # fmt: skip
    given = [t for t in inputs if t is not None]
    graph = helper.make_graph(
        [node], op_type, [t.info() for t in given if t.value is None],
        [t.info() for t in outputs if t is not None],
        [numpy_helper.from_array(t.value, t.name) for t in given if t.value is not None],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    name = re.sub(r"\W+", "_", "_".join([f"{number}_{op_type}", *(t.label for t in given)]))
    return SingleOp(name[:200], helper.make_model(graph, opset_imports=opsets))


Fail = Callable[..., OptionError]


@dataclass(frozen=True)
class _Tensor:
    name: str
    type: int
    shape: tuple[int, ...] | None
    value: Any = None

    @property
    def label(self) -> str:
        dims = "x".join(map(str, self.shape or ())) or "scalar"
        return f"{helper.tensor_dtype_to_np_dtype(self.type).name}_{dims}"

    def info(self) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(self.name, self.type, self.shape)


def _list(item: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = item.get(key, [])
    return value if isinstance(value, list) else [value]


def _tensor(desc: Any, which: str, default: str, fail: Fail) -> _Tensor | None:
    """Return a tensor, None for one that is left out."""
    if not isinstance(desc, dict):
        raise fail(f"{which} is not an object", "E10027")
    kind, layout = str(desc.get("type", "")), str(desc.get("format", ""))
    if kind.upper() == ABSENT:
        return None
    if kind not in TYPES:
        raise fail(f"{which} has the type '{one_line(kind, 40)}'", "E10027",
                   f"use {', '.join(TYPES)}")  # fmt: skip
    if layout.upper() not in FORMATS:
        raise fail(f"{which} has the format '{one_line(layout, 40)}'", "E10027",
                   f"use {', '.join(FORMATS[:-1])}")  # fmt: skip
    type_: int = onnx.TensorProto.DataType.Value(TYPES[kind])
    shape = desc.get("shape")
    if which.startswith("input") and shape is None:
        raise fail(f"{which} has no shape", "E10028")
    if shape is not None and not _is_shape(shape):
        raise fail(f"{which} has the shape {one_line(str(shape), 60)}", "E10028",
                   "give sizes above 0, as in [3, 224, 224]")  # fmt: skip
    dims = None if shape is None else tuple(shape)
    name = str(desc.get("name") or default)
    return _Tensor(name, type_, dims, _constant(desc, type_, dims or (), which, fail))


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(d) is int and 0 < d < 1 << 31 for d in shape)


def _constant(
    desc: Mapping[str, Any], type_: int, shape: tuple[int, ...], which: str, fail: Fail
) -> Any:
    if not desc.get("is_const"):
        return None
    try:
        array = np.array(desc["const_value"], helper.tensor_dtype_to_np_dtype(type_))
        return array.reshape(shape)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise fail(f"{which}: const_value is not {list(shape)}: {one_line(str(error), 60)}",
                   "E10027") from None  # fmt: skip


_KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (float, int), "string": (str,), "data_type": (str,),
    "list_bool": (bool,), "list_int": (int,), "list_float": (float, int), "list_string": (str,),
}  # fmt: skip


def _attribute(desc: Any, fail: Fail) -> tuple[str, Any]:
    name = str(desc.get("name", "")).strip() if isinstance(desc, dict) else ""
    if not name:
        raise fail("an attribute has no name", "E10029")
    kind, value = str(desc.get("type", "")), desc.get("value")
    if kind not in _KINDS:
        raise fail(f"attribute '{one_line(name, 40)}' has the type '{one_line(kind, 40)}'",
                   "E10030", f"use {', '.join(_KINDS)}")  # fmt: skip
    items = value if kind.startswith("list_") and isinstance(value, list) else [value]
    listed = isinstance(value, list) == kind.startswith("list_")
    fits = all(isinstance(i, _KINDS[kind]) and (kind.endswith("bool") or type(i) is not bool)
               for i in items)  # fmt: skip
    if not listed or not fits or (kind == "data_type" and value not in TYPES):
        raise fail(f"attribute '{one_line(name, 40)}' is {one_line(str(value), 40)}, no {kind}",
                   "E10030")  # fmt: skip
    if kind == "data_type":
        return name, onnx.TensorProto.DataType.Value(TYPES[value])
    convert = float if "float" in kind else int if kind.endswith(("bool", "int")) else str
    converted = [convert(i) for i in items]
    return name, converted if kind.startswith("list_") else converted[0]
