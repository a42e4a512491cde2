"""Code, weights and RAM of the MLPerf Tiny networks on Cortex-M cores, as the linker counts them.

usage: sizes.py [--target=cortex-m4f,...] [--only=TEXT]

Compiles every network of tests/support/tiny_networks.py in int8 and in float32 and prints a table:
what a program of one context has in ROM and RAM, with inputs and outputs of its own and with both
in the arena (--io=arena). Needs gcc-arm-none-eabi and libnewlib-arm-none-eabi.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import onnx  # noqa: E402
from tiny_networks import NETWORKS  # noqa: E402

import atc  # noqa: E402
from atc.starter.sizes import Sizes  # noqa: E402


def sizes_of(model: onnx.ModelProto, target: str, folder: Path, **options: str) -> Sizes:
    """Return what a network takes on a target."""
    onnx.save(model, folder / "m.onnx")
    sizes = atc.compile(folder / "m.onnx", folder / "net", target=target, **options).sizes
    assert sizes is not None
    return sizes


def rows(label: str, target: str) -> list[str]:
    """Return the lines of a network."""
    lines = []
    for quantized in (True, False):
        model = NETWORKS[label](quantized)
        with tempfile.TemporaryDirectory() as path:
            plain = sizes_of(model, target, Path(path))
            packed = sizes_of(model, target, Path(path), io="arena")
        sizes = (plain.code, plain.weights, plain.ram, packed.ram, plain.stack)
        cells = (label, "int8" if quantized else "float32", *(f"{n:,}" for n in sizes))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m4f,cortex-m55")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    for target in given.target.split(","):
        print(f"\n| {target} | type | code | weights | RAM | RAM, all in the arena | stack |")
        print("|---|---|---|---|---|---|---|")
        for label in NETWORKS:
            if given.only in label:
                print("\n".join(rows(label, target)), flush=True)


if __name__ == "__main__":
    main()
