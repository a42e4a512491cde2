"""Build the program: kernel calls in order, the storage of each value, packed constants.

Everything after this point (memory plan, emission, report) reads the program, not the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from atc.backends.kernel import Candidate, Pack, Workload
from atc.backends.kernel_source import KernelSource, Render, render_kernel
from atc.backends.target import Target, on_host
from atc.dims import concrete, is_dynamic
from atc.files.spool import Spool
from atc.ir.expr import Input
from atc.ir.graph import Alias, Array, Graph, Node, TensorType, type_of
from atc.ir.ops import If, Loop, Map, Reshape, SubView
from atc.ir.ops.data import Concat
from atc.ir.view import View
from atc.program.cascade import Cascade
from atc.program.cuts import Range, views_of
from atc.program.forks import ALONE, Workers, forked, part_of
from atc.program.in_place import replaceable
from atc.program.least_memory import cascades_of
from atc.program.packed_constants import packed
from atc.program.packed_layouts import propagate_packed_layouts
from atc.program.partition import ESTIMATED, Slice, Worth, is_copy, partitions, shared
from atc.program.row_partition import rows_of_threads
from atc.program.shared_in_run import shared_in_run
from atc.program.shared_tables import share_tables
from atc.program.states import carried, moved_back, moves_back
from atc.program.steps import (
    Branch,
    Call,
    CascadeLoop,
    Parallel,
    Program,
    Repeat,
    Slot,
    State,
    Step,
    base_of,
    calls,
    forked_steps,
    rows_of,
    with_rows,
)
from atc.program.timeline import Timeline
from atc.select.select import Choice, Selection, select

COPIED_AT_ONCE = 16
"""Bytes that kernels of a GPU copy by one instruction, from multiples of as many."""

ThreadCounts = Mapping[tuple[Workload, str], int]
"""Threads that share a workload's call by the candidate with a label; by default all."""


def build_program(
    graph: Graph, selection: Selection, target: Target, *, in_place: bool = True, threads: int = 1,
    cascades: bool = False, packed_layouts: bool = False, counts: ThreadCounts | None = None,
    workers: Workers = ALONE, worth: Worth = ESTIMATED, io: bool = False, enough: int = 0,
    render: Render = render_kernel,
) -> Program:
    """Bind every node to its kernel, as `render` does, pack constants, decide what shares memory.

    With `in_place`, operands that are concatenated contiguously are computed in the result. Calls
    that are `worth` it are partitioned for `threads`; with `workers`, independent branches run at
    the same time, each call in one thread. With `cascades`, chains of calls run stripe by stripe
    where that saves time, their values never whole; or, where memory is scarce, where it saves some
    (with `io` that of inputs and outputs, too) beyond what is `enough`. With `packed_layouts`,
    kernels pass on values in another layout where that saves a copy.
    """
    graph, selection = share_tables(graph, selection, target)
    layouts = packed_layouts and propagate_packed_layouts(graph, selection, target, threads)
    if layouts:
        graph = replace(graph, types={**graph.types, **layouts.types})
        selection = layouts.selection
    planes = frozenset(layouts.types if layouts else ())
    writer = _Writer(
        selection, target, in_place, threads, cascades, counts or {}, planes, workers, worth, io,
        enough, render,
    )
    steps = writer.scope(graph, graph.outputs)
    pairs = [(graph.inputs[i], graph.outputs[o]) for i, o in graph.states]
    states = carried(graph, steps, writer.types, writer.storage, target)
    for (_, result), state in zip(pairs, states, strict=True):
        steps += tuple(writer.carry(state, result))
    steps += tuple(map(writer.move_back, moves_back(states, writer.types)))
    states = tuple(map(moved_back, states))
    used, held = {a for c in calls(steps) for a in c.arguments}, dict(pairs)
    constants = {k: v for k, v in writer.constants.items() if k in used}
    return Program(
        graph.name, tuple(v for v in graph.inputs if v not in held),
        tuple(v for k, v in enumerate(graph.outputs) if k not in {o for _, o in graph.states}),
        steps, writer.types, constants, writer.storage, graph.composites, writer.byte_offsets,
        graph.dims, graph.guards, writer.aliases, states, graph.lengths,
    )  # fmt: skip


@dataclass
class _Writer:
    selection: Selection
    target: Target
    in_place: bool
    threads: int
    cascades: bool
    counts: ThreadCounts
    planes: frozenset[str]
    workers: Workers
    worth: Worth
    io: bool
    enough: int
    render: Render
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    storage: dict[str, str] = field(default_factory=dict)
    byte_offsets: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)
    reshaped: dict[str, str] = field(default_factory=dict)
    """The values in `storage` that are reshapes of all of another one."""
    timeline: Timeline = field(default_factory=Timeline)
    rendered: dict[tuple[Workload, str], KernelSource] = field(default_factory=dict)
    packed: dict[tuple[str, str, View | None], str] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)
    """Where packed constants lie until they are written: they may be several times the model."""

    def scope(self, graph: Graph, outputs: Sequence[str]) -> tuple[Step, ...]:
        """Return a graph's steps; its outputs end up in the storage of `outputs`."""
        self.types.update(graph.types)
        self.constants.update(graph.constants)
        self.aliases.update(graph.aliases)
        steps: list[Step] = []
        made: set[str] = set()
        kept = {self._same(o) for o in graph.outputs}
        for branches in forked(graph, self.selection, self.target, self.workers):
            threads = self.threads if len(branches) == 1 else 1
            parts = [self._steps(graph, nodes, threads, made, kept) for nodes in branches]
            steps += forked_steps(parts)
        self._bind_outputs(graph, outputs, made, steps)
        return tuple(steps)

    def _steps(
        self, graph: Graph, nodes: tuple[Node, ...], threads: int, made: set[str], kept: set[str]
    ) -> list[Step]:
        """Return the steps of some nodes of a graph; add the values that they compute.

        `kept` are the graph's outputs and, added here, the values that those reshape.
        """
        steps: list[Step] = []
        making = self._cascades(part_of(graph, nodes), threads)
        for node in nodes:
            self.timeline.begin(node)
            if node.outputs and node.outputs[0] in making:
                cascade = making[node.outputs[0]]
                if node is cascade.stages[-1].node:
                    steps.append(self._cascade_steps(cascade))
                    made.update(node.outputs)
                continue
            match node.op:
                case Reshape():
                    self._alias(node)
                    if node.outputs[0] in kept:
                        kept.add(self._same(node.outputs[0]))
                case SubView():
                    self._sub_view(node, node.op)
                    if node.outputs[0] in graph.ends:
                        steps.append(self._detached(node.outputs[0]))
                        made.add(node.outputs[0])
                case Concat(outer=1) if self.in_place:
                    steps += self._join(node, made, kept)
                case If():
                    steps.append(self._branch(node))
                case Loop():
                    steps += self._loop(node)
                case _:
                    steps.append(self._step(node, threads))
            self.timeline.end(node)
            made.update(o for o in node.outputs if not isinstance(node.op, Reshape | SubView))
        return steps

    def _cascades(self, graph: Graph, threads: int) -> dict[str, Cascade]:
        """Return the cascade that computes each value that a cascade computes."""
        if not self.cascades:
            return {}
        found = cascades_of(graph, self.selection, self.target, threads, self.io, self.enough)
        return {stage.node.outputs[0]: cascade for cascade in found for stage in cascade.stages}

    def _cascade_steps(self, cascade: Cascade) -> CascadeLoop | Parallel:
        """Return the calls of a cascade; each thread has rolling buffers of its own."""
        node = cascade.stages[-1].node
        parts = tuple(self._part_of(cascade, k) for k in range(len(cascade.parts)))
        return Parallel(node, parts) if len(parts) > 1 else parts[0]

    def _part_of(self, cascade: Cascade, number: int) -> CascadeLoop:
        made: list[Call] = []
        last = cascade.stages[-1].node
        names = [f"{stage.node.outputs[0]}#rows{number}" for stage in cascade.stages[:-1]]
        self.types.update(zip(names, cascade.buffer_types(), strict=True))
        results = (*names, last.outputs[0])
        candidates = cascade.candidates()
        for k, (stage, candidate) in enumerate(zip(cascade.stages, candidates, strict=True)):
            inputs = (results[k - 1], *stage.node.inputs[1:]) if k else stage.node.inputs
            node = replace(stage.node, inputs=inputs, outputs=(results[k],))
            call = self._call(node, replace(stage.choice, candidate=candidate))
            own = sum(stripe[k].end - stripe[k].begin for stripe in cascade.parts[number])
            made.append(with_rows(call, stage.choice, own))
        return CascadeLoop(last, tuple(made), cascade.parts[number], cascade.lead)

    def _same(self, value: str) -> str:
        """Return the value that this one is a reshape of."""
        return base_of(value, self.reshaped)

    def _sub_view(self, node: Node, op: SubView) -> None:
        source, result = node.inputs[0], node.outputs[0]
        type_ = self.types[result]
        if source in self.constants:
            flat = self.constants[source].reshape(-1)[op.begin : op.begin + type_.size]
            self.constants[result] = flat.reshape(type_.shape)
        else:
            self._place(result, source, op.begin * type_.dtype.itemsize)

    def _detached(self, part: str) -> Call:
        """Return the copy of a part to memory of its own."""
        source = f"{part}#part"
        self.types[source] = self.types[part]
        if part in self.constants:
            self.constants[source] = self.constants.pop(part)
        else:
            self._place(source, self.storage.pop(part), self.byte_offsets.pop(part, 0))
        return self._copy(source, part)

    def _place(self, value: str, base: str, offset: int) -> None:
        self.storage[value] = base
        if offset:
            self.byte_offsets[value] = offset

    def _join(self, node: Node, made: set[str], kept: set[str]) -> Iterator[Call]:
        """Compute a Concat's operands in the result where possible; yield copies of the others.

        A value stays where it is if it isn't computed here, is `kept` as an output, is an operand
        of a Concat already, or is computed before the extents of those in front of it are known; on
        a GPU also where it would begin off what is copied at once.
        """
        result = node.outputs[0]
        offset = 0
        unit = COPIED_AT_ONCE if self.target.device else 1
        for k, operand in enumerate(node.inputs):
            size = self.types[operand].nbytes
            source = self._same(operand)
            aligned = not (is_dynamic(rest := offset % unit) or rest)
            fits = size and source in made and source not in kept and aligned
            if fits and self.timeline.is_known(offset, source):
                made.discard(source)
                self._place(source, result, offset)
                self.timeline.join(source, result)
            elif size:
                place = f"{result}#{k}"
                self.types[place] = self.types[operand]
                self._place(place, result, offset)
                yield self._copy(source, place)
            offset += size

    def _own(self, value: str) -> None:
        """Give a value memory of its own."""
        self.storage.pop(value, None)
        self.reshaped.pop(value, None)

    def _rename(self, value: str, other: str) -> None:
        self.storage[value] = self.reshaped[value] = other

    def _alias(self, node: Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source in self.constants:
            self.constants[result] = self.constants[source].reshape(self.types[result].shape)
        else:
            self._rename(result, source)

    def _step(self, node: Node, most: int) -> Call | Parallel:
        """Return a node's call, or those of its partitions for up to `most` threads."""
        choice = self.selection[node.outputs[0]]
        w, candidate, target = choice.workload, choice.candidate, self.target
        tuned = self.worth.copies is None or not is_copy(w)
        count = self.counts.get((w, candidate.label), most) if tuned else most
        threads, worth = min(count, most), self.worth
        whole = shared(w, candidate, target, threads, worth)
        make = partial(self._call, node)
        if (found := shared_in_run(choice, whole, target, threads, worth, make)) is not None:
            return found
        as_one = whole != candidate or not self.planes.isdisjoint((*node.inputs, *node.outputs))
        cut = () if as_one else partitions(w, candidate, target, threads, worth)
        in_rows = rows_of_threads(w, candidate, target, threads, cut, worth)
        if in_rows is not None:
            striped, rows = in_rows
            call = self._call(node, replace(choice, candidate=striped))
            return Parallel(node, tuple(rows_of(call, choice, begin, end) for begin, end in rows))
        if not cut:
            call = self._call(node, replace(choice, candidate=whole))
            return replace(call, chosen=candidate.label)
        inputs = tuple(map(self._same, node.inputs))
        made = [self._slice(replace(node, inputs=inputs), choice, p, k) for k, p in enumerate(cut)]
        return Parallel(node, tuple(made))

    def _slice(self, node: Node, choice: Choice, partition: Slice, number: int) -> Call:
        """Return the call of one partition, with its slices as values of their own."""
        inputs = tuple(
            self._range(name, partition.operands[k], number) if k in partition.operands else name
            for k, name in enumerate(node.inputs)
        )
        output = self._range(node.outputs[0], partition.result, number)
        workload = partition.workload(choice.workload)
        part = replace(choice, workload=workload, candidate=partition.candidate)
        call = self._call(Node(partition.op, inputs, (output,), node.origin), part)
        own, whole = (concrete(w).outputs[0].size for w in (workload, choice.workload))
        return replace(call, chosen=choice.candidate.label, share=own / whole)

    def _range(self, value: str, span: Range, number: int) -> str:
        name = f"{value}#{number}"
        while self.types.get(name, span.type) != span.type:
            name += "+"  # another node partitions this value differently
        self.types[name] = span.type
        if value in self.constants:
            flat = self.constants[value].reshape(-1)
            cut = flat[span.begin : span.begin + span.type.size]
            self.constants[name] = cut.reshape(span.type.shape)
        else:
            self._place(name, value, span.begin * span.type.dtype.itemsize)
        return name

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """Make copies run on the side of control flow."""
        own, self.target = self.target, on_host(self.target)
        yield
        self.target = own

    def _branch(self, node: Node) -> Branch:
        op = node.op
        assert isinstance(op, If)
        with self._on_host():
            then, other = (self.scope(graph, node.outputs) for graph in op.subgraphs())
        guards = (op.then_branch.guards, op.else_branch.guards)
        return Branch(node, self._same(node.inputs[0]), then, other, op.extents, guards)

    def _loop(self, node: Node) -> Iterator[Step]:
        """Yield the copies of the initial states and the loop.

        A state lives in the storage of its result. The body reads it there and computes its next
        value elsewhere; copies at the body's end, when nothing reads the old values any more,
        overwrite them with the new ones.
        """
        op = node.op
        assert isinstance(op, Loop)
        count, start, *initial = map(self._same, node.inputs)
        places, collected = node.outputs[: op.states], node.outputs[op.states :]
        iteration, *held = op.body.inputs
        for value, place in zip(initial, places, strict=True):
            yield self._copy(value, place)
        for value, place in zip(held, places, strict=True):
            self._rename(value, place)
        with self._on_host():
            body = [*self.scope(op.body, op.body.outputs)]
            going, *made = op.body.outputs if op.conditional else ("", *op.body.outputs)
            body += map(self._copy, made[: op.states], places)
            parts = made[op.states :]
            for value, whole, backwards in zip(parts, collected, op.backwards, strict=True):
                slot = Slot(self.types[value].size, op.trips, backwards)
                body.append(replace(self._copy(value, whole, slot.size), slot=slot))
        yield Repeat(
            node, op.trips, count, start, iteration, going, tuple(body), collected, op.trip_count,
            op.carried_extents, op.strict, op.body.guards,
        )  # fmt: skip

    def _bind_outputs(
        self, graph: Graph, outputs: Sequence[str], made: set[str], steps: list[Step]
    ) -> None:
        """Make each output's storage the one that the caller of the scope names.

        A value that no kernel of this scope computes, or that two outputs share, is copied.
        """
        taken: set[str] = set()
        pairs = zip(graph.outputs, outputs, strict=True)
        for value, place in sorted(pairs, key=lambda p: self._same(p[0]) != p[1]):  # its own first
            base = self._same(value)
            if base in made and base not in taken:
                taken.add(base)
                if base != place:
                    self._own(place)
                    self._rename(base, place)
                continue
            if value == place:  # a reshape of something else: make it a value of its own
                self._own(place)
            self.types.setdefault(place, self.types[value])
            steps.append(self._copy(base, place))
            taken.add(place)

    def carry(self, state: State, result: str) -> Iterator[Call]:
        """Place a result in a state's memory after the run; yield a copy if that needs one."""
        if state.next == result:
            self.storage |= dict.fromkeys((*state.former, result), state.value)
        else:
            self.types[state.next] = self.types[state.value]
            self._place(state.next, state.value, 0)
            yield self._copy(result, state.next)

    def _copy(self, source: str, place: str, size: int | None = None) -> Call:
        type_, own = self.types[place], self.types[source].size
        if size is not None or own != type_.size:  # as much as there is, where that changes
            type_ = TensorType(type_.dtype, (own if size is None else size,))
        op = Map((type_.size,), Input(type_.dtype, 0), (View((1,)),))
        types = {source: self.types[source], place: type_}
        return self._alone(Node(op, (source,), (place,), ()), types)

    def move_back(self, node: Node) -> Call:
        """Return the call that moves states back in their memory for the next run."""
        for x, y in zip(node.inputs, node.outputs, strict=True):
            self.types[y], self.storage[y] = self.types[x], x
        return self._alone(node, self.types)

    def _alone(self, node: Node, types: Mapping[str, TensorType]) -> Call:
        graph = Graph("alone", node.inputs, node.outputs, (node,), types)
        return self._call(node, select(graph, self.target)[node.outputs[0]])

    def _call(self, node: Node, choice: Choice) -> Call:
        source = self._render(choice.workload, choice.candidate)
        # Through reshapes at once: an output that is one may become a copy at the end.
        inputs = [self._same(i) for i in node.inputs]
        kernel, params = choice.candidate.kernel, choice.candidate.params
        views = views_of(node.op, len(inputs))  # parts of a constant may be packed for one source
        for index, pack in kernel.packs(choice.workload, params, self.target).items():
            key = (inputs[index], f"{choice.candidate.label}:{index}:{source.symbol}", views[index])
            if key not in self.packed:
                self.packed[key] = self._add_packed(inputs[index], pack)
            inputs[index] = self.packed[key]
        able = kernel.overwrites(choice.workload, params)
        arguments = (*(i for i in inputs if i), *node.outputs)
        return Call(node, choice, source, arguments, *replaceable(inputs, node.outputs, able))

    def _add_packed(self, name: str, pack: Pack) -> str:
        new = f"{name}#packed{len(self.packed)}"
        self.constants[new] = packed(pack, self.constants[name], self.spool)
        self.types[new] = type_of(self.constants[new])
        return new

    def _render(self, w: Workload, candidate: Candidate) -> KernelSource:
        if (key := (w, candidate.label)) not in self.rendered:
            self.rendered[key] = self.render(candidate, w, self.target)
        return self.rendered[key]
