"""Read the container of a dump: recognize its format, and read FBS_V2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atc.errors import ModelError, UnsupportedError, way_out
from atc.importers.megengine import reader_v1
from atc.importers.megengine.dump import Dump, Operator, StoredTensor
from atc.importers.megengine.encoding import (
    Budget,
    read_dtype,
    read_params,
    read_shape,
    tensor_values,
)
from atc.importers.megengine.flat import Buffer, FlatTable, root_table
from atc.importers.megengine.schema import ModelSlot, OperatorSlot, TensorSlot
from atc.importers.megengine.typeid import kind_of_id, normalized

_V2 = b"mgv2"
_TEST_CASES = b"mgbtest0"
_OLD_FORMATS = (b"mgb0001", b"mgb0000a", b"mgbteste")
_NEWEST_MODEL_VERSION = 2


def is_megengine(head: bytes) -> bool:
    """Say whether a file that begins with `head` (12 bytes or more) is a MegEngine dump."""
    return (
        head[8:12] == _V2
        or head[:4] in reader_v1.MAGICS
        or head.startswith((_TEST_CASES, *_OLD_FORMATS))
    )


def read_dump(path: Path) -> Dump:
    """Read a dump of either format; raises `ModelError` where it is damaged."""
    buffer = _buffer(path)
    return _dump_at(buffer, 12 if buffer.data.startswith(_TEST_CASES) else 0)


def read_test_dumps(path: Path) -> tuple[Dump, ...]:
    """Return the dumps behind a dump with test cases, one for each; none for other dumps."""
    buffer = _buffer(path)
    if not buffer.data.startswith(_TEST_CASES):
        return ()
    start, found = _end(buffer, 12), list[Dump]()
    for _ in range(buffer.integer("u32", 8, "number of test cases")):
        found.append(_dump_at(buffer, start))
        start = _end(buffer, start)
    return tuple(found)


def _buffer(path: Path) -> Buffer:
    try:
        return Buffer(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelError(
            f"cannot read the model: {error.strerror}", where=str(path), hint=way_out(error)
        ) from error


def _end(buffer: Buffer, start: int) -> int:
    """Return where the dump that begins at `start` ends."""
    if buffer.data[start : start + 4] in reader_v1.MAGICS:
        start = reader_v1.graph_place(buffer, start)
    return start + 4 + buffer.integer("u32", start, "size prefix")


def _dump_at(buffer: Buffer, start: int) -> Dump:
    head = buffer.data[start : start + 12]
    if head[8:12] == _V2:
        return _read_v2(buffer, start)
    if head[:4] in reader_v1.MAGICS:
        return reader_v1.read_v1(buffer, start)
    if head.startswith(_OLD_FORMATS):
        raise UnsupportedError(
            f"dump format {head[:8]!r} is older than FlatBuffers dumps",
            where=buffer.name,
            hint="load it with MegEngine and dump it again",
        )
    raise ModelError(
        f"no MegEngine dump: the file begins with {head!r}",
        where=buffer.name,
        hint="expected a file written by megengine's trace.dump",
    )


def _read_v2(buffer: Buffer, start: int) -> Dump:
    size = buffer.integer("u32", start, "size prefix")
    buffer.check(start + 4, size, "flatbuffer")
    model = root_table(buffer, start + 4)
    version = model.integer(ModelSlot.MODEL_VERSION)
    if version > _NEWEST_MODEL_VERSION:
        raise UnsupportedError(
            f"model version {version} is newer than {_NEWEST_MODEL_VERSION}",
            where=buffer.name,
            hint="dump with model_version=2",
        )
    budget = Budget(buffer)
    names = dict(_names(model, budget))
    operators = tuple(_operators(model, names, budget))
    outputs, output_names = _outputs(model, names, buffer)
    mge_version = model.integer(ModelSlot.MGE_VERSION)
    return Dump(buffer.name, version_text(mge_version), operators, outputs, output_names, names)


def version_text(number: int) -> str:
    """Return MegEngine's version number as text: 101300 is 1.13.0."""
    return f"{number // 100000}.{number // 100 % 1000}.{number % 100}"


def _names(model: FlatTable, budget: Budget) -> Iterator[tuple[int, str]]:
    for number, tensor in enumerate(model.tables(ModelSlot.MIDDLE_TENSORS)):
        if name := budget.string(tensor, TensorSlot.NAME):
            yield number, name


def _operators(model: FlatTable, names: dict[int, str], budget: Budget) -> Iterator[Operator]:
    for position, table in enumerate(model.tables(ModelSlot.OPERATORS)):
        kind = normalized(budget.string(table, OperatorSlot.TYPE))
        kind = kind or kind_of_id(table.integer(OperatorSlot.TYPE_ID, "u64"), table.buffer.name)
        outputs = budget.integers(table, OperatorSlot.OUTPUTS)
        name = budget.string(table, OperatorSlot.NAME)
        name = name or (names.get(outputs[-1], "") if outputs else "") or f"{kind}_{position}"
        where = f"{table.buffer.name}: node {name} ({kind})"
        yield Operator(
            kind=kind,
            name=name,
            where=where,
            inputs=budget.integers(table, OperatorSlot.INPUTS),
            outputs=outputs,
            tables=tuple(read_params(table, _PARAM_SLOTS, budget, where)),
            tensors=tuple(_tensors(table, budget, where)),
            output_dtype=read_dtype(table.table(OperatorSlot.OUTPUT_DTYPE), where),
        )


_PARAM_SLOTS = (
    OperatorSlot.PARAM_TYPE,
    OperatorSlot.PARAM,
    OperatorSlot.MORE_PARAM_TYPES,
    OperatorSlot.MORE_PARAMS,
)


def _tensors(operator: FlatTable, budget: Budget, where: str) -> Iterator[StoredTensor]:
    for table in budget.tables(operator, OperatorSlot.TENSORS):
        dtype = read_dtype(table.table(TensorSlot.DTYPE), where)
        if dtype is None:
            raise ModelError("a stored tensor has no element type", where=where)
        if table.integer(TensorSlot.FORMAT_TYPE, "u8") > 1:
            raise UnsupportedError(
                "a stored tensor has a packed memory format",
                where=where,
                hint="dump the network without layout transformation for a GPU",
            )
        shape = read_shape(table, where)
        start, size = table.span(TensorSlot.DATA)
        data = tensor_values(table.buffer, start, size, dtype, shape, where) if size else None
        if data is None and table.has(TensorSlot.DATA):
            data = np.empty(shape, dtype.numpy) if 0 in shape else None
        yield StoredTensor(budget.string(table, TensorSlot.NAME), dtype, shape, data)


@dataclass(frozen=True)
class _Alias:
    original: int
    name: str


def _outputs(
    model: FlatTable, names: dict[int, str], buffer: Buffer
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the output variables and their names; an alias list replaces the output list."""
    listed = [(t.integer(0), t.integer(1)) for t in model.tables(ModelSlot.OUTPUTS)]
    aliases = [_Alias(t.integer(0), t.string(1)) for t in model.tables(ModelSlot.OUTPUT_ALIAS)]
    compact = {original: number for number, original in listed}
    if not aliases:
        numbers = tuple(number for number, _ in listed)
        return numbers, tuple(names.get(n) or f"unnamed{i}" for i, n in enumerate(numbers))
    for alias in aliases:
        if alias.original not in compact:
            raise ModelError(
                f"output alias {alias.name} names {alias.original}, which is not an output",
                where=buffer.name,
            )
    return (
        tuple(compact[alias.original] for alias in aliases),
        tuple(alias.name or f"unnamed{i}" for i, alias in enumerate(aliases)),
    )
