"""`--max_error`: the fastest kernels with which the outputs stay near the model in float64.

Kernels may err more than the operator's definition (Winograd's F(4 x 4), say). The first try takes
whatever is fastest. Where it errs too much, the nodes whose kernels add most error get kernels that
err no more than the definition: one, two, four, ... at a time, so that the tries are few. Kernels
that multiply in bf16 are tried, too, and those nodes lose first that, then the other rough kernels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from atc.diff import BLOCKED, diff_compiled
from atc.double_run import run_in_double
from atc.driver import Compilation, compile_model
from atc.errors import OptionError
from atc.gears import gears_of
from atc.ir import Array
from atc.listener import Listener
from atc.load import load
from atc.options import Options
from atc.program import Call, calls
from atc.timings import times_root
from atc.verify_run import random_inputs, subject_of, verify_library

SEEDS = (0, 1)
"""The seeds of the inputs that errors are measured on."""


BF16_ERROR = 1e-4
"""The least error for which kernels that multiply in bf16 are worth a try."""


@dataclass(frozen=True)
class Offender:
    """A call of a kernel that errs more than its operator's definition, and what it adds."""

    nodes: tuple[str, ...]
    added: float
    precision: str = "float32"
    """What the kernel's products are computed in."""


@contextmanager
def within_error(
    options: Options, environ: Mapping[str, str], heard: Listener
) -> Iterator[Options]:
    """Give options with which the error is at most `options.max_error`, and what it is.

    Times that kernels are chosen by stay the same until the end. Raises OptionError, which says
    what was reached, where no choice of kernels does.
    """
    if gears_of(options):
        raise _several_shapes()
    with tempfile.TemporaryDirectory(prefix="atc-error-") as folder:
        if options.measures and times_root(options, environ) is None:
            options = replace(options, op_bank_path=Path(folder, "times"))
        yield _chosen(options, environ, heard, Path(folder))


def _chosen(
    options: Options, environ: Mapping[str, str], heard: Listener, folder: Path
) -> Options:
    exact, kept, reached = options.exact_nodes, options.float_nodes, np.inf
    options = replace(options, bf16=options.max_error >= BF16_ERROR, plain_nodes=frozenset())
    for step in count():
        heard.stage(f"measuring the error, {len(exact | kept)} nodes with more precise kernels")
        options = replace(options, exact_nodes=exact, float_nodes=kept)
        trial = replace(
            options, output=folder / f"try{step}" / "net", hooks=True, strip=False,
            max_error=0.0, dump=None, profile=False, build_dir=None,
        )  # fmt: skip
        done = compile_model(trial, environ, replace(heard, warn=lambda text: None))
        if done.graph.dims:
            raise _several_shapes()
        error = measured_error(done)
        reached = min(reached, error)
        if error <= options.max_error:
            return replace(options, measured_error=error)
        found = sorted(offenders(done), key=lambda o: o.added, reverse=True)[: 2**step]
        low = {name for each in found if each.precision == "bf16" for name in each.nodes} - kept
        more = {name for each in found for name in each.nodes} - exact - low
        if not low and not more:
            break
        exact, kept = exact | more, kept | low
    raise OptionError(
        f"an error of {options.max_error:g} of the outputs' scale can't be kept: {reached:.2g} is "
        "the least that was reached", where="--max_error",
        hint="with all kernels precise, float32 itself errs so much; allow more",
    )  # fmt: skip


def _several_shapes() -> OptionError:
    return OptionError(
        "the error can't be measured for several shapes", where="--max_error",
        hint="give one shape with --input_shape",
    )


def measured_error(done: Compilation) -> float:
    """Return the largest error of a network's outputs on the seeded inputs, against float64."""
    subject = subject_of(done.options)
    return max(
        verify_library(subject, done.folder, seed=seed, float64=True).error for seed in SEEDS
    )


def offenders(done: Compilation) -> Iterator[Offender]:
    """Yield the calls of imprecise kernels in a network compiled with hooks."""
    steps = [*calls(done.program.steps)]
    if not any(map(_imprecise, steps)):
        return
    types = {t.name: (tuple(t.shape), np.dtype(t.dtype)) for t in load(done.folder).inputs}
    feeds: Mapping[str, Array] = random_inputs(types, SEEDS[0])
    diff = diff_compiled(done, feeds, "", 1.0, run_in_double)
    errors = {d.value: d.max_rel for d in diff.differences}
    own = {d.step: d.max_rel for d in diff.differences}
    for number, call in enumerate(steps):
        if _imprecise(call):
            names = [name.partition(BLOCKED)[0] for name in call.node.inputs]
            before = max((errors.get(name, 0.0) for name in names), default=0.0)
            added = own.get(number, np.inf) - before
            yield Offender(call.node.origin, added, call.choice.candidate.kernel.precision)


def _imprecise(call: Call) -> bool:
    candidate = call.choice.candidate
    return bool(call.node.origin) and not candidate.kernel.exact(candidate.params)
