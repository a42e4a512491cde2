"""Memory and time of PyTorch's checkpointing of a ResNet-50's step of training.

    python tests/benchmarks/checkpointing.py [--batch=30] [--size=224] [--steps=3] [--core=0]

Prints what PyTorch needs beside what `recomputation.py` prints of ours: for the eager step with SGD
and momentum as it is, and with `torch.utils.checkpoint` around each of the sixteen residual blocks
or each of the four stages. Times are seconds of the processor, the least of --steps, in one pinned
thread; memory is the most that a process has at any time, beyond what it has before the network is
made. The interpreter needs torch and torchvision. The seed is fixed, and the last loss is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTS = ("nothing", "blocks", "stages")
"""What is checkpointed."""


def memory(which: str) -> int:
    """Return a number of /proc/self/status in bytes: VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{which}:"))


def worker(given: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return what it took."""
    import torch
    from architectures import module, named
    from torch.utils.checkpoint import checkpoint

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[given.core]})
    torch.set_num_threads(1)
    architecture = named("ResNet-50")
    module(architecture)  # what is imported counts before
    before = memory("VmRSS")
    network = module(architecture).train()
    stages = [network.layer1, network.layer2, network.layer3, network.layer4]
    parts = {"nothing": [], "blocks": [b for s in stages for b in s], "stages": stages}
    for part in parts[given.part]:
        run = part.forward
        part.forward = lambda x, run=run: checkpoint(run, x, use_reentrant=False)
    images = torch.randn(given.batch, 3, given.size, given.size)
    labels = torch.randint(0, 1000, (given.batch,))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    seconds = []
    for _ in range(given.steps + 1):
        begin = time.process_time()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - begin)
    return {"seconds": min(seconds[1:]), "bytes": memory("VmHWM") - before, "loss": loss.item()}


def main() -> None:
    """Measure each in a process of its own, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--part", default="", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(worker(given)))
        return
    plain = 0.0
    for part in PARTS:
        command = [sys.executable, __file__, *sys.argv[1:], f"--part={part}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plain = plain or found["seconds"]
        print(f"batch {given.batch}, {part} checkpointed: {found['bytes'] / 1e6:.0f} MB, "
              f"{found['seconds']:.2f} s, time {found['seconds'] / plain:.3f}, "
              f"loss {found['loss']:.6f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
