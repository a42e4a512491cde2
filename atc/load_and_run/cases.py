"""The test cases that a MegEngine dump brings along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atc.errors import one_line
from atc.ir.graph import Array
from atc.load_and_run.console import Console
from atc.load_and_run.failure import CheckError
from atc.load_and_run.inputs import Given
from atc.runtime.values import Tensor

MAX_ERROR = 1e-4
"""The largest error that MegEngine's AssertEqual allows by default."""
_MAGIC = b"mgbtest0"


@dataclass(frozen=True)
class Case:
    """Inputs of a run, and expected outputs by name."""

    given: tuple[Given, ...]
    expected: Mapping[str, Array] = field(default_factory=dict)


def stored_cases(model: Path) -> tuple[Case, ...]:
    """Return the test cases of a model file; none where it has none."""
    with model.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return ()
    from atc.importers.megengine.stored_cases import read_cases  # a library needs no importer

    return tuple(
        Case(tuple(Given(name, array) for name, array in case.inputs.items()), case.expected)
        for case in read_cases(model)
    )


def check_outputs(
    case: Case, tensors: Sequence[Tensor], outputs: Sequence[Array], goes_on: bool,
    console: Console, number: int,
) -> None:  # fmt: skip
    """Compare outputs with what a case expects, as MegEngine's AssertEqual does.

    The error of two numbers is |a - b| / max(1, |a|, |b|). Raises CheckError at the first output
    that differs; with `goes_on` it is only reported.
    """
    for tensor, array in zip(tensors, outputs, strict=True):
        wanted = case.expected.get(tensor.name)
        if wanted is None:
            continue
        text = _difference(array, wanted)
        if not text:
            console.line(f"test #{number}: output '{one_line(tensor.name, 100)}' is as expected")
            continue
        message = f"test #{number}: output '{one_line(tensor.name, 100)}' {text}"
        console.result.setdefault("failed_asserts", []).append(message)
        if not goes_on:
            raise CheckError(message, where="AssertEqual", hint="--disable_assert_throw goes on")
        console.line(f"assert failed: {message}")


def _difference(array: Array, wanted: Array) -> str:
    if array.shape != wanted.shape:
        return f"has the shape {list(array.shape)}, not {list(wanted.shape)}"
    a, b = array.astype(np.float64), wanted.astype(np.float64)
    scale = np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
    error = np.nan_to_num(np.abs(a - b) / scale, nan=np.inf)
    if not error.size or error.max() <= MAX_ERROR:
        return ""
    place = [int(i) for i in np.unravel_index(int(error.argmax()), error.shape)]
    return f"differs by {error.max():.3g} at {place}"
