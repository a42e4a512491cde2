"""Runs the ONNX standard's own backend tests and counts what passes: `python tests/suite.py`.

With --write it also writes suite_exceptions.txt, the list of the cases that fail and why. With
--coverage it runs nothing and prints the page atc/docs/coverage.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

from atc.errors import AtcError, one_line
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackend, AtcBackendRep, Given, compile_networks

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "support"))

from joined_sources import compile_joined

from support import standard_nodes

EXCEPTIONS = Path(__file__).parent / "support" / "suite_exceptions.txt"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
CHUNK = 40  # cases that share a library

EXPLAINED = {
    "bernoulli": "drawn at random, and the standard leaves open how",
    "attention_4d_causal_fp16_expanded": "differs in the last of 16 bits: NumPy rounds in Softmax",
    "decode_jpeg2k": "JPEG 2000 is not decoded",
    "decode_webp": "WebP is not decoded",
}
"""Why the results of cases differ, by a part of their names."""


@dataclass(frozen=True)
class Case:
    """One of the standard's tests. `data` are its runs: inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


@cache
def case_names(kind: str) -> tuple[str, ...]:
    """Return the names of all tests of a kind, e.g. `node/test_abs`."""
    return tuple(sorted(_tests(kind)))


def load_cases(names: Iterable[str]) -> Iterator[Case]:
    """Yield the tests with their models and data."""
    for name in names:
        test = _tests(name.partition("/")[0])[name]
        if test.model is not None:
            model, data = test.model, [(i, o) for i, o in test.data_sets]
        elif test.url is not None:
            model, data = _light(test)
        else:
            model = onnx.load(Path(test.model_dir, "model.onnx"))
            data = [_stored(model, d) for d in sorted(Path(test.model_dir).glob("test_data_set*"))]
        arrays = tuple(([_array(v) for v in i], [_array(v) for v in o]) for i, o in data)
        yield Case(name, model, arrays, test.rtol, test.atol)


@cache
def _tests(kind: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = standard_nodes() if kind == "node" else load_model_tests(kind=kind)
    return {f"{kind}/{test.name}": test for test in tests}


def _stored(model: onnx.ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs that lie in files beside a model."""

    def values(stem: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        count = len(list(folder.glob(f"{stem}_*.pb")))
        return [_read(folder / f"{stem}_{k}.pb", declared[k].type) for k in range(count)]

    return values("input", model.graph.input), values("output", model.graph.output)


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    match type_.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _light(test: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Return a whole network with constant weights, its input as the standard's runner makes it."""
    path = Path(DATA_DIR, *Path(test.url).parts[-2:])
    model = onnx.load(path)
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    known = {t.name for t in model.graph.initializer}
    given = [v for v in model.graph.input if v.name not in known]
    return model, [([Runner.generate_dummy_data(v) for v in given], [expected])]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


# ---- running ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """One run of a case, lowered but not yet compiled."""

    case: Case
    rep: AtcBackendRep
    arrays: dict[str, Given]
    expected: list[Any]
    graph: Graph


def run_cases(cases: Sequence[Case], target: str = "c99", level: str = "O0") -> dict[str, str]:
    """Return, by name, why a case fails; nothing for one that passes."""
    outcomes: dict[str, str] = {}
    runs: list[_Run] = []
    for case in cases:
        try:
            runs += _lowered(case, target, level)
            outcomes[case.name] = ""
        except Exception as error:  # whatever goes wrong is the case's outcome
            outcomes[case.name] = _reason(error)
    runs = [run for run in runs if not outcomes[run.case.name]]
    for run, reason in _compiled(runs):
        outcomes[run.case.name] = outcomes[run.case.name] or reason or _result(run)
    return outcomes


def _lowered(case: Case, target: str, level: str) -> Iterator[_Run]:
    rep = AtcBackend.prepare(case.model, "CPU", target, level)
    for inputs, expected in case.data:
        arrays = rep.arrays(inputs)
        yield _Run(case, rep, arrays, expected, rep.lower(arrays))


def _compiled(runs: Sequence[_Run]) -> Iterator[tuple[_Run, str]]:
    """Compile all into one library; on failure halve, so that the others still run."""
    if not runs:
        return
    try:
        rep = runs[0].rep
        networks = compile_networks(
            [run.graph for run in runs], rep.target, rep.level, compile_all=compile_joined
        )
    except Exception as error:
        if len(runs) == 1:
            yield runs[0], _reason(error)
            return
        yield from _compiled(runs[: len(runs) // 2])
        yield from _compiled(runs[len(runs) // 2 :])
        return
    for run, network in zip(runs, networks, strict=True):
        run.rep.remember(run.arrays, network)
        yield run, ""


def _result(run: _Run) -> str:
    """Run a compiled case and compare as the standard's own runner does."""
    try:
        outputs = _comparable(run.rep.run(run.arrays))
        expected = _comparable(run.expected)
        want, got = ([len(v) for v in x if isinstance(v, list)] for x in (expected, outputs))
        np.testing.assert_array_equal(got, want)  # the runner looks only at what is there
        Runner.assert_similar_outputs(expected, outputs, run.case.rtol, run.case.atol)
    except Exception as error:
        reported = (text for part, text in EXPLAINED.items() if part in run.case.name)
        return next(reported, _reason(error))
    return ""


def _comparable(values: Iterable[Any]) -> list[Any]:
    """Return outputs for the standard's runner, which can't compare scalars in sequences."""

    def row(array: Any) -> Any:
        return array.reshape(1, 1, 1) if array.shape == () else array  # unlike any other's shape

    return [[row(a) for a in v] if isinstance(v, list) else v for v in values]


def _reason(error: Exception) -> str:
    """Return the first line of an error that says something about the values."""
    text = error.message if isinstance(error, AtcError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("Mismatched", "(shapes", "x and y"))]
    return one_line((said or lines or [type(error).__name__])[0], 120)


# ---- the list of exceptions ---------------------------------------------------------------------


def read_exceptions() -> dict[str, str]:
    """Return the cases that are known to fail, each with its reason."""
    lines = EXCEPTIONS.read_text("utf-8").splitlines()
    pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in pairs}


def _write_exceptions(outcomes: dict[str, str]) -> None:
    failed = [f"{name}: {reason}\n" for name, reason in sorted(outcomes.items()) if reason]
    head = "# The standard's tests that fail; written by `python tests/suite.py --write`.\n"
    EXCEPTIONS.write_text(head + "".join(failed), "utf-8")


def chunks(names: Sequence[str], size: int = CHUNK) -> list[tuple[str, ...]]:
    """Return the names in parts that are compiled together."""
    return [tuple(names[k : k + size]) for k in range(0, len(names), size)]


def run_isolated(names: Sequence[str], target: str, level: str) -> dict[str, str]:
    """Load and run cases in a process of their own: one that dies takes no other with it."""
    of_gpu = target.startswith("cuda") and not target.endswith("emulated")
    # A fork has the cases loaded already, but not CUDA's driver, if that has been asked before.
    context = multiprocessing.get_context("spawn" if of_gpu else "fork")
    try:
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(_run_named, names, target, level).result()
    except BrokenProcessPool:
        if len(names) == 1:
            return {names[0]: "the process dies"}
    middle = len(names) // 2
    parts = (run_isolated(part, target, level) for part in (names[:middle], names[middle:]))
    return {name: reason for part in parts for name, reason in part.items()}


def _run_named(names: Sequence[str], target: str, level: str) -> dict[str, str]:
    return run_cases([*load_cases(names)], target, level)


def main() -> None:
    """Run all and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the list of exceptions")
    parser.add_argument("--coverage", action="store_true", help="print the coverage page only")
    parser.add_argument("--target", default="c99")
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="kind", help=", ".join(KINDS))
    given = parser.parse_args()
    np.seterr(all="ignore")
    if given.coverage:
        from coverage_page import coverage_page, tiers  # which is made of this module

        print(coverage_page(tiers()), end="")
        return
    outcomes: dict[str, str] = {}
    for kind in given.kinds:
        size, level = (1, "O2") if kind == "real" else (CHUNK, "O0")
        for names in chunks(case_names(kind), size):
            outcomes |= run_isolated(names, given.target, level)
        passed = sum(not outcomes[name] for name in case_names(kind))
        print(f"{kind}: {passed} of {len(case_names(kind))} pass", flush=True)
    reasons = Counter(reason for reason in outcomes.values() if reason)
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")
    print(f"{sum(not r for r in outcomes.values())} of {len(outcomes)} pass")
    if given.write:
        _write_exceptions(outcomes)


if __name__ == "__main__":
    main()
