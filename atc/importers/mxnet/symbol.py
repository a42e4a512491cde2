"""Reads MXNet's symbol JSON (0.x to 1.9) into plain values, with the upgrades of old files done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atc.errors import ModelError, UnsupportedError

CURRENT_VERSION = 10901
"""MXNet 1.9.1 as its files spell it: major * 10000 + minor * 100 + patch."""

FIRST_UNKNOWN = 30000
"""Files of MXNet 2 name their operators as those of 1.9 do; there has been no 3."""

OLDEST_VERSION = 800
"""What MXNet assumes of a file that doesn't say its version."""

MAX_DEPTH = 8
"""Symbols nest (fused subgraphs, control flow); deeper files are refused."""

AUXILIARY = {
    "BatchNorm": ("data", "gamma", "beta", "moving_mean", "moving_var"),
    "BatchNorm_v1": ("data", "gamma", "beta", "moving_mean", "moving_var"),
    "CuDNNBatchNorm": ("data", "gamma", "beta", "moving_mean", "moving_var"),
}
"""Inputs by name of the operators whose auxiliary states files before 0.9 leave out."""


@dataclass(frozen=True)
class Entry:
    """One output of one node."""

    node: int
    output: int = 0


@dataclass(frozen=True)
class SymbolNode:
    """A node as the file has it; `op` is 'null' for a variable."""

    op: str
    name: str
    attrs: Mapping[str, str]
    inputs: tuple[Entry, ...]
    subgraphs: tuple[Symbol, ...] = ()

    @property
    def is_variable(self) -> bool:
        """Whether the node is an input, a parameter or an auxiliary state."""
        return self.op == "null"


@dataclass(frozen=True)
class Symbol:
    """A graph in topological order: every node comes after its inputs."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]
    version: int = field(default=CURRENT_VERSION)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The variables' indices, in order of first use."""
        return tuple(i for i, node in enumerate(self.nodes) if node.is_variable)


def parse_symbol(data: bytes, where: str) -> Symbol:
    """Parse and upgrade a symbol file; `where` names it in errors."""
    try:
        root = json.loads(data)
    except RecursionError:
        raise ModelError("the symbol file nests too deeply", where=where) from None
    except ValueError as error:
        raise ModelError(f"the symbol file is not JSON: {error}", where=where) from None
    return _symbol(root, where, 0, None)


def _symbol(root: object, where: str, depth: int, version: int | None) -> Symbol:
    if not isinstance(root, dict) or not isinstance(root.get("nodes"), list):
        raise ModelError("the symbol file has no list of nodes", where=where)
    if depth > MAX_DEPTH:
        raise ModelError("the symbol's subgraphs nest too deeply", where=where)
    if version is None:
        version = _version(root, where)
    nodes = [_node(raw, i, where, depth, version) for i, raw in enumerate(root["nodes"])]
    heads = _entries(root.get("heads"), "heads", len(nodes), where)
    if not heads:
        raise ModelError("the symbol has no outputs (heads)", where=where)
    return _upgrade(Symbol(tuple(nodes), heads, version))


def _version(root: Mapping[str, Any], where: str) -> int:
    attrs = root.get("attrs")
    match attrs.get("mxnet_version") if isinstance(attrs, dict) else None:
        case None:
            return OLDEST_VERSION
        case [_, int(version)] if 0 < version < FIRST_UNKNOWN:
            return version
        case [_, int(version)] if version >= FIRST_UNKNOWN:
            major, rest = divmod(version, 10000)
            raise UnsupportedError(
                f"the symbol is of MXNet {major}.{rest // 100}.{rest % 100}", where=where,
                hint="files of MXNet 0.x to 2.x are read",
            )  # fmt: skip
        case other:
            raise ModelError(f"the symbol's mxnet_version is {str(other)[:80]}", where=where)


def _node(raw: object, index: int, where: str, depth: int, version: int) -> SymbolNode:
    place = f"{where}, node {index}"
    if not isinstance(raw, dict):
        raise ModelError("a node is not an object", where=place)
    op, name = raw.get("op"), raw.get("name", "")
    if not isinstance(op, str) or not isinstance(name, str):
        raise ModelError("a node's op or name is not a string", where=place)
    subgraphs = raw.get("subgraphs", [])
    if not isinstance(subgraphs, list):
        raise ModelError("a node's subgraphs are not a list", where=place)
    return SymbolNode(
        op=op,
        name=name or f"{op}{index}",
        attrs=_attrs(raw, place),
        inputs=_entries(raw.get("inputs", []), "inputs", index, place),
        subgraphs=tuple(_symbol(s, place, depth + 1, version) for s in subgraphs),
    )


def _attrs(raw: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Merge the three spellings: 'param' (operator, to 0.8), 'attr' (user or to 0.11), 'attrs'."""
    merged: dict[str, str] = {}
    for key in ("attr", "param", "attrs"):
        found = raw.get(key)
        if found is None:
            continue
        if not isinstance(found, dict):
            raise ModelError(f"a node's {key} is not an object", where=where)
        merged.update((k, v if isinstance(v, str) else json.dumps(v)) for k, v in found.items())
    return merged


def _entries(raw: object, what: str, limit: int, where: str) -> tuple[Entry, ...]:
    if not isinstance(raw, list):
        raise ModelError(f"{what} is not a list", where=where)
    return tuple(_entry(item, what, limit, where) for item in raw)


def _entry(raw: object, what: str, limit: int, where: str) -> Entry:
    match raw:
        case [int(node), int(output), *_] if not isinstance(node, bool):
            pass
        case [int(node)] | int(node):
            output = 0
        case _:
            raise ModelError(f"{what} holds something that is not [node, output]", where=where)
    if not 0 <= node < limit or not 0 <= output < 1 << 20:
        raise ModelError(f"{what} refers to output {output} of node {node}", where=where,
                         hint="a node's inputs must come before it")  # fmt: skip
    return Entry(node, output)


# ---- upgrades of old files, as MXNet's loader does them ----------------------------------------


def _upgrade(symbol: Symbol) -> Symbol:
    nodes = symbol.nodes
    if symbol.version < 905:
        nodes = tuple(_whole_argmax(n) for n in nodes)
    if any(len(n.inputs) < len(AUXILIARY.get(n.op, ())) for n in nodes):
        return _append_auxiliary(nodes, symbol)
    return replace(symbol, nodes=nodes)


def _whole_argmax(node: SymbolNode) -> SymbolNode:
    """Before 0.9.5 the axis -1 of argmax and argmin meant the flattened tensor."""
    if node.op not in ("argmax", "argmin") or node.attrs.get("axis") != "-1":
        return node
    return replace(node, attrs={k: v for k, v in node.attrs.items() if k != "axis"})


def _append_auxiliary(nodes: Sequence[SymbolNode], symbol: Symbol) -> Symbol:
    """Before 0.9 auxiliary states were no nodes: add variables called <node>_<argument>."""
    result: list[SymbolNode] = []
    moved: list[int] = []
    for node in nodes:
        inputs = [Entry(moved[e.node], e.output) for e in node.inputs]
        for argument in AUXILIARY.get(node.op, ())[len(inputs) :]:
            inputs.append(Entry(len(result)))
            result.append(SymbolNode("null", f"{node.name}_{argument}", {}, ()))
        moved.append(len(result))
        result.append(replace(node, inputs=tuple(inputs)))
    heads = tuple(Entry(moved[e.node], e.output) for e in symbol.heads)
    return Symbol(tuple(result), heads, symbol.version)
