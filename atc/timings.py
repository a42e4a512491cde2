"""The times that kernels are chosen by: replayed from a policy, known, or measured now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atc.backends.target import Target
from atc.build import Shop
from atc.cache import find_root
from atc.cache.algo import open_algo_cache
from atc.fast_run import Bench, fast_run, machine_name, runs_here, workloads
from atc.ir import Graph
from atc.listener import Listener
from atc.options import Options
from atc.policy import picks, read_policy, replay, uncovered, workload_summary, write_policy
from atc.select import Limits, Timings

_NO_TIMEOUT = 86400.0
"""Seconds that stand for no limit: a day."""


def replayed(
    graph: Graph, options: Options, target: Target, limits: Limits, heard: Listener
) -> Timings:
    """Return what the policy says, if there is one; there must be if nothing is measured."""
    path = options.fast_run_algo_policy
    if path is None or (options.measures and not path.exists()):
        return {}
    todo = list(dict.fromkeys(workloads(graph, {})))
    timings = replay(todo, read_policy(path), target, limits, heard.warn)
    if not options.measures and (missing := uncovered(todo, timings, target, limits)):
        heard.warn(
            f"--fast_run_algo_policy: {path} says nothing of {len(missing)} of {len(todo)} "
            f"workloads, the first is {workload_summary(missing[0])}; estimates choose for them"
        )
    return timings


def measured(
    graph: Graph, known: Timings, options: Options, limits: Limits, shop: Shop,
    env: Mapping[str, str], heard: Listener,
) -> Timings:  # fmt: skip
    """Measure what isn't known; the times are kept in the algo cache, the picks in the policy.

    Without measuring, what a bank of earlier times knows is all that is new.
    """
    if options.measures and not runs_here(shop.target):
        name = shop.target.name
        heard.warn(f"--fast_run: {name} doesn't run on this machine; costs are estimated")
        return known
    if options.measures:
        heard.stage("measuring kernels")
    algo = open_algo_cache(times_root(options, env), machine_name(), heard.warn)
    timeout = options.fast_run_timeout or _NO_TIMEOUT
    bench = Bench(shop, algo, options.full_run, limits, timeout, options.measures)
    fresh = fast_run(
        [w for w in workloads(graph, {}) if w not in known], bench,
        lambda done, total: heard.progress("measuring kernels", done, total),
    )  # fmt: skip
    path = options.fast_run_algo_policy
    if path is not None and options.measures:
        kept_lines = read_policy(path) if path.exists() else {}
        write_policy(path, {**kept_lines, **picks(fresh, shop.target)})
    return {**known, **fresh}


def times_root(options: Options, env: Mapping[str, str]) -> Path | None:
    """Return where measured times are kept, None where they aren't."""
    kind = options.fast_run_cache_type
    if options.op_bank_path is not None:
        return options.op_bank_path
    if kind == "MEMORY" or options.fast_run_cache_dir is not None:
        return None if kind == "MEMORY" else options.fast_run_cache_dir
    if kind != "FILE" and options.op_compiler_cache_mode == "disable":
        return None
    return find_root(options.op_compiler_cache_dir, env)
