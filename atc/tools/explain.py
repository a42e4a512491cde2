"""Reasons for a node's kernel: candidates, estimates and times, from a build's report."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line, reason_of, way_out

Report = Mapping[str, Any]
"""The content of `<name>.report.json`."""


def read_report(folder: Path) -> Report:
    """Return the report of an output folder; raises OptionError where there is none."""
    files = sorted(folder.glob("*.report.json")) if folder.is_dir() else []
    if len(files) != 1:
        raise OptionError(
            f"{folder} holds no report of a compilation", hint="name the folder of --output"
        )
    try:
        report = json.loads(files[0].read_bytes())
        _ = [(n["name"], n["origin"], n["candidate"], n["excluded"]) for n in report["nodes"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            f"{files[0]} is not a report: {one_line(reason_of(error, files[0]), 200)}",
            hint=way_out(error) or "compile the model again",
        ) from None
    return dict(report)


def explain(report: Report, name: str) -> str:
    """Return the candidates of all kernel calls that a node of the model became part of.

    Raises OptionError, with the nearest names, where no kernel call comes from the node.
    """
    found = [node for node in report["nodes"] if name in node["origin"]]
    if not found:
        known = dict.fromkeys(o for node in report["nodes"] for o in node["origin"])
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or list(known)[:3]
        raise OptionError(
            f"no kernel comes from a node '{one_line(name, 80)}'", where="--explain",
            hint=f"there are {', '.join(one_line(n, 60) for n in near)}" if near else "",
        )  # fmt: skip
    return "\n".join("\n".join(_call(node)) + "\n" for node in found)


def _call(node: Mapping[str, Any]) -> Iterator[str]:
    operands = ", ".join(t or "-" for t in node["operands"])
    origin = " + ".join(one_line(o, 60) for o in node["origin"])
    yield f"{origin}: {node['op']} {operands} -> {', '.join(node['results'])}"
    measured = {m["kernel"]: m for m in node["measurements"]}
    larger = {e["kernel"]: e["bytes"] for e in node.get("enlarged", ())}
    rows = [("", "candidate", "cycles", "time", "")]
    for entry in node["estimates"]:
        kernel = entry["kernel"]
        mark = "*" if kernel == node["candidate"] else ""
        time, remark = _measured(measured.get(kernel))
        if kernel in larger:
            remark = f"{remark} weights larger by {larger[kernel] / 1e6:.2f} MB".lstrip()
        rows.append((mark, kernel, f"{entry['cost']:.0f}", time, remark))
    rows += [("", e["kernel"], "", "", f"left out: {e['reason']}") for e in node["excluded"]]
    yield from _table(rows)
    yield f"  * {_reason(node, measured)}"


def _measured(measurement: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return time and remark."""
    if measurement is None:
        return "", ""
    if measurement["ns"] is None:
        return "", one_line(measurement["reason"], 80)
    return f"{measurement['ns'] / 1e3:.2f} us", ""


def _reason(node: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    if len(node["estimates"]) == 1:
        return "the only candidate"
    price = " with the price of larger weights (--weight_price)" if node.get("enlarged") else ""
    if measured.get(node["candidate"], {}).get("ns") is None:
        return f"the least estimate{price}; nothing was measured"
    return f"the least time{price}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for mark, kernel, estimate, time, remark in rows:
        line = f"{mark:<1} {kernel:<{widths[1]}}  {estimate:>{widths[2]}}  {time:>{widths[3]}}"
        yield f"  {line}  {remark}".rstrip()
