"""The memory plan of a compiled folder, and its graph, for MegEngine's `graph_info_analyze`.

`graph_info_analyze -i DIR -o LOGS` of MegEngine 1.13 makes of both what tensorboard shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atc.errors import OptionError, not_written
from atc.ir.graph import DType
from atc.load_and_run.profile import operator, variable
from atc.tools.explain import read_report

FILE = "StaticMemoryInfo.json"
GRAPH = "graph.json"
OPTION = "--get_static_mem_info"


def write_static_memory(library: Path, folder: Path) -> Path:
    """Write plan and graph of the compiled folder that a library lies in; returns the plan."""
    try:
        report = read_report(library if library.is_dir() else library.parent)
    except OptionError as error:
        raise OptionError(error.message, where=OPTION, hint="name the compiled folder") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(static_memory_json(report), "utf-8")
        (folder / GRAPH).write_text(graph_json(report), "utf-8")
    except OSError as error:
        raise not_written(folder, error, OPTION) from None
    return folder / FILE


def static_memory_json(report: Mapping[str, Any]) -> str:
    """Return chunks over (address, time) and the sequence of operators; all values are strings.

    Both are by number. A time is a step of the plan and the number of its operator. Weights lie
    behind the arena in the logical addresses and live all the time.
    """
    memory = report["memory"]
    arena, weights = memory["arena_bytes"], memory["weights_bytes"]
    steps = _steps(report)
    last = len(steps)
    chunks = [
        _chunk("static_mem", b["first_step"], b["last_step"] + 1, b["offset"], b["bytes"])
        for b in memory["buffers"]
    ]
    if weights:
        chunks.append(_chunk("weight_mem", 0, last, arena, weights))
    content = {
        "chunk": {str(k): {"id": str(k), **chunk} for k, chunk in enumerate(chunks)},
        "opr": {str(k): {"id": str(k), "name": name} for k, name in enumerate(steps)},
        "memory": {"arena": str(arena), "weights": str(weights),
                   "lower_bound": str(memory["lower_bound_bytes"])},
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def graph_json(report: Mapping[str, Any]) -> str:
    """Return the kernel calls, and what gives the inputs, as operators with their variables."""
    nodes, names = report["nodes"], _names(report)
    variables: list[dict[str, Any]] = []
    made: dict[int | str, int] = {}  # the first variable of a call, or that of an input

    def new(name: str, text: str) -> int:
        kind, _, dims = text.rstrip("]").partition("[")
        shape = [int(d) if d.isdecimal() else 0 for d in dims.split(",") if d]
        dtype = next((t.numpy.name for t in DType if t.label == kind), kind)
        variables.append(variable(len(variables), name, shape, dtype))
        return len(variables) - 1

    operators = []
    for name, text in report["inputs"].items():
        made[name] = new(name, text)
        number = len(nodes) + len(made) - 1
        operators.append(operator(number, name, "Host2DeviceCopy", (), (made[name],)))
    for k, (node, name) in enumerate(zip(nodes, names, strict=True)):
        reads = [made[r] for r in node["reads"] if r in made]
        writes = [new(*w) for w in zip(node["writes"], node["results"], strict=True)]
        made[k] = writes[0]
        operators.append(operator(k, name, node["op"], reads, writes))
    for name in dict.fromkeys(_steps(report)):  # of control flow: a buffer may begin with it
        if name not in names:
            operators.append(operator(len(operators), name, "ControlFlow", (), ()))
    content = {
        "operator": {o["id"]: o for o in operators}, "var": {v["id"]: v for v in variables}
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _steps(report: Mapping[str, Any]) -> list[str]:
    """Return the name of each step of the memory plan: that of its call, or of control flow."""
    pairs = zip(report["nodes"], _names(report), strict=True)
    calls = {node["step"]: name for node, name in pairs}
    last = max([-1, *calls, *(b["last_step"] for b in report["memory"]["buffers"])])
    return [calls.get(k, f"control flow[{k}]") for k in range(last + 1)]


def _names(report: Mapping[str, Any]) -> list[str]:
    """Return a name of its own for each kernel call: its nodes' and its number."""
    return [f"{node['name']}[{k}]" for k, node in enumerate(report["nodes"])]


def _chunk(kind: str, begin: int, end: int, address: int, size: int) -> dict[str, str]:
    return {
        "type": kind, "time_begin": str(begin), "time_end": str(end),
        "logic_addr_begin": str(address), "logic_addr_end": str(address + size),
        "overwrite_dest_id": "-1",
    }  # fmt: skip
