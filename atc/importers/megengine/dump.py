"""A MegEngine dump as plain values, whatever its container: operators, tensors, outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atc.errors import ModelError
from atc.importers.megengine.types import DType

MAX_RANK = 7


@dataclass(frozen=True)
class AxisEdit:
    """One step of AxisAddRemove: insert an axis of size 1, or drop one."""

    remove: bool
    axis: int


@dataclass(frozen=True)
class IndexItem:
    """One axis of a Subtensor-like operator and which bounds follow as inputs."""

    axis: int
    begin: bool
    end: bool
    step: bool
    index: bool


@dataclass(frozen=True)
class Params:
    """The values of one parameter table; `table` is its name in the schema."""

    table: str
    values: Mapping[str, object]
    where: str

    def integer(self, name: str) -> int:
        """Return an integer field."""
        value = self._get(name)
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        """Return a floating-point field."""
        value = self._get(name)
        assert isinstance(value, float)
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean field."""
        return bool(self._get(name))

    def word(self, name: str) -> str:
        """Return the word of an enumeration field."""
        value = self._get(name)
        assert isinstance(value, str)
        return value

    def dtype(self, name: str = "dtype") -> DType:
        """Return an element type field."""
        value = self._get(name)
        assert isinstance(value, DType)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a vector of integers."""
        value = self._get(name)
        assert isinstance(value, tuple)
        return value

    def axes(self) -> tuple[AxisEdit, ...]:
        """Return the steps of AxisAddRemove."""
        value = self._get("desc")
        assert isinstance(value, tuple)
        return value

    def indices(self) -> tuple[IndexItem, ...]:
        """Return the items of a Subtensor-like operator."""
        value = self._get("items")
        assert isinstance(value, tuple)
        return value

    def has(self, name: str) -> bool:
        """Say whether the table has this field."""
        return name in self.values

    def _get(self, name: str) -> object:
        if name not in self.values:
            raise ModelError(f"the parameters {self.table} have no field {name}", where=self.where)
        return self.values[name]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file; `data` is None for a graph input without a default value."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: np.ndarray | None


@dataclass(frozen=True)
class Operator:
    """One operator: its normalised type, parameters, and the numbers of its variables.

    `where` names file, node and type for errors.
    """

    kind: str
    name: str
    where: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tables: tuple[Params, ...]
    tensors: tuple[StoredTensor, ...]
    output_dtype: DType | None

    def params(self, *tables: str) -> Params:
        """Return the parameter table of the first of these names that is present."""
        for name in tables:
            for table in self.tables:
                if table.table == name:
                    return table
        found = ", ".join(table.table for table in self.tables) or "none"
        raise ModelError(
            f"expected the parameters {' or '.join(tables)}, found {found}", where=self.where
        )

    def has_params(self, table: str) -> bool:
        """Say whether a parameter table of this name is present."""
        return any(params.table == table for params in self.tables)


@dataclass(frozen=True)
class Dump:
    """A whole dump. `names` gives the variables' names, `outputs` the numbers of the outputs."""

    file: str
    version: str
    operators: tuple[Operator, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    names: Mapping[int, str]
