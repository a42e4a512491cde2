"""The page of what is covered, `python tests/suite.py --coverage > atc/docs/coverage.md`.

Made of the registry of lowerings, the standard's schemas and node tests, the list of the tests that
fail, and the kernels that are chosen for the tests' models. No C is compiled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, groupby
from typing import Any

import numpy as np
import onnx
import suite
from ort_cases import Case

from atc.backends.targets import get_target
from atc.errors import AtcError
from atc.ir.graph import DType, Graph, Node
from atc.lower import LOWERINGS
from atc.lower.function import has_function
from atc.lower.schema import type_error
from atc.onnx_backend import AtcBackendRep
from atc.passes import run_passes
from atc.select.select import select

TARGET = "x86-64-avx512"
MICROSOFT = "com.microsoft"
OWN = ("atc.external", "atc.map")
"""Domains of no standard: operators of the user's own, and how the importer makes maps."""

Operator = tuple[str, str]
"""A domain, '' for ai.onnx, and a name."""

KINDS = {
    "node": "one operator",
    "simple": "a few nodes",
    "pytorch-converted": "layers that PyTorch exported",
    "pytorch-operator": "operators that PyTorch exported",
    "real": "whole networks with constant weights (folder `light`)",
}

GROUPS = {
    "floats": ("f32", "f64", "f16", "bf16"),
    "integers": ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
    "float8": ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"),
    "nibbles": ("i4", "u4", "i2", "u2"),
}
"""What the page calls types that are all taken."""

REFUSED: Mapping[Operator, Sequence[str]] = {("", "Col2Im"): ["str"]}
"""Types that the standard lists and the compiler's checks let pass, but that don't compile."""

_INTRODUCTION = """\
# Coverage

Written by `python tests/suite.py --coverage` from the registry of lowerings, the standard's schemas
(onnx {version}) and the standard's backend tests; don't edit it by hand.

## The standard's tests

{passed} of {count} pass: compiled to C, run, and compared within the standard's own tolerances.

"""

_LEGEND = f"""\
## Operators

**opsets**: the versions of the operator in the standard that are lowered, without deprecated
ones. **types**: the element types of its first input, or of its output where it has none, that
the newest of these versions lists and the compiler takes: f32 is float, f64 double, b1 bool, str
string; *floats* are f32, f64, f16 and bf16, *integers* those of 8 to 64 bits, *float8* the four
of them, *nibbles* i4, u4, i2 and u2; *sequences* and *optionals* are of tensors. **lowered by**:
the compiler's *own* lowering, or the *body* that the standard gives it, made of other operators.
**tier**: the kernels that the target `{TARGET}` gets for it in the standard's tests of all kinds:
*tuned* are vector kernels, *portable* plain C99, *none* says that it needed none there, as it is
computed when compiling or only says where others read; where both are named it depends on types
and shapes, or it takes kernels of both kinds. **tests**: how many of the standard's node tests of
it pass, the expanded variants of its body among them. A dash: there is no such test.
"""

_BEYOND = """\
### Beyond the standard

Operators that onnxruntime has and exporters write. The standard has no schemas and no tests of
them: **types** are those of the first input in the tests here that compare with onnxruntime
(`tests/lower/contrib/`), **tests** is the number of these. Some of those with a dash are tested in
other ways.
"""

_HEAD = """
| operator | opsets | types | lowered by | tier | tests |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One operator of the page."""

    operator: Operator
    versions: tuple[int, ...]
    types: str
    by: str
    passed: int
    cases: int


# ---- the page -----------------------------------------------------------------------------------


def coverage_page(tiers: Mapping[Operator, str]) -> str:
    """Return the page as Markdown, with the tiers of the operators that have tests."""
    parts = [*_counts(), _LEGEND]
    standard = [row for row in rows().values() if row.operator in schemas()]
    for domain, group in groupby(standard, key=lambda row: row.operator[0]):
        parts.append(f"\n### {domain or 'ai.onnx'}\n{_HEAD}")
        parts += (_line(row, row.operator[1], tiers) for row in group)
    beyond = [
        row for row in rows().values()
        if row.operator not in schemas() and not row.operator[0].startswith("atc.")  # our own
    ]  # fmt: skip
    parts += ["\n", _BEYOND, _HEAD]
    parts += (_line(row, shown_name(row.operator), tiers) for row in beyond)
    missing = ", ".join(shown_name(o) for o in uncovered())
    parts.append(f"\n## Not covered\n\nOf the standard's operators: {missing}.\n")
    return "".join(parts)


def shown_name(operator: Operator) -> str:
    """Return an operator's name with its domain."""
    return ".".join(filter(None, operator))


def _counts() -> Iterator[str]:
    failing = suite.read_exceptions()
    cases = {kind: suite.case_names(kind) for kind in KINDS}
    count = sum(map(len, cases.values()))
    yield _INTRODUCTION.format(version=onnx.__version__, passed=count - len(failing), count=count)
    yield "| kind | cases | pass | fail | of |\n|---|---|---|---|---|\n"
    for kind, what in KINDS.items():
        fail = sum(name in failing for name in cases[kind])
        total = len(cases[kind])
        yield f"| {kind} | {total} | {total - fail} | {fail} | {what} |\n"
    yield "\nThose that fail:\n\n| case | reason |\n|---|---|\n"
    yield from (f"| `{name}` | {reason} |\n" for name, reason in sorted(failing.items()))
    yield "\n"


def _line(row: Row, name: str, tiers: Mapping[Operator, str]) -> str:
    versions = ", ".join(map(str, row.versions))
    tests = f"{row.passed} of {row.cases}" if row.cases else "–"
    tier = tiers.get(row.operator, "–")
    return f"| {name} | {versions} | {row.types or '–'} | {row.by} | {tier} | {tests} |\n"


def read_tiers(page: str) -> dict[Operator, str]:
    """Return the tiers that a page states."""
    known = {**{shown_name(o): o for o in rows()}, **{o[1]: o for o in schemas()}}
    lines = (re.split(r" *\| *", x) for x in page.splitlines() if x.startswith("| "))
    return {known[x[1]]: x[5] for x in lines if len(x) == 8 and x[1] in known}


# ---- what there is ------------------------------------------------------------------------------


@cache
def rows() -> Mapping[Operator, Row]:
    """Return every covered operator, those of the standard and those beyond it."""
    found = {o: row for o in sorted(schemas()) if (row := _standard_row(o)) is not None}
    beyond = sorted(o for o in LOWERINGS if o not in schemas() and o[0] not in OWN)
    return {**found, **{o: _contrib_row(o) for o in beyond}}


@cache
def schemas() -> Mapping[Operator, Sequence[Any]]:
    """Return the standard's schemas of each operator, the oldest first."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].append(schema)
    return {o: sorted(found[o], key=lambda s: int(s.since_version)) for o in found}


def uncovered() -> list[Operator]:
    """Return the standard's operators of which no version is covered."""
    return sorted(o for o in schemas() if o not in rows())


def _standard_row(operator: Operator) -> Row | None:
    domain, name = operator
    own = operator in LOWERINGS
    covered = [
        s
        for s in schemas()[operator]
        if not s.deprecated and (own or has_function(name, domain, s.since_version))
    ]
    if not covered:
        return None
    tests = node_tests().get(operator, ())
    passed = sum(case not in suite.read_exceptions() for case in tests)
    versions = tuple(int(s.since_version) for s in covered)
    by = "own" if own else "body"
    return Row(operator, versions, shown_types(*types_of(covered[-1])), by, passed, len(tests))


def _contrib_row(operator: Operator) -> Row:
    cases = contrib_cases().get(operator, ())
    types = {DType.from_numpy(np.asarray(case.inputs[0]).dtype) for case in cases}
    return Row(operator, (1,), shown_types(types), "own", len(cases), len(cases))


def types_of(schema: Any) -> tuple[set[DType], set[str]]:
    """Return what a schema's first operand may be: types of tensors, kinds of what isn't one."""
    operand, given = (schema.inputs or schema.outputs)[0], bool(schema.inputs)
    kinds = {t.partition("(")[0] for t in operand.types} - {"tensor"}
    listed = {t[len("tensor(") : -1] for t in operand.types if t.startswith("tensor(")}
    dtypes = {d for d in DType if d.name.lower() in listed}
    if not given:
        return dtypes, kinds
    name, domain, opset = schema.name, schema.domain, schema.since_version
    refused = REFUSED.get((domain, name), ())
    taken = {d for d in dtypes if not type_error(name, domain, opset, [d])}
    return {d for d in taken if d.label not in refused}, kinds


def shown_types(dtypes: Iterable[DType], kinds: Iterable[str] = ()) -> str:
    """Return types as the page names them, whole groups by their name."""
    left = {d.label: d.code for d in dtypes}
    shown = []
    for group, labels in GROUPS.items():
        if left.keys() >= set(labels):
            shown.append(group)
            left = {label: code for label, code in left.items() if label not in labels}
    words = {"seq": "sequences", "optional": "optionals", "map": "maps"}
    others = sorted(words[kind] for kind in kinds)
    return " ".join([*shown, *sorted(left, key=left.__getitem__), *others])


# ---- the tests ----------------------------------------------------------------------------------


@cache
def node_tests() -> Mapping[Operator, Sequence[str]]:
    """Return the names of the standard's node tests of each operator.

    An expanded variant is a test of the operator whose body it is.
    """
    cases = {case.name: case.model.graph for case in suite.load_cases(suite.case_names("node"))}
    found = defaultdict(list)
    for name in cases:
        (node,) = cases[unexpanded(name)].node
        found[node.domain, node.op_type].append(name)
    return found


def unexpanded(name: str) -> str:
    """Return the name of the test of which a test is the expanded variant, or its own."""
    return re.sub(r"_expanded(_ver\d+)?$", "", name)


@cache
def contrib_cases() -> Mapping[Operator, Sequence[Case]]:
    """Return the tests by which operators beyond the standard are compared with onnxruntime."""
    found = defaultdict(list)
    for module in ("contrib.test_fused", "contrib.test_quantize", "test_attention"):
        for case in import_module(f"lower.{module}").CASES.values():
            found[case.domain, case.op].append(case)
    return found


def tiers() -> dict[Operator, str]:
    """Return the tiers of every operator, by the kernels chosen for the models of its tests."""
    found: dict[Operator, set[str]] = defaultdict(set)
    failing = suite.read_exceptions()
    for case in suite.load_cases(_plain_cases()):
        try:
            each = [*_tiers_of(case.model, case.data[0][0])]
        except AtcError:
            if case.name not in failing:
                raise
            continue
        for operator, used in each:
            found[operator] |= used
    for own in chain.from_iterable(contrib_cases().values()):
        for operator, used in _tiers_of(own.model, own.feeds):
            found[operator] |= used
    return {o: ", ".join(sorted(found[o], reverse=True)) or "none" for o in found}


def _plain_cases() -> list[str]:
    """Return the standard's tests of all kinds, without those of function bodies."""
    names = [name for kind in KINDS for name in suite.case_names(kind)]
    return [n for n in names if n == unexpanded(n)]


def _tiers_of(model: onnx.ModelProto, inputs: Sequence[Any]) -> Iterator[tuple[Operator, set[str]]]:
    """Yield the operator of each node of a model with the tiers of the kernels that compute it."""
    target, rep = get_target(TARGET), AtcBackendRep(model, TARGET)
    graph = run_passes(rep.lower(rep.arrays(inputs)), width=target.vector_bytes // 4)
    chosen = select(graph, target)
    used = defaultdict(set)
    for node in _nodes(graph):
        if node.outputs[0] in chosen:
            portable = chosen[node.outputs[0]].candidate.kernel.portable
            for name in node.origin:
                used[name].add("portable" if portable else "tuned")
    if len(model.graph.node) == 1:  # whose body's nodes may have names of their own
        (only,) = model.graph.node
        yield (only.domain, only.op_type), set().union(*used.values())
        return
    for each in model.graph.node:
        name = each.name or next(filter(None, each.output), each.op_type)
        yield (each.domain, each.op_type), used[name]


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of those within."""
    for node in graph.nodes:
        yield node
        for inner in node.op.subgraphs():
            yield from _nodes(inner)
