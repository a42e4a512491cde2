"""ResNet-50's step of training in less memory: bytes and work of the plans, the same bits, time.

    python tests/benchmarks/recomputation.py [--batch=10] [--size=224] [--steps=3] [--core=0]
        [--plan]

The bytes that a step of `--batch` images takes as it is are the budget: three times as many images
are to fit with `SublinearMemoryConfig`, four and a half times as many with `DTRConfig`. Bytes are
all of a step's: arena, weights, momentum, running statistics, and their new values, which traced
functions don't write on the old ones. `work` is what is recomputed, as part of the step; no plan
of that size takes less than `least work`, and no arena is below `least arena`. Without --plan steps
as they are and within the budget then train equal networks, alternately on one core, with random
images: loss, weights and all else that a step changes must have the same bits after each; `time`
is the ratio of the processor's seconds, the least of --steps.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import atc
from atc import functional
from atc.diagnostics import Diagnostics
from atc.options.options import make_options
from atc.options.resolve import resolve
from atc.passes.rematerialize import recomputed_nodes
from atc.pipeline.held import held_bytes
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.planning import plan_all
from atc.pipeline.request import Decisions, resolve_request
from atc.pipeline.timing import Timed

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, the channels inside of each, and the first one's stride."""
WIDER, CLASSES = 4, 1000
_REPORT = re.compile(r"no arena is below (\d+),.*; ([\d.]+) % more work, .* ([\d.]+) %$")


@dataclass(frozen=True)
class Layer:
    """A convolution with batch normalization."""

    filters: atc.Parameter
    scale: atc.Parameter
    shift: atc.Parameter
    mean: atc.Parameter
    variance: atc.Parameter
    stride: int

    def __call__(self, x: Any) -> Any:
        padding = self.filters.shape[-1] // 2
        y = functional.conv2d(x, self.filters, stride=self.stride, padding=padding)
        return functional.batch_norm(
            y, self.mean, self.variance, self.scale, self.shift, training=True
        )


@dataclass(frozen=True)
class Block:
    """Three layers beside a shortcut, which has a layer of its own where the shape changes."""

    layers: tuple[Layer, Layer, Layer]
    shortcut: Layer | None

    def __call__(self, x: Any) -> Any:
        first, second, third = self.layers
        y = third(functional.relu(second(functional.relu(first(x)))))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50:
    """The network of He et al. (CVPR 2016), whose blocks have their stride in the 3 x 3 layer."""

    def __init__(self) -> None:
        """Make it with random weights, the same each time."""
        self.random = np.random.default_rng(0)
        self.weights: list[atc.Parameter] = []
        self.statistics: list[atc.Parameter] = []
        self.begin, channels = self._layer(3, 64, 7, 2), 64
        self.blocks: list[Block] = []
        for blocks, inner, stride in STAGES:
            for k in range(blocks):
                by = 1 if k else stride
                layers = (self._layer(channels, inner, 1), self._layer(inner, inner, 3, by),
                          self._layer(inner, inner * WIDER, 1))  # fmt: skip
                shortcut = None if k else self._layer(channels, inner * WIDER, 1, by)
                self.blocks.append(Block(layers, shortcut))
                channels = inner * WIDER
        self.last = self._weight((CLASSES, channels), channels**-0.5)
        self.bias = self._weight((CLASSES,), 0.0)

    def __call__(self, x: Any) -> Any:
        """Return the scores of images [N, 3, H, W]."""
        x = functional.max_pool2d(functional.relu(self.begin(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        x = functional.flatten(functional.global_avg_pool2d(x))
        return functional.linear(x, self.last, self.bias)

    def _layer(self, channels: int, results: int, size: int, stride: int = 1) -> Layer:
        filters = self._weight(
            (results, channels, size, size), (2 / (channels * size * size)) ** 0.5
        )
        scale, shift = self._weight((results,), 0.0, 1.0), self._weight((results,), 0.0)
        mean, variance = (
            atc.Parameter(np.full(results, value, np.float32), name=f"s{len(self.statistics) + k}")
            for k, value in enumerate((0, 1))
        )
        self.statistics += (mean, variance)
        return Layer(filters, scale, shift, mean, variance, stride)

    def _weight(self, shape: Sequence[int], scale: float, mean: float = 0.0) -> atc.Parameter:
        values = self.random.standard_normal(shape).astype(np.float32) * np.float32(scale)
        made = atc.Parameter(values + np.float32(mean), name=f"w{len(self.weights)}")
        self.weights.append(made)
        return made


class Training:
    """A network with a traced step of training, and what the step changes."""

    def __init__(self, **options: Any) -> None:
        """Begin anew; `options` are keywords of `atc.trace`."""
        network = ResNet50()
        manager = atc.GradManager().attach(network.weights)
        optimizer = atc.optim.SGD(network.weights, lr=0.01, momentum=0.9)
        self.changed = (*network.weights, *network.statistics, *optimizer.state())

        def resnet50(images: Any, labels: Any) -> Any:
            with manager:
                loss = functional.cross_entropy(network(images), labels)
                manager.backward(loss)
                optimizer.step().clear_grad()
            return loss

        self.step = atc.trace(symbolic=True, **options)(resnet50)

    def take(self, images: Any, labels: Any) -> tuple[float, bytes]:
        """Take a step; return its seconds of the processor, and the bits of the loss."""
        begin = time.process_time()
        loss = self.step(images, labels)
        seconds = time.process_time() - begin
        return seconds, loss.numpy().tobytes()

    def same(self, other: Training) -> bool:
        """Whether all that the steps have changed has the same bits."""
        pairs = zip(self.changed, other.changed, strict=True)
        return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


@dataclass(frozen=True)
class Plan:
    """What a step's plan needs, and what it recomputes."""

    batch: int
    name: str
    bytes: int
    arena: int
    nodes: int
    recomputed: int
    work: str
    """Bounds and work as reported, where something is recomputed."""

    def line(self) -> str:
        """Return a row of the table."""
        return (f"{self.batch:6}  {self.name:10} {self.bytes / 1e6:9.1f} {self.arena / 1e6:9.1f}"
                f" {self.nodes:6} {self.recomputed:6}  {self.work}")  # fmt: skip


HEAD = " batch  config      MB, all  MB, arena  nodes  again  least arena, work, least work"


def planned(batch: int, size: int, name: str, options: dict[str, Any]) -> Plan:
    """Plan a step of training; nothing of it is compiled."""
    images, labels = np.zeros((1, 3, size, size), np.float32), np.zeros(batch, np.int64)
    images = np.broadcast_to(images, (batch, 3, size, size))
    _, entry = Training().step.record({"images": images, "labels": labels}, {})
    said: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "resnet50.onnx")
        onnx.save(entry.model, path)
        values = resolve({"model": path, "output": Path(place, "net"), **options}, "compile").values
        request = resolve_request(make_options(values), decisions=Decisions(held=entry.held()))
        diagnostics = Diagnostics(stage=said.append)
        model = read_model(request, diagnostics)
        graphs = (optimise(model, request, diagnostics),)
        plan = plan_all(Timed(graphs, {}, request.limits(model)), request, diagnostics).shown
    found = next(filter(None, map(_REPORT.search, said)), None)
    return Plan(
        batch, name, plan.arena.plan.size + held_bytes(plan.program, entry.held()),
        plan.arena.plan.size, len(plan.graph.nodes), len(recomputed_nodes(plan.graph)),
        "" if found is None else f"{int(found[1]) / 1e6:.1f} MB, {found[2]} %, {found[3]} %",
    )  # fmt: skip


def compared(batch: int, size: int, steps: int, core: int, config: dict[str, Any]) -> None:
    """Train with and without a configuration, and print their seconds.

    SystemExit where the bits differ.
    """
    random = np.random.default_rng(1)
    images = random.standard_normal((batch, 3, size, size)).astype(np.float32)
    labels = random.integers(0, CLASSES, batch)
    both, cores = (Training(), Training(**config)), os.sched_getaffinity(0)
    seconds: list[tuple[float, float]] = []
    for k in range(steps + 1):
        (plain, loss), (less, again) = (training.take(images, labels) for training in both)
        if not np.isfinite(np.frombuffer(loss, np.float32)).all():
            raise SystemExit(f"recomputation: the loss isn't finite at step {k}")
        if loss != again or not both[0].same(both[1]):
            raise SystemExit(f"recomputation: other bits at step {k} of batch {batch}")
        if k:  # the first compiles
            seconds.append((plain, less))
        else:
            os.sched_setaffinity(0, {sorted(cores)[core % len(cores)]})
    os.sched_setaffinity(0, cores)
    plain, less = (min(column) for column in zip(*seconds, strict=True))
    print(
        f"batch {batch}: {plain:.2f} s as it is, {less:.2f} s within the budget, time "
        f"{less / plain:.3f}, the same bits after each of {steps + 1} steps",
        flush=True,
    )


def main(argv: Sequence[str]) -> None:
    """Plan, then train; print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args(argv)
    batch, size = given.batch, given.size
    print(HEAD)
    plain = planned(batch, size, "none", {})
    print(plain.line(), flush=True)
    sublinear = atc.SublinearMemoryConfig(lb_memory_mb=plain.bytes >> 20)
    dtr = atc.DTRConfig(eviction_threshold=plain.bytes)
    configs = {
        "Sublinear": (3 * batch, sublinear, {"sublinear_memory_config": sublinear}),
        "DTR": (9 * batch // 2, dtr, {"dtr_config": dtr}),
    }
    for name, (images, config, _) in configs.items():
        print(planned(images, size, "none", {}).line(), flush=True)
        less = planned(images, size, name, config.options())
        print(less.line(), flush=True)
        if less.bytes > plain.bytes:
            raise SystemExit(f"recomputation: {name} takes {less.bytes} bytes, not {plain.bytes}")
    for images, _, keyword in configs.values() if not given.plan else ():
        compared(images, size, given.steps, given.core, keyword)


if __name__ == "__main__":
    main(sys.argv[1:])
