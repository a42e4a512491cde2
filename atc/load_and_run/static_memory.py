"""The memory plan of a compiled folder as StaticMemoryInfo.json, as MegEngine's tools read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atc.errors import OptionError
from atc.explain import read_report

FILE = "StaticMemoryInfo.json"
OPTION = "--get_static_mem_info"


def write_static_memory(library: Path, folder: Path) -> Path:
    """Write the plan of the compiled folder that a library lies in; returns the file."""
    try:
        report = read_report(library if library.is_dir() else library.parent)
    except OptionError as error:
        raise OptionError(error.message, where=OPTION, hint="name the compiled folder") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(static_memory_json(report), "utf-8")
    except OSError as error:
        raise OptionError(f"can't write {folder}: {error.strerror}", where=OPTION) from None
    return folder / FILE


def static_memory_json(report: Mapping[str, Any]) -> str:
    """Return chunks over (address, time) and the sequence of operators; all values are strings.

    Weights lie behind the arena in the logical addresses and live all the time.
    """
    memory = report["memory"]
    arena, weights = memory["arena_bytes"], memory["weights_bytes"]
    nodes = report["nodes"]
    last = max([len(nodes), *(b["last_step"] + 1 for b in memory["buffers"])])
    chunks = [
        _chunk("static_mem", b["first_step"], b["last_step"] + 1, b["offset"], b["bytes"])
        for b in memory["buffers"]
    ]
    if weights:
        chunks.append(_chunk("weight_mem", 0, last, arena, weights))
    content = {
        "chunk": [{"id": str(k), **chunk} for k, chunk in enumerate(chunks)],
        "opr": [
            {"id": str(k), "name": " + ".join(node["origin"]) or "a copy"}
            for k, node in enumerate(nodes)
        ],
        "memory": {"arena": str(arena), "weights": str(weights),
                   "lower_bound": str(memory["lower_bound_bytes"])},
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _chunk(kind: str, begin: int, end: int, address: int, size: int) -> dict[str, str]:
    return {
        "type": kind, "time_begin": str(begin), "time_end": str(end),
        "logic_addr_begin": str(address), "logic_addr_end": str(address + size),
        "overwrite_dest_id": "-1",
    }  # fmt: skip
