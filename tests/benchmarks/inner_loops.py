"""Innermost loops of kernels on 64-bit ARM, as the compiler writes and llvm-mca times them.

usage: inner_loops.py [--target=aarch64-neon,...] [--only=TEXT] [--type=float32] [--kernel=TEXT]
       [--machine=cortex_a53] [--mca=llvm-mca]

For the layers of arm.py, each kernel that multiplies and each parameter set that is considered:
the estimate, with a star at a layer's least, the products an instruction in the loop that has most
of them, and for each core llvm-mca's cycles of that loop and, behind a stroke, the least that its
arithmetic alone takes there. Estimates are those of a machine, by default the target's. llvm-mca
knows of no cache but the nearest. Version 19 has models of more cores than 14 (which takes one of
Cortex-A57 for most).

Needs aarch64-linux-gnu-gcc and llvm-mca.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import arm
import onnx
from stages import graph_of

from atc.backends.catalogue import kernels_for
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.kernel_source import render_kernel
from atc.backends.machines import get_machine
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.ops import Conv, ConvBlocked, MatMul
from atc.options.options import Options
from atc.templates import verbatim

CORES = ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1", "neoverse-v2")
PRODUCTS = {"fmla": 4, "fmul": 4, "sdot": 16, "usdot": 16, "sudot": 16, "smmla": 32, "usmmla": 32}
"""Products of an instruction on whole vectors."""
HALVES, LONG = ("smull", "smull2", "smlal", "smlal2"), {".16b": 8, ".8b": 8}
"""Those that multiply half of a vector, and their products by the type of operands, else 4."""
SUMS = ("sadalp",)
FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-tree-pre",
         "-fno-schedule-insns", "-S")  # fmt: skip


def products(line: str) -> int:
    """Return how many numbers an instruction multiplies by others."""
    name, *operands = line.split()
    if name not in HALVES:
        return PRODUCTS.get(name, 0)
    return next((n for type_, n in LONG.items() if type_ in operands[1]), 4)


def innermost(assembly: str) -> list[str]:
    """Return the instructions of the loop without another in it that has most products."""
    lines = [line.strip().replace("\t", " ") for line in assembly.splitlines()]
    places: dict[str, int] = {}
    best: list[str] = []
    last = -1
    for i, line in enumerate(lines):
        if label := re.match(r"(\.L\d+):", line):
            places[label[1]] = i
        jump = re.search(r"(?:^b\.?\w+ |, *)(\.L\d+)$", line)
        first = places.get(jump[1], -1) if jump else -1
        if first <= last:  # forward, or around a loop that was met before
            continue
        last = first
        body = [x for x in lines[first : i + 1] if re.match(r"[a-z]", x)]
        if sum(map(products, body)) > sum(map(products, best)):
            best = body
    return best


def cycles(mca: str, core: str, target: Target, body: Sequence[str]) -> tuple[float, float]:
    """Return llvm-mca's cycles of a round of a loop, and the least by its units' rates."""
    features = ",".join(f"+{f}" for f in ("dotprod", "i8mm") if f in " ".join(target.cflags))
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", "-iterations=100", f"-mattr={features}"]
    text = "\n".join(body)
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=True)
    total, rate = (
        float(re.search(rf"{name}: +([\d.]+)", done.stdout)[1])  # type: ignore[index]
        for name in ("Total Cycles", "Block RThroughput")
    )
    return total / 100, rate


def candidates(w: Workload, target: Target) -> Iterator[tuple[float, Candidate]]:
    """Yield the kernels that may run a workload, by their estimates."""
    found = [
        (kernel.cost(w, params, target), Candidate(kernel, params))
        for kernel in kernels_for(target)
        if isinstance(w.op, kernel.op) and not kernel.portable and kernel.accepts(w, target)
        for params in kernel.parameters(w, target)
    ]
    yield from sorted(found, key=lambda each: each[0])


def loop_of(w: Workload, candidate: Candidate, target: Target, folder: Path) -> list[str]:
    """Return the instructions of a kernel's innermost loop."""
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernel.h").write_text(verbatim("cpu/kernel.h"))
    (folder / "simd.h").write_text(verbatim(f"simd/{target.simd}.h"))
    (folder / "simd_math.h").write_text(verbatim("simd/math.h"))
    (folder / "kernels/k.c").write_text(render_kernel(candidate, w, target).text)
    command = [target.compiler, *target.cflags, *FLAGS, "kernels/k.c", "-o", "k.s"]
    subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    return innermost((folder / "k.s").read_text())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="aarch64-neon,aarch64-neon-dotprod")
    parser.add_argument("--only", default="")
    parser.add_argument("--type", default="float32", choices=tuple(arm.TYPES))
    parser.add_argument("--kernel", default="")
    parser.add_argument("--machine", type=get_machine)
    parser.add_argument("--mca", default="llvm-mca")
    given = parser.parse_args()
    for name in given.target.split(","):
        target = get_target(name)
        target = replace(target, machine=given.machine or target.machine)
        print(f"\n| {name}, {given.type} | kernel | estimate | products | {' | '.join(CORES)} |")
        print("|---" * (4 + len(CORES)) + "|")
        for label, layer in arm.LAYERS.items():
            if given.only not in label or layer[0] in arm.TYPES[given.type]:
                continue
            own = arm.model(layer, given.type, -128 if arm.LEAST in label else -1)
            with tempfile.TemporaryDirectory() as folder:
                onnx.save(own, f"{folder}/m.onnx")
                place = Path(folder)
                own_options = Options(model=place / "m.onnx", output=place / "net", target=name)
                graph = graph_of(own_options)
            for node in graph.nodes:
                if not isinstance(node.op, Conv | ConvBlocked | MatMul):
                    continue
                w = workload_of(graph, node, graph.constants)
                for rank, (cost, candidate) in enumerate(candidates(w, target)):
                    if given.kernel not in candidate.label:
                        continue
                    with tempfile.TemporaryDirectory() as folder:
                        body = loop_of(w, candidate, target, Path(folder))
                    every = sum(map(products, body))
                    if not every:
                        continue
                    arithmetic = [x for x in body if products(x) or x.split()[0] in SUMS]
                    timed = [
                        f"{cycles(given.mca, core, target, body)[0]:.0f}/"
                        f"{cycles(given.mca, core, target, arithmetic)[1]:.0f}"
                        for core in CORES
                    ]
                    row = (label, candidate.label, f"{cost:,.0f}{'' if rank else ' *'}",
                           f"{every / len(body):.2f}", *timed)  # fmt: skip
                    print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
