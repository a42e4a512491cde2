"""The times that layouts and kernels are chosen by: replayed, known, or measured now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.nvcc import find_nvcc
from atc.build.caches import remote_store
from atc.build.objects import BuildContext
from atc.cache import find_root
from atc.cache.algo import AlgoCache, open_algo_cache
from atc.diagnostics import Diagnostics
from atc.farm.runners import Runner, open_runner
from atc.farm.scheduler import ByCluster, Scheduler
from atc.fast_run.export import measuring_project, read_times
from atc.fast_run.measure import Bench, fast_run, machine_name, runs_here
from atc.fast_run.policy import (
    Policy,
    add_to_policy,
    partitions_pick,
    picks,
    replay,
    uncovered,
    workload_summary,
)
from atc.fast_run.threads import call_digest, long_calls, measure_counts
from atc.options.options import Options
from atc.program.build import ThreadCounts
from atc.select.select import Limits, Selection, Timings

_NO_TIMEOUT = 86400.0
"""Seconds that stand for no limit: a day."""


def replayed(
    wanted: Iterable[Workload], policy: Policy, options: Options, target: Target, limits: Limits,
    diagnostics: Diagnostics, all_chosen: bool = True,
) -> Timings:  # fmt: skip
    """Return the times that a policy holds.

    A warning names what it has no entry for, unless only some of the workloads will be part of the
    network.
    """
    path = options.fast_run_algo_policy
    todo = list(dict.fromkeys(wanted))
    timings = replay(todo, policy, target, limits, diagnostics.warn)
    missing = uncovered(todo, timings, target, limits) if all_chosen else []
    if missing and path is not None and not options.measures:
        diagnostics.warn(
            f"--fast_run_algo_policy: {path} has no entry for {len(missing)} of {len(todo)} "
            f"workloads, the first is {workload_summary(missing[0])}; estimates choose for them"
        )
    return timings


def measured(
    wanted: Iterable[Workload], known: Timings, options: Options, limits: Limits,
    context: BuildContext, env: Mapping[str, str], diagnostics: Diagnostics, alone: bool = False,
    warm: bool = False,
) -> Timings:  # fmt: skip
    """Measure what isn't known; the times are kept in the algo cache, the picks in the policy.

    Without measuring, what a bank of earlier times knows is all that is new. With `alone`, the
    time of an only candidate is of interest, too. `warm` is that of `Bench`.
    """
    place = _place(options, context, env, diagnostics.warn) if options.measures else None
    if options.measures and place is None:
        return known
    if options.measures:
        diagnostics.stage("measuring kernels")
    timeout = options.fast_run_timeout or _NO_TIMEOUT
    with _algo_cache(options, env, context.target, place, diagnostics.warn) as algo:
        bench = Bench(
            context, algo, options.full_run, limits, timeout, options.measures, alone,
            diagnostics.warn, place.runner if place else None,
            place.nvcc if place else _nvcc_of(context, env), options.device_id, warm,
        )  # fmt: skip
        fresh = fast_run(
            [w for w in wanted if w not in known], bench,
            lambda done, total: diagnostics.progress("measuring kernels", done, total),
        )  # fmt: skip
    path = options.fast_run_algo_policy
    if path is not None and options.measures:
        add_to_policy(path, picks(fresh, context.target, limits.weight_price))
    return {**known, **fresh}


def export_files(
    wanted: Iterable[Workload], options: Options, limits: Limits, context: BuildContext,
    env: Mapping[str, str], diagnostics: Diagnostics, warm: bool = False,
) -> dict[str, bytes]:  # fmt: skip
    """Return the C project that measures these workloads on another machine."""
    algo = open_algo_cache(None, "", diagnostics.warn)
    timeout = options.fast_run_timeout or _NO_TIMEOUT
    nvcc = _nvcc_of(context, env)
    bench = Bench(context, algo, options.full_run, limits, timeout, nvcc=nvcc, warm=warm)
    return measuring_project(wanted, bench)


def counted(
    selection: Selection, policy: Policy, options: Options, context: BuildContext,
    env: Mapping[str, str], diagnostics: Diagnostics,
) -> ThreadCounts:  # fmt: skip
    """Return how many threads share each long call, as the policy says or as measured now."""
    path, target, threads = options.fast_run_algo_policy, context.target, options.sharers
    if not options.thread_tuning or (path is None and not options.measures):
        return {}
    calls = long_calls(selection, target, threads)
    by_digest = {call_digest(c, target, threads): c for c in calls}
    found = {
        d: pick.partitions
        for d in by_digest
        if (pick := policy.get(d)) is not None and 0 < pick.partitions <= threads
    }
    left = [c for d, c in by_digest.items() if d not in found]
    place = _place(options, context, env, diagnostics.warn) if left and options.measures else None
    if place is not None:
        diagnostics.stage("measuring threads")
        timeout = options.fast_run_timeout or _NO_TIMEOUT
        with _algo_cache(options, env, target, place, diagnostics.warn) as algo:
            bench = Bench(
                context, algo, timeout=timeout, warn=diagnostics.warn, runner=place.runner
            )
            fresh = measure_counts(
                left, threads, bench,
                lambda done, total: diagnostics.progress("measuring threads", done, total),
            )  # fmt: skip
        found |= {d: n for d, (n, _) in fresh.items()}
        if path is not None:
            lines = {
                d: partitions_pick(n, ns, by_digest[d].workload) for d, (n, ns) in fresh.items()
            }
            add_to_policy(path, lines)
    return {(by_digest[d].workload, by_digest[d].candidate.label): n for d, n in found.items()}


@dataclass(frozen=True)
class _Place:
    """The place where programs run that measure; without a runner, here."""

    runner: Runner | None = None
    nvcc: Compiler | None = None


def _place(
    options: Options, context: BuildContext, env: Mapping[str, str], warn: Callable[[str], None]
) -> _Place | None:
    """Return where a target is measured; None, and a warning, where that can't be."""
    target, farm = context.target, context.farm
    if target.device and runs_here(target, options.device_id):
        return _Place(nvcc=_nvcc_of(context, env))
    if target.device:
        warn(f"no GPU of this machine runs {target.name}: costs are estimated, not measured")
        return None
    if options.runner:
        return _Place(open_runner(options.runner, target.runner, context.log))
    if isinstance(farm, Scheduler) and not farm.is_local:
        if farm.measures(target.name):
            return _Place(ByCluster(farm, target.name, target.runner))
        warn(
            f"no worker of {farm.address} carries the resource {target.name}: costs are "
            "estimated, not measured"
        )
        return None
    if runs_here(target):
        return _Place()
    warn(f"{target.name} doesn't run on this machine: costs are estimated, not measured")
    return None


def _nvcc_of(context: BuildContext, env: Mapping[str, str]) -> Compiler | None:
    """Return what compiles a GPU's kernels; None where that is the host's own compiler."""
    device = context.target.device
    return None if device in ("", EMULATED) else find_nvcc(device, env, log=context.log)


@contextmanager
def _algo_cache(
    options: Options, env: Mapping[str, str], target: Target, place: _Place | None,
    warn: Callable[[str], None],
) -> Iterator[AlgoCache]:  # fmt: skip
    """Open the times of a machine, with those that are imported; close what they came from.

    A run that keeps none asks no store, either.
    """
    imported = read_times(options.fast_run_import) if options.fast_run_import else None
    runner = place.runner if place else None
    machine = runner.machine() if runner is not None else machine_name(target, options.device_id)
    machine = imported.machine if imported else machine
    kept = options.fast_run_cache_type != "MEMORY" or options.op_bank_path is not None
    remote = remote_store(options, env, warn) if kept else None
    algo = open_algo_cache(times_root(options, env), machine, warn, remote)
    for workload, times in imported.times.items() if imported else ():
        algo.put(workload, times)
    try:
        yield algo
    finally:
        algo.save()
        algo.close()


def times_root(options: Options, env: Mapping[str, str]) -> Path | None:
    """Return where measured times are kept, None where they aren't.

    They are kept whatever --op_compiler_cache_mode says, which is about compiled operators.
    """
    if options.op_bank_path is not None:
        return options.op_bank_path
    if options.fast_run_cache_type == "MEMORY":
        return None
    if options.fast_run_cache_dir is not None:
        return options.fast_run_cache_dir
    return find_root(options.op_compiler_cache_dir, env)
