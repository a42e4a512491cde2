"""profile.json: the kernel calls of the networks that a process has loaded, as it ends.

A part of `atc/runtime/load.py`, and of the Python modules of projects whose calls are timed.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from atc.runtime.library import Library
from atc.runtime.network import Network

_COPIES = ("Block", "Unblock")
"""Kinds of calls that only bring tensors into another layout."""
_OWN = (("Map", "copy"), ("Map", "reorder"), ("Pad", "padding"))
"""Kinds of calls of no node of the model, and what stands in place of the nodes."""

_profiled: list[Library] = []
"""The libraries whose calls profile.json will have."""


def profile_wanted() -> bool:
    """Return whether MXNET_PROFILER_AUTOSTART asks for profile.json."""
    return os.environ.get("MXNET_PROFILER_AUTOSTART", "").lower() in ("1", "true")


def profile_at_exit(net: Network) -> bool:
    """Write a network's calls into the profile.json of this process when it ends.

    MXNET_PROFILER_MODE=0, the default, means its model's operators only. Returns false for a
    network whose calls aren't timed.
    """
    library = net._open()
    try:
        library.function("profile_count")
    except AttributeError:
        return False
    if not _profiled:
        atexit.register(_write_profile)
    _profiled.append(library)
    return True


def _write_profile() -> None:
    """Write profile.json for the viewer of Chrome traces: each kernel call with its mean time."""
    own = (os.environ.get("MXNET_PROFILER_MODE") or "0") == "0"
    events = [e for library in _profiled for e in _events(library, own)]
    with open("profile.json", "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)


def _events(library: Library, own: bool) -> Iterator[dict[str, object]]:
    """Yield the calls that were run in each context, of the model's operators only with `own`."""
    count, info = library.function("profile_count")(), library.function("profile_info")
    infos = [info(k) for k in range(count)]
    texts = [_texts(library, (i.kernel, i.op, i.nodes)) for i in infos]
    for thread, context in enumerate(library.contexts):
        times = library.function("profile_times")(context.arguments[0])
        for k, (name, op, nodes) in enumerate(texts):
            took = times[k]
            if not took.runs or (own and (op in _COPIES or (op, nodes) in _OWN)):
                continue
            yield {
                "name": name, "cat": op, "ph": "X", "ts": took.begin / 1000,
                "dur": took.nanoseconds / took.runs / 1000, "pid": os.getpid(), "tid": thread,
                "args": {"network": library.prefix, "nodes": nodes, "runs": took.runs},
            }  # fmt: skip


def _texts(library: Library, pointers: Sequence[Any]) -> list[str]:
    return [library.ffi.string(p).decode() for p in pointers]
