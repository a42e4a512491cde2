"""Run a library as often as asked, in contexts and threads, and report how long it took."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atc.errors import one_line
from atc.ir.graph import Array
from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.console import Console
from atc.load_and_run.context import Context
from atc.load_and_run.engine import Engine
from atc.load_and_run.failure import CheckError
from atc.load_and_run.memory import Memory
from atc.load_and_run.plugins import Plugins
from atc.load_and_run.profile import ProfiledRun
from atc.load_and_run.statistics import Statistics, statistics
from atc.load_and_run.workers import Start, here, workers


@dataclass
class Timing:
    """Times of one context's runs, in ms: `host` without the copy of the outputs."""

    warmup: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    profile: list[ProfiledRun] = field(default_factory=list)
    failure: BaseException | None = None

    @property
    def statistics(self) -> Statistics | None:
        """Of the timed runs; None if there were none."""
        return statistics(self.e2e) if self.e2e else None


def run_test(
    engine: Engine, inputs: Mapping[str, Array], arguments: RunArguments, plugins: Plugins,
    memory: Memory, console: Console, number: int = 0,
) -> tuple[list[Timing], list[Array]]:  # fmt: skip
    """Run one set of inputs in all threads; return the times and the outputs.

    Raises CheckError where threads disagree or memory was written that isn't the network's.
    """
    begin = time.perf_counter()
    arrays = [memory.holding(inputs[t.name]) for t in engine.inputs]
    contexts = [_context(engine, arrays, memory) for _ in range(arguments["thread"])]
    if arguments["fake_first"]:
        for context in contexts:
            context.prepare()
    prepared = 1e3 * (time.perf_counter() - begin)
    console.line(f"=== prepare: {prepared:.3f} ms; going to warmup")
    console.result.setdefault("prepare_ms", []).append(prepared)
    digest = _digest(arrays)
    timings = [Timing() for _ in contexts]
    _in_threads(contexts, timings, arguments, plugins, console, number)
    for k, timing in enumerate(timings):
        _show(timing, console, number, k, len(timings))
    if not arguments["no_sanity_check"]:
        _check_sanity(contexts, arrays, digest)
        console.debug("sanity check: inputs, arena and outputs are intact")
    _check_agreement(contexts, engine)
    return timings, contexts[0].results()


def _context(engine: Engine, arrays: Sequence[Array], memory: Memory) -> Context:
    outputs = [memory.empty(t.shape, t.stored) for t in engine.outputs]
    return Context(engine, arrays, outputs)


def _in_threads(
    contexts: Sequence[Context], timings: Sequence[Timing], arguments: RunArguments,
    plugins: Plugins, console: Console, number: int,
) -> None:  # fmt: skip
    """Run all contexts, each in a thread of its own if there are several; raise what they raise.

    The plugins look at the first one.
    """
    if len(contexts) == 1:
        with workers(contexts[0], arguments, console) as (start, plugins.cores):
            _runs(contexts[0], timings[0], arguments, plugins, start, number)
        return
    barrier = threading.Barrier(len(contexts))

    def work(k: int) -> None:
        try:
            barrier.wait()
            own = plugins if k == 0 else None
            _runs(contexts[k], timings[k], arguments, own, here, number)
        except BaseException as error:
            timings[k].failure = error

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(contexts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for timing in timings:
        if timing.failure is not None:
            raise timing.failure


def _runs(
    context: Context, timing: Timing, arguments: RunArguments, plugins: Plugins | None,
    start: Start, number: int,
) -> None:  # fmt: skip
    warmups = arguments["warmup_iter"] if number == 0 else 0
    for k in range(warmups + arguments["iter"]):
        if plugins is not None:
            plugins.before(context)
        begin, middle, end = _timed(context, arguments["copy_to_host"], start)
        if plugins is not None:
            plugins.after(context)
            if context.engine.is_profiled and k >= warmups:
                copied = end - middle
                timing.profile.append(ProfiledRun(context.profile(), *context.span, copied))
        if k < warmups:
            timing.warmup.append(1e3 * (end - begin))
        else:
            timing.e2e.append(1e3 * (end - begin))
            timing.host.append(1e3 * (middle - begin))


def _timed(context: Context, copies: bool, start: Start) -> tuple[float, float, float]:
    """Run once; return when it began, when the network was done, and the copies too."""
    if context.engine.is_profiled:
        context.reset_profile()
    begin = time.perf_counter()
    start(context.run)
    middle = time.perf_counter()
    if not copies:
        return begin, middle, middle
    for output in context.results():
        output.copy()
    return begin, middle, time.perf_counter()


def _show(timing: Timing, console: Console, number: int, thread: int, threads: int) -> None:
    mark = f"thread {thread}: " if threads > 1 else ""
    for k, ms in enumerate(timing.warmup):
        console.line(f"{mark}warm up {k} {ms:.3f} ms")
    for k, (e2e, host) in enumerate(zip(timing.e2e, timing.host, strict=True)):
        console.line(f"{mark}iter {k}/{len(timing.e2e)}: e2e={e2e:.3f} ms (host={host:.3f} ms)")
    found = timing.statistics
    if found is None:
        return
    sd = "N/A" if found.sd is None else f"{found.sd:.3f} ms"
    console.line(
        f"{mark}=== finished test #{number}: time={found.total:.3f} ms avg_time={found.mean:.3f} "
        f"ms standard_deviation={sd} min={found.least:.3f} ms max={found.most:.3f} ms"
    )
    console.line(f"{mark}=== median={found.median:.3f} ms spread={found.spread:.3f} ms")


# ---- checks of every test -----------------------------------------------------------------------


def _digest(arrays: Sequence[Array]) -> bytes:
    state = hashlib.blake2b()
    for array in arrays:
        state.update(array.tobytes())
    return state.digest()


def _check_sanity(contexts: Sequence[Context], arrays: Sequence[Array], digest: bytes) -> None:
    """Raise CheckError if inputs or memory beside the arenas were written."""
    if _digest(arrays) != digest:
        raise CheckError("the network wrote into its inputs", where="sanity check")
    if not all(context.fences_hold() for context in contexts):
        raise CheckError("the network wrote beside its arena", where="sanity check")


def _check_agreement(contexts: Sequence[Context], engine: Engine) -> None:
    first = contexts[0].results()
    for k, context in enumerate(contexts[1:], start=1):
        for tensor, a, b in zip(engine.outputs, first, context.results(), strict=True):
            if a.tobytes() != b.tobytes():
                raise CheckError(
                    f"output '{one_line(tensor.name, 100)}' of thread {k} isn't that of thread 0",
                    where="--thread",
                )
