"""The test cases behind a dump: inputs by name, and what the outputs are expected to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atc.importers.megengine.dump import Dump
from atc.importers.megengine.reader import read_test_dumps

EXPECTED = ":expect"


@dataclass(frozen=True)
class StoredCase:
    """One test case: arrays by the names of inputs and outputs."""

    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]


def read_cases(path: Path) -> tuple[StoredCase, ...]:
    """Return the test cases of a dump, none where it has none; raises ModelError."""
    return tuple(_case(dump) for dump in read_test_dumps(path))


def _case(dump: Dump) -> StoredCase:
    arrays = {
        tensor.name or operator.name: tensor.data
        for operator in dump.operators
        for tensor in operator.tensors
        if tensor.data is not None
    }
    expected = {n.removesuffix(EXPECTED): a for n, a in arrays.items() if n.endswith(EXPECTED)}
    inputs = {n: a for n, a in arrays.items() if not n.endswith(EXPECTED)}
    return StoredCase(inputs, expected)
