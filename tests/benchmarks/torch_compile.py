"""Modules behind torch.compile: our backend beside eager PyTorch and Inductor.

usage: python tests/benchmarks/torch_compile.py [NAME...] [--rounds=N] [--side=PIXELS]
                                           [--precision=highest|high|medium]

Needs torch, onnxscript, torchvision, timm and transformers; the modules are those of
architectures.py with random weights, on one core and one thread, under torch.no_grad(). Each runs
eagerly, by Inductor, by Inductor with frozen parameters, and by our backend with and without
`freeze`; they alternate, and seconds of CPU are counted. Prints the medians, the ratio of the
fastest other one to our frozen one, the largest difference from eager as a part of the largest
result, and the seconds of CPU that compiling took. With --side images are so many pixels wide;
--precision is what torch.set_float32_matmul_precision is told.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from architectures import ARCHITECTURES, Architecture, module, named

from atc.pytorch import backend

Run = Callable[[Any], Any]
OURS = {"num_threads": 1}


@dataclass(frozen=True)
class Row:
    """What was measured of a module, by engine: seconds of a call and of compiling, difference."""

    name: str
    seconds: Mapping[str, float]
    compiling: Mapping[str, float]
    differences: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """How many times as long the fastest peer takes as our frozen library."""
        peers = [s for engine, s in self.seconds.items() if not engine.startswith("atc")]
        return min(peers) / self.seconds["atc frozen"]

    def __str__(self) -> str:
        times = "".join(f"{1e3 * s:17.2f}" for s in self.seconds.values())
        built = " / ".join(f"{s:.1f}" for s in self.compiling.values() if s)
        worst = max(d for engine, d in self.differences.items() if engine.startswith("atc"))
        return f"{self.name:26}{times}{self.ratio:7.2f}{worst:10.1e}   {built}"


def engines(made: Any) -> dict[str, Run]:
    """Return what runs a module, by name."""

    def compiled(**how: Any) -> Run:
        return torch.compile(deepcopy(made), dynamic=False, **how)  # a code cache of its own

    return {
        "eager": made,
        "inductor": compiled(backend="inductor"),
        "inductor frozen": compiled(backend="inductor", options={"freezing": True}),
        "atc": compiled(backend=backend, options=OURS),
        "atc frozen": compiled(backend=backend, options={**OURS, "freeze": True}),
    }


def cpu_seconds() -> float:
    """Return the seconds of CPU of this process and of those that it has waited for."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def measured(a: Architecture, rounds: int) -> Row:
    """Compile a module in every way, and run them alternately."""
    made = module(a)
    x = torch.randint(0, a.vocabulary, a.shape) if a.vocabulary else torch.randn(a.shape)
    wanted = made(x)
    scale = float(wanted.abs().max())
    runs, compiling, differences = engines(made), {}, {}
    torch._dynamo.reset()
    for name, run in runs.items():
        begin = cpu_seconds()
        found = run(x)
        compiling[name] = cpu_seconds() - begin if name != "eager" else 0
        differences[name] = float((found - wanted).abs().max()) / scale
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run(x)  # what another one has left in the caches isn't counted
            begin = time.process_time()
            run(x)
            seconds[name].append(time.process_time() - begin)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    return Row(a.name, medians, compiling, differences)


def main(argv: list[str]) -> int:
    """Measure the modules that were asked for; print a line for each, and the geometric mean."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--side", type=int, default=0)
    parser.add_argument("--precision", choices=("highest", "high", "medium"), default="highest")
    given = parser.parse_args(argv)
    torch.set_float32_matmul_precision(given.precision)
    chosen = [*map(named, given.names)] or [*ARCHITECTURES]
    if given.side:
        chosen = [replace(a, shape=(1, 3, given.side, given.side)) if a.kind == "images" else a
                  for a in chosen]  # fmt: skip
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # copies of a module share their code
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    warnings.filterwarnings("error", message="atc runs a graph eagerly")
    rows: list[Row] = []
    with torch.no_grad():
        for a in chosen:
            row = measured(a, given.rounds)
            if not rows:
                names = "".join(f"{name + ' ms':>17}" for name in row.seconds)
                print(f"{'':26}{names}  ratio     error   CPU s of compiling")
            print(row, flush=True)
            rows.append(row)
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    print(f"geometric mean of the ratios: {mean:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
