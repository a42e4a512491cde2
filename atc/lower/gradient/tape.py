"""The nodes between xs and y, lowered once more and noted in order, to be walked backwards.

An operator without a derivative of its own is replaced by others: by an expansion of ours, or by
the standard's function body. What comes behind it reads the operator's own result nonetheless, so
that it equals what the network has computed already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir

from atc.ir.ops import Map, MatMul, Normalize, Reshape, Softmax
from atc.lower.context import LoweringContext
from atc.lower.function import function_body
from atc.lower.gradient.derivatives import ABSENT, DERIVATIVES, OPSET, Step, Variable
from atc.lower.gradient.without import WITHOUT
from atc.lower.training import PREVIEW

MAX_DEPTH = 8
"""Function bodies inside function bodies that are followed."""
WRITTEN_OUT = frozenset(["GRU", "If", "LSTM", "Loop", "RNN", "Scan"])
"""Operators whose steps only their expansions give: the network computes these, too."""
SLOPED = (Map, MatMul, Normalize, Reshape, Softmax)
"""The ops that second derivatives pass through, whatever they compute."""


@dataclass
class Tape:
    """Steps by which y is computed, and the opsets of the node's graph."""

    ctx: LoweringContext
    opsets: Mapping[str, int]
    depth: int = 0
    steps: list[Step] = field(default_factory=list)

    def deeper(self, opsets: Mapping[str, int]) -> Tape:
        """Return a tape of the same steps for what an operator is made of."""
        return Tape(self.ctx, {**self.opsets, **opsets}, self.depth + 1, self.steps)

    def forward(self, node: onnx_ir.Node, env: dict[str, Variable]) -> None:
        """Lower a node and note it, or what it is replaced by."""
        operands = [env[v.name] if v is not None and v.name else ABSENT for v in node.inputs]
        opset = node.version or self.opsets[node.domain]
        results = self._results(Site(self, node, tuple(operands), opset, env))
        env.update((v.name, r) for v, r in zip(node.outputs, results, strict=False) if v.name)

    def _results(self, site: Site) -> Sequence[Variable]:
        node, ctx = site.node, self.ctx
        key = (node.domain, node.op_type)
        if key not in DERIVATIVES and self.depth < MAX_DEPTH:
            if key in EXPANSIONS:
                return self._bridged(site, EXPANSIONS[key](site))
            body = None if key in WITHOUT else site.body()
            if body is not None:
                given = [*site.operands, *[ABSENT] * len(body.inputs)]
                inner = {v.name or "": x for v, x in zip(body.inputs, given, strict=False)}
                self.deeper(body.opset_imports).run(body, inner)
                return self._bridged(site, [inner[v.name or ""] for v in body.outputs])
        step = Step(ctx, node, site.operands, node.domain, site.opset).computed()
        self.steps.append(step)
        return step.results

    def _bridged(self, site: Site, results: Sequence[Variable]) -> Sequence[Variable]:
        """Return the operator's own results in place of equal ones, to which gradients go on."""
        node, b, begin = site.node, self.ctx.b, len(self.ctx.b.nodes)
        if self.depth or node.op_type in WRITTEN_OUT:
            return results  # nobody else computes it, or the network does as it is done here
        if any(r.elements is not None for r in results):
            return results  # a sequence isn't computed
        direct = Step(self.ctx, node, site.operands, node.domain, site.opset).computed().results
        if not all(isinstance(n.op, SLOPED) for n in b.nodes[begin:]):
            return results
        same = onnx_ir.Node("", "Identity", [], [])
        pairs = zip(results, direct, strict=False)
        self.steps += [Step(self.ctx, same, (r,), "", OPSET, (d,)) for r, d in pairs]
        return direct

    def run(self, nodes: Iterable[onnx_ir.Node], env: dict[str, Variable]) -> None:
        """Note nodes in order."""
        for node in nodes:
            self.forward(node, env)


@dataclass(frozen=True)
class Site:
    """A node that expands into others: what it reads, and all that is known around it."""

    tape: Tape
    node: onnx_ir.Node
    operands: tuple[Variable, ...]
    opset: int
    env: Mapping[str, Variable]

    @property
    def at(self) -> LoweringContext:
        """The node with its attributes, on the values that it reads."""
        values = tuple(v.value for v in self.operands)
        return replace(self.tape.ctx, node=self.node, inputs=values, opset=self.opset)

    def body(self) -> onnx_ir.Function | None:
        """Return the standard's function body of the node, None if it has none."""
        b = self.tape.ctx.b
        types = [b.type(v.value) if v.value else None for v in self.operands]
        return function_body(self.node, types, self.opset)

    def has(self, k: int) -> bool:
        """Return whether operand `k` is there."""
        return k < len(self.operands) and self.operands[k] is not ABSENT

    def shape(self, x: Variable) -> tuple[int, ...]:
        """Return a variable's shape."""
        return self.tape.ctx.b.shape(x.value)

    def constant(self, value: Any) -> Variable:
        """Return a constant."""
        return Variable(self.tape.ctx.b.constant(np.asarray(value)))

    def like(self, value: float | Sequence[Any] | np.ndarray[Any, Any]) -> Variable:
        """Return a constant of the first operand's type."""
        dtype = self.tape.ctx.b.type(self.operands[0].value).dtype.numpy
        return self.constant(np.asarray(value, dtype))

    def ints(self, *values: int) -> Variable:
        """Return a constant list of integers."""
        return self.constant(np.asarray(values, np.int64))

    def op(self, op_type: str, *operands: Variable, outputs: int = 1, **attributes: Any) -> Any:
        """Note a node of the standard's; returns its result, or all of several."""
        names = [onnx_ir.Value(name=f"x{k}") if o is not ABSENT else None
                 for k, o in enumerate(operands)]  # fmt: skip
        made = [onnx_ir.Value(name=f"y{k}") for k in range(outputs)]
        given = [onnx_ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
        node = onnx_ir.Node("", op_type, names, given, outputs=made, version=OPSET,
                            name=self.node.name)  # fmt: skip
        env = {f"x{k}": o for k, o in enumerate(operands)}
        self.tape.deeper({"": OPSET}).forward(node, env)
        results = [env[f"y{k}"] for k in range(outputs)]
        return results if outputs > 1 else results[0]

    def part(self, x: Variable, k: int, axis: int = 0) -> Variable:
        """Return what lies at a place of an axis, without that axis."""
        index = self.constant(np.asarray(k, np.int64))
        result: Variable = self.op("Gather", x, index, axis=axis)
        return result

    def stacked(self, parts: Sequence[Variable], axis: int = 0) -> Variable:
        """Return parts of equal shapes along a new axis."""
        rows = [self.op("Unsqueeze", p, self.ints(axis)) for p in parts]
        result: Variable = self.op("Concat", *rows, axis=axis)
        return result

    def inlined(self, graph: onnx_ir.Graph, given: Mapping[str, Variable]) -> list[Variable]:
        """Note the nodes of a graph inside of the node; returns the graph's results."""
        b = self.tape.ctx.b
        inner = {**self.env, **given}
        for name, value in graph.initializers.items():
            if name not in given and value.const_value is not None:
                inner[name] = Variable(b.constant(np.asarray(value.const_value.numpy())))
        self.tape.deeper({}).run(graph, inner)
        return [inner[v.name or ""] for v in graph.outputs]


Expansion = Callable[[Site], Sequence[Variable]]
"""Notes other nodes in place of one; returns its results."""

_TABLE: dict[tuple[str, str], Expansion] = {}

EXPANSIONS: Mapping[tuple[str, str], Expansion] = MappingProxyType(_TABLE)
"""All expansions, by domain and operator."""


def expands(*op_types: str) -> Callable[[Expansion], Expansion]:
    """Register what operators are replaced by."""

    def register(expansion: Expansion) -> Expansion:
        _TABLE.update({("", op_type): expansion for op_type in op_types})
        return expansion

    return register


# ---- the nodes of a graph ------------------------------------------------------------------------


def written_out(graph: onnx_ir.Graph | onnx_ir.Function) -> frozenset[onnx_ir.Node]:
    """Return the nodes of a graph that its gradients walk through step by step."""
    found: set[onnx_ir.Node] = set()
    for node in graph:
        if node.op_type == "Gradient" and node.domain == PREVIEW and "y" in node.attributes:
            names = [*node.attributes.get_strings("xs", ()), *node.attributes.get_strings("zs", ())]
            needed, _ = dependencies(graph, names, node.attributes["y"].as_string())
            found |= {n for n in needed if not n.domain and n.op_type in WRITTEN_OUT}
    return frozenset(found)


def expanded(ctx: LoweringContext, names: Mapping[str, str]) -> tuple[str, ...]:
    """Lower a node as gradients do, so that what they read is computed once.

    `names` are the values that its graphs may read, by the model's names.
    """
    env = {name: Variable(value) for name, value in names.items()}
    operands = tuple(Variable(i) if i else ABSENT for i in ctx.inputs)
    site = Site(Tape(ctx, ctx.opsets), ctx.node, operands, ctx.opset, env)
    results = EXPANSIONS[ctx.node.domain, ctx.node.op_type](site)
    return tuple(r.value for r in results)


def dependencies(
    nodes: Iterable[onnx_ir.Node], given: Collection[str], y: str
) -> tuple[list[onnx_ir.Node], list[str]]:
    """Return the nodes by which y depends on given values, in order, and what else it reads."""
    made = {v.name: node for node in nodes for v in node.outputs if v.name}
    needed: set[onnx_ir.Node] = set()
    leaves: dict[str, None] = {}
    pending = [y]
    while pending:
        name = pending.pop()
        if name in given:
            continue
        if name not in made:
            leaves[name] = None
        elif made[name] not in needed:
            needed.add(made[name])
            pending += reads(made[name])
    return [node for node in nodes if node in needed], [*leaves]


def reads(node: onnx_ir.Node) -> Iterator[str]:
    """Yield the names that a node reads, and the graphs inside of it from around it."""
    yield from (v.name for v in node.inputs if v is not None and v.name)
    for attribute in node.attributes.values():
        if isinstance(attribute.value, onnx_ir.Graph):
            yield from free_names(attribute.value)


def free_names(graph: onnx_ir.Graph) -> Iterator[str]:
    """Yield the names that a graph reads from around it."""
    own = {v.name for v in graph.inputs} | {*graph.initializers}
    own |= {v.name for node in graph for v in node.outputs}
    for node in graph:
        yield from (name for name in reads(node) if name not in own)
    yield from (v.name for v in graph.outputs if v.name and v.name not in own)
