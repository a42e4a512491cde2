"""`atc bisect`: which pass or kernel choice is the first that changes an output.

Two compilations of a model differ by an ordered list of decisions: options, then passes
in the order of the pipeline, then kernels in the order of the calls. Library k takes the first k
decisions of the second compilation and the others of the first; binary search over k finds the
decision with which the outputs begin to differ from the first compilation's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from atc.accuracy.check_feeds import check_given
from atc.accuracy.feeds import read_feeds
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import OptionError, one_line
from atc.fast_run.policy import picks, write_policy
from atc.ir.graph import Array
from atc.ir.strict_json import dumps
from atc.options.options import Options
from atc.pipeline.pass_switches import RULES
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.program.steps import calls
from atc.runtime.load import open_network
from atc.runtime.session import Session
from atc.select.select import Measurement, candidates

_CHOOSING = frozenset({
    "fast_run", "full_run", "fast_run_algo_policy", "fast_run_timeout", "fast_run_cache_type",
    "fast_run_cache_dir", "op_bank_path",
})  # fmt: skip
"""Options whose only effect is which kernels are chosen; these are decisions of their own."""
_LIMITING: Mapping[str, Any] = {
    "op_select_implmode": "high_performance", "optypelist_for_implmode": (), "kernels": "all",
    "op_precision_mode": None, "workspace_limit": -1,
}  # fmt: skip
"""Options that only limit which kernels may be chosen, with the values that allow all."""
_PASSING = {"oo_level": "O3", "fusion_switch_file": None, "optimization_switch": ""}
"""Options whose only effect is which passes run, with the values that leave out none."""
_SILENT = frozenset({
    "model", "output", "jobs", "dump", "op_compiler_cache_mode", "op_compiler_cache_dir", "notes",
    "profile", "hooks", "runtime_log", "op_debug_level", "op_debug_config",
    "debug_dir", "build_dir", "compiler_timeout", "keep_build", "strip", "sources",
})  # fmt: skip
"""Options that change no result, or are looked at in another way."""


@dataclass(frozen=True)
class Decision:
    """One thing that the two compilations decided differently: `kind` is option, pass or kernel."""

    kind: str
    name: str
    first: str
    second: str
    nodes: tuple[str, ...] = ()
    workload: Workload | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Change:
    """The distance of an output from the first compilation's; `max_rel` as in atc verify."""

    output: str
    max_abs: float
    max_rel: float


@dataclass(frozen=True)
class Bisection:
    """Decisions that differ, those tried (taken: changed or not), and the answer.

    `found` is the number of the decision in `decisions`; None where the outputs don't differ.
    """

    inputs: str
    tolerance: float
    decisions: tuple[Decision, ...]
    trials: Mapping[int, bool]
    found: int | None
    changes: tuple[Change, ...]


def bisect(
    first: Options, second: Options, environ: Mapping[str, str], given: str = "", seed: int = 0,
    tolerance: float = 0.0, report: Callable[[str], None] = lambda text: None,
) -> Bisection:  # fmt: skip
    """Find the first decision with which an output changes by more than the tolerance.

    `output` of the options names a folder to work in. Raises OptionError where the two can't be
    distinguished by their outputs: other inputs, other shapes.
    """
    one, other = (_end(resolve_request(each, environ)) for each in (first, second))
    search = _Search(one, other, dict(environ), given, seed, tolerance, report)
    return search.run()


@dataclass(frozen=True)
class _End:
    """One of the two compilations: its options, less those of passes, and the passes left out."""

    options: Options
    skipped: frozenset[str]


@dataclass
class _Search:
    first: _End
    second: _End
    environ: dict[str, str]
    given: str
    seed: int
    tolerance: float
    report: Callable[[str], None]
    decisions: tuple[Decision, ...] = ()
    labels: dict[Workload, str] = field(default_factory=dict)
    expected: dict[str, Array] = field(default_factory=dict)
    source: str = ""
    trials: dict[int, bool] = field(default_factory=dict)

    def run(self) -> Bisection:
        check_given(resolve_request(self.first.options, self.environ), self.given)
        ends = [self._compile(end, name) for end, name in
                ((self.first, "first"), (self.second, "second"))]  # fmt: skip
        self.labels = _labels(ends[0])
        self.expected = self._outputs(ends[0].folder)
        self.decisions = (*_options(self.first, self.second), *_kernels(*ends))
        if not self._differs(self._outputs(ends[1].folder)):
            return self._result(None, ())
        low, high = 0, len(self.decisions)
        self.trials[high] = True
        if self._trial(0):  # the same options, made to take the same kernels
            raise OptionError("the first set of options doesn't give the same outputs twice",
                              where="--first")  # fmt: skip
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._trial(middle) else (middle, high)
        if not self.decisions:
            raise OptionError("the outputs differ, but nothing was decided differently")
        return self._result(high - 1, self._changes(high, ends[1]))

    def _result(self, found: int | None, changes: tuple[Change, ...]) -> Bisection:
        return Bisection(self.source, self.tolerance, self.decisions, dict(self.trials), found,
                         changes)  # fmt: skip

    def _changes(self, taken: int, last: Compilation) -> tuple[Change, ...]:
        outputs = self._made(taken) if taken < len(self.decisions) else self._outputs(last.folder)
        return tuple(c for n, a in outputs.items() if (c := _change(n, a, self.expected[n])))

    def _trial(self, taken: int) -> bool:
        changed = self._differs(self._made(taken))
        self.trials[taken] = changed
        self.report(f"{taken} of {len(self.decisions)} decisions taken: "
                  f"{'changed' if changed else 'the same'}")  # fmt: skip
        return changed

    def _made(self, taken: int) -> dict[str, Array]:
        """Return the outputs of the library that takes the first `taken` decisions."""
        return self._outputs(self._compile(self._mixed(taken), f"trial{taken}").folder)

    def _mixed(self, taken: int) -> _End:
        """Return what a trial compiles; a policy file holds the kernels."""
        chosen = dict(self.labels)
        values: dict[str, Any] = {}
        skipped = set(self.first.skipped)
        for number, decision in enumerate(self.decisions):
            other = number < taken
            match decision.kind:
                case "option" if other:
                    values[decision.name] = getattr(self.second.options, decision.name)
                case "pass" if other:
                    skipped ^= {decision.name}
                case "kernel" if decision.workload is not None:
                    chosen[decision.workload] = decision.second if other else decision.first
        options = replace(
            self.first.options, **values, fast_run=False, full_run=False, op_bank_path=None,
            fast_run_algo_policy=self._policy(chosen, taken), **_LIMITING,
        )  # fmt: skip
        return _End(options, frozenset(skipped))

    def _policy(self, chosen: Mapping[Workload, str], taken: int) -> Path:
        path = self.first.options.output.parent / f"trial{taken}.policy"
        lines: dict[str, Any] = {}
        for name in {self.first.options.target, self.second.options.target}:
            timings = {w: (Measurement(label, 0.0),) for w, label in chosen.items()}
            lines |= picks(timings, get_target(name))
        write_policy(path, lines)
        return path

    def _compile(self, end: _End, name: str) -> Compilation:
        output = self.first.options.output
        options = replace(end.options, output=output.parent / name / output.name)
        decided = Decisions(skip_passes=end.skipped)
        return compile_model(options, self.environ, Diagnostics(), decided)

    def _outputs(self, folder: Path) -> dict[str, Array]:
        net = open_network(folder)
        feeds, self.source = read_feeds(net, self.given, self.seed)
        session = Session(net, feeds)
        session.run()
        return {t.name: a for t, a in zip(net.outputs, session.outputs, strict=True)}

    def _differs(self, outputs: Mapping[str, Array]) -> bool:
        if {n: (a.shape, a.dtype) for n, a in outputs.items()} != {
            n: (a.shape, a.dtype) for n, a in self.expected.items()
        }:
            raise OptionError("the outputs have other names, shapes or types than the first set's",
                              where="--second")  # fmt: skip
        for name, array in outputs.items():
            change = _change(name, array, self.expected[name])
            if change is not None and (self.tolerance == 0 or change.max_rel > self.tolerance):
                return True
        return False


def _end(request: Request) -> _End:
    """Return a request's options with the passes that they leave out named one by one."""
    return _End(replace(request.options, **_PASSING), request.switches.off)  # type: ignore[arg-type]


def _options(one: _End, other: _End) -> list[Decision]:
    """Return the options and passes that differ; passes in the order of the pipeline."""
    first, second = one.options, other.options
    named = (f.name for f in fields(Options) if f.name not in {*_SILENT, *_CHOOSING, *_LIMITING})
    found = [
        Decision("option", name, str(getattr(first, name)), str(getattr(second, name)))
        for name in named
        if getattr(first, name) != getattr(second, name)
    ]
    words = {True: "off", False: "on"}
    return found + [
        Decision("pass", name, words[name in one.skipped], words[name in other.skipped])
        for name in RULES
        if (name in one.skipped) != (name in other.skipped)
    ]


def _kernels(first: Compilation, second: Compilation) -> list[Decision]:
    """Return the workloads of the second compilation that the first would compute otherwise."""
    own, found = _labels(first), dict[Workload, Decision]()
    for call in calls(second.program.steps):
        w, label = call.choice.workload, call.choice.candidate.label
        if w not in own or w in found or own[w] == label:
            continue
        if own[w] in {c.label for c in candidates(w, second.target)}:
            found[w] = Decision("kernel", call.node.op.kind, own[w], label, call.node.origin, w)
    return list(found.values())


def _labels(done: Compilation) -> dict[Workload, str]:
    return {c.workload: c.candidate.label for c in done.selection.values()}


def _change(name: str, got: Array, expected: Array) -> Change | None:
    """Return how an output differs; None where every bit is the same."""
    if got.tobytes() == expected.tobytes():
        return None
    if got.dtype.kind in "SO":
        return Change(name, float("inf"), float("inf"))
    wide = [a.astype(np.float64) for a in (got, expected)]
    with np.errstate(invalid="ignore"):
        errors = np.abs(wide[0] - wide[1])
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    errors = np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))
    finite = np.abs(wide[1][np.isfinite(wide[1])])
    largest = float(np.max(finite, initial=0.0)) or 1.0
    most = float(np.max(errors, initial=0.0))
    return Change(name, most, most / largest)


# ---- text ----------------------------------------------------------------------------------------


def bisection_json(result: Bisection) -> str:
    """Return the search as JSON."""
    decisions = [_decision_json(d) for d in result.decisions]
    data: dict[str, Any] = {
        "inputs": result.inputs, "tolerance": result.tolerance, "found": result.found,
        "decision": None if result.found is None else decisions[result.found],
        "decisions": decisions,
        "trials": [{"taken": k, "changed": c} for k, c in sorted(result.trials.items())],
        "changes": [asdict(c) for c in result.changes],
    }  # fmt: skip
    return dumps(data)


def _decision_json(decision: Decision) -> dict[str, object]:
    return {"kind": decision.kind, "name": decision.name, "first": decision.first,
            "second": decision.second, "nodes": list(decision.nodes)}  # fmt: skip


def bisection_text(result: Bisection) -> str:
    """Return the list of decisions with the answer, for people."""
    counts = {kind: sum(d.kind == kind for d in result.decisions)
              for kind in ("option", "pass", "kernel")}  # fmt: skip
    counted = ", ".join(f"{n} {kind}{'es' * (kind == 'pass' and n != 1) or 's' * (n != 1)}"
                     for kind, n in counts.items() if n)  # fmt: skip
    lines = [f"decided differently: {counted or 'nothing'} ({result.inputs})"]
    for number, decision in enumerate(result.decisions):
        mark = "*" if number == result.found else " "
        lines.append(f"{mark} {number + 1:>3}  {decision_text(decision)}")
    allowed = f" by more than {result.tolerance:g}" if result.tolerance else ""
    if result.found is None:
        lines.append(f"no output changes{allowed}")
        return "\n".join(lines) + "\n"
    decision = result.decisions[result.found]
    lines.append(
        f"the outputs first change{allowed} with decision {result.found + 1}, "
        f"{decision_text(decision)} ({len(result.trials)} libraries compared)"
    )
    lines += [
        f"  {one_line(c.output, 60)}: by up to {c.max_abs:.3g}, {c.max_rel:.3g} of its largest "
        "magnitude" for c in result.changes
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def decision_text(decision: Decision) -> str:
    """Return a decision in words."""
    way = f"{one_line(decision.first, 80)} -> {one_line(decision.second, 80)}"
    if decision.kind == "kernel":
        nodes = one_line(" + ".join(decision.nodes), 80) or "what moves data"
        return f"kernel of {nodes} ({decision.name}): {way}"
    return f"{decision.kind} {decision.name}: {way}"
