"""`--max_error`: the fastest kernels with which the outputs stay near the model in float64.

The first try takes whatever is fastest. Where it errs too much, fewer products are in bf16, and if
that is not enough fewer in bf16x3: those that move the outputs least for the time they gain
(`search.py`). At last the nodes whose kernels add most error (Winograd's F(4 x 4), say)
get kernels that err no more than the operator's definition: one, two, four, ... at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from atc.accuracy.compare import subject_of, verify_library
from atc.accuracy.diff import diff_compiled
from atc.accuracy.float64 import run_in_double
from atc.accuracy.inputs import random_inputs
from atc.accuracy.predict import predicted_error
from atc.accuracy.search import Group, groups, lowered, most_within, sensitivities
from atc.backends.target import Target, host_features
from atc.backends.targets import get_target
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.fast_run.timings import times_root
from atc.files.temporary import temporary_folder
from atc.ir.graph import Array, original
from atc.pipeline.contract import DEFAULT_BOUND
from atc.pipeline.pipeline import Compilation, Compile
from atc.pipeline.request import Decisions, Request
from atc.program.steps import Call, calls
from atc.runtime.load import open_network

SEEDS = (0, 1)
"""The seeds of the inputs that errors are measured on."""


BF16_ERROR = 1e-4
"""The least error for which kernels that multiply in bf16 are worth a try."""
PREDICTED_SHARE = 0.6
"""The part of the error that is left to products where it can't be measured."""
LOW = ("bf16", "bf16x3")
"""Precisions that a product may lose, the least precise first."""


@dataclass(frozen=True)
class WorstKernels:
    """A call of a kernel that errs more than its operator's definition, and what it adds."""

    nodes: tuple[str, ...]
    added: float


def within_error(inner: Compile) -> Compile:
    """Wrap a compilation: with `--max_error`, by the kernels that keep the error below it.

    It raises OptionError, which says what was reached, where no choice of kernels does.
    """

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        options, decided = request.options, request.decisions
        errors = (decided.measured_error, decided.predicted_error)
        if not options.max_error or errors != (None, None):
            return inner(request, diagnostics)
        if request.shape_profiles:
            raise _several_shapes()
        with temporary_folder("error") as folder:
            if options.measures and times_root(options, request.environ) is None:
                times = Path(folder, "times")  # the same to the end
                request = request.with_options(op_bank_path=times)
            trials = _Trials(inner, request, diagnostics, Path(folder))
            return inner(replace(request, decisions=_chosen(trials)), diagnostics)

    return compile


def _chosen(trials: _Trials) -> Decisions:
    """Return decisions with which the error is at most --max_error, and what it is."""
    options = trials.request.options
    if not trials.measures and options.max_error < DEFAULT_BOUND:
        raise OptionError(
            f"an error of {options.max_error:g} must be measured, and this machine can't run "
            f"{options.target}", where="--max_error",
            hint=f"compile where it runs, or allow {DEFAULT_BOUND:g}",
        )  # fmt: skip
    decided = replace(
        trials.request.decisions, bf16=options.max_error >= BF16_ERROR, float32_nodes=frozenset()
    )
    for precision in LOW:
        decided, error = _with_low(trials, decided, precision)
        if error <= trials.allowed and trials.measures:
            return replace(decided, measured_error=error)
        if error <= trials.allowed:
            return replace(decided, predicted_error=error)
    return _with_exact(trials, decided)


def _with_low(trials: _Trials, decided: Decisions, precision: str) -> tuple[Decisions, float]:
    """Return decisions with as much as the error allows in a low precision, and the error.

    The error is too large where it is even without that precision.
    """
    most = trials.allowed
    fast, every = trials(decided, f"with {precision}")
    low = lowered(fast, precision)
    if every <= most or not low:
        return decided, every

    def without(kept: frozenset[str]) -> Decisions:
        if precision == "bf16":
            return replace(decided, float_nodes=kept)
        return replace(decided, float32_nodes=kept)

    plain, error = trials(without(low), f"without {precision}")
    if error > most:
        return without(low), error
    found = groups(fast, plain, precision)

    def measure(chosen: Sequence[Group]) -> float:
        nodes = low - frozenset(n for g in chosen for n in g.nodes)
        return trials(without(nodes), f"{len(chosen)} of {len(found)} calls in {precision}")[1]

    trials.diagnostics.stage(f"measuring how far {len(found)} products move the outputs")
    if not trials.measures:
        plain = trials.compiled(replace(without(low), bf16=False), "host", get_target("host"))
    moved = sensitivities(plain, found, SEEDS[0])
    chosen, measured = most_within(most, found, moved, every, measure)
    kept = low - frozenset(name for group in chosen for name in group.nodes)
    return without(kept), measured.get(len(chosen), error)


def _with_exact(trials: _Trials, decided: Decisions) -> Decisions:
    """Return decisions that name the nodes whose kernels err no more than the definition."""
    most = trials.request.options.max_error
    exact, reached = decided.exact_nodes, np.inf
    for step in count():
        tried = replace(decided, exact_nodes=exact)
        done, error = trials(tried, f"{len(exact)} nodes with more precise kernels")
        reached = min(reached, error)
        if error <= most:
            return replace(tried, measured_error=error)
        found = sorted(worst_kernels(done), key=lambda o: o.added, reverse=True)[: 2**step]
        more = {name for each in found for name in each.nodes} - exact
        if not more:
            break
        exact |= more
    raise OptionError(
        f"an error of {most:g} of the outputs' scale can't be kept: the best error "
        f"reached is {reached:.2g}", where="--max_error",
        hint="that is float32's own error, with all kernels precise; allow more",
    )  # fmt: skip


@dataclass
class _Trials:
    """Compiles networks to measure their errors; what a reference computes is kept."""

    compile: Compile
    request: Request
    diagnostics: Diagnostics
    folder: Path
    wanted: dict[int, tuple[str, list[Any]]] = field(default_factory=dict)
    """What float64 gives, by the seed of the inputs."""
    known: dict[Decisions, tuple[Compilation, float]] = field(default_factory=dict)

    def __call__(self, decided: Decisions, what: str) -> tuple[Compilation, float]:
        """Return a network with hooks and the largest error of its outputs."""
        if decided not in self.known:
            self.diagnostics.stage(f"measuring the error {what}")
            done = self.compiled(decided, f"try{len(self.known)}")
            self.known[decided] = done, self._error(done)
        return self.known[decided]

    def compiled(
        self, decided: Decisions, name: str, target: Target | None = None
    ) -> Compilation:
        """Return a network with hooks, for another target than the request's if one is given."""
        request = self.request.for_target(target) if target else self.request
        trial = replace(request, decisions=decided).with_options(
            output=self.folder / name / "net", hooks=True, strip=False, max_error=0.0,
            dump=None, profile=False, step=False, build_dir=None,
        )  # fmt: skip
        done = self.compile(trial, replace(self.diagnostics, warn=lambda text: None))
        if done.graph.dims:
            raise _several_shapes()
        return done

    @property
    def measures(self) -> bool:
        """Whether this machine can run the target; else errors are predicted."""
        target = self.request.target
        return target.is_native and target.features <= host_features()

    @property
    def allowed(self) -> float:
        """The error that may be measured, or predicted for products alone."""
        return self.request.options.max_error * (1.0 if self.measures else PREDICTED_SHARE)

    def _error(self, done: Compilation) -> float:
        if self.measures:
            return measured_error(done, self.wanted)
        return max(predicted_error(done, seed, self.wanted) for seed in SEEDS)


def _several_shapes() -> OptionError:
    return OptionError(
        "the error can't be measured for several shapes", where="--max_error",
        hint="give one shape with --input_shape",
    )


def measured_error(
    done: Compilation, wanted: dict[int, tuple[str, list[Any]]] | None = None
) -> float:
    """Return the largest error of a network's outputs on the seeded inputs, against float64.

    What float64 gives is taken from `wanted`, by seed, and kept there.
    """
    known = {} if wanted is None else wanted

    def error(seed: int) -> float:
        def run(
            model: onnx_ir.Model, outputs: Sequence[str], feeds: Mapping[str, Array]
        ) -> tuple[str, list[Any]]:
            if seed not in known:
                known[seed] = run_in_double(model, outputs, feeds)
            return known[seed]

        subject = subject_of(done.request)
        return verify_library(subject, done.folder, seed=seed, float64=True, run=run).error

    return max(map(error, SEEDS))


def worst_kernels(done: Compilation) -> Iterator[WorstKernels]:
    """Yield the calls of imprecise kernels in a network compiled with hooks."""
    steps = [*calls(done.program.steps)]
    if not any(map(_imprecise, steps)):
        return
    types = {t.name: (tuple(t.shape), np.dtype(t.dtype)) for t in open_network(done.folder).inputs}
    feeds: Mapping[str, Array] = random_inputs(types, SEEDS[0])
    diff = diff_compiled(done, feeds, "", 1.0, run_in_double)
    errors = {d.value: d.max_rel for d in diff.differences}
    own = {d.step: d.max_rel for d in diff.differences}
    for number, call in enumerate(steps):
        if _imprecise(call):
            names = [original(name, done.program.aliases) for name in call.node.inputs]
            before = max((errors.get(name, 0.0) for name in names), default=0.0)
            added = own.get(number, np.inf) - before
            yield WorstKernels(call.node.origin, added)


def _imprecise(call: Call) -> bool:
    candidate = call.choice.candidate
    return bool(call.node.origin) and not candidate.kernel.exact(candidate.params)
