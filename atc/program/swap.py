"""Values that are swapped: copied to the host's memory, and back into another place of the arena.

A value that nothing touches for a while needs no memory of the device between its copy to
page-locked memory of the host and the copy back. Both run beside kernels, on streams of their own,
one for each direction. As values of a swap are complete, a second one needs no other copy there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from atc.backends.cuda.gpus import gpu_of
from atc.backends.target import Target
from atc.dims import max_value
from atc.ir.graph import Alias, original
from atc.program.forks import time_of
from atc.program.steps import Call, Copy, Fork, Program, Step, Wait, calls


@dataclass(frozen=True)
class Swap:
    """A value that is away between two of the program's own steps.

    A part of another value, of which no other part is there yet, is in memory of its own until
    then, and comes back to its place. The copy to the host begins after the step `after` and ends
    with the step `gone`; the copy back begins before the step `begun` and ends before the step
    `before`, which is the next to read it.
    """

    value: str
    after: int
    gone: int
    begun: int
    before: int


@dataclass(frozen=True)
class SwapTimes:
    """Estimated nanoseconds of a run on the device, of its kernels alone, and of all copies."""

    run: float
    kernels: float
    copies: float

    @property
    def waiting(self) -> float:
        """The time in which a run only waits for copies."""
        return self.run - self.kernels


@dataclass(frozen=True)
class SwapModel:
    """Times of calls and copies on a target's device."""

    target: Target

    def copy_ns(self, size: int) -> float:
        """Return the nanoseconds of a copy to page-locked memory of the host, or back."""
        return gpu_of(self.target.device).copy_ns(size)

    def step_ns(self, step: Step) -> float:
        """Return the nanoseconds of a step's calls; no copy runs beside those of the host."""
        own = [c for c in calls((step,)) if c.source.launch is not None]
        times = (time_of(c.choice.workload, c.choice.candidate, c.choice, self.target) for c in own)
        return sum(times)

    def times(self, program: Program) -> SwapTimes:
        """Return the times of a run, whose copies each way follow each other beside its calls."""
        now = kernels = copies = 0.0
        free = {True: 0.0, False: 0.0}
        ends: dict[Copy, float] = {}
        for step in program.steps:
            match step:
                case Copy():
                    own = self.copy_ns(max_value(program.types[step.source].nbytes))
                    ends[step] = free[step.to_host] = max(now, free[step.to_host]) + own
                    copies += own
                case Wait():
                    now = max(now, ends[step.copy])
                case _:
                    own = self.step_ns(step)
                    now += own
                    kernels += own
        return SwapTimes(now, kernels, copies)


def swapped_values(program: Program) -> tuple[str, ...]:
    """Return the values that are swapped, as the model calls them."""
    return tuple(original(value, program.aliases) for value in program.on_host)


def swapped(program: Program, swaps: Iterable[Swap]) -> Program:
    """Return the program with these swaps, in which what comes back has a name of its own.

    No calls but those of the device touch what is swapped, and none writes it afterwards.
    """
    return _Writer(program).written(sorted(swaps, key=lambda s: (s.before, s.value)))


@dataclass
class _Writer:
    program: Program
    latest: dict[str, str] = field(default_factory=dict)
    """The copy that stands for a value now."""

    def __post_init__(self) -> None:
        self.types = dict(self.program.types)
        self.storage = dict(self.program.storage)
        self.byte_offsets = dict(self.program.byte_offsets)
        self.aliases = dict(self.program.aliases)

    def written(self, swaps: Sequence[Swap]) -> Program:
        """Return the program with swaps, which are in the order of their ends."""
        first = {swap.value: swap for swap in reversed(swaps)}  # the only one that copies it there
        there = {
            s: Copy(v, self._named(v, f"{v}#host"), to_host=True) for v, s in first.items()
        }
        back = {
            s: Copy(there[first[s.value]].result, self._again(s.value, k), to_host=False)
            for k, s in enumerate(swaps)
        }
        steps: list[Step] = []
        for k, step in enumerate(self.program.steps):
            steps += (back[s] for s in swaps if s.begun == k)
            for swap in swaps:
                if swap.before == k:
                    steps.append(Wait(back[swap]))
                    self.latest[swap.value] = back[swap].result
            steps.append(self._renamed(step))
            steps += (there[s] for s in there if s.after == k)
            steps += (Wait(there[s]) for s in there if s.gone == k)
        return replace(
            self.program, steps=tuple(steps), types=self.types, storage=self.storage,
            byte_offsets=self.byte_offsets, aliases=self.aliases,
        )  # fmt: skip

    def _again(self, value: str, number: int) -> str:
        """Return the name of a value that is back, a part in its place."""
        name = self._named(value, f"{value}#swap{number}")
        if value in self.storage:
            self._place(name, self.storage.pop(value), self.byte_offsets.pop(value, 0))
        return name

    def _place(self, value: str, base: str, offset: int) -> None:
        self.storage[value] = base
        if offset:
            self.byte_offsets[value] = offset

    def _named(self, value: str, name: str) -> str:
        """Return a name for another instance of a value."""
        while name in self.types:
            name += "+"
        self.types[name], self.aliases[name] = self.types[value], Alias("swapped", value)
        return name

    def _renamed(self, step: Step) -> Step:
        """Return a step that reads what is there now."""
        if isinstance(step, Fork):
            return Fork(tuple(tuple(map(self._call, calls(b))) for b in step.branches))
        return self._call(step) if isinstance(step, Call) else step

    def _call(self, call: Call) -> Call:
        names = {a: self._current(a) for a in (*call.arguments, *call.node.inputs) if a}
        if all(name == own for own, name in names.items()):
            return call
        inputs = tuple(names.get(i, i) for i in call.node.inputs)
        return replace(
            call, node=replace(call.node, inputs=inputs),
            arguments=tuple(names[a] for a in call.arguments),
            in_place=tuple(names.get(a, a) for a in call.in_place),
            also_in_place=tuple((names.get(a, a), by) for a, by in call.also_in_place),
        )  # fmt: skip

    def _current(self, value: str) -> str:
        """Return what stands for a value now: the same part of its base's latest copy."""
        base, offset = value, 0
        while base in self.storage:
            offset += self.byte_offsets.get(base, 0)
            base = self.storage[base]
        whole = self.latest.get(base)
        if whole is None or value == base:
            return whole or value
        name = f"{value}#in {whole}"
        if name not in self.types:
            self._place(self._named(value, name), whole, offset)
        return name
