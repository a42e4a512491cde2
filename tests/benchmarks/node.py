"""Times of the tiny networks in WebAssembly, in Node.js: int8 beside float32.

usage: node.py [--only=TEXT] [--seconds=1]

Builds the networks of tests/support/tiny_networks.py for wasm32-simd128 and prints the least time
of a run; the two types take turns, three times. Needs `atc doctor --target=wasm32-simd128`'s tools.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import onnx  # noqa: E402
from tiny_networks import NETWORKS  # noqa: E402

import atc  # noqa: E402
from atc.backends.targets import get_target  # noqa: E402

MAIN = """#include "net.h"
#include <stdio.h>
#include <time.h>
static net_arena arena;
static unsigned char inputs[1 << 18] NET_ALIGNED, outputs[1 << 16] NET_ALIGNED;
static net_context context;
static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
int main(void)
{
  const void *const given[] = {inputs};
  void *const results[] = {outputs};
  const double end = now() + SECONDS;
  double best = 1e9;
  int status = net_init(&context, &arena, sizeof arena);
  while (status == 0 && now() < end) {
    const double begin = now();
    for (int k = 0; k < 5; k++) status |= net_run_tensors(&context, given, results);
    if ((now() - begin) / 5 < best) best = (now() - begin) / 5;
  }
  printf("%g\\n", best);
  return status;
}
"""


def program(model: onnx.ModelProto, folder: Path, seconds: float) -> list[str]:
    """Build the program of a network; return the command that runs it."""
    target = get_target("wasm32-simd128")
    onnx.save(model, folder / "m.onnx")
    atc.compile(folder / "m.onnx", folder / "net", target=target.name)
    (folder / "main.c").write_text(MAIN)
    words = (target.compiler, *target.compiler_words, *target.cflags, "-std=gnu11", "-O2")
    command = [*words, f"-DSECONDS={seconds}", "-Inet/include", "main.c", "net/libnet.a", "-lm",
               "-o", "program"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    return [*target.runner, str(folder / "program")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    print("| wasm32-simd128, ms in Node.js | int8 | float32 |\n|---|---|---|")
    for label, made in NETWORKS.items():
        if given.only not in label:
            continue
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            commands = [program(made(quantized), Path(folder), given.seconds)
                        for quantized, folder in ((True, one), (False, other))]  # fmt: skip
            best = [float("inf")] * 2
            for _ in range(3):
                for k, command in enumerate(commands):
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    best[k] = min(best[k], float(done.stdout))
        print("|", " | ".join((label, *(f"{1e3 * t:.3f}" for t in best))), "|", flush=True)


if __name__ == "__main__":
    main()
