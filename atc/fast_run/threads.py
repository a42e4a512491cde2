"""Fast-run with threads: in how many partitions each long call takes least time.

Every such call becomes a network of its own, built for each number of threads and timed by the
clock on the wall, its constants in the caches. Times are kept beside those of candidates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.backends.toolchain.compiler import THREADS
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.processes import TimedOut
from atc.build.objects import Unit, compile_units, kernel_unit
from atc.codegen.emit import Emission, emit
from atc.codegen.project_options import ProjectOptions, WeightFiles
from atc.dims import is_dynamic
from atc.errors import AtcError
from atc.farm.runners import Unreachable
from atc.fast_run.harness import operands
from atc.fast_run.measure import Bench
from atc.fast_run.task import workload_digest
from atc.files.temporary import temporary_folder
from atc.ir.graph import Graph, Node
from atc.memory.arena import plan_memory
from atc.program.build import build_program
from atc.program.partition import partitions, shared
from atc.program.row_partition import rows_of_threads
from atc.select.select import Choice, Selection
from atc.templates import render

NAME = "call"
"""The network of one call."""
ROUNDS = 3
"""How often the programs of a call run, alternately."""
MIN_NS, BATCHES = 1e6, 10
NEAR = 1.05
"""How much longer more partitions may take: a busy machine measures them worse than they are."""
MOST_PORTS = 64
"""Operands and results that the program has places for."""


def long_calls(selection: Selection, target: Target, threads: int) -> list[Choice]:
    """Return the choices whose calls would be cut for so many threads, each once.

    Those of extents that only a run knows aren't timed.
    """
    distinct = {
        (c.workload, c.candidate.label): c
        for c in selection.values() if not is_dynamic(c.workload)
    }  # fmt: skip
    return [c for c in distinct.values() if _is_cut(c.workload, c.candidate, target, threads)]


def _is_cut(w: Workload, candidate: Candidate, target: Target, threads: int) -> bool:
    cut = partitions(w, candidate, target, threads)
    rows = rows_of_threads(w, candidate, target, threads, cut)
    return bool(cut or rows) or shared(w, candidate, target, threads) is not candidate


def call_digest(choice: Choice, target: Target, threads: int) -> str:
    """Return the digest of a call that is cut for at most so many threads."""
    parts = (workload_digest(choice.workload, target), choice.candidate.label, str(threads))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def measure_counts(
    calls: list[Choice], threads: int, bench: Bench,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, tuple[int, float]]:  # fmt: skip
    """Return the best number of partitions of each call by its digest, with its time in ns.

    Calls that can't be timed are left out; they are cut for all threads.
    """
    found: dict[str, tuple[int, float]] = {}
    for done, choice in enumerate(calls):
        progress(done, len(calls))
        times = _times(choice, threads, bench)
        if times:
            best = max(n for n, ns in times.items() if ns <= NEAR * min(times.values()))
            found[call_digest(choice, bench.target, threads)] = best, times[best]
    progress(len(calls), len(calls))
    return found


def _times(choice: Choice, threads: int, bench: Bench) -> dict[int, float]:
    """Return the time of each number of partitions, from the algo cache or measured now."""
    context = bench.context
    parts = (call_digest(choice, bench.target, threads), context.compiler.version, *context.flags)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    bench.algo.fetch([(key, [f"{n} partitions" for n in range(1, threads + 1)])])
    known = [bench.algo.get(key, f"{n} partitions") for n in range(1, threads + 1)]
    times = {n: ns for n, (there, ns) in enumerate(known, 1) if there and ns is not None}
    if len(times) < threads and bench.measures:
        times = _measured(choice, threads, bench)
        bench.algo.put(key, {f"{n} partitions": ns for n, ns in times.items()})
        bench.algo.save()
    return times


def _measured(choice: Choice, threads: int, bench: Bench) -> dict[int, float]:
    w = choice.workload
    if len(w.inputs) > MOST_PORTS or len(w.outputs) > MOST_PORTS:
        return {}
    times: dict[int, float] = {}
    with temporary_folder("threads") as folder:
        places = [Path(folder).resolve() / str(n) for n in range(1, threads + 1)]
        for n, place in enumerate(places, 1):
            _build(_network(choice, n, bench.target), n > 1, bench, place)
        for _ in range(ROUNDS):
            for n, place in enumerate(places, 1):
                ns = _ask(place, bench)
                if ns is not None:
                    times[n] = min(ns, times.get(n, ns))
    return times


def _network(choice: Choice, threads: int, target: Target) -> Emission:
    """Return the project of a network that consists of one call."""
    w = choice.workload
    names = [f"x{k}" if t is not None else "" for k, t in enumerate(w.inputs)]
    results = tuple(f"y{k}" for k in range(len(w.outputs)))
    types = {n: t for n, t in zip(names, w.inputs, strict=True) if t is not None}
    types |= dict(zip(results, w.outputs, strict=True))
    arrays = zip(names, operands(w), w.constant, strict=True)
    constants = {n: a for n, a, known in arrays if a is not None and known}
    inputs = tuple(n for n in names if n and n not in constants)
    node = Node(w.op, tuple(names), results, ())
    graph = Graph(NAME, inputs, results, (node,), types, constants)
    program = build_program(graph, {results[0]: choice}, target, threads=threads)
    options = ProjectOptions(
        name=NAME, model=NAME, weights=WeightFiles(external=True), threads=threads,
        library_alone=True,
    )  # fmt: skip
    return emit(program, plan_memory(program), target, options)


def _build(emission: Emission, threads: bool, bench: Bench, cwd: Path) -> None:
    """Compile a network with the program that times it."""
    context, main = bench.context, "threads.c"
    text = render("bench/threads.c.j2", {
        "name": NAME, "upper": NAME.upper(), "external": bool(emission.weights),
        "threads": threads and emission.threads > 1, "min_ns": MIN_NS, "batches": BATCHES,
    })  # fmt: skip
    files = {**emission.files, main: text.encode()}
    for path, content in {**files, "weights.bin": emission.weights}.items():
        (cwd / path).parent.mkdir(parents=True, exist_ok=True)
        (cwd / path).write_bytes(content)
    headers = tuple(p for p in files if p.endswith(".h"))
    sources = [p for p in files if p.startswith("src/") and p.count("/") == 1 and p.endswith(".c")]
    units = [*map(kernel_unit, emission.kernels), Unit(main, "threads", headers, cacheable=False)]
    units += (Unit(path, NAME, headers, cacheable=False) for path in sources)
    compile_units(cwd, files, units, context)
    flags = (*context.flags, THREADS)
    link_program(
        context.compiler, flags, [f"{u.path}.o" for u in units], "threads", cwd,
        static=bench.carries, log=context.log,
    )


def _ask(place: Path, bench: Bench) -> float | None:
    """Return the nanoseconds that a program printed, None when it failed."""
    try:
        done = bench.run(place, "threads", ["weights.bin"], ["weights.bin"], bench.timeout)
        return float(done.stdout) if done.status == 0 else None
    except TimedOut:
        reason = bench.timeout_reason
        bench.warn(f"--fast_run_timeout: a call cut for threads {reason}; it isn't timed")
        return None
    except Unreachable:  # which says nothing of the call
        raise
    except (AtcError, ValueError):
        return None
