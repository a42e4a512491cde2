"""Seconds of a training step, alternating with PyTorch's step on the same core.

    python tests/benchmarks/training.py [--architecture=ResNet-50] [--batch=8] [--size=224]
        [--steps=5] [--core=0] [--torch=PYTHON] [--compiled] [--profile]

Both train the same network with SGD and momentum in one thread, pinned to a core: networks of
images as classifiers, those of text (without dropout) for the square of their results' distance
from a target. PyTorch's step is eager, with --compiled that of torch.compile. PyTorch runs in a
process of its own, in the interpreter `--torch` if this one has no PyTorch; it exports the network,
too. Times are of the processor; the ratio is PyTorch's median over ours: above 1 ours is faster.
With --profile our library is built with clocks around its calls, and their sums by kernel follow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

MOMENTUM, RATE = 0.9, 0.01


def worker(given: argparse.Namespace) -> None:
    """Export the network, then take a step of training for each line that is read."""
    import torch
    from architectures import module, named

    warnings.simplefilter("ignore")  # what exports of networks in training say of each layer
    torch.set_num_threads(1)
    architecture = named(given.architecture)
    made, mode = module(architecture), torch.onnx.TrainingMode.PRESERVE
    if architecture.vocabulary:
        x = torch.randint(0, architecture.vocabulary, (given.batch, architecture.shape[1]))
        label, loss = torch.randn_like(made(x)), torch.nn.functional.mse_loss
    else:
        made, mode = made.train(), torch.onnx.TrainingMode.TRAINING
        x = torch.randn(given.batch, 3, given.size, given.size)
        label, loss = torch.randint(0, 1000, (given.batch,)), torch.nn.functional.cross_entropy
    torch.onnx.export(
        made, (x,), given.worker, training=mode, dynamo=False,
        do_constant_folding=False, input_names=["x"], output_names=["y"], opset_version=17,
    )  # fmt: skip
    optimizer = torch.optim.SGD(made.parameters(), lr=RATE, momentum=MOMENTUM)
    run = torch.compile(made) if given.compiled else made

    def step() -> None:
        optimizer.zero_grad()
        loss(run(x), label).backward()
        optimizer.step()

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        step()
        print(time.process_time() - begin, flush=True)


class Torch:
    """PyTorch's process."""

    def __init__(self, given: argparse.Namespace, model: Path) -> None:
        """Start it, and wait until the model is exported."""
        command = [given.torch, __file__, *sys.argv[1:], f"--worker={model}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line() != "ready":
            raise SystemExit(f"training: {given.torch} has no PyTorch with {given.architecture}")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return next((line for line in map(str.strip, self.process.stdout)
                     if line == "ready" or line[:1].isdigit()), "")  # fmt: skip

    def __call__(self) -> float:
        """Take a step; return its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self._line())


def ours(given: argparse.Namespace, model: Path, folder: Path) -> Callable[[], float]:
    """Compile a step; return what takes one and returns its seconds."""
    import numpy as np
    import onnx
    from architectures import named

    import atc

    architecture = named(given.architecture)
    step = atc.training_step(
        model, folder, optimizer="sgd", optimizer_options={"momentum": MOMENTUM}, lr=RATE,
        loss="square_loss" if architecture.vocabulary else "cross_entropy", profile=given.profile,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    if architecture.vocabulary:
        x = rng.integers(0, architecture.vocabulary, (given.batch, architecture.shape[1]))
        shape = onnx.load(model, load_external_data=False).graph.output[0].type.tensor_type.shape
        label = rng.normal(size=[d.dim_value for d in shape.dim]).astype(np.float32)
    else:
        x = rng.normal(size=(given.batch, 3, given.size, given.size)).astype(np.float32)
        label = rng.integers(0, 1000, given.batch)

    def take() -> float:
        begin = time.process_time()
        step(x, label)
        return time.process_time() - begin

    if given.profile:
        show(step, (x, label))
    return take


def show(step: Any, arrays: tuple[Any, ...]) -> None:
    """Print the milliseconds of each kernel's calls, the longest first."""
    import numpy as np

    from atc.tools.profile import profile_run

    feeds = dict(zip(step.inputs, arrays, strict=True)) | step._state
    if step._rate:
        feeds[step._rate] = np.float64(step.lr)
    if step._seed:
        feeds[step._seed] = np.int64(step.seed)
    sums: dict[str, float] = defaultdict(float)
    for call in profile_run(step.network, feeds, 1, "training").calls:
        sums[f"{call.op} {call.kernel.partition('(')[0]}"] += call.ns / 1e6
    for name, milliseconds in sorted(sums.items(), key=lambda each: -each[1])[:20]:
        print(f"{milliseconds:10.1f} ms  {milliseconds / sum(sums.values()):6.1%}  {name}")


def main() -> None:
    """Build, run alternately, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="ResNet-50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--torch", default=sys.executable)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given)
        return
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, "model.onnx")
        peer = Torch(given, model)
        try:
            take = ours(given, model, Path(place, "step"))
            for pid in (0, peer.process.pid):
                os.sched_setaffinity(pid, {sorted(cores)[given.core % len(cores)]})
            times = [(take(), peer()) for _ in range(given.steps + 1)][1:]
        finally:
            peer.process.kill()
    mine, theirs = (median(column) for column in zip(*times, strict=True))
    how = "torch.compile" if given.compiled else "PyTorch"
    print(f"{given.architecture}, batch {given.batch}: atc {mine:.3f} s, {how} {theirs:.3f} s, "
          f"ratio {theirs / mine:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
