"""The page of what is covered is there, complete and up to date, and what it claims compiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage_page as coverage
import numpy as np
import onnx
import pytest
import suite
from coverage_page import Operator

from atc.backends.targets import get_target
from atc.errors import AtcError
from atc.ir.graph import Array, DType
from atc.lower import LOWERINGS
from atc.onnx_backend import AtcBackendRep
from atc.passes import run_passes
from atc.select.select import select

PAGE = Path(__file__).parents[2] / "atc/docs/coverage.md"
STALE = "run: python tests/suite.py --coverage > atc/docs/coverage.md"

FIXED = {
    "BitCast": "i4 u4 i2 u2 f4e2m1", "Scan": "str b1 f8e5m2", "TfIdfVectorizer": "str",
    "ai.onnx.ml.LabelEncoder": "f32 f64 i16 i32 i64",
}  # fmt: skip
"""Types that no test's model can be rewritten to: attributes or a body say the type once more."""


def test_the_page_is_what_the_command_prints() -> None:
    """But for the tiers of kernels, which take it long: test_documents.py runs it."""
    page = PAGE.read_text("utf-8")
    assert page == coverage.coverage_page(coverage.read_tiers(page)), STALE


def test_every_operator_is_on_the_page_once() -> None:
    listed = [*coverage.rows(), *coverage.uncovered()]
    assert len(listed) == len(set(listed))
    own = {o for o in LOWERINGS if o[0] not in coverage.OWN}
    assert set(listed) == own | set(coverage.schemas())
    assert own <= set(coverage.rows())


def test_a_test_that_fails_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = coverage.coverage_page({})
    failing = {**suite.read_exceptions(), "node/test_gelu_tanh_1_expanded": "by chance"}
    monkeypatch.setattr(suite, "read_exceptions", lambda: failing)
    coverage.rows.cache_clear()
    try:
        after = coverage.coverage_page({})
    finally:
        coverage.rows.cache_clear()
    changed = set(after.splitlines()) - set(before.splitlines())
    assert {x.split(" | ")[0] for x in changed if x.startswith("|")} == {
        "| node", "| `node/test_gelu_tanh_1_expanded`", "| Gelu",
    }  # fmt: skip
    assert len(changed) == 4  # with the sum


# ---- what the page claims -----------------------------------------------------------------------


@pytest.mark.slow
def test_every_type_on_the_page_compiles_in_a_test_of_the_operator() -> None:
    failing = {
        (coverage.shown_name(o), dtype.label)
        for o, schema, cases in standard()
        if any(tensors(case) for case in cases)
        for dtype in coverage.types_of(schema)[0]
        if not any(compiles(*retyped(c, schema, dtype)) for c in cases if tensors(c))
    }
    assert failing == {(name, x) for name, listed in FIXED.items() for x in listed.split()}


@pytest.mark.slow
@pytest.mark.parametrize("operator", coverage.REFUSED)
def test_refused_types_are_refused(operator: Operator) -> None:
    (schema, cases), *_ = [(s, c) for o, s, c in standard() if o == operator]
    dtypes = [d for d in DType if d.label in coverage.REFUSED[operator]]
    assert dtypes
    assert not [d for d in dtypes for c in cases if compiles(*retyped(c, schema, d))]


@pytest.mark.slow
def test_every_opset_on_the_page_compiles_where_a_test_is_valid_in_it() -> None:
    proven: list[tuple[Operator, int]] = []
    failing: list[tuple[Operator, int]] = []
    for operator, _, cases in standard():
        for version in coverage.rows()[operator].versions:
            models = [(restamped(case.model, operator[0], version), case) for case in cases]
            valid = [(m, case.data[0][0]) for m, case in models if is_valid(m)]
            if valid:
                found = any(compiles(model, inputs) for model, inputs in valid)
                (proven if found else failing).append((operator, version))
    assert not failing
    assert len(proven) > 500


def standard() -> Iterator[tuple[Operator, Any, list[suite.Case]]]:
    """Yield the standard's covered operators, the newest covered schemas and tests that pass."""
    for operator, row in coverage.rows().items():
        if operator in coverage.schemas():
            names = coverage.node_tests().get(operator, ())
            plain = [n for n in names if n == coverage.unexpanded(n)]
            passing = [n for n in plain if n not in suite.read_exceptions()]
            newest = {int(s.since_version): s for s in coverage.schemas()[operator]}
            yield operator, newest[row.versions[-1]], [*suite.load_cases(passing)]


def compiles(model: onnx.ModelProto, inputs: Sequence[Any]) -> bool:
    """Whether there is a kernel for all of a model."""
    rep = AtcBackendRep(model, "c99")
    try:
        select(run_passes(rep.lower(rep.arrays(inputs))), get_target("c99"))
    except AtcError:
        return False
    return True


def tensors(case: suite.Case) -> bool:
    """Whether a test's first input is a tensor."""
    return any(isinstance(value, np.ndarray) for value in case.data[0][0][:1])


def retyped(case: suite.Case, schema: Any, dtype: DType) -> tuple[onnx.ModelProto, list[Any]]:
    """Return a test's model and inputs with another type for the first one and all of its type."""
    model = copied(case.model)
    (node,) = model.graph.node
    variable = schema.inputs[0].type_str
    first = model.graph.input[0].type.tensor_type.elem_type
    same = {
        name
        for names, specs in ((node.input, schema.inputs), (node.output, schema.outputs))
        for k, name in enumerate(names)
        if name and specs[min(k, len(specs) - 1)].type_str == variable
    }
    if node.op_type == "OptionalGetElement":  # its result is of the element's type
        same |= {*node.output}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in same:
            value.type.tensor_type.elem_type = dtype.code
    for inner in (a.g for a in node.attribute if a.HasField("g")):  # a body's are of those types
        for value in (*inner.input, *inner.value_info, *inner.output):
            if value.type.tensor_type.elem_type == first:
                value.type.tensor_type.elem_type = dtype.code
    given = zip(model.graph.input, case.data[0][0], strict=True)
    return model, [cast(a, dtype) if v.name in same else a for v, a in given]


def cast(array: Array, dtype: DType) -> Array:
    """Return numbers or strings as any type; what they are doesn't matter."""
    if dtype is DType.STRING:
        return np.array([*map(str, array.flat)], object).reshape(array.shape)
    with np.errstate(all="ignore"):
        return (np.zeros(array.shape) if array.dtype == object else array).astype(dtype.numpy)


def restamped(model: onnx.ModelProto, domain: str, version: int) -> onnx.ModelProto:
    """Return a model that says of itself to be of another opset."""
    copy = copied(model)
    for each in copy.opset_import:
        each.version = version if each.domain == domain else each.version
    return copy


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether a model is one by the rules of the opset that it states."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True
