"""`atc diff`: which node of a network is the first to differ from the reference, and by how much.

The model is compiled with hooks; what every kernel call writes is compared with the value of the
same name that a reference computes. A call that computes several nodes is compared at its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx_ir

from atc.accuracy.compare import TOLERANCE, run_reference
from atc.accuracy.differences import compare, plain_form
from atc.accuracy.feeds import read_feeds
from atc.diagnostics import Diagnostics
from atc.errors import one_line
from atc.ir.graph import Array, DType, original
from atc.ir.strict_json import dumps
from atc.options.options import Options
from atc.pipeline.lowering import read_model
from atc.pipeline.pipeline import Compilation
from atc.program.steps import Call, Program, calls
from atc.runtime.load import open_network
from atc.runtime.session import Session

_HEADINGS = ("step", "value", "nodes", "kernel", "max abs", "max rel", "ulp", "")
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class NodeDifference:
    """The difference of a kernel call's result from the reference's value of the same name.

    `nodes` are those of the model that the call computes. `max_rel` is `max_abs` as a part of the
    reference's largest magnitude; `index`, `got` and `expected` are of the element that differs
    most, `ulp` how many floats lie between both (None for other types).
    """

    step: int
    value: str
    nodes: tuple[str, ...]
    op: str
    kernel: str
    type: str
    max_abs: float
    max_rel: float
    ulp: int | None
    index: tuple[int, ...]
    got: float
    expected: float
    passed: bool


@dataclass(frozen=True)
class Diff:
    """All comparisons in the order of the calls; `uncompared` calls make no value of the model."""

    reference: str
    inputs: str
    tolerance: float
    differences: tuple[NodeDifference, ...]
    uncompared: int

    @property
    def first(self) -> NodeDifference | None:
        """The first call whose result differs by more than the tolerance."""
        return next((d for d in self.differences if not d.passed), None)


def with_hooks(options: Options) -> Options:
    """Return options of a network whose every value can be looked at."""
    return replace(options, hooks=True, strip=False)


def diff_model(
    done: Compilation, given: str = "", seed: int = 0, tolerance: float = TOLERANCE
) -> Diff:
    """Run a network that was compiled `with_hooks` beside a reference and compare all values.

    Raises UnsupportedError where no reference can run the model, OptionError for wrong inputs.
    """
    feeds, source = read_feeds(open_network(done.folder), given, seed)
    return diff_compiled(done, feeds, source, tolerance, run_reference)


def diff_compiled(
    done: Compilation, feeds: Mapping[str, Array], source: str, tolerance: float,
    run: Callable[[onnx_ir.Model, Sequence[str], Mapping[str, Array]], tuple[str, list[Any]]],
) -> Diff:  # fmt: skip
    """Compare the values of a network compiled with hooks with those that `run` computes."""
    session = Session(open_network(done.folder), feeds)
    results = observed_results(session)
    steps = list(calls(done.program.steps))
    model = read_model(done.request, Diagnostics())
    known = {v.name for node in model.graph for v in node.outputs if v.name}
    named = {key: name for key in results if (name := _known_name(key[1], known, done.program))}
    reference, arrays = run(model, list(dict.fromkeys(named.values())), feeds)
    expected = dict(zip(dict.fromkeys(named.values()), arrays, strict=True))
    compared = [
        difference(step, name, steps[step], plain, np.asarray(expected[name]), tolerance)
        for (step, value), name in named.items()
        if (plain := plain_form(results[step, value], value != name, expected[name])) is not None
    ]
    found = {d.step for d in compared}
    return Diff(reference, source, tolerance, tuple(compared), len(steps) - len(found))


def observed_results(session: Session) -> dict[tuple[int, str], Array]:
    """Run once and return what each call wrote, by its number and the value's name, in order.

    Texts are left out: what is computed of them is compared.
    """
    results: dict[tuple[int, str], Array] = {}
    failures: list[BaseException] = []

    def see(user: Any, step: int, done: int, pointers: Any) -> None:
        if not done:
            return
        info = session.call("step_info", step)
        for k in range(info.reads, info.reads + info.writes):
            tensor = session.call("value_info", info.values[k]).tensor
            if tensor.dtype == DType.STRING.code:
                continue
            array = _copied(session, tensor, pointers[k])
            results[step, session.text(tensor.name)] = array

    def guarded(user: Any, step: int, done: int, pointers: Any) -> None:
        try:
            see(user, step, done, pointers)
        except BaseException as error:  # an exception can't cross C
            failures.append(error)

    callback = session.ffi.callback("observer", guarded)
    session.call("set_observer", session.context, callback, session.ffi.NULL)
    try:
        session.run()
    finally:
        session.call("set_observer", session.context, session.ffi.NULL, session.ffi.NULL)
    if failures:
        raise failures[0]
    return results


def _copied(session: Session, tensor: Any, pointer: Any) -> Array:
    shape = tuple(int(tensor.shape[axis]) for axis in range(tensor.rank))
    dtype = session.dtype(tensor.dtype)
    data = bytes(session.ffi.buffer(pointer, tensor.size)) if tensor.size else b""
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _known_name(value: str, known: set[str], program: Program) -> str:
    """Return the model's name of a compiled value, '' where it is the compiler's own."""
    names = (value, original(value, program.aliases))
    return next((name for name in names if name in known), "")


def difference(
    step: int, value: str, call: Call, got: Array, expected: Array, tolerance: float
) -> NodeDifference:
    """Compare the result of a call with what it should be."""
    comparison = compare(value, got.astype(expected.dtype), expected, tolerance)
    wide = [a.astype(np.float64) for a in (got, expected)]
    with np.errstate(invalid="ignore"):
        errors = np.abs(wide[0] - wide[1])
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    errors = np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))
    worst = int(errors.argmax()) if errors.size else 0
    index = tuple(int(i) for i in np.unravel_index(worst, got.shape)) if errors.size else ()
    mine, right = (float(a.reshape(-1)[worst]) if a.size else 0.0 for a in wide)
    return NodeDifference(
        step, value, call.node.origin, call.node.op.kind, call.choice.candidate.label,
        f"{expected.dtype} {list(expected.shape)}", comparison.max_abs, comparison.max_rel,
        ulp_distance(got, expected, worst), index, mine, right, comparison.passed,
    )  # fmt: skip


def ulp_distance(got: Array, expected: Array, at: int) -> int | None:
    """Return how many floats of the type lie between two elements; None for other types or NaN."""
    if not got.size or got.dtype != expected.dtype or got.dtype.kind in "iubSO":
        return None
    ends = [a.reshape(-1)[at] for a in (got, expected)]
    if any(np.isnan(float(e)) for e in ends):
        return None
    places = []
    for end in ends:
        bits = int(np.asarray(end).reshape(1).view(_UNSIGNED[got.dtype.itemsize])[0])
        sign = 1 << (8 * got.dtype.itemsize - 1)
        places.append(sign - bits if bits & sign else bits)
    return abs(places[0] - places[1])


# ---- text ----------------------------------------------------------------------------------------


def diff_json(diff: Diff) -> str:
    """Return the comparison as JSON, with the first difference by itself."""
    first = asdict(diff.first) if diff.first else None
    return dumps({"first": first, **asdict(diff)})


def diff_text(diff: Diff) -> str:
    """Return the comparison as a table, and the first difference in words."""
    rows = [_HEADINGS, *(_row(d, d is diff.first) for d in diff.differences)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *_summary(diff)]) + "\n"


def _row(d: NodeDifference, first: bool) -> tuple[str, ...]:
    mark = "" if d.passed else "DIFFERS FIRST" if first else "differs"
    return (
        str(d.step), one_line(d.value, 40), one_line(" + ".join(d.nodes), 50), d.kernel,
        f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", "" if d.ulp is None else str(d.ulp), mark,
    )  # fmt: skip


def _summary(diff: Diff) -> Iterator[str]:
    where = f"{diff.reference}, {diff.inputs}, tolerance {diff.tolerance:g}"
    if diff.uncompared:
        yield (
            f"{diff.uncompared} calls make no value of the model's graph (copies, changes of "
            "layout, bodies of loops)"
        )
    if diff.first is None:
        yield f"all {len(diff.differences)} compared values agree ({where})"
        return
    d = diff.first
    match len(d.nodes):
        case 0:
            of = ", which only moves data"
        case 1:
            of = f", node {_listed(d.nodes)}"
        case count:
            of = f", which computes {count} nodes at once: {_listed(d.nodes)}"
    yield (
        f"'{one_line(d.value, 60)}' is the first value that differs ({where}); it is made by call "
        f"{d.step}, {d.kernel}{of}"
    )
    yield (
        f"it differs most at {list(d.index)}: {d.got:.9g} is not {d.expected:.9g}; by "
        f"{d.max_abs:.3g}, {d.max_rel:.3g} of the largest magnitude"
        + ("" if d.ulp is None else f", {d.ulp} ulp")
    )


def _listed(nodes: Sequence[str]) -> str:
    return ", ".join(f"'{one_line(n, 60)}'" for n in nodes)
