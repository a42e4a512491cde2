"""Read FBS v1 dumps: tensor bytes first, then a flatbuffer without type names.

Layout: u32 magic; for `MGBC` 8 bytes of feature bits; 4 bytes; u64 size of the tensor area; the
tensor area; a size-prefixed flatbuffer with the identifier `mgb1`. Tensor values follow each other
in the order of the operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atc.errors import ModelError
from atc.importers.megengine.dump import Dump, Operator, Params, StoredTensor
from atc.importers.megengine.encoding import (
    Budget,
    read_dtype,
    read_params,
    read_shape,
    tensor_values,
)
from atc.importers.megengine.flat import Buffer, FlatTable, root_table
from atc.importers.megengine.schema import GraphSlot, OldOperatorSlot, TensorSlot
from atc.importers.megengine.typeid import kind_of_id

# Magic of the file and the position of the size of its tensor area.
MAGICS = {b"MGBC": 16, b"MGBS": 8}
_IDENTIFIER = b"mgb1"

# Variables that an operator writes and other operators may read, where it isn't one.
_OUTPUT_COUNTS = {
    "Argsort": 2,
    "BatchNorm": 4,
    "CondTake": 2,
    "GeneralNorm": 3,
    "GroupNorm": 3,
    "InstanceNorm": 3,
    "LSTM": 4,
    "LSTMCell": 3,
    "LayerNorm": 3,
    "MultiHeadAttn": 4,
    "NMSKeepMGB": 2,
    "RNN": 3,
    "ROIAlign": 2,
    "ROIPooling": 2,
    "SVD": 3,
}


def graph_place(buffer: Buffer, start: int) -> int:
    """Return where the flatbuffer of the dump that begins at `start` lies."""
    at = start + MAGICS[buffer.data[start : start + 4]]
    area = buffer.integer("u64", at, "size of the tensor area")
    buffer.check(at + 8, area, "tensor area")
    return at + 8 + area


def read_v1(buffer: Buffer, start: int) -> Dump:
    """Read the dump that begins at `start`."""
    at = start + MAGICS[buffer.data[start : start + 4]]
    graph_at = graph_place(buffer, start)
    size = buffer.integer("u32", graph_at, "size prefix")
    buffer.check(graph_at + 4, size, "flatbuffer")
    if buffer.data[graph_at + 8 : graph_at + 12] != _IDENTIFIER:
        raise ModelError(
            f"no flatbuffer with the identifier mgb1 at offset {graph_at}", where=buffer.name
        )
    graph = root_table(buffer, graph_at + 4)
    builder = _Reader(buffer, Budget(buffer), _Cursor(at + 8, graph_at), {})
    operators = tuple(builder.operators(graph))
    outputs = tuple(_outputs(graph))
    names = builder.names
    version = graph.integer(GraphSlot.MGB_VERSION)
    text = f"{version // 100000}.{version // 100 % 1000}.{version % 100}"
    output_names = tuple(names.get(n) or f"unnamed{i}" for i, n in enumerate(outputs))
    return Dump(buffer.name, text, operators, outputs, output_names, names)


def _outputs(graph: FlatTable) -> Iterator[int]:
    start, count = graph.span(GraphSlot.OUTPUTS, 8)
    for i in range(count):
        yield graph.buffer.integer("u32", start + 8 * i, "output")


@dataclass
class _Cursor:
    """The start of the next tensor's bytes, and the end of the tensor area."""

    at: int
    end: int


@dataclass(frozen=True)
class _Reader:
    buffer: Buffer
    budget: Budget
    cursor: _Cursor
    names: dict[int, str]

    def operators(self, graph: FlatTable) -> Iterator[Operator]:
        """Read the operators and number their outputs in order."""
        number = 0
        for position, table in enumerate(graph.tables(GraphSlot.OPERATORS)):
            operator = self._operator(table, position, number)
            number += len(operator.outputs)
            yield operator

    def _operator(self, table: FlatTable, position: int, number: int) -> Operator:
        kind = kind_of_id(table.integer(OldOperatorSlot.TYPE_ID, "u64"), self.buffer.name)
        named = self.budget.tables(table, OldOperatorSlot.OUTPUT_NAMES)
        output_names = [text.as_string() for text in named]
        name = self.budget.string(table, OldOperatorSlot.NAME)
        name = name or (output_names[-1] if output_names else "") or f"{kind}_{position}"
        where = f"{self.buffer.name}: node {name} ({kind})"
        inputs = self.budget.integers(table, OldOperatorSlot.INPUTS)
        params = tuple(read_params(table, _PARAM_SLOTS, self.budget, where))
        tensors = tuple(self._tensors(table, where))
        count = len(output_names) or _output_count(kind, inputs, tensors, params)
        outputs = tuple(range(number, number + count))
        self.names.update(zip(outputs, output_names, strict=False))
        dtype = read_dtype(table.table(OldOperatorSlot.OUTPUT_DTYPE), where)
        return Operator(kind, name, where, inputs, outputs, params, tensors, dtype)

    def _tensors(self, operator: FlatTable, where: str) -> Iterator[StoredTensor]:
        for table in self.budget.tables(operator, OldOperatorSlot.TENSORS):
            dtype = read_dtype(table.table(TensorSlot.DTYPE), where)
            if dtype is None:
                raise ModelError("a stored tensor has no element type", where=where)
            shape = read_shape(table, where)
            size = table.integer(TensorSlot.DATA_SIZE)
            data = None
            if size:
                start = self.cursor.at + table.integer(TensorSlot.OFFSET)
                self.cursor.at = start + size
                if self.cursor.at > self.cursor.end:
                    raise ModelError(
                        f"tensor data ends at offset {self.cursor.at}, past the tensor area, "
                        f"which ends at {self.cursor.end}",
                        where=where,
                        hint="the file is damaged; dump the network again",
                    )
                data = tensor_values(self.buffer, start, size, dtype, shape, where)
            yield StoredTensor(self.budget.string(table, TensorSlot.NAME), dtype, shape, data)


_PARAM_SLOTS = (
    OldOperatorSlot.PARAM_TYPE,
    OldOperatorSlot.PARAM,
    OldOperatorSlot.MORE_PARAM_TYPES,
    OldOperatorSlot.MORE_PARAMS,
)


def _output_count(
    kind: str,
    inputs: tuple[int, ...],
    tensors: tuple[StoredTensor, ...],
    params: tuple[Params, ...],
) -> int:
    """Return how many variables an operator writes that others may read."""
    match kind:
        case "Split":
            return max(len(inputs) - 1, 1)
        case "MultipleDeviceTensorHolder":
            return len(tensors)
        case "TopK":
            return 1 if any(p.values.get("mode") == "KTH_ONLY" for p in params) else 2
    return _OUTPUT_COUNTS.get(kind, 1)
