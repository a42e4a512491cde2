"""Thirty public architectures: build time, size, memory, speed and error beside onnxruntime.

usage: python tests/benchmarks/gallery.py [--exporter=PYTHON] [--only=NAME,...] [--again]
           [--rounds=N] [--page]

PYTHON is one that has torch, onnxscript, torchvision, timm and transformers (default: this one):
they export the networks of architectures.py, with random weights. Each is built and measured by
compare.py, by CPU time and in turns with onnxruntime on one core. What was measured of a network is
a line of atc/docs/gallery.jsonl, written when it is done: a run that was ended goes on where it
was. Networks that have a line aren't measured again without --again. At last the page
atc/docs/gallery.md and its charts are written from all lines; --page does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from architectures import ARCHITECTURES, Architecture
from charts import DOCS, Row, bars

import atc
from atc.backends.targets import get_target

HERE = Path(__file__).parent
STORED = DOCS / "gallery.jsonl"
Line = Mapping[str, Any]


def measured(a: Architecture, exporter: str, rounds: int) -> dict[str, Any]:
    """Export, build and run one architecture; `failure` says what went wrong."""
    with tempfile.TemporaryDirectory(prefix="atc-gallery-") as name:
        model = Path(name) / "model.onnx"
        done = subprocess.run(
            [exporter, str(HERE / "architectures.py"), a.name, str(model)],
            capture_output=True, text=True,
        )  # fmt: skip
        reported = {"name": a.name, "package": a.package, "kind": a.kind, "shape": a.shape,
                "on": circumstances()}  # fmt: skip
        if done.returncode:
            return {**reported, "failure": f"export: {last_line(done.stderr)}"}
        reported |= json.loads(done.stdout.splitlines()[-1]) | {"bytes": model.stat().st_size}
        done = subprocess.run(
            [sys.executable, str(HERE / "compare.py"), str(model), "--json", "--clock=cpu",
             "--peers=onnxruntime", f"--rounds={rounds}"],
            capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(done.stdout or "[]")
        if not found:
            return {**reported, "failure": f"build: {last_line(done.stderr)}"}
        return reported | summary(found[0])


def summary(result: Line) -> dict[str, Any]:
    """Return what the page shows of compare.py's result; seconds and bytes."""
    kept = ("median", "error", "peak_rss", "failure")
    return {
        "engines": {e["name"].split()[0]: {k: e[k] for k in kept} for e in result["engines"]},
        "library_bytes": result["library_bytes"], "build_cpu": result["cold_build"],
        "operations": result["operations"], "bare_rss": result["bare_rss"],
    }  # fmt: skip


def circumstances() -> dict[str, Any]:
    """Return when and where something was measured, and how much else ran there."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "cpu": cpu_name(),
        "target": get_target("host").name, "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "atc": atc.__version__, "onnxruntime": version("onnxruntime"),
    }  # fmt: skip


def cpu_name() -> str:
    """Return what the system calls its processor."""
    info = Path("/proc/cpuinfo")
    names = [x.partition(":")[2].strip() for x in info.read_text().splitlines()
             if x.startswith("model name")] if info.exists() else []  # fmt: skip
    return names[0] if names else platform.processor() or platform.machine()


def last_line(text: str) -> str:
    """Return the last line of what a program said."""
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


def stored(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each network, in the order of architectures.py."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = {line["name"]: line for line in map(json.loads, lines)}
    return {a.name: found[a.name] for a in ARCHITECTURES if a.name in found}


def keep(path: Path, lines: Mapping[str, Line]) -> None:
    """Write all lines, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(line) + "\n" for line in lines.values()), "utf-8")
    new.replace(path)


# ---------------------------------------------------------------------------------------- the page

PAGE = """\
# Gallery

Written by `python tests/benchmarks/gallery.py` from what it measured (`gallery.jsonl` beside this
page); don't edit it by hand.

{count} public architectures of torchvision, timm and transformers, exported by
`torch.onnx.export` with random weights, in float32, batch 1. Those of transformers are small
configurations, as their names say. {where}

**How it was measured**: by CPU time, as the machine had other work meanwhile (a load of {load} on
{cores} cores when the networks' turns began). Both engines ran on one core with one thread, in
turns. On a busy machine times are longer than on an idle one, as caches are shared; ratios suffer
less, and are what to read here.

Ratio is onnxruntime's median time over ours. The geometric mean of the {timed} is **{mean:.2f}**,
the least {least:.2f}. Error is the largest difference from onnxruntime without optimisations, as a
part of the output's largest magnitude, ours and onnxruntime's own. Build is the CPU time of `atc`
and all its compilers with an empty cache, library the size of the shared library, weights
included, memory the peak of the process beyond that of Python with numpy and the inputs, ours and
onnxruntime's.

![speed](images/gallery_speed.svg)

| network | from | million parameters | ours ms | onnxruntime ms | ratio | error | build s \
| library MB | memory MB |
|---|---|---|---|---|---|---|---|---|---|
{rows}
{failed}
![build](images/gallery_build.svg)

![memory](images/gallery_memory.svg)

## Again

    python tests/benchmarks/gallery.py --exporter=python --only=SqueezeNet

measures networks that have no line yet (with `--again` those that have one, too); the exporter is a
Python that has `torch`, `onnxscript`, `torchvision`, `timm` and `transformers`.
"""


def page(lines: Mapping[str, Line]) -> str:
    """Return the page about all that is stored."""
    able = {name: x for name, x in lines.items() if ratio(x)}
    ratios = [ratio(x) for x in able.values()]
    loads = [x["on"]["load"] for x in lines.values()]
    failed = [f"- {name}: {failure(x)}\n" for name, x in lines.items() if not ratio(x)]
    return PAGE.format(
        count=len(lines), where=where(lines), timed=len(able),
        load=f"{min(loads):g} to {max(loads):g}", cores=one(lines, "cores"),
        mean=statistics.geometric_mean(ratios), least=min(ratios),
        rows="\n".join(row(x) for x in able.values()),
        failed="\nNot compiled, or not run:\n\n" + "".join(failed) if failed else "",
    )  # fmt: skip


def where(lines: Mapping[str, Line]) -> str:
    """Return a sentence about machine and time."""
    dates = sorted({x["on"]["date"] for x in lines.values()})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"Measured {when} on {one(lines, 'cpu')}, {one(lines, 'cores')} cores, for the target "
        f"`{one(lines, 'target')}`, beside onnxruntime {one(lines, 'onnxruntime')}."
    )


def one(lines: Mapping[str, Line], key: str) -> str:
    """Return what is the same of all lines, else all that there is."""
    return ", ".join(sorted({str(x["on"][key]) for x in lines.values()}))


def ratio(line: Line) -> float:
    """Return onnxruntime's time over ours; 0 where one of them didn't run."""
    engines = line.get("engines", {})
    times = [engines.get(name, {}).get("median", 0.0) for name in ("onnxruntime", "atc")]
    return times[0] / times[1] if all(times) else 0.0


def failure(line: Line) -> str:
    """Return why there is no ratio."""
    engines = line.get("engines", {})
    return line.get("failure") or next(
        (f"{name}: {e['failure']}" for name, e in engines.items() if e["failure"]), "unknown"
    )


def row(x: Line) -> str:
    """Return a row of the page's table."""
    ours, other = x["engines"]["atc"], x["engines"]["onnxruntime"]
    memory = [(e["peak_rss"] - x["bare_rss"]) / 2**20 for e in (ours, other)]
    return (
        f"| {x['name']} | {x['package']} | {x['parameters'] / 1e6:.1f} | {1e3 * ours['median']:.2f}"
        f" | {1e3 * other['median']:.2f} | **{ratio(x):.2f}** | {ours['error']:.0e} / "
        f"{other['error']:.0e} | {x['build_cpu']:.0f} | {x['library_bytes'] / 2**20:.1f} | "
        f"{memory[0]:.0f} / {memory[1]:.0f} |"
    )


def charts(lines: Mapping[str, Line]) -> dict[str, str]:
    """Return the page's charts by file name."""
    able = [x for x in lines.values() if ratio(x)]
    engines = ("atc", "onnxruntime")

    def own(x: Line) -> tuple[float, ...]:
        return tuple((x["engines"][e]["peak_rss"] - x["bare_rss"]) / 2**20 for e in engines)

    return {
        "gallery_speed.svg": bars(
            "Speed: runs in the time of one of onnxruntime's", engines,
            [Row(x["name"], (ratio(x), 1.0)) for x in able]),
        "gallery_build.svg": bars(
            "CPU seconds of a build with an empty cache", ("atc",),
            [Row(x["name"], (x["build_cpu"],)) for x in able], "{:.0f}"),
        "gallery_memory.svg": bars(
            "MB of a process, less Python, numpy and the inputs", engines,
            [Row(x["name"], own(x)) for x in able], "{:.0f}"),
    }  # fmt: skip


def write_page(lines: Mapping[str, Line]) -> None:
    """Write the page and its charts."""
    if not any(ratio(x) for x in lines.values()):
        return
    (DOCS / "images").mkdir(exist_ok=True)
    (DOCS / "gallery.md").write_text(page(lines), "utf-8")
    for name, text in charts(lines).items():
        (DOCS / "images" / name).write_text(text, "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what isn't stored, one after the other, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="gallery.py [options]",
    )  # fmt: skip
    parser.add_argument("--exporter", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--only", default="", help="names, or their beginnings")
    parser.add_argument("--again", action="store_true", help="also what is stored")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each engine")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    given = parser.parse_args(argv)
    lines = stored(STORED)
    only = tuple(filter(None, given.only.split(",")))
    for a in () if given.page else ARCHITECTURES:
        if (only and not a.name.startswith(only)) or (a.name in lines and not given.again):
            continue
        print(f"gallery: {a.name}", file=sys.stderr)
        lines[a.name] = measured(a, given.exporter, given.rounds)
        lines = {b.name: lines[b.name] for b in ARCHITECTURES if b.name in lines}
        keep(STORED, lines)
        print(f"gallery: {ratio(lines[a.name]):.2f} {lines[a.name].get('failure', '')}",
              file=sys.stderr)  # fmt: skip
    write_page(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
