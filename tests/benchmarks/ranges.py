"""What it costs that extents are known only at run time: ranges against fixed shapes.

usage: python tests/benchmarks/ranges.py [--only=NAME,NAME] [--rounds=N] [--calls]
           [atc's options as --name=value]

Small networks are drawn and compiled twice: for a range of shapes, and for one shape of it. Both
libraries run on the same input alternately. `ratio` is the time of the range's library over that of
the fixed shape's, each the least of all rounds. --calls prints the kernels of both, with the times
of their calls in microseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from drawn_options import parse

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from drawn_networks import (  # noqa: E402
    bytes_net,
    mobile,
    modulated,
    plain,
    recurrent,
    residual,
    rows,
    text,
    unet,
    vision_transformer,
)
from dynamic_models import floats  # noqa: E402

import atc  # noqa: E402
from atc.tools.profile import profile_run  # noqa: E402

RUNS, SHOWN = 20, 12
"""Runs of a profile, and calls of it that are shown."""
TURN = 0.02
"""Seconds that a library runs before it is the other one's turn."""


@dataclass(frozen=True)
class Network:
    """A drawn network: its range, the shape that it is timed with, and the ratio wanted."""

    build: Callable[[], onnx.ModelProto]
    ranges: str
    shape: tuple[int, ...]
    goal: float


BATCH, OTHER = 1.15, 1.5
NETWORKS = {
    "plain_batch": Network(lambda: plain(32, 32), "x:1~16,3,32,32", (8, 3, 32, 32), BATCH),
    "residual_batch": Network(lambda: residual(64, 64), "x:1~16,3,64,64", (8, 3, 64, 64), BATCH),
    "residual_one": Network(lambda: residual(64, 64), "x:1~16,3,64,64", (1, 3, 64, 64), BATCH),
    "mobile_batch": Network(lambda: mobile(64, 64), "x:1~16,3,64,64", (8, 3, 64, 64), BATCH),
    "modulated_batch": Network(
        lambda: modulated(32, 32), "x:1~16,3,32,32", (8, 3, 32, 32), BATCH
    ),
    "int8_batch": Network(lambda: bytes_net(64, 64), "x:1~16,3,64,64", (8, 3, 64, 64), BATCH),
    "unet_batch": Network(lambda: unet(64, 64), "x:1~8,3,64,64", (4, 3, 64, 64), BATCH),
    "vit_batch": Network(vision_transformer, "x:1~16,3,64,64", (8, 3, 64, 64), BATCH),
    "text_batch": Network(text, "x:1~16,64", (8, 64), BATCH),
    "lstm_batch": Network(recurrent, "x:32,1~16,64", (32, 8, 64), BATCH),
    "plain_images": Network(plain, "x:1,3,32~160,32~160", (1, 3, 96, 80), OTHER),
    "residual_images": Network(residual, "x:1,3,64~320,64~320", (1, 3, 160, 144), OTHER),
    "mobile_images": Network(mobile, "x:1,3,64~320,64~320", (1, 3, 160, 144), OTHER),
    "modulated_images": Network(modulated, "x:1,3,32~160,32~160", (1, 3, 96, 80), OTHER),
    "int8_images": Network(bytes_net, "x:1,3,64~320,64~320", (1, 3, 160, 144), OTHER),
    "unet_images": Network(unet, "x:1,3,32~160,32~160", (1, 3, 96, 80), OTHER),
    "text_tokens": Network(text, "x:1,1~256", (1, 100), OTHER),
    "text_both": Network(text, "x:1~8,1~256", (2, 60), OTHER),
    "lstm_steps": Network(recurrent, "x:1~128,1,64", (50, 1, 64), OTHER),
    "gru_steps": Network(lambda: recurrent("GRU", 3), "x:1~128,4,64", (50, 4, 64), OTHER),
    "rows": Network(rows, "x:1~512,256", (200, 256), OTHER),
}  # fmt: skip


# ---- measuring -----------------------------------------------------------------------------------


@dataclass
class Side:
    """A compiled library, its least time of a run in seconds, and the times of its calls."""

    net: Any
    least: float = float("inf")

    def turn(self, feed: np.ndarray[Any, Any]) -> None:
        """Run for a while and keep the least time."""
        end = time.perf_counter() + TURN
        while (begin := time.perf_counter()) < end:
            self.net(feed)
            self.least = min(self.least, time.perf_counter() - begin)


def measure(name: str, folder: Path, rounds: int, options: Mapping[str, Any], calls: bool) -> float:
    """Print and return a network's ratio, and if wanted the longest calls of both libraries."""
    network = NETWORKS[name]
    model = network.build()
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    x = floats(*network.shape)
    integers = model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    feed = np.abs(x * 100).astype(np.int64) if integers else x
    exact = f"x:{','.join(map(str, network.shape))}"
    done, sides = [], []
    for shape in (network.ranges, exact):
        out = folder / f"{name}_{len(done)}"
        done.append(atc.compile(model=path, output=out, input_shape=shape, **options))
        sides.append(Side(atc.load(out)))
    ranged, fixed = sides
    for _ in range(rounds):
        for side in sides:
            side.turn(feed)
    ratio = ranged.least / fixed.least
    mark = "" if ratio <= network.goal else f"  above {network.goal}"
    print(f"{name:16}{fixed.least * 1e6:12.0f}{ranged.least * 1e6:12.0f}{ratio:8.2f}{mark}",
          flush=True)  # fmt: skip
    for side in ("range", "fixed") if calls else ():
        shape, out = (network.ranges, "r") if side == "range" else (exact, "f")
        where = folder / f"{name}_{out}"
        atc.compile(model=path, output=where, input_shape=shape, profile=True, **options)
        found = profile_run(atc.load(where), {"x": feed}, RUNS, name)
        print(f"  {side}: {found.median_ns / 1e3:.0f} us, in its calls {found.inside:.0%}")
        for call in sorted(found.calls, key=lambda c: -c.ns)[:SHOWN]:
            print(f"    {call.ns / 1e3:9.1f}  {call.kernel:44} {call.op:12} {call.nodes:.40}")
    return ratio


def main() -> None:
    given = parse(__doc__, NETWORKS, 10, "calls")
    print(f"{'network':16}{'fixed us':>12}{'range us':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory(prefix="atc-ranges-") as folder:
        for name in given.names:
            measure(name, Path(folder), given.rounds, given.options, "calls" in given.flags)


if __name__ == "__main__":
    main()
