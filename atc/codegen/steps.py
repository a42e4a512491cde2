"""The steps of a program as C, and what they use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from atc.codegen.cascade import cascade_loop, rolls, row_arguments
from atc.codegen.tasks import Table, Task
from atc.codegen.uses import Uses, extent_text, plus
from atc.dims import Dim, Symbol, lower_bound, symbols_of
from atc.ir.text import node_text
from atc.memory.arena import Arena
from atc.names import c_string, comment
from atc.program.axis_partition import OWN, AxisPartition
from atc.program.steps import (
    Branch,
    Call,
    CascadeLoop,
    Copy,
    Fork,
    Parallel,
    Program,
    Repeat,
    Slot,
    Step,
    Wait,
    swap_text,
)


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w\[\]]+", text) else f"({text})"


def _arrow(step: Call | CascadeLoop | Parallel) -> str:
    """Return what a step reads and writes."""
    reads = ", ".join(comment(i, 32) for i in step.node.inputs if i)
    return f"{reads} -> {', '.join(comment(o, 32) for o in step.node.outputs)}"


@dataclass
class StepWriter:
    """Writes steps and counts them."""

    program: Program
    arena: Arena
    pointers: Mapping[str, str]
    timed: bool
    observed: bool
    checked: bool
    logged: bool
    upper: str
    """The prefix of the statuses."""
    uses: Uses
    number: int = 0
    called: int = 0
    depth: int = 0
    """Loops around what is being written."""
    known: set[Symbol] = field(default_factory=set)
    """Extents that kernels have written so far."""
    guards: tuple[int, ...] = ()
    """What must be 0 in the branches and bodies that are being written, and around them."""
    tasks: list[Task] = field(default_factory=list)

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the C of each step of the program."""
        return tuple(tuple(self.steps((step,))) for step in self.program.steps)

    def steps(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield the C of steps."""
        for step in steps:
            if self.logged:
                yield self._log(step)
            match step:
                case Call():
                    yield from self._call(step)
                case Branch():
                    yield from self._branch(step)
                case Repeat():
                    yield from self._repeat(step)
                case CascadeLoop():
                    yield from self._cascade(step)
                case Parallel():
                    yield from self._parallel(step)
                case Fork():
                    yield from self._fork(step)

    def _extent(self, value: int) -> str:
        return extent_text(self.uses, value)

    def _pointer(self, value: str) -> str:
        inside = value not in self.pointers
        pointer = self.pointers[self.program.base(value) if inside else value]
        self.uses.pointers.add(pointer)
        offset = self.program.byte_offset(value) // self.program.types[value].dtype.itemsize
        return f"{pointer} + {self._extent(offset)}" if inside and offset else pointer

    def _scratch(self, call: Call) -> str:
        """Return the address of a call's scratch."""
        self.uses.arena = True
        own = call.node.outputs[0]
        if own not in self.arena.scratch_number:
            return plus("arena", self.arena.scratch[own])
        self.uses.places = True
        guard = f" + {self.arena.guard}" if self.arena.guard else ""
        return f"arena + at[{self.arena.scratch_number[own]}]{guard}"

    def _assigned(self, pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield C that gives extents new values, all at once."""
        both = [(self._extent(own), self._extent(value)) for own, value in pairs]
        if len(both) > 1:
            yield "{"
            yield f"  const int64_t next[] = {{{', '.join(value for _, value in both)}}};"
            yield from (f"  {own} = next[{k}];" for k, (own, _) in enumerate(both))
            yield "}"
        else:
            yield from (f"{own} = {value};" for own, value in both)

    def _head(self, step: Call | Branch | Repeat | CascadeLoop | Parallel, kind: str) -> str:
        origin = " + ".join(comment(o, 48) for o in step.node.origin[:4]) or node_text(step.node)
        self.number += 1
        return f'{self.number - 1}: {kind} "{origin}"'

    def _log(self, step: Step) -> str:
        """Return the line that logs a step before it runs."""
        if isinstance(step, Fork):
            text = f"step {self.number}, {len(step.branches)} branches"
        elif isinstance(step, Copy | Wait):
            text = f"step {self.number}, {swap_text(step, self.program)}"
        else:
            nodes = node_text(step.node)[:200]
            text = f"step {self.number}, {step.node.op.kind} of node '{nodes}'"
        return f"write_log(ctx, {self.upper}_LOG_DEBUG, {c_string(text)}, NULL);"

    def _call(self, call: Call) -> Iterator[str]:
        node = call.node
        reads = ", ".join(comment(i, 32) for i in node.inputs if i)
        writes = ", ".join(comment(o, 32) for o in node.outputs)
        yield f"/* {self._head(call, node.op.kind)}: {reads} -> {writes} */"
        arguments = [self._pointer(a) for a in call.arguments]
        if call.slot is not None:
            arguments[-1] += f" + {self._place(call.slot)}"
        seen, reading = ", ".join(arguments), len(arguments) - len(node.outputs)
        if call.source.scratch:
            arguments.append(self._scratch(call))
        arguments += (f"&{self._extent(extent)}" for extent in node.op.written)
        if call.source.dims and call.partition is None:
            arguments.append(self._dims(call))
        lines = [f"{call.source.symbol}({', '.join(arguments)});"]
        if call.source.fallible:
            failed = "if (failed != 0) return failed;"
            lines = ["{", f"  const int failed = {lines[0]}", f"  {failed}", "}"]
        if call.partition is not None:
            lines = self._partitioned(call, call.partition, arguments)
        elif call.source.work_split.partitions > 1:
            lines = self._shared(call, arguments)
        if self.timed:
            self.uses.times = self.uses.host_times = True
            lines = ["begin = nanoseconds();", *lines, f"add_time(ctx, {self.called}, begin);"]
        if self.checked:
            lines = self._checked(lines, seen, arguments[reading : len(call.arguments)])
        yield from self._observed(lines, seen) if self.observed else lines
        yield from self._bounded(node.op.written)
        self.called += 1

    def _dims(self, call: Call) -> str:
        """Return the table of the extents that a kernel reads."""
        self.uses.extents |= dict.fromkeys(call.source.dims)
        return call.source.table

    def _partitioned(self, call: Call, cut: AxisPartition, arguments: Sequence[str]) -> list[str]:
        """Return the lines in which threads share an axis, whose extent the run may decide."""
        name, source = f"partitions_{self.number - 1}", call.source
        operands = [(a.type, f"at[{k}]") for k, a in enumerate(source.arguments[: len(arguments)])]
        steps = zip(operands, cut.steps, strict=False)
        places = [
            f"({kind}){place} + begin * {self._factor(step)}" if step != 0 else place
            for (kind, place), step in steps
        ]  # fmt: skip
        if source.scratch:
            each = self._factor(source.scratch // cut.partitions)
            places.append(f"(char *)at[{len(places)}] + partition * {each}")
        places.append(self._dims(call))
        count, unit = self._extent(cut.extent), cut.partitions * cut.unit
        run = f"{source.symbol}({', '.join(places)});"
        first, in_table = len(arguments), bool(re.search(r"\bd\[", run))
        lines = (
            *[f"const int64_t *const d = at[{first + 1}];"] * in_table,
            f"const int64_t *const axis = at[{first}];",
            "const int64_t begin = partition * axis[1];",
            f"const int64_t {OWN} = axis[0] - begin < axis[1] ? axis[0] - begin : axis[1];",
            run,
        )
        step = f"any partition of step {self.number - 1}"
        what = f"{step}: `axis` are its iterations, and those of a partition"
        self.tasks.append(Task(name, what, (lines,)))
        share = f"({count} + {unit - 1}) / {unit}{f' * {cut.unit}' * (cut.unit > 1)}"
        if pays := self._pays(call):
            share = f"{pays} ? {share} : {count}"
        values = [*arguments, "axis", *["d"] * in_table]
        some = "if (axis[0] > 0) " * (lower_bound(cut.extent) <= 0)
        return [
            "{",
            f"  const int64_t axis[] = {{{count}, {share}}};",
            f"  void *const operands[] = {{{', '.join(f'(void *)({v})' for v in values)}}};",
            f"  {some}run_partitions("
            f"ctx, {name}, operands, (int)((axis[0] + axis[1] - 1) / axis[1]));",
            "}",
        ]

    def _pays(self, call: Call) -> str:
        """Return the C condition for several threads; '' where they pay in every run."""
        if not isinstance(call.gain, Dim) or lower_bound(call.gain) > 0:
            return ""
        return f"{self._extent(call.gain)} > 0"

    def _factor(self, value: int) -> str:
        return _bracketed(self._extent(value))

    def _shared(self, call: Call, arguments: Sequence[str]) -> list[str]:
        """Return the lines in which threads share a call, phase after phase."""
        work_split, name = call.source.work_split, f"partitions_{self.number - 1}"
        places = [f"at[{k}]" for k in range(len(arguments))]
        values = [f"(void *)({pointer})" for pointer in arguments]
        phased = work_split.phases != 1
        own = ["partition"]
        if phased:
            own.append(f"*(const int *)at[{len(arguments)}]")
            values.append("&phase")
        ends = len(places) - bool(call.source.dims)  # extents come last
        line = f"{call.source.symbol}({', '.join((*places[:ends], *own, *places[ends:]))});"
        self.tasks.append(Task(name, f"any partition of step {self.number - 1}", ((line,),)))
        count = work_split.partitions
        run = f"run_partitions(ctx, {name}, operands, {count});"
        alone = f"for (int k = 0; k < {count}; k++) {name}(operands, k);"
        loop = f"for (; phase < {self._extent(work_split.phases)}; phase++) " if phased else ""
        lines = [f"{loop}{run}"]
        if pays := self._pays(call):
            lines = [f"if ({pays}) {{", f"  {loop}{run}", "} else {", f"  {loop}{alone}", "}"]
        return [
            "{",
            *["  int phase = 0;"] * phased,
            f"  void *const operands[] = {{{', '.join(values)}}};",
            *(f"  {line}" for line in lines),
            "}",
        ]

    def _bounded(self, written: Sequence[int]) -> Iterator[str]:
        """Yield the checks of extents that a kernel has written, and of what depends on them."""
        own = {s for extent in written for s in symbols_of(extent) if not s.given} - self.known
        wrong = [
            f"{s.text} < {s.low} || {s.text} > {_bracketed(self._extent(s.high))}"
            for s in sorted(own, key=lambda s: s.index)
        ]
        self.known |= own
        wrong += self._violated(own)
        yield from (f"if ({each}) return {self.upper}_ERROR_SHAPE;" for each in wrong)

    def _consistent(self, extents: Sequence[int]) -> Iterator[str]:
        """Yield the checks of what depends on extents that control flow has written."""
        own = {s for extent in extents for s in symbols_of(extent) if not s.given}
        self.known |= own
        for wrong in self._violated(own):
            yield f"if ({wrong}) return {self.upper}_ERROR_SHAPE;"

    def _violated(self, own: Set[Symbol]) -> Iterator[str]:
        """Yield the conditions of runs that end, now that these extents are known, too."""
        for guard in (*self.program.guards, *self.guards):
            symbols = {s for s in symbols_of(guard) if not s.given}
            if symbols & own and symbols <= self.known:
                yield f"({self._extent(guard)}) != 0"

    def _guarded(self, steps: Sequence[Step], guards: Sequence[int]) -> Iterator[str]:
        """Yield the C of steps that run only where extents are 0, each checked once it's known."""
        around, self.guards = self.guards, (*self.guards, *guards)
        for guard in guards:
            if {s for s in symbols_of(guard) if not s.given} <= self.known:
                yield f"if (({self._extent(guard)}) != 0) return {self.upper}_ERROR_SHAPE;"
        yield from self.steps(steps)
        self.guards = around

    def _checked(self, lines: Sequence[str], seen: str, results: Sequence[str]) -> list[str]:
        """Return a call's lines between the checks before and after it."""
        watched = f"(const void *const[]){{{seen}}}"
        made = f"(const void *const[]){{{', '.join(results)}}}"
        after = f"atc_leave(ctx, ctx->arena, {self.called}, {made})"
        return [
            f"atc_enter(ctx, ctx->arena, {self.called});",
            f"atc_watch(ctx, {self.called}, false, {watched});",
            *lines,
            f"atc_watch(ctx, {self.called}, true, {watched});",
            f"if (!{after}) return {self.upper}_ERROR_CHECK;",
        ]

    def _parallel(self, step: Parallel) -> Iterator[str]:
        """Yield the call of a task for all partitions."""
        name = f"partitions_{self.number}"
        head = self._head(step, step.node.op.kind)
        table = Table()
        partitions = tuple(tuple(self._in_thread(each, table.place)) for each in step.partitions)
        self.tasks.append(Task(name, head, partitions))
        yield f"/* {head}: {_arrow(step)}, in {len(partitions)} partitions */"
        yield from table.run(name, len(partitions))

    def _fork(self, step: Fork) -> Iterator[str]:
        """Yield the call of a task for all branches."""
        name, number = f"branches_{self.number}", self.number
        self.number += 1
        table = Table()
        branches: list[tuple[str, ...]] = []
        for branch in step.branches:
            lines: list[str] = []
            for each in branch:
                kind = "in stripes" if isinstance(each, CascadeLoop) else each.node.op.kind
                lines.append(f"/* {self._head(each, kind)}: {_arrow(each)} */")
                lines += self._in_thread(each, table.place)
            branches.append(tuple(lines))
        self.tasks.append(Task(name, f"{number}: independent branches", tuple(branches)))
        yield f"/* {number}: {len(branches)} branches, steps {number + 1}-{self.number - 1} */"
        yield from table.run(name, len(branches))

    def _in_thread(self, step: Call | CascadeLoop, place: Callable[[str], str]) -> Iterator[str]:
        """Yield the lines of a call, or of a cascade, within a task."""
        return (
            self._stripes(step, place)
            if isinstance(step, CascadeLoop)
            else self._one_call(step, place)
        )

    def _one_call(
        self, call: Call, place: Callable[[str], str], rows: Sequence[str] = ()
    ) -> Iterator[str]:
        """Yield a call's lines; `place` says what stands for a pointer, `rows` end them."""
        pointers = [self._pointer(a) for a in call.arguments]
        if call.source.scratch:
            pointers.append(self._scratch(call))
        dims = [place(self._dims(call))] if call.source.dims else []
        line = f"{call.source.symbol}({', '.join((*map(place, pointers), *rows, *dims))});"
        if self.timed:
            self.uses.host_times = True
            yield "begin = nanoseconds();"
            yield line
            yield f"add_time({place('ctx')}, {self.called}, begin);"
        else:
            yield line
        self.called += 1

    def _cascade(self, step: CascadeLoop) -> Iterator[str]:
        """Yield the loop of a cascade of calls."""
        self.uses.times |= self.timed
        if len(step.calls) == len(step.stripes) == 1:
            yield f"/* {self._head(step, step.node.op.kind)}: {_arrow(step)} */"
            yield from self._stripes(step, str)
            return
        origins = [comment(c.node.origin[0], 48) for c in step.calls if c.node.origin]
        reads, writes = (comment(v, 32) for v in (step.calls[0].arguments[0], *step.node.outputs))
        names = " -> ".join(f'"{name}"' for name in origins)
        self.number += 1
        yield f"/* {self.number - 1}: in stripes, {names}: {reads} -> {writes} */"
        yield from self._stripes(step, str)

    def _stripes(self, step: CascadeLoop, place: Callable[[str], str]) -> Iterator[str]:
        """Yield a loop over the stripes of a cascade."""
        first = self.called
        calls = [
            [*self._one_call(c, place, row_arguments(step, k))] for k, c in enumerate(step.calls)
        ]
        kept = {
            k: place(self._pointer(c.node.outputs[0]))
            for k, c in enumerate(step.calls) if rolls(step, k)
        }  # fmt: skip
        self.uses.rolling_buffers |= bool(kept)
        yield from cascade_loop(step, self.program.types, kept, calls)
        if self.timed and len(step.stripes) > 1:
            self.uses.stripe_times = True
            context, count = place("ctx"), len(step.stripes)
            yield f"join_stripes({context}, {first}, {len(step.calls)}, {count});"

    def _observed(self, lines: Sequence[str], seen: str) -> Iterator[str]:
        """Yield a call's lines between two calls of the observer."""
        yield "{"
        yield f"  const void *const seen[] = {{{seen}}};"
        yield f"  observe(ctx, {self.called}, 0, seen);"
        yield from (f"  {line}" for line in lines)
        yield f"  observe(ctx, {self.called}, 1, seen);"
        yield "}"

    def _branch(self, branch: Branch) -> Iterator[str]:
        yield f"/* {self._head(branch, 'If')} */"
        yield f"if (*{self._pointer(branch.condition)}) {{"
        yield from (f"  {line}" for line in self._guarded(branch.then, branch.guards[0]))
        yield from (f"  {self._extent(own)} = {self._extent(n)};" for own, n, _ in branch.extents)
        yield "} else {"
        yield from (f"  {line}" for line in self._guarded(branch.otherwise, branch.guards[1]))
        yield from (f"  {self._extent(own)} = {self._extent(n)};" for own, _, n in branch.extents)
        yield "}"
        yield from self._consistent([own for own, _, _ in branch.extents])

    def _place(self, slot: Slot) -> str:
        """Return the C index of the iteration's part."""
        counter = f"atc_i{self.depth}"
        counter = f"({self._extent(slot.trips - 1)} - {counter})" if slot.backwards else counter
        size = self._extent(slot.size)
        return counter if size == "1" else f"{counter} * {_bracketed(size)}"

    def _repeat(self, loop: Repeat) -> Iterator[str]:
        yield f"/* {self._head(loop, 'Loop')} */"
        self.depth += 1
        counter = f"atc_i{self.depth}"
        carried = [own for own, _, _ in loop.carried_extents]
        counted = loop.trip_count != -1 or loop.strict
        limited = loop.trips != -1 and not loop.strict
        bounds = [f"{counter} < {_bracketed(self._extent(loop.trips))}"] if limited else []
        bounds += [f"{counter} < *{self._pointer(loop.count)}"] if loop.count else []
        bounds += [f"*{self._pointer(loop.start)}"] if loop.start else []
        yield from self._assigned([(own, first) for own, first, _ in loop.carried_extents])
        yield from [f"int64_t {counter} = 0;"] * counted
        begin = "" if counted else f"int64_t {counter} = 0"
        yield f"for ({begin}; {' && '.join(bounds)}; {counter}++) {{"
        if loop.strict:
            last = f"{counter} == {_bracketed(self._extent(loop.trips))}"
            yield f"  if ({last}) return {self.upper}_ERROR_SHAPE;"
        yield from (f"  {line}" for line in self._consistent(carried))
        yield f"  *{self._pointer(loop.iteration)} = {counter};"
        yield from (f"  {line}" for line in self._guarded(loop.body, loop.guards))
        yield from (
            f"  {line}" for line in self._assigned([(own, n) for own, _, n in loop.carried_extents])
        )
        if loop.going and loop.trip_count != -1:
            yield f"  if (!*{self._pointer(loop.going)}) {{"
            yield f"    {counter}++;"
            yield "    break;"
            yield "  }"
        elif loop.going:
            yield f"  if (!*{self._pointer(loop.going)}) break;"
        yield "}"
        self.depth -= 1
        if loop.trip_count != -1:
            yield f"{self._extent(loop.trip_count)} = {counter};"
            carried.append(loop.trip_count)
        yield from self._consistent(carried)
