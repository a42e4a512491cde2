"""Fast-run: times the candidate kernels of every distinct workload and keeps the results.

Workloads → candidates → built into one small program per workload → each checked against the
portable kernel, then timed in turns on one core → times in the algo cache. A candidate that fails
to run, to agree or to end in time is recorded with its reason and never chosen.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import archspec.cpu
import numpy as np

from atc.backends.kernel import Candidate, KernelSource, Workload, render_kernel, workload_of
from atc.backends.target import Target, host_arch
from atc.backends.toolchain import (
    Compiler,
    Job,
    Log,
    compile_many,
    link_program,
    no_log,
    run_binary,
)
from atc.cache.algo import AlgoCache
from atc.dump import op_text
from atc.errors import AtcError, ToolchainError
from atc.ir import Array, DType, Graph, TensorType
from atc.ops import Reshape
from atc.select import Measurement, Timings, candidates
from atc.templates import render, verbatim

TOLERANCE = 1e-3
"""Largest error against the portable kernel, relative to the result's largest value."""
CANDIDATE_TIMEOUT = 20.0
"""Seconds for one candidate of one workload, checks and timing together."""
MOST_CANDIDATES = 12
"""Candidates measured per workload unless all are asked for: those of least estimated cost."""
COLD_BYTES = 48 << 20
"""Copies of the constant operands take up to this much, more than any L2, to be read cold."""


@dataclass(frozen=True)
class Bench:
    """Where and how candidates are built and run."""

    target: Target
    compiler: Compiler
    flags: tuple[str, ...]
    algo: AlgoCache
    workers: int
    every: bool = False
    log: Log = no_log


def fast_run(
    graph: Graph, bench: Bench, progress: Callable[[int, int], None] = lambda done, total: None
) -> Timings:
    """Return the measured candidates of every workload that has more than one.

    Nothing is measured that the algo cache knows; what is measured is saved there.
    """
    todo = list(dict.fromkeys(workloads(graph, {})))
    timings: dict[Workload, tuple[Measurement, ...]] = {}
    for done, w in enumerate(todo):
        progress(done, len(todo))
        found = candidates(w, bench.target)
        if len(found) < 2:
            continue
        timings[w] = _measured(w, _worth_measuring(w, found, bench), bench)
    progress(len(todo), len(todo))
    bench.algo.save()
    return timings


def runs_here(target: Target) -> bool:
    """Whether programs for a target run on this machine, by themselves or under its runner."""
    return bool(target.runner) or target.arch in ("", host_arch())


def machine_name() -> str:
    """Return what tells machines apart whose times differ: the processor and its core count."""
    return f"{archspec.cpu.brand_string() or archspec.cpu.host().name}, {os.cpu_count()} cores"


def workloads(graph: Graph, outer: Mapping[str, Array]) -> Iterator[Workload]:
    """Yield the workload of every node that needs a kernel, subgraphs included."""
    constants = {**outer, **graph.constants}
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            yield from workloads(inner, constants)
        if not isinstance(node.op, Reshape) and not node.op.subgraphs():
            yield workload_of(graph, node, constants)


def _worth_measuring(w: Workload, found: list[Candidate], bench: Bench) -> list[Candidate]:
    """Return the candidates, the portable reference first, then by estimated cost."""
    reference = next((c for c in found if c.kernel.portable), found[0])
    others = [c for c in found if c is not reference]
    others.sort(key=lambda c: c.kernel.cost(w, c.params, bench.target))
    return [reference, *(others if bench.every else others[:MOST_CANDIDATES])]


def _measured(w: Workload, chosen: list[Candidate], bench: Bench) -> tuple[Measurement, ...]:
    sources = [render_kernel(c, w, bench.target) for c in chosen]
    key = workload_digest(w, bench)
    known = [bench.algo.get(key, s.symbol) for s in sources]
    if not all(k for k, _ in known):
        fresh = _run(w, chosen, sources, bench)
        times = {s.symbol: m.time_ns for s, m in zip(sources, fresh, strict=True)}
        bench.algo.put(key, times)
        return fresh
    return tuple(
        Measurement(c.label, time, "" if time is not None else "failed when it was measured")
        for c, (_, time) in zip(chosen, known, strict=True)
    )


def workload_digest(w: Workload, bench: Bench) -> str:
    """Return the key of a workload's times: op, types, constness, target, compiler and flags."""
    parts = [
        op_text(w.op), str(w.inputs), str(w.outputs), str(w.constant), bench.target.name,
        bench.compiler.version, *bench.flags,
    ]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(
    w: Workload, chosen: list[Candidate], sources: list[KernelSource], bench: Bench
) -> tuple[Measurement, ...]:
    """Build and run the program of one workload; on a crash, each candidate runs alone."""
    with tempfile.TemporaryDirectory(prefix="atc-bench-") as folder:
        cwd = Path(folder).resolve()
        try:
            program = _build(w, chosen, sources, bench, cwd)
        except ToolchainError as error:
            return _without_broken(w, chosen, sources, bench, error)
        results = _ask(bench, program, cwd, [], CANDIDATE_TIMEOUT * len(chosen))
        if results is None:
            results = {}
            for k in range(len(chosen)):
                alone = _ask(bench, program, cwd, [k], CANDIDATE_TIMEOUT) or {}
                results[k] = alone.get(k, (None, "crashed or took too long"))
    missing = (None, "printed no time")
    return tuple(Measurement(c.label, *results.get(k, missing)) for k, c in enumerate(chosen))


def _without_broken(
    w: Workload, chosen: list[Candidate], sources: list[KernelSource], bench: Bench,
    error: ToolchainError,
) -> tuple[Measurement, ...]:  # fmt: skip
    """Measure the others when one candidate doesn't compile; the reference must."""
    broken = [k for k, s in enumerate(sources) if s.path == error.where]
    if not broken or broken == [0]:
        raise error
    k = broken[0]
    rest = _run(w, chosen[:k] + chosen[k + 1 :], sources[:k] + sources[k + 1 :], bench)
    failed = Measurement(chosen[k].label, None, error.message)
    return (*rest[:k], failed, *rest[k:])


def _ask(
    bench: Bench, program: Path, cwd: Path, only: Sequence[int], timeout: float
) -> dict[int, tuple[float | None, str]] | None:
    """Return what the program printed per candidate, None when it failed."""
    argv = [*bench.target.runner, str(program), "data.bin", *map(str, only)]
    try:
        done = run_binary(argv, timeout, cwd=cwd, log=bench.log)
    except AtcError:
        return None
    if done.status != 0:
        return None
    results: dict[int, tuple[float | None, str]] = {}
    for line in done.stdout.decode("ascii", "replace").splitlines():
        number, what, error = line.split()
        failed = what == "failed"
        reason = f"differs from the portable kernel by {error}" if failed else ""
        results[int(number)] = (None if failed else float(what), reason)
    return results


def _build(
    w: Workload, chosen: list[Candidate], sources: list[KernelSource], bench: Bench, cwd: Path
) -> Path:
    """Write, compile and link the program of a workload; return its path."""
    values, data = _harness(w, chosen, sources, bench.target)
    files = {s.path: s.text for s in sources}
    files["harness.c"] = render("bench/harness.c.j2", values)
    files["src/kernel.h"] = verbatim("cpu/kernel.h")
    if any(not s.portable for s in sources):
        files["src/simd.h"] = verbatim(f"simd/{bench.target.simd}.h")
        files["src/simd_math.h"] = verbatim("simd/math.h")
    for path, text in files.items():
        (cwd / path).parent.mkdir(parents=True, exist_ok=True)
        (cwd / path).write_text(text, "utf-8")
    (cwd / "data.bin").write_bytes(data)
    compiled = [p for p in files if p.endswith(".c")]
    flags = (*bench.flags, "-I.")
    jobs = [Job(bench.compiler, flags, path, cwd) for path in compiled]
    compile_many(jobs, bench.workers, log=bench.log)
    objects = [f"{p}.o" for p in compiled]
    return link_program(bench.compiler, flags, objects, "harness", cwd, log=bench.log)


def _harness(
    w: Workload, chosen: list[Candidate], sources: list[KernelSource], target: Target
) -> tuple[dict[str, object], bytes]:
    """Return the values of the harness template and the content of its data file."""
    parts: list[bytes] = []
    size = 0

    def place(array: Array) -> int:
        nonlocal size
        data = np.ascontiguousarray(array).tobytes()
        padded = -(-max(len(data), 1) // 64) * 64
        parts.append(data + bytes(padded - len(data)))
        size += padded
        return size - padded

    arrays = [None if t is None else sample(t, k) for k, t in enumerate(w.inputs)]
    plain = {k: place(a) for k, a in enumerate(arrays) if a is not None}
    calls = []
    for candidate, source in zip(chosen, sources, strict=True):
        packs = candidate.kernel.packs(w, candidate.params, target)
        packed = {k: place(p(a)) for k, p in packs.items() if (a := arrays[k]) is not None}
        args = [
            f"(const void *)({'w' if w.constant[k] else 'd'} + {packed.get(k, plain[k])})"
            for k in plain
        ]
        args += [f"(void *)got{k}" for k in range(len(w.outputs))]
        args += ["scratch"] if source.scratch else []
        calls.append({"call": f"{source.symbol}({', '.join(args)});"})
    constant_bytes = sum(t.nbytes for t, c in zip(w.inputs, w.constant, strict=True) if c and t)
    cold = constant_bytes >= 1 << 16
    copies = max(1, min(12, COLD_BYTES // max(size, 1))) if cold else 1
    values: dict[str, object] = {
        "prototypes": [s.prototype for s in sources], "data_size": size, "copies": copies,
        "outputs": [(t.nbytes, t.dtype.label) for t in w.outputs],
        "scratch": max(s.scratch for s in sources) + 64, "candidates": calls,
        "tolerance": TOLERANCE, "min_ns": 2e5, "rounds": 9,
    }  # fmt: skip
    return values, b"".join(parts)


def sample(type_: TensorType, seed: int) -> Array:
    """Return seeded data: normal numbers, small integers."""
    rng = np.random.default_rng(seed)
    if type_.dtype.is_float:
        return rng.standard_normal(type_.shape).astype(type_.dtype.numpy)
    high = 2 if type_.dtype is DType.BOOL else 8
    return rng.integers(0, high, type_.shape).astype(type_.dtype.numpy)
