"""Fast-run: times the candidate kernels of every distinct workload and keeps the results.

Workloads → candidates → built into one small program per workload → each checked against the
portable kernel, then timed alternately on one core → times in the algo cache. A candidate that
fails to run, to agree or to end in time is recorded with its reason and never chosen. Of workloads
that differ in float constants alone, one is measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atc.backends.cuda.device import device_name, runs_code
from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel import Candidate, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.processes import Finished, TimedOut
from atc.build.gpu import compile_cubins, gpu_units, headers_of
from atc.build.objects import BuildContext, Unit, compile_units, kernel_unit
from atc.build.output_folder import write_files
from atc.cache.algo import AlgoCache
from atc.codegen.sources import kernel_tree
from atc.codegen.weights import included_weights
from atc.dims import is_dynamic
from atc.errors import AtcError, ToolchainError
from atc.farm.runners import Local, Runner, Unreachable, host_name
from atc.fast_run.harness import HOT, device_harness_of, harness_of
from atc.fast_run.task import Task, workload_digest
from atc.files.temporary import temporary_folder
from atc.select.cost import estimate
from atc.select.select import ANY, Limits, Measurement, Timings, candidates
from atc.templates import render

MOST_CANDIDATES = 5
"""Candidates measured per workload unless all are asked for: those of least estimated cost."""
HOPELESS = 3.0
"""Candidates estimated to take this much longer than the best aren't measured, either."""
KERNELS_A_WORKER = 32
"""Candidates of several workloads are compiled together, about so many for each worker."""
BATCH_BYTES = 256 << 20
"""The most that the data of such workloads takes, if it is more than one."""
HARNESS, DATA = "harness.c", "data.bin"
SLOWED = 0.85
"""A clock that falls to this part of what it was compares kernels at different speeds."""


@dataclass(frozen=True)
class Bench:
    """The place and the tools with which candidates are built and run.

    `every` measures all candidates, not only the most promising; `timeout` is in seconds and for
    one candidate of one workload, checks and timing together.
    """

    context: BuildContext
    algo: AlgoCache
    every: bool = False
    limits: Limits = ANY
    timeout: float = 20.0
    measures: bool = True
    """Whether what the algo cache doesn't know is measured."""
    alone: bool = False
    """Whether the time of an only candidate is of interest, too."""
    warn: Callable[[str], None] = lambda text: None
    """Hears of candidates that took too long."""
    runner: Runner | None = None
    """Where programs run, None for here."""
    nvcc: Compiler | None = None
    """What compiles the kernels of a GPU that isn't imitated."""
    device_id: int = 0
    """The GPU that measures, of a target that is one."""
    warm: bool = False
    """Whether a core's own caches keep all weights of the network from run to run."""

    @property
    def carries(self) -> bool:
        """Whether programs run elsewhere, with none of this machine's libraries."""
        return self.runner is not None

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Run a program of a folder where measuring takes place; see `Runner.run`."""
        runner = self.runner or Local(self.target.runner, self.context.log)
        return runner.run(folder, program, files, arguments, timeout)

    @property
    def timeout_reason(self) -> str:
        """The reason for which a candidate that took too long is left out."""
        return f"took longer than {self.timeout:g} s"

    @property
    def timeout_ns(self) -> float:
        """The algo cache's entry for such a candidate: the limit, negative."""
        return -1e9 * self.timeout

    @property
    def target(self) -> Target:
        """The target of the candidates."""
        return self.context.target


def fast_run(
    todo: Iterable[Workload],
    bench: Bench,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Timings:
    """Return the measured candidates of every workload that has more than one, or `alone` one.

    Nothing is measured that the algo cache knows; what is measured is saved there.
    """
    timings: dict[Workload, tuple[Measurement, ...]] = {}
    unknown: list[Task] = []
    for task in _tasks(todo, bench):
        known = _known(task, bench)
        if known is not None:
            timings[task.workload] = known
        elif bench.measures:
            unknown.append(task)
    done = 0
    progress(done, len(unknown))
    alike: dict[str, list[Task]] = {}
    for task in unknown:
        alike.setdefault(task.text, []).append(task)
    for together in _together([each[0] for each in alike.values()], bench.context.workers):
        for first, measured in _run(together, bench):
            for task in alike[first.text]:
                _keep(task, measured, bench)
                timings[task.workload] = measured
            bench.algo.save()  # what is interrupted goes on from here
            done += len(alike[first.text])
            progress(done, len(unknown))
    _report_slow(timings, bench)
    return timings


def _keep(task: Task, measured: Sequence[Measurement], bench: Bench) -> None:
    """Put the times of a workload's candidates into the algo cache."""
    times = [bench.timeout_ns if m.reason == bench.timeout_reason else m.time_ns for m in measured]
    symbols = [s.symbol for s in task.sources]
    bench.algo.put(task.key, dict(zip(symbols, times, strict=True)))


def unknown_tasks(todo: Iterable[Workload], bench: Bench) -> list[Task]:
    """Return what would be measured of these workloads."""
    return [task for task in _tasks(todo, bench) if _known(task, bench) is None]


def _tasks(todo: Iterable[Workload], bench: Bench) -> list[Task]:
    """Return the workloads that have a choice, once each, with their candidates."""
    tasks: list[Task] = []
    for w in dict.fromkeys(todo):
        found = candidates(w, bench.target, bench.limits)
        if bench.target.device:  # what the host computes is no choice there
            launched = [c for c in found if c.kernel.launch(w, c.params, bench.target)]
            found = launched or found[:1]
        if len(found) < (1 if bench.alone else 2) or is_dynamic(w):
            continue
        tasks.append(_task(w, _worth_measuring(w, found, bench), bench))
    bench.algo.fetch((task.key, [s.symbol for s in task.sources]) for task in tasks)
    return tasks


def _report_slow(timings: Timings, bench: Bench) -> None:
    slow = [(w, m) for w, row in timings.items() for m in row if m.reason == bench.timeout_reason]
    if slow:
        w, first = slow[0]
        bench.warn(
            f"--fast_run_timeout: {len(slow)} candidate kernels {first.reason} and are left out, "
            f"the first is {first.label} of {w.op.kind} to {', '.join(map(str, w.outputs))}"
        )


def runs_here(target: Target, device_id: int = 0) -> bool:
    """Return whether programs that measure run here, also under a runner: they ask a system."""
    if target.device:
        return runs_code(target.device, device_id)
    return not target.bare and (bool(target.runner) or target.is_native)


def machine_name(target: Target, device_id: int = 0) -> str:
    """Return what identifies a machine's times: the processor and its cores, or the GPU.

    A GPU that is imitated is as fast as its host.
    """
    if target.device == EMULATED:
        return f"{host_name()} as a GPU"
    return device_name(device_id) if target.device else host_name()


def _worth_measuring(w: Workload, found: list[Candidate], bench: Bench) -> tuple[Candidate, ...]:
    """Return the candidates, the portable reference first, then by estimated cost."""
    plain = (c for c in found if c.kernel.portable and not c.kernel.tensor_cores)
    reference = next(plain, found[0])
    costs = {c.label: estimate(c, w, bench.target, bench.limits.weight_price) for c in found}
    others = sorted((c for c in found if c is not reference), key=lambda c: costs[c.label])
    if not bench.every:
        most = HOPELESS * min(costs.values())
        others = [c for c in others if costs[c.label] <= most][:MOST_CANDIDATES]
    return (reference, *others)


def _task(w: Workload, chosen: tuple[Candidate, ...], bench: Bench) -> Task:
    context = bench.context
    compiler = bench.nvcc or context.compiler
    parts = [workload_digest(w, bench.target), compiler.version, *context.flags]
    parts += ["warm"] * bench.warm
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    sources = tuple(render_kernel(c, w, bench.target) for c in chosen)
    return Task(w, chosen, sources, key, bench.target)


def _known(task: Task, bench: Bench) -> tuple[Measurement, ...] | None:
    """Return the candidates' times if the algo cache has them all.

    What took too long is measured anew where it may take longer now.
    """
    known = [bench.algo.get(task.key, s.symbol) for s in task.sources]
    if not all(k and (t is None or t >= 0 or t <= bench.timeout_ns) for k, t in known):
        return None

    def measurement(candidate: Candidate, time: float | None) -> Measurement:
        if time is None:
            return task.measurement(candidate, None, "failed when it was measured")
        reason = bench.timeout_reason if time < 0 else ""
        return task.measurement(candidate, None if reason else time, reason)

    return tuple(measurement(c, t) for c, (_, t) in zip(task.chosen, known, strict=True))


def _together(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, ...]]:
    """Yield tasks whose programs are built together: as many as keep the compilers busy."""
    batch: list[Task] = []
    kernels = size = 0
    for task in tasks:
        more = sum(t.nbytes for t in task.workload.inputs if t) * (1 + len(task.chosen))
        if batch and (kernels >= KERNELS_A_WORKER * workers or size + more > BATCH_BYTES):
            yield tuple(batch)
            batch, kernels, size = [], 0, 0
        batch.append(task)
        kernels, size = kernels + len(task.chosen), size + more
    if batch:
        yield tuple(batch)


def _run(
    tasks: Sequence[Task], bench: Bench
) -> Iterator[tuple[Task, tuple[Measurement, ...]]]:
    """Build the programs of some workloads, then run them one after the other."""
    with temporary_folder("bench") as folder:
        cwd = Path(folder).resolve()
        try:
            programs = _build(tasks, bench, cwd)
        except ToolchainError as error:
            if len(tasks) == 1:
                yield tasks[0], _without_broken(tasks[0], bench, error)
                return
            programs = []
        for task, program in zip(tasks, programs, strict=bool(programs)):
            yield task, _timed(task, program, bench)
    if not programs:
        for task in tasks:
            yield from _run([task], bench)


def _timed(task: Task, program: Path, bench: Bench) -> tuple[Measurement, ...]:
    """Run the program of one workload; on a crash, each candidate runs alone."""
    chosen = task.chosen
    results = _ask(bench, program, [], bench.timeout * len(chosen))
    if isinstance(results, str):
        results = {}
        for k in range(len(chosen)):
            alone = _ask(bench, program, [k], bench.timeout)
            results |= {k: (None, alone)} if isinstance(alone, str) else alone
    missing = (None, "printed no time")
    return tuple(task.measurement(c, *results.get(k, missing)) for k, c in enumerate(chosen))


def _without_broken(task: Task, bench: Bench, error: ToolchainError) -> tuple[Measurement, ...]:
    """Measure the others when one candidate doesn't compile; the reference must."""
    broken = [k for k, s in enumerate(task.sources) if s.path == error.where]
    if not broken or broken == [0]:
        raise error
    k = broken[0]
    ((_, rest),) = _run([task.without(k)], bench)
    failed = Measurement(task.chosen[k].label, None, error.message)
    return (*rest[:k], failed, *rest[k:])


def _ask(
    bench: Bench, program: Path, only: Sequence[int], timeout: float
) -> dict[int, tuple[float | None, str]] | str:
    """Return what the program printed per candidate, or why it failed."""
    try:
        arguments = [DATA, *map(str, only)]
        done = bench.run(program.parent, program.name, [DATA], arguments, timeout)
    except TimedOut:
        return bench.timeout_reason
    except Unreachable:  # which says nothing of the candidates
        raise
    except AtcError as refusal:
        return refusal.message
    if done.status != 0:
        return "crashed"
    results: dict[int, tuple[float | None, str]] = {}
    for line in done.stdout.decode("ascii", "replace").splitlines():
        number, what, error = line.split()
        if number == "board":
            _report_board(float(what), float(error), bench)
            continue
        failed = what == "failed"
        reason = f"differs from the portable kernel by {error}" if failed else ""
        results[int(number)] = (None if failed else float(what), reason)
    return results


def _report_board(celsius: float, clock: float, bench: Bench) -> None:
    """Warn of a board that was hot, or slower at the end of measuring than at its beginning."""
    if celsius >= HOT:
        bench.warn(
            f"--fast_run: the board is at {HOT:g} degrees Celsius or more while kernels are "
            "measured; cool it, times of a hot one are too long"
        )
    if clock < SLOWED:
        bench.warn(
            "--fast_run: the clock falls while kernels are measured; hold it (the governor "
            "performance, a lower frequency), or the times compare different clocks"
        )


def _build(tasks: Sequence[Task], bench: Bench, cwd: Path) -> list[Path]:
    """Write, compile and link the programs of workloads, a folder each; return their paths."""
    context = bench.context
    files: dict[str, bytes] = {}
    for number, task in enumerate(tasks):
        own = (HARNESS, DATA)
        made = bench_files(task, bench)
        files |= {f"{number}/{path}" if path in own else path: c for path, c in made.items()}
    write_files(cwd, files)
    headers = headers_of(bench.target) if bench.target.device else ()
    kernels = {} if bench.nvcc else {
        s.path: kernel_unit(s) for task in tasks for s in task.sources
    }  # fmt: skip
    harnesses = [
        Unit(f"{number}/{HARNESS}", "harness", ("src/kernel.h", *headers), cacheable=False)
        for number in range(len(tasks))
    ]
    driver = gpu_units(bench.target, ()) if bench.target.device else []
    images = [_images(number, task, bench, cwd, files) for number, task in enumerate(tasks)]
    units = [*kernels.values(), *harnesses, *driver, *(u for own in images for u in own)]
    compile_units(cwd, files, units, context)

    def objects(task: Task, number: int) -> list[str]:
        own = [s.path for s in task.sources if s.path in kernels]
        more = [u.path for u in (*images[number], *driver)]
        return [f"{p}.o" for p in dict.fromkeys([*own, harnesses[number].path, *more])]

    return [
        link_program(
            context.compiler, context.flags, objects(task, number), f"{number}/harness", cwd,
            static=bench.carries, log=context.log,
        )
        for number, task in enumerate(tasks)
    ]  # fmt: skip


def _images(
    number: int, task: Task, bench: Bench, cwd: Path, files: dict[str, bytes]
) -> list[Unit]:
    """Compile the kernels of a GPU that isn't imitated; returns what includes them."""
    if bench.nvcc is None:
        return []
    data, text = f"{number}/cubins.bin", f"{number}/cubins.S"
    cubins = compile_cubins(cwd, files, task.sources, bench.nvcc, bench.context)
    own = {data: cubins, text: included_weights("bench", data, "cubins").encode()}
    write_files(cwd, own)
    files |= own
    return [Unit(text, "cubins", (data,), cacheable=False)]


def bench_files(task: Task, bench: Bench) -> dict[str, bytes]:
    """Return the sources of a workload's program by path, and its data."""
    given = task.workload, task.chosen, task.sources, bench.target
    values, data = (
        device_harness_of(*given) if bench.target.device else harness_of(*given, bench.warm)
    )
    texts = kernel_tree(task.sources, bench.target)
    if bench.target.device:
        texts["src/gpu_own.h"] = render("cuda/project/gpu_own.h.j2", {"name": "bench"})
        texts[HARNESS] = render("bench/gpu_harness.c.j2", {**values, "device": bench.device_id})
    else:
        texts[HARNESS] = render("bench/harness.c.j2", values)
    return {**{path: text.encode() for path, text in texts.items()}, DATA: data}
