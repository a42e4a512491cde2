"""Strings as cells of a fixed size, `DType.STRING`, and which ops take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.errors import UnsupportedError
from atc.ir.expr import Call, Expr, walk
from atc.ir.graph import STRING_BYTES, Array, DType, Op
from atc.ir.ops import If, Loop, Map, Reduce, Reshape
from atc.ir.ops.data import Concat, Gather, Pad, Scatter
from atc.ir.ops.data_dependent import Unique
from atc.ir.ops.strings import StringOp

LONGEST = STRING_BYTES - 1
"""Bytes of the longest string."""

_MOVEMENT = (Map, Reduce, Reshape, Concat, Pad, Gather, Scatter, If, Loop, Unique)


def is_text(array: Array) -> bool:
    """Return whether numpy's array holds strings of any kind."""
    return array.dtype.kind in "OSU"


def cell(value: object) -> bytes:
    """Return a string's bytes; UnsupportedError where it doesn't fit a cell or holds a NUL."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    if len(data) > LONGEST:
        raise UnsupportedError(
            f"a string of {len(data)} bytes, '{data[:20].decode('utf-8', 'replace')}...'",
            hint=f"strings of up to {LONGEST} bytes can be held",
        )
    if b"\0" in data:
        raise UnsupportedError("a string that holds a NUL")
    return data


def cells(array: Array) -> Array:
    """Return an array of str, bytes or objects as cells."""
    texts = np.asarray(array, object)
    flat = [cell(value) for value in texts.reshape(-1)]
    return np.asarray(flat, DType.STRING.numpy).reshape(texts.shape)


def texts(array: Array) -> Array:
    """Return cells as an array of str; what isn't UTF-8 stays what it is by surrogates."""
    result = np.empty(array.size, object)
    result[:] = decoded(array)
    return result.reshape(array.shape)


def decoded(array: Array) -> list[str]:
    """Return cells as a flat list of str."""
    flat: list[bytes] = array.reshape(-1).tolist()
    return [v.partition(b"\0")[0].decode("utf-8", "surrogateescape") for v in flat]


def takes_strings(op: Op) -> bool:
    """Return whether an op can have strings among its operands.

    They are moved, chosen and compared.
    """
    if isinstance(op, StringOp):
        return True
    done = (
        e.fn
        for expr in vars(op).values()
        if isinstance(expr, Expr)
        for e in walk(expr)
        if isinstance(e, Call) and any(a.dtype is DType.STRING for a in e.args)
    )
    return isinstance(op, _MOVEMENT) and all(fn in ("Equal", "Where") for fn in done)


def attribute_cells(value: str | bytes | Sequence[str | bytes]) -> Array:
    """Return a list of strings from an attribute, or one, as cells."""
    items = [value] if isinstance(value, str | bytes) else [*value]
    return cells(np.asarray(items, object))
