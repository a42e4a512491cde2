"""Choose a kernel and its parameters for every node."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from atc.backends.catalogue import kernels_for
from atc.backends.kernel import AnyKernel, Candidate, Workload, weight_type, workload_of
from atc.backends.target import Target, on_host
from atc.dims import concrete, is_dynamic, max_value, upper_bound
from atc.errors import UnsupportedError
from atc.ir.graph import Array, Graph, Node
from atc.ir.ops import ConvBlocked, Reshape, SubView
from atc.select.cost import CYCLES, NANOSECONDS, packing_overhead, priced, workspace_overhead


@dataclass(frozen=True)
class Measurement:
    """One candidate's time in ns; None with the reason when it can't be chosen.

    `packing_overhead`: the bytes by which its constants exceed the model's.
    """

    label: str
    time_ns: float | None
    reason: str = ""
    packing_overhead: int = 0

    def cost(self, price: float) -> float | None:
        """Return the time including memory, at a price in cycles per byte."""
        return (
            None
            if self.time_ns is None
            else self.time_ns + NANOSECONDS * price * self.packing_overhead
        )


Timings = Mapping[Workload, tuple[Measurement, ...]]
"""What fast-run measured; workloads with a single candidate are not in it."""


WIDE = frozenset({"float32", "bf16x6"})
"""Precisions of products that keep the 24 bits of floats."""


@dataclass(frozen=True)
class Limits:
    """The constraints on candidates.

    `exact`: results have no larger error than the op's definition. `workspace`: the most bytes of
    scratch; if every candidate needs more, those with least scratch are taken. `tier`: all,
    only portable kernels, or only optimized ones, if there are any. `exact_nodes` are the
    model's nodes for which `exact` always holds. `precisions`: what kernels may compute
    products in (`Kernel.precision`); only in float32 for `float_nodes`, of all bits of floats
    (WIDE) for `wide_nodes`, and in bf16 only for `bf16_nodes`, unless those are None; only results
    of `stored_nodes` may be rounded to be stored in bfloat16. `packed` are layouts of constants
    that exist anyway: kernels that read them are preferred if they are nearly as fast.
    `weight_price`: the cycles that each byte must save by which constants exceed the model's.
    `tensor_cores`: whether those of a GPU may be used. With `host_compute` the host computes small
    nodes whose operands it has. `crashing` are candidates that their compiler crashes on, by
    workload and label: others are taken, if there are any.
    """

    exact: bool = False
    workspace: int | None = None
    tier: str = "all"
    exact_nodes: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset({"float32", "bf16x6", "bf16x3", "int8"})
    float_nodes: frozenset[str] = frozenset()
    wide_nodes: frozenset[str] = frozenset()
    bf16_nodes: frozenset[str] | None = None
    stored_nodes: frozenset[str] = frozenset()
    packed: frozenset[str] = frozenset()
    weight_price: float = CYCLES
    tensor_cores: bool = True
    host_compute: bool = False
    crashing: frozenset[tuple[Workload, str]] = frozenset()

    def of(self, node: Node) -> Limits:
        """Return the limits for one node."""
        exact = self.exact or not self.exact_nodes.isdisjoint(node.origin)
        allowed = self.precisions
        if not self.float_nodes.isdisjoint(node.origin):
            allowed &= {"float32"}
        elif not self.wide_nodes.isdisjoint(node.origin):
            allowed &= WIDE
        elif self.bf16_nodes is not None and self.bf16_nodes.isdisjoint(node.origin):
            allowed -= {"bf16"}
        return replace(self, exact=exact, precisions=allowed)

    def may_round(self, node: Node) -> bool:
        """Return whether a node's results may be stored in bfloat16."""
        return bool(node.origin) and self.stored_nodes.issuperset(node.origin)

    def keeps(self, node: Node) -> bool:
        """Return whether a node's operands must be stored unrounded."""
        kept = self.float_nodes | self.wide_nodes
        return self.of(node).exact or not kept.isdisjoint(node.origin)


SMALL = 64
"""Elements of a tensor up to which the transfer to a GPU isn't worth it."""

MOST_ON_DEVICE = 4 << 30
"""The largest value, in bytes, of a network with dynamic shapes that a GPU computes."""

NEAR = 1.15
"""How many times as long a kernel may take if its constants are packed already, beside the time
that constants packed once more have to save."""

ANY = Limits()
"""No limits."""


@dataclass(frozen=True)
class Choice:
    """The kernel of one node, and the estimated or measured cost of each candidate.

    Estimates don't include the price of `packing_overhead`: the bytes by which constants exceed
    the model's. `excluded` are the candidates that exceed a limit, with the reason.
    """

    workload: Workload
    candidate: Candidate
    estimates: tuple[tuple[str, float], ...]
    measurements: tuple[Measurement, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    packing_overhead: tuple[tuple[str, int], ...] = ()


Selection = Mapping[str, Choice]
"""A node's choice by its first output's name, subgraphs included."""


@dataclass(frozen=True)
class Considered:
    """The candidates for a workload that are within the limits, with their estimated costs.

    `excluded` are the labels of the other candidates, with the reason.
    """

    workload: Workload
    target: Target
    found: tuple[Candidate, ...]
    excluded: tuple[tuple[str, str], ...]

    @cached_property
    def cycles(self) -> tuple[float, ...]:
        """The estimated cycles of each candidate, without the price of its memory."""
        largest = concrete(self.workload)
        return tuple(c.kernel.cost(largest, c.params, self.target) for c in self.found)

    @cached_property
    def overheads(self) -> tuple[int, ...]:
        """The bytes by which each candidate's constants exceed the model's."""
        return tuple(packing_overhead(c, self.workload, self.target) for c in self.found)

    @cached_property
    def workspaces(self) -> tuple[int, ...]:
        """The bytes by which each candidate's scratch exceeds a node's tensors, of 16 bits."""
        return tuple(workspace_overhead(c, self.workload, self.target) for c in self.found)

    def costs(self, price: float) -> list[float]:
        """Return each candidate's estimated cost, including memory at `price` cycles a byte."""
        every = zip(self.found, self.cycles, self.overheads, self.workspaces, strict=True)
        return [priced(cost, a + b, price * c.kernel.cycle) for c, cost, a, b in every]


def candidates(w: Workload, target: Target, limits: Limits = ANY) -> list[Candidate]:
    """Return all kernels with all parameter sets that accept a workload, in catalogue order."""
    return list(consider(w, target, limits).found)


def consider(w: Workload, target: Target, limits: Limits) -> Considered:
    """Return the candidates within the limits, and the labels of the others with the reason."""
    return _considered(w, target, limits, kernels_for(target))


@lru_cache(1 << 12)  # layouts, times and the choice itself ask for the same workloads
def _considered(
    w: Workload, target: Target, limits: Limits, kernels: tuple[AnyKernel, ...]
) -> Considered:
    able = [
        Candidate(kernel, params)
        for kernel in kernels
        if isinstance(w.op, kernel.op)
        and kernel.supports_extents(w)
        and (kernel.accepts_16_bit_weights or weight_type(w) is None)
        and (kernel.rounds_operands or not _rounds_operand(w))
        and kernel.accepts(w, target)
        for params in kernel.parameters(w, target)
    ]
    if limits.exact:
        able = [_precise(c, w, target) for c in able]
    if not limits.tensor_cores:
        able = [c for c in able if not c.kernel.tensor_cores]
    found, excluded = able, dict[str, str]()
    for rule, may_reject_all in ((_crash, False), (_other_tier, False), (_imprecision, True)):
        reasons = {c.label: reason for c in found if (reason := rule(c, w, limits))}
        if reasons and (may_reject_all or len(reasons) < len(found)):
            found = [c for c in found if c.label not in reasons]
            excluded |= reasons
    if limits.workspace is not None:
        needs = {c.label: c.kernel.scratch(w, c.params, target) for c in found}
        most = max(limits.workspace, min(needs.values(), default=0))
        found = [c for c in found if needs[c.label] <= most]
        large = {label: need for label, need in needs.items() if need > most}
        excluded |= {label: f"needs {need} bytes of workspace" for label, need in large.items()}
    listed = tuple((c.label, excluded[c.label]) for c in able if c.label in excluded)
    return Considered(w, target, tuple(found), listed)


def _rounds_operand(w: Workload) -> bool:
    return isinstance(w.op, ConvBlocked) and w.op.rounds is not None


def _crash(c: Candidate, w: Workload, limits: Limits) -> str:
    """Return why a candidate can't be built; '' if it can."""
    return "crashes its compiler" if (w, c.label) in limits.crashing else ""


def _other_tier(c: Candidate, w: Workload, limits: Limits) -> str:
    """Return why a candidate isn't of the tier that is asked for; '' if it is."""
    of_tier = limits.tier == "all" or _is_portable(c) == (limits.tier == "portable")
    return "" if of_tier else f"isn't {limits.tier}"


def _imprecision(c: Candidate, w: Workload, limits: Limits) -> str:
    """Return why a candidate isn't precise enough; '' if it is."""
    precision = c.kernel.precision
    if precision not in limits.precisions:
        return f"computes in {precision}"
    must_be_exact = limits.exact or (w.whole and precision in WIDE)
    inexact = must_be_exact and not c.kernel.exact(c.params)
    return "is less accurate than the operator's definition" if inexact else ""


def _is_portable(c: Candidate) -> bool:
    return c.kernel.portable and not c.kernel.tensor_cores


def _precise(c: Candidate, w: Workload, target: Target) -> Candidate:
    """Return an exact candidate with its parameters for the least error, others unchanged."""
    if not c.kernel.exact(c.params):
        return c
    return replace(c, params=c.kernel.precise_params(w, c.params, target))


def target_for(graph: Graph, target: Target) -> Target:
    """Return a graph's target: the host alone if no GPU has room for its largest shapes.

    A GPU's arena is allocated for the largest shapes. Where data-dependent extents are unbounded,
    these exceed any GPU's memory.
    """
    if not (target.device and graph.dims):
        return target
    largest = max(upper_bound(t.nbytes) for t in graph.types.values())
    return on_host(target) if largest > MOST_ON_DEVICE else target


def select(
    graph: Graph,
    target: Target,
    timings: Timings | None = None,
    outer: Mapping[str, Array] | None = None,
    limits: Limits = ANY,
) -> Selection:
    """Choose by measured time if there is one, else by estimated cost; both include memory's price.

    `target` is the graph's own (`target_for`). Ties go to the earlier kernel of the catalogue.
    """
    constants = {**(outer or {}), **graph.constants}
    chosen: dict[str, Choice] = {}
    memo: dict[tuple[Workload, Limits, bool], Choice] = {}
    on_host_only = set[str]()  # values that the host has, of a target that is a GPU
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            chosen.update(select(inner, on_host(target), timings, constants, limits))
        moved = isinstance(node.op, Reshape | SubView)
        if moved or node.op.subgraphs():
            if not moved or node.inputs[0] in on_host_only:
                on_host_only.update(node.outputs)
            continue
        w = workload_of(graph, node, constants)
        hosted = limits.host_compute and _is_small(w) and _is_there(node, constants, on_host_only)
        key = (w, limits.of(node), hosted)
        if key not in memo:
            memo[key] = choose(node, w, target, limits, (timings or {}).get(w, ()), hosted)
        own = chosen[node.outputs[0]] = memo[key]
        if target.device and own.candidate.kernel.launch(w, own.candidate.params, target) is None:
            on_host_only.update(node.outputs)
    return chosen


def _is_small(w: Workload) -> bool:
    types = (t for t in (*w.inputs, *w.outputs) if t is not None)
    return all(max_value(t.size) <= SMALL for t in types)


def _is_there(node: Node, constants: Mapping[str, Array], there: Set[str]) -> bool:
    """Return whether a node reads some values that are available, and otherwise only constants."""
    read = {value for value in node.inputs if value and value not in constants}
    return bool(read) and read <= there


def packings(selection: Selection, target: Target) -> frozenset[str]:
    """Return the chosen kernels' layouts of packed constants."""
    chosen = {(c.workload, c.candidate.label): c for c in selection.values()}.values()
    names = (c.candidate.kernel.packing(c.workload, c.candidate.params, target) for c in chosen)
    return frozenset(filter(None, names))


def choose(
    node: Node, w: Workload, target: Target, limits: Limits,
    measured: tuple[Measurement, ...] = (), hosted: bool = False,
) -> Choice:  # fmt: skip
    """Choose the kernel of one node; UnsupportedError names a node without one.

    A `hosted` node gets one of the host's kernels, if there are any.
    """
    considered = consider(w, target, limits.of(node))
    if hosted:
        considered = _hosted(considered)
    found = considered.found
    if not found:
        types = ", ".join(str(t) for t in w.inputs)
        open_ = is_dynamic(tuple(t.shape for t in w.inputs if t is not None))
        raise UnsupportedError(
            f"no kernel for {w.op.kind} of ({types}) on target {target.name}",
            where=f"node '{node.origin[0] if node.origin else ''}'",
            hint="pin the shapes with --input_shape" if open_ else "",
        )
    labels = [c.label for c in found]
    price = limits.weight_price
    times = {m.label: cost for m in measured if (cost := m.cost(price)) is not None}
    timed = [c for c, label in zip(found, labels, strict=True) if label in times]
    spent = {**dict(zip(labels, considered.costs(price), strict=True)), **times}
    best = min(timed or found, key=lambda c: spent[c.label])
    again = sum(t.nbytes for t, known in zip(w.inputs, w.constant, strict=True) if t and known)
    unit = NANOSECONDS if timed else best.kernel.cycle
    least = spent[best.label]
    near = [
        c for c in (timed or found if limits.packed else ())
        if spent[c.label] <= max(NEAR * least, priced(least, again, price * unit))
        and c.kernel.packing(w, c.params, target) in limits.packed
    ]  # fmt: skip
    best = min(near or [best], key=lambda c: spent[c.label])
    estimates = tuple(zip(labels, considered.cycles, strict=True))
    overheads = zip(labels, considered.overheads, strict=True)
    larger = tuple((label, n) for label, n in overheads if n)
    return Choice(w, best, estimates, measured, considered.excluded, larger)


def _hosted(considered: Considered) -> Considered:
    """Return the host's candidates, or all if there are none."""
    w, target = considered.workload, considered.target
    own = tuple(c for c in considered.found if c.kernel.launch(w, c.params, target) is None)
    return replace(considered, found=own or considered.found)
