"""Other names for the values of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from atc.ir.graph import OWN, Alias, Graph, Node, Op, is_own, prune


def rename(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with values renamed, also where subgraphs read them."""

    def new(n: str) -> str:
        return names.get(n, n)

    nodes = tuple(
        Node(_rename_inside(n.op, names), (*map(new, n.inputs),), (*map(new, n.outputs),), n.origin)
        for n in graph.nodes
    )
    return Graph(
        graph.name, tuple(map(new, graph.inputs)), tuple(map(new, graph.outputs)), nodes,
        {new(k): v for k, v in graph.types.items()},
        {new(k): v for k, v in graph.constants.items()}, dims=graph.dims, guards=graph.guards,
        warnings=graph.warnings, quantization={new(k): v for k, v in graph.quantization.items()},
        aliases={new(k): replace(v, of=new(v.of)) for k, v in graph.aliases.items()},
    )  # fmt: skip


def _rename_inside(op: Op, names: Mapping[str, str]) -> Op:
    graphs = {k: rename(v, names) for k, v in vars(op).items() if isinstance(v, Graph)}
    return replace(op, **graphs) if graphs else op  # type: ignore[type-var]


def with_model_names(graph: Graph, wanted: Sequence[str], known: Mapping[str, str]) -> Graph:
    """Rename outputs, and what else has a free name, to the model's; drop what nothing needs."""
    inputs, names = {*graph.inputs}, dict[str, str]()
    aliases: dict[str, Alias] = {}
    for current, name in zip(graph.outputs, wanted, strict=True):
        names[current] = f"{name}{OWN}output" if name in inputs else name
        if name in inputs:
            aliases[names[current]] = Alias("output", name)
    for current, name in list(names.items()):
        if name in graph.types:  # by chance another value's name: they change places
            names.setdefault(name, current)
    taken = {*_all_names(graph), *names.values()}
    for current in (o for node in graph.nodes for o in node.outputs if o not in names):
        name = known.get(current, "")
        if name and name not in taken and not is_own(name):
            names[current] = name
            taken.add(name)
    return prune(replace(rename(graph, names), aliases=aliases))


def _all_names(graph: Graph) -> Iterator[str]:
    """Yield the names of a graph's values and of those in its subgraphs."""
    yield from graph.types
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            yield from _all_names(inner)
