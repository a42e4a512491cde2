"""Instructions of quantized layers and networks on other processors, as qemu's plugin counts them.

usage: instructions.py [--target=cortex-m4f,...] [--level=O2] [--only=TEXT] [--functions]

Builds every layer and network of tests/support/tiny_networks.py for the targets, in int8 and in
float32, runs each once and twice on the emulated board, and prints what one run takes, what
CMSIS-NN takes, and the ratios ("-" for floats that no board of qemu's has room for, and where a
layer has no such form); changes of the layout at the border count for networks only.
Needs the target's compiler (`atc doctor --target=...`) and qemu-system-arm or -misc, or, where
there is an operating system (armv7-neon, aarch64-neon, riscv64-rvv), qemu-user, whose programs take
plugins.

CMSIS-NN's numbers are those of 99f736a, built with -Ofast by the same compiler, 2026-11-22, with
weights of the same shapes. Instructions are not cycles: they say nothing of waiting for memory.
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
from projects import sources, write_project  # noqa: E402
from small_cores import BARE, PLACES  # noqa: E402
from stages import project_of  # noqa: E402
from tiny_networks import LAYERS, NETWORKS  # noqa: E402

from atc.backends.target import Target  # noqa: E402
from atc.backends.targets import get_target  # noqa: E402
from atc.options.options import Options  # noqa: E402
from atc.starter.boards import boards_of  # noqa: E402
from atc.starter.texts import board_text, startup_texts  # noqa: E402

CMSIS = {
    "cortex-m4f": {
        "1x1 64->64 at 25x5": 1.07e6, "3x3 16->16 at 32x32": 5.49e6,
        "depthwise 3x3 64 at 25x5": 0.60e6, "first 10x4 1->64": 1.11e6,
        "1x1 8->16 at 48x48": 1.96e6, "fully connected 128->128": 37e3,
    },
    "cortex-m55": {
        "1x1 64->64 at 25x5": 0.203e6, "3x3 16->16 at 32x32": 0.915e6,
        "first 10x4 1->64": 0.288e6, "1x1 8->16 at 48x48": 0.642e6,
        "fully connected 128->128": 9.4e3,
    },
}  # fmt: skip
CMSIS["cortex-m7"] = CMSIS["cortex-m33"] = CMSIS["cortex-m4f"]  # the same instructions

MAIN = """#include "{name}.h"
static unsigned char arena[{upper}_ARENA_SIZE + 64] __attribute__((aligned(64)));
static unsigned char inputs[{inputs}] __attribute__((aligned(64)));
static unsigned char outputs[{outputs}] __attribute__((aligned(64)));
static {name}_context context;
static volatile int runs = RUNS;
int main(void)
{{
  const void *const given[] = {{inputs, inputs}};
  void *const results[] = {{outputs}};
  int status = {name}_init(&context, arena, sizeof arena);
  for (int k = 0; k < runs; k++) status |= {name}_run_tensors(&context, given, results);
  return status;
}}
"""


def counts(
    model: onnx.ModelProto, target: Target, level: str, folder: Path, room: int = 1 << 18
) -> dict[str, int]:
    """Return the instructions of each function in one run of a network.

    `folder` has the plugin count.so; inputs and outputs have `room` bytes each.
    """
    onnx.save(model, folder / "m.onnx")
    emission = project_of(
        Options(model=folder / "m.onnx", output=folder / "net", target=target.name)
    ).emission
    write_project(folder / "net", emission)
    main = MAIN.format(name="net", upper="NET", inputs=room, outputs=room)
    (folder / "net/main.c").write_text(main)
    start = start_words(target, folder / "net")
    flags = ("-std=c99", f"-{level}", "-ffp-contract=off", "-fno-math-errno",
             "-ffunction-sections", "-Wl,--gc-sections")  # fmt: skip
    if "clang" not in target.compiler:
        flags += ("-fno-tree-pre", "-fno-schedule-insns")
    found = []
    for runs in (1, 2):
        command = [
            target.compiler, *target.compiler_words, *target.cflags, *flags, *start,
            f"-DRUNS={runs}", "-Iinclude", "-I.", "main.c", *sources(folder / "net"), "-lm",
            *target.libraries, "-o", "program",
        ]  # fmt: skip
        subprocess.run(command, cwd=folder / "net", check=True, stderr=subprocess.DEVNULL)
        emulator, *more = target.runner
        command = [emulator.removesuffix("-static"), *plugin_words(folder), *more, "program"]
        subprocess.run(command, cwd=folder / "net", check=True)
        found.append(read_counts(folder))
    once, twice = found
    each = {name: n - once.get(name, 0) for name, n in twice.items()}
    return {name: n for name, n in each.items() if n}


def start_words(target: Target, net: Path) -> tuple[str, ...]:
    """Return what a program is linked with before its sources; a starter's files go to `net`."""
    if not target.bare:
        return ("-static",)
    if target.arch == "arm":
        return (
            "-nostartfiles", "--specs=nano.specs", "--specs=rdimon.specs", str(BARE / "startup.c"),
            f"-Wl,-T,{BARE / 'link.ld'}", "-Wl,--no-warn-rwx-segments", "-Wl,--no-warn-execstack",
            *PLACES.get(target.name, ()),
        )  # fmt: skip
    texts = {**startup_texts(target), "board.ld": board_text(boards_of(target)[0])}
    for path, text in texts.items():
        (net / path).write_text(text)
    own = [path for path in texts if path.endswith(".c")]
    return (*target.link_flags, "-T", "board.ld", *own)


def build_plugin(folder: Path) -> None:
    """Build count.so, which makes qemu count each function's instructions."""
    command = ["cc", "-O2", "-shared", "-fPIC", BARE / "count.c", "-o", folder / "count.so"]
    subprocess.run(command, check=True)


def plugin_words(folder: Path) -> tuple[str, ...]:
    """Return the words that make qemu load count.so of a folder and write its counts there."""
    counts_file = str(folder / "counts.txt")
    return "-plugin", str(folder / "count.so"), "-d", "plugin", "-D", counts_file


def read_counts(folder: Path) -> dict[str, int]:
    """Return the instructions of each function in the run that counted last."""
    lines = (folder / "counts.txt").read_text().splitlines()
    return {name: int(n) for n, name in (line.split(" ", 1) for line in lines)}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m4f,cortex-m7,cortex-m55")
    parser.add_argument("--level", default="O2")
    parser.add_argument("--only", default="")
    parser.add_argument("--functions", action="store_true")
    parser.add_argument("--no_float", action="store_true")
    given = parser.parse_args()
    models = {k: v for k, v in (LAYERS | NETWORKS).items() if given.only in k}
    for name in given.target.split(","):
        target = get_target(name)
        print(f"\n| {name}, -{given.level} | int8 | CMSIS-NN | ratio | float32 | float / int8 |")
        print("|---|---|---|---|---|---|")
        for label, made in models.items():
            row = []
            for quantized in (True,) if given.no_float else (True, False):
                model = made(quantized)
                if model is None:
                    continue
                with tempfile.TemporaryDirectory() as path:
                    build_plugin(Path(path))
                    try:
                        found = counts(model, target, given.level, Path(path))
                    except subprocess.CalledProcessError as error:
                        if quantized or "-o" not in error.cmd:
                            raise
                        continue  # floats of large networks leave the boards' memory
                own = {k: n for k, n in found.items() if label in NETWORKS or "_bytes_to_" not in k}
                row.append(sum(own.values()))
                if given.functions and quantized:
                    for function, n in sorted(found.items(), key=lambda item: -item[1])[:12]:
                        print(f"    {n:>12,} {function}")
            other = CMSIS.get(name, {}).get(label)
            peer = (f"{other:,.0f}", f"{row[0] / other:.2f}") if other else ("-", "-")
            rest = (f"{row[1]:,}", f"{row[1] / row[0]:.2f}") if len(row) > 1 else ("-", "-")
            print("|", " | ".join((label, f"{row[0]:,}", *peer, *rest)), "|", flush=True)


if __name__ == "__main__":
    main()
