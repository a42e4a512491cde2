"""How fast many networks are compiled: from nothing and from a remote store, on 1 and more workers.

usage: python tests/benchmarks/farm.py [--networks=N] [--targets=A,B] [--workers=1,2]
                                       [--simulated=1,10,100,1000]

By default 100 networks for 4 targets, and 1, 10, 100 and 1,000 simulated workers; 0 leaves a part
out. Networks are drawn: rows of convolutions of different widths. A worker has one core. Simulated
workers (threads of one worker) get tasks that only sleep from a scheduler of dask: what each kernel
costs beside its own time, and where more workers gain no more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from atc.batch.command import run_batch

TARGETS = "x86-64-avx512,x86-64-avx2,x86-64,c99"
NAP = 0.1
"""Seconds that a simulated kernel takes."""


def network(path: Path, seed: int) -> None:
    """Write a network of eight convolutions whose widths nobody else has."""
    rng = np.random.default_rng(seed)
    widths = [3, *map(int, rng.integers(4, 48, 8))]
    nodes, constants, value = [], [], "x"
    for k, (n, m) in enumerate(zip(widths, widths[1:], strict=False)):
        weights = rng.standard_normal((m, n, 3, 3)).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{k}"))
        nodes.append(helper.make_node("Conv", [value, f"w{k}"], [f"c{k}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        value = f"r{k}"
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [onnx.ValueInfoProto(name=value)], constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


def compiled(folder: Path, count: int, targets: list[str], workers: int, store: Path) -> float:
    """Compile everything with an empty cache of this machine's; return the seconds."""
    names = ", ".join(f'"{name}"' for name in targets)
    lines = [
        'output = "out"', f"targets = [{names}]", "[options]",
        'op_compiler_cache_mode = "enable"', 'op_compiler_cache_dir = "cache"',
        f'op_compiler_cache_remote = "file://{store}"', "jobs = 1",
    ]  # fmt: skip
    lines += [f'[[model]]\npath = "net{k:03}.onnx"' for k in range(count)]
    (folder / "matrix.toml").write_text("\n".join(lines))
    for place in ("out", "cache"):
        shutil.rmtree(folder / place, ignore_errors=True)
    values = {"jobs": workers, "again": False, "sdk": ""}
    begin = time.perf_counter()
    done = run_batch(folder / "matrix.toml", values, lambda event: None)
    seconds = time.perf_counter() - begin
    failed = [outcome.message for outcome in done.outcomes if not outcome.ok]
    assert not failed, failed[0]
    return seconds


def compare(count: int, targets: list[str], workers: list[int]) -> None:
    """Print the times of all rows from nothing and from the store."""
    print(f"{count} networks x {len(targets)} targets, {os.cpu_count()} cores")
    print(f"{'workers':>8}{'cold':>10}{'remote':>10}{'gain':>7}{'speed-up':>10}")
    first = 0.0
    with tempfile.TemporaryDirectory(prefix="atc-farm-") as name:
        folder = Path(name)
        for k in range(count):
            network(folder / f"net{k:03}.onnx", k)
        for n in workers:
            store = folder / f"store{n}"
            store.mkdir(mode=0o700)
            cold = compiled(folder, count, targets, n, store)
            warm = compiled(folder, count, targets, n, store)
            first = first or cold
            times = f"{n:8}{cold:9.1f}s{warm:9.1f}s"
            print(f"{times}{cold / warm:7.1f}{first / cold:10.2f}", flush=True)


def simulate(workers: list[int]) -> None:
    """Print what dask costs for each kernel with so many workers that only sleep.

    A scheduler keeps as many workers busy as its cost of a task goes into the time of a kernel.
    """
    from distributed import LocalCluster

    heads = ("tasks", 8), ("seconds", 9), ("ideal", 8), ("overhead per task", 19), ("busy", 7)
    print("\n workers" + "".join(f"{head:>{width}}" for head, width in heads))
    for n in workers:
        tasks = min(4 * n + 40, 4000)
        with LocalCluster(
            n_workers=1, threads_per_worker=n, processes=False, dashboard_address=None
        ) as cluster, cluster.get_client() as client:  # fmt: skip
            client.gather(client.map(time.sleep, [0.0] * n, pure=False))
            begin = time.perf_counter()
            client.gather(client.map(time.sleep, [NAP] * tasks, pure=False))
            seconds = time.perf_counter() - begin
        ideal = -(-tasks // n) * NAP
        overhead = (seconds - ideal) / tasks * 1e3
        times = f"{n:8}{tasks:8}{seconds:8.2f}s{ideal:7.2f}s"
        print(f"{times}{overhead:16.2f} ms{ideal / seconds:7.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--simulated", default="1,10,100,1000")
    given = parser.parse_args()
    if given.networks:
        workers = [int(n) for n in given.workers.split(",")]
        compare(given.networks, given.targets.split(","), workers)
    simulated = [int(n) for n in given.simulated.split(",")]
    if any(simulated):
        simulate(simulated)


if __name__ == "__main__":
    main()
