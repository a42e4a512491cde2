"""Build a dump of one operator, translate both containers and run the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from importers.megengine_writer import Dump, dtype_of, write_v1, write_v2

from atc.importers.megengine import load_megengine
from atc.importers.megengine.types import DType

ort = pytest.importorskip("onnxruntime")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Const:
    """An operand that is stored in the dump."""

    array: np.ndarray
    dtype: DType | None = None


@dataclass(frozen=True)
class Quant:
    """A graph input of stored integers."""

    array: np.ndarray
    dtype: DType


@dataclass(frozen=True)
class Case:
    """One operator: operands, parameters, and what it computes.

    `truth` takes the operands' arrays and returns one array or a tuple; None stands for an output
    that isn't computed.
    """

    kind: str
    inputs: Sequence[object]
    params: Mapping[str, Mapping[str, object]]
    truth: Callable[..., object]
    label: str = ""
    output_dtype: DType | None = None
    tolerance: float = 1e-5
    extra: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}-{self.label}" if self.label else self.kind


def build(case: Case) -> tuple[Dump, dict[str, np.ndarray], list[object]]:
    """Return the dump, the values of its inputs, and the expected outputs."""
    dump, feeds, arrays, numbers = Dump(), {}, [], []
    for position, operand in enumerate(case.inputs):
        if isinstance(operand, Const):
            numbers.append(dump.constant(operand.array, operand.dtype, f"c{position}"))
            arrays.append(operand.array)
            continue
        quantized = isinstance(operand, Quant)
        array = operand.array if quantized else operand
        dtype = operand.dtype if quantized else dtype_of(array)
        numbers.append(dump.input(f"x{position}", array.shape, dtype))
        feeds[f"x{position}"] = array
        arrays.append(array)
    expected = case.truth(*arrays)
    wanted = list(expected) if isinstance(expected, tuple) else [expected]
    found = dump.op(
        case.kind, numbers, case.params, outputs=len(wanted), output_dtype=case.output_dtype
    )
    for number, value in zip(found, wanted, strict=True):
        if value is not None:
            dump.output(number, f"y{number}")
    return dump, feeds, [value for value in wanted if value is not None]


def load(
    data: bytes, folder: Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> ir.Model:
    """Translate the bytes of a dump."""
    path = folder / "net.mge"
    path.write_bytes(data)
    return load_megengine(path, shapes or {})


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Check a model against the standard's rules and run it."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in proto.graph.input]
    return session.run(None, {name: feeds[name] for name in names})


def check(case: Case, folder: Path) -> None:
    """Assert that both containers of a case compute its truth."""
    dump, feeds, expected = build(case)
    for data in (write_v2(dump), write_v1(dump)):
        results = run(load(data, folder), feeds)
        assert len(results) == len(expected)
        for result, truth in zip(results, expected, strict=True):
            assert_close(result, np.asarray(truth), case.tolerance)


def assert_close(result: np.ndarray, truth: np.ndarray, tolerance: float = 1e-5) -> None:
    """Assert equal shapes and, up to `tolerance` of the largest value, equal numbers."""
    assert result.shape == truth.shape
    finite = truth[np.isfinite(truth)].astype(np.float64)
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    np.testing.assert_allclose(
        result.astype(np.float64), truth.astype(np.float64), rtol=1e-4, atol=tolerance * scale
    )
