"""The C of a program for a GPU: launches and moves between the host's own calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from atc.backends.kernel import Launch
from atc.backends.kernel_source import KernelSource
from atc.codegen.copies import copies_of
from atc.codegen.gpu_values import Gpu, GpuRun, Segment, listed
from atc.codegen.project_options import Instrumentation
from atc.codegen.schedule import Plan, Schedule, make_schedule
from atc.codegen.steps import StepWriter
from atc.codegen.uses import Uses, extent_text, plus
from atc.dims import Dim, max_value
from atc.names import comment
from atc.program.placement import Move, Placement, on_device, place
from atc.program.states import memory_of
from atc.program.steps import Call, Copy, Fork, Step, Wait, calls, swap_text

Launched = Call | Fork | Copy | Wait
"""Steps that a GPU runs."""


def make_gpu(
    plans: Sequence[Plan], kernels: Sequence[KernelSource], network: str, device: str,
    around: Instrumentation, copy_streams: int,
) -> Gpu:  # fmt: skip
    """Write the calls of programs some of whose steps a GPU runs.

    None of those that something is done `around` is in a graph. `kernels` are those of all
    programs. Of several programs each is run by a function of its own. Inputs and outputs are
    copied on at most `copy_streams`.
    """
    launched = tuple(k for k in kernels if k.launch)
    segments: list[Segment] = []
    runs = []
    for k, plan in enumerate(plans):
        several = "run_ranges" if plan.program.dims else f"run_shape{k}"
        function = several if len(plans) > 1 else "run_on_gpu"
        write = partial(make_schedule, plan, network, around)
        runs.append(_make_run(plan, launched, segments, function, write, copy_streams))
    arena = max(plan.arena.plan.size for plan in plans)
    return Gpu(tuple(map(listed, launched)), tuple(segments), arena, device, tuple(runs))


def _make_run(
    plan: Plan, kernels: Sequence[KernelSource], segments: list[Segment], function: str,
    write: Callable[..., Schedule], copy_streams: int,
) -> GpuRun:  # fmt: skip
    """Write one program's calls, and add its segments to those there are."""
    program, weights = plan.program, plan.weights
    hosted, resident = place(program, resident=False), place(program, resident=True)
    writer = partial(
        _GpuWriter, weights=weights, kernels=kernels, hosted=hosted, resident=resident,
        segments=segments, function=function, copy_streams=copy_streams,
    )  # fmt: skip
    whole = write(writer=writer)
    used = whole.uses.pointers
    schedule = replace(
        whole,
        constants=tuple(c for c in whole.constants if c.c_name in used),
        values=tuple(v for v in whole.values if v.c_name in used),
        inputs=tuple(replace(p, used=p.c_name in used) for p in whole.inputs),
        outputs=tuple(replace(p, used=p.c_name in used) for p in whole.outputs),
    )
    moved = {m.base for side in resident.before for m in side if not m.to_device}
    hosted_calls = [*calls(s for s in program.steps if not on_device(s))]
    touched = {program.base(a) for call in hosted_calls for a in call.arguments} | moved
    guarded = plan.arena.guard > 0 and bool(hosted_calls)
    ports = (*program.inputs, *program.output_bases)
    inputs = [m for moves in hosted.before for m in moves if m.base in program.inputs]
    copied = min(max(len(inputs), len(hosted.after)), copy_streams)
    forks = [s for s in program.steps if isinstance(s, Fork) and on_device(s)]
    swaps = sum(isinstance(s, Copy) for s in program.steps)
    return GpuRun(
        function, schedule, 1 + max((s.index for s in program.dims), default=-1),
        tuple(p in touched for p in ports), bool(schedule.values) or whole.uses.arena or guarded,
        max(copied, 1, *(len(s.branches) for s in forks)) - 1 + 2 * (swaps > 0),
        swaps, plan.arena.host_size,
        copies_of([max_value(program.types[i].nbytes) for i in program.inputs]),
    )  # fmt: skip


def launches(
    launch: Launch, blocks: str, pointers: Sequence[str], dims: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the C of how many blocks run, `blocks` in the first phase, and of a kernel's arguments.

    These are `pointers` and `dims`, and between them the phase where there are several.
    """
    for number, some in enumerate((blocks, *map(str, launch.later))):
        phase = (str(number),) if launch.later else ()
        yield some, f"(const CUdeviceptr[]){{{', '.join((*pointers, *phase, *dims))}}}"


@dataclass(kw_only=True)
class _GpuWriter(StepWriter):
    """Writes launches where a GPU computes, and the moves before them."""

    weights: Mapping[str, int]
    kernels: Sequence[KernelSource]
    hosted: Placement
    resident: Placement
    segments: list[Segment]
    function: str
    copy_streams: int
    tables: set[str] = field(default_factory=set)
    swaps: dict[Copy, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program, offsets = self.program, self.arena.offsets.items()
        self.begins = {
            program.base(v): at - max_value(program.byte_offset(v)) for v, at in offsets
        }
        self.buffers = {program.base(v): k for v, k in self.arena.number.items()}
        self.outputs = {base: k for k, base in enumerate(program.output_bases)}
        self.leads = {s.value: memory_of(program, s).lead for s in program.states}

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the C of all steps as one: what is moved, and what is replayed, spans several."""
        return (tuple(self._whole(self.program.steps)),)

    def _whole(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield the program's steps with what is moved."""
        # Inputs are never written: all of them can be moved before anything runs.
        sides = (self.hosted, self.resident)
        early, there = (self._of_inputs(each.before) for each in sides)
        yield from self._transfers(early, there)
        pairs = zip(self.hosted.before, self.resident.before, strict=True)
        pending: list[Launched] = []
        for step, moves in zip(steps, pairs, strict=True):
            hosted = [m for m in moves[0] if m not in early]
            resident = [m for m in moves[1] if m not in there]
            launched = on_device(step)
            if hosted or resident or not launched:
                yield from self._segment(pending)
                pending = []
            yield from self._moves(hosted, resident)
            if isinstance(step, Launched) and launched:
                pending.append(step)
            else:
                yield from self.steps((step,))
        yield from self._segment(pending)
        yield from self._transfers(self.hosted.after, self.resident.after)

    def _of_inputs(self, before: Sequence[Sequence[Move]]) -> list[Move]:
        """Return the moves of the network's inputs."""
        return [m for moves in before for m in moves if m.base in self.program.inputs]

    def _segment(self, launched: Sequence[Launched]) -> Iterator[str]:
        """Yield what queues launches with nothing between them: several are replayed as a graph."""
        if len([*calls(launched)]) < 2 or self.looks:
            failed = f"return {self.upper}_ERROR_GPU;"
            for step in launched:
                if isinstance(step, Copy | Wait):
                    yield from self._swap(step, failed)
                for call in calls((step,)):
                    yield from self._launch(call, failed)
            return
        first, number = self.number, len(self.segments)
        self.tables = set()
        outer, self.uses = self.uses, Uses()
        lines = tuple(line for step in launched for line in self._queued(step))
        self.tables |= {"d"} if self.uses.extents else set()
        self.tables |= {"at"} if self.uses.places else set()
        outer.extents |= self.uses.extents  # they may call functions
        self.uses = outer
        of = "" if self.function == "run_on_gpu" else f" of {self.function}"
        steps = f"Steps {first} to {self.number - 1}{of}."
        self.segments.append(Segment(steps, lines, frozenset(self.tables)))
        yield f"/* {first} to {self.number - 1}: a graph */"
        asked = f"gpu_replay(gpu, stream, {number}, hosted ? 0 : 1, in)"
        yield f"if (!{asked}) return {self.upper}_ERROR_GPU;"

    def _queued(self, step: Launched) -> Iterator[str]:
        """Yield the launches of a step of a graph; those of a fork's branches on streams each."""
        if isinstance(step, Call):
            yield from self._launch(step, "return 0;")
            return
        if isinstance(step, Copy | Wait):
            yield from self._swap(step, "return 0;")
            return
        others = len(step.branches) - 1
        yield f"if (!gpu_fork(gpu, stream, {others})) return 0;"
        for k, branch in enumerate(step.branches):
            stream = f"gpu->sides[{k - 1}]" if k else "stream"
            for call in calls(branch):
                yield from self._launch(call, "return 0;", stream)
        yield f"if (!gpu_join(gpu, stream, {others})) return 0;"

    def _swap(self, step: Copy | Wait, failed: str) -> Iterator[str]:
        """Yield the begin of a copy to the host's memory or back, or the wait for its end."""
        if self.logged:
            yield self._log(step)
        yield f"/* {self.number}: {comment(swap_text(step, self.program), 64)} */"
        self.number += 1
        copy = step.copy if isinstance(step, Wait) else step
        number = self.swaps.setdefault(copy, len(self.swaps))
        if isinstance(step, Wait):
            yield f"if (!gpu_swapped(gpu, stream, {number})) {failed}"
            return
        there, here = (copy.result, copy.source) if copy.to_host else (copy.source, copy.result)
        where = f"{self.arena.on_host[there]}, {self._device(here)}"
        way = "out" if copy.to_host else "in"
        size = max_value(self.program.types[here].nbytes)
        yield f"if (!gpu_swap_{way}(gpu, stream, {number}, {where}, {size})) {failed}"

    @property
    def looks(self) -> bool:
        """Whether something is to be done around each launch."""
        return self.timed or self.observed or self.checked or self.logged

    def _launch(self, call: Call, failed: str, stream: str = "stream") -> Iterator[str]:
        if self.logged:
            yield self._log(call)
        node = call.node
        reads = ", ".join(comment(i, 32) for i in node.inputs if i)
        writes = ", ".join(comment(o, 32) for o in node.outputs)
        yield f"/* {self._head(call, node.op.kind)}: {reads} -> {writes} */"
        at = [self._device(a) for a in call.arguments]
        lines = self._launched(call, at, failed, stream)
        looked_at = self.observed or self.checked
        yield from self._shown(call, at, lines, failed) if looked_at else lines
        self.called += 1

    def _launched(
        self, call: Call, values: Sequence[str], failed: str, stream: str
    ) -> Iterator[str]:
        """Yield a call's launches, on values at C addresses."""
        at = [*values]
        if call.source.scratch:
            at.append(self._device_scratch(call.node.outputs[0]))
        self.uses.extents |= dict.fromkeys(call.source.dims)
        dims = [f"(CUdeviceptr)({extent})" for extent in call.source.dims]
        launch = call.source.launch
        assert launch is not None
        number = self.kernels.index(call.source)
        blocks = self._extent(launch.wanted) if isinstance(launch.wanted, Dim) else ""
        if self.timed:
            self.uses.times = self.uses.device_times = True
            yield "begin = nanoseconds();"
            yield "took = 0;"
        for some, table in launches(launch, blocks, at, dims):
            if self.timed:
                given = f"{number}, {some or 'INT64_MAX'}, {table}"
                yield f"if (!gpu_timed_launch(gpu, stream, {given}, &took)) {failed}"
            elif some:
                yield f"if (!gpu_launch_blocks(gpu, {stream}, {number}, {some}, {table})) {failed}"
            else:
                yield f"if (!gpu_launch(gpu, {stream}, {number}, {table})) {failed}"
        if self.timed:
            yield f"add_device_time(ctx, {self.called}, begin, took);"

    def _shown(
        self, call: Call, at: Sequence[str], lines: Iterator[str], failed: str
    ) -> Iterator[str]:
        """Yield a call's lines between two looks of the observer, or of the checks."""
        types = [self.program.types[name] for name in call.arguments]
        types[len(types) - len(call.node.outputs) :] = call.choice.workload.outputs
        copies = copies_of([max_value(t.nbytes) for t in types])
        values = ", ".join(
            f"{{{where}, {self._within(t.nbytes)}, {begin}}}"
            for where, t, begin in zip(at, types, copies.begins, strict=True)
        )
        yield "{"
        yield f"  const gpu_value values[] = {{{values}}};"
        seen = f"values, {len(types)}, {copies.room}"
        passed = f"if (checked != {self.upper}_OK) return checked;"
        if self.observed:
            yield f"  if (!show(ctx, stream, {self.called}, 0, {seen})) {failed}"
        if self.checked:
            yield f"  int checked = enter_there(ctx, stream, {self.called}, {seen});"
            yield f"  {passed}"
        yield from (f"  {line}" for line in lines)
        if self.checked:
            yield f"  checked = leave_there(ctx, stream, {self.called}, {seen});"
            yield f"  {passed}"
        if self.observed:
            yield f"  if (!show(ctx, stream, {self.called}, 1, {seen})) {failed}"
        yield "}"

    def _device(self, value: str) -> str:
        """Return the C address of a value on the device."""
        if value in self.weights:
            return plus("gpu->weights", self.weights[value])
        base, offset = self.program.base(value), self.program.byte_offset(value)
        if base in self.program.inputs or base in self.outputs:
            return self._port(base, offset)
        if value in self.arena.number:
            begin = self.leads.get(base, 0) + offset
            return self._placed("gpu->arena", self.arena.number[value], begin)
        return plus("gpu->arena", self.arena.offsets[value])

    def _device_scratch(self, own: str) -> str:
        if own in self.arena.scratch_number:
            return self._placed("gpu->arena", self.arena.scratch_number[own], 0)
        return plus("gpu->arena", self.arena.scratch[own])

    def _placed(self, arena: str, buffer: int, begin: int) -> str:
        """Return C of an address in a buffer whose place is known when it runs."""
        self.uses.places = True
        begin += self.arena.guard
        return f"{arena} + at[{buffer}]" + (f" + {self._within(begin)}" if begin else "")

    def _within(self, begin: int) -> str:
        text = extent_text(self.uses, begin)
        return f"(size_t)({text})" if isinstance(begin, Dim) else text

    def _port(self, base: str, begin: int) -> str:
        inside = base in self.program.inputs
        number = self.program.inputs.index(base) if inside else self.outputs[base]
        table = "in" if inside else "out"
        self.tables.add(table)
        return f"{table}[{number}]" + (f" + {self._within(begin)}" if begin else "")

    def _transfers(self, hosted: Sequence[Move], resident: Sequence[Move]) -> Iterator[str]:
        """Yield the moves at a run's begin or end: of the host's tensors on several streams."""
        own = [m for m in hosted if m not in resident]
        streams = min(self.copy_streams, len(own))
        failed = f"return {self.upper}_ERROR_GPU;"
        if streams < 2:
            yield from self._moves(hosted, resident, waits=False)
            return
        yield f"if (hosted && !gpu_fork(gpu, stream, {streams - 1})) {failed}"
        for k, move in enumerate(own):
            stream = f"gpu->sides[{k % streams - 1}]" if k % streams else "stream"
            yield f"if (hosted && !{self._move(move, stream)}) {failed}"
        yield f"if (hosted && !gpu_join(gpu, stream, {streams - 1})) {failed}"
        yield from self._moves([m for m in hosted if m in resident], resident, waits=False)

    def _moves(
        self, hosted: Sequence[Move], resident: Sequence[Move], waits: bool = True
    ) -> Iterator[str]:
        """Yield the moves of both ways to run; those of one alone ask which it is.

        The host touches what is moved soon, or lets another run do that: it `waits`. A run on the
        host's tensors alone waits at its end for the moves of these.
        """
        for move in dict.fromkeys((*hosted, *resident)):
            both = move in hosted and move in resident
            asked = "" if both else "hosted && " if move in hosted else "!hosted && "
            done = f"!{self._move(move)}"
            if waits or both or move in resident:
                done = f"({done} || !gpu_wait(gpu, stream))"
            yield f"if ({asked}{done}) return {self.upper}_ERROR_GPU;"

    def _move(self, move: Move, stream: str = "stream") -> str:
        base, size = move.base, self._within(move.end - move.begin)
        if base in self.program.inputs or base in self.outputs:
            device, host = self._port(base, move.begin), self.pointers[base]
            self.uses.pointers.add(host)
            kept = "const " if move.to_device else ""
            offset = f" + {self._within(move.begin)}" if move.begin else ""
            host = f"({kept}unsigned char *){host}{offset}"
        elif base in self.buffers:
            self.uses.arena = True
            device, host = (
                self._placed(arena, self.buffers[base], self.leads.get(base, 0) + move.begin)
                for arena in ("gpu->arena", "arena")
            )
        else:
            self.uses.arena = True
            at = self.begins[base] + move.begin
            device, host = plus("gpu->arena", at), plus("arena", at)
        if move.to_device:
            return f"gpu_to_device(gpu, {stream}, {device}, {host}, {size})"
        return f"gpu_to_host(gpu, {stream}, {host}, {device}, {size})"
