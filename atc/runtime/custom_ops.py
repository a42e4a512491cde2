"""User-defined operators: a shared library describes them, as its atc_external.h says.

The library is loaded into this process, when compiling for the shapes of results, when running for
the functions that a compiled network calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from atc.errors import OptionError, one_line
from atc.ir.graph import DType, TensorType
from atc.ir.ops.external import MAX_RANK
from atc.names import identifier

DEFAULT_ENTRY = "mgb_c_opr_init"
VERSION = 1
OPTION = "--c_opr_lib"
_DECLARATIONS = """
typedef struct { int32_t dtype; int32_t rank; int64_t shape[8]; } atc_external_tensor;
typedef int (*atc_external_infer)(const char *attributes, size_t input_count,
    const atc_external_tensor *inputs, size_t output_count, atc_external_tensor *outputs);
typedef struct { const char *type, *symbol; atc_external_infer infer; } atc_external_operator;
typedef int (*atc_external_register)(const atc_external_operator *op);
typedef struct { uint32_t version; atc_external_register register_operator; } atc_external_api;
typedef const atc_external_api *(*atc_external_get_api)(int version);
void ENTRY(atc_external_get_api get_api);
"""

Infer = Callable[[str, Sequence[TensorType | None], int], list[TensorType]]
"""Returns the types of a number of outputs, from attributes and inputs; raises ValueError."""


@dataclass(frozen=True)
class ExternalOperator:
    """An operator that a library registered: its type as registered, and the computing function."""

    type: str
    symbol: str
    infer: Infer


class ExternalLibrary:
    """A loaded library of operators; compiled networks loaded later find its functions."""

    def __init__(self, path: Path, entry: str = DEFAULT_ENTRY) -> None:
        """Load the library and call its init function; raises OptionError that names the file."""
        if identifier(entry) != entry:
            raise OptionError(f"'{one_line(entry, 60)}' is not a valid C function name",
                              where="--c_opr_init_interface")  # fmt: skip
        self.path = path
        self._ffi = cffi.FFI()
        self._ffi.cdef(_DECLARATIONS.replace("ENTRY", entry))
        try:
            flags = self._ffi.RTLD_NOW | self._ffi.RTLD_GLOBAL
            self._handle: Any = self._ffi.dlopen(os.fspath(path.absolute()), flags)
        except OSError as error:
            reason = str(error).partition("  Additionally")[0]  # where else cffi looked
            text = f"{path} can't be loaded: {one_line(reason, 300)}"
            raise OptionError(text, where=OPTION) from None
        try:
            init = getattr(self._handle, entry)
        except AttributeError:
            raise OptionError(
                f"{path} lacks the function {entry}", where=OPTION,
                hint="define it as atc_external.h says, or name it with --c_opr_init_interface",
            ) from None  # fmt: skip
        self.operators = self._registered(init)

    def _registered(self, init: Any) -> tuple[ExternalOperator, ...]:
        ffi = self._ffi
        found: list[ExternalOperator] = []

        def register(op: Any) -> int:
            type_, symbol = (ffi.string(text).decode() for text in (op.type, op.symbol))
            found.append(ExternalOperator(type_, symbol, self._infer(op.infer, type_)))
            return 0

        registering = ffi.callback("atc_external_register", register, error=1)
        api = ffi.new("atc_external_api *", [VERSION, registering])
        getter = ffi.callback(
            "atc_external_get_api", lambda version: api if version == VERSION else ffi.NULL
        )
        init(getter)
        for op in found:
            if identifier(op.symbol) != op.symbol:
                text = f"{self.path}: '{one_line(op.symbol, 60)}' is not a valid C function name"
                raise OptionError(text, where=OPTION)
        if not found:
            raise OptionError(
                f"{self.path} registers no operator", where=OPTION,
                hint=f"it may be made for another version of atc_external.h than {VERSION}",
            )  # fmt: skip
        return tuple(found)

    def _infer(self, function: Any, type_: str) -> Infer:
        ffi = self._ffi

        def infer(
            attributes: str, inputs: Sequence[TensorType | None], count: int
        ) -> list[TensorType]:
            given = ffi.new("atc_external_tensor[]", [_tensor(t) for t in inputs] or 1)
            results = ffi.new("atc_external_tensor[]", count)
            status = function(attributes.encode(), len(inputs), given, count, results)
            if status:
                raise ValueError(f"{type_} refuses its inputs with {status}")
            return [_type(results[k], type_) for k in range(count)]

        return infer


def _tensor(type_: TensorType | None) -> tuple[int, int, list[int]]:
    if type_ is None:
        return 0, 0, []
    if len(type_.shape) > MAX_RANK:
        raise ValueError(f"{type_} has more than {MAX_RANK} dims")
    return type_.dtype.code, len(type_.shape), list(type_.shape)


def _type(tensor: Any, type_: str) -> TensorType:
    shape = tuple(int(tensor.shape[k]) for k in range(max(0, min(tensor.rank, MAX_RANK))))
    if not 0 <= tensor.rank <= MAX_RANK or min(shape, default=0) < 0:
        raise ValueError(f"{type_} makes a result of {tensor.rank} dims {list(shape)}")
    try:
        return TensorType(DType.from_onnx(tensor.dtype), shape)
    except KeyError:
        raise ValueError(f"{type_} makes a result of the unknown type {tensor.dtype}") from None
