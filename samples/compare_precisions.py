"""Compiles digits.onnx in several precisions and counts what each reads correctly.

usage: python samples/compare_precisions.py [IMAGES]     (needs numpy and onnxruntime)

The images are drawn anew: the network has seen none of them, and those that int8 is calibrated with
are others than those that are counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from digits import draw_digits

import atc
from atc.backends.target import host_features

MODEL = Path(__file__).parent / "digits.onnx"
CALIBRATION = 100
"""Images that the ranges of values are measured on."""
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "float32": {"op_select_implmode": "high_precision"},
    "bf16x3": {"target": "x86-64-amx"},
    "bf16": {"precision_mode": "allow_fp32_to_bf16"},
    "int8": {"cal_conf": "calibration.conf"},
}
"""Options of `atc.compile` by what they compute in."""


def main() -> None:
    """Print a line for each precision."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        for name, right in compare(count, Path(folder)).items():
            print(f"{name:8} " + ("needs a CPU with AMX" if right is None else f"{right:.2%}"))


def compare(count: int, folder: Path) -> dict[str, float | None]:
    """Return the part of `count` images that each precision reads correctly.

    None where this CPU can't run it. Files are written to `folder`.
    """
    np.save(folder / "images.npy", draw_digits(CALIBRATION, seed=31)[0])
    (folder / "calibration.conf").write_text(f"calibration={folder / 'images.npy'}\n")
    images, labels = draw_digits(count, seed=32)
    found: dict[str, float | None] = {}
    for name, options in PRECISIONS.items():
        found[name] = None
        if name == "bf16x3" and "amx_tile" not in host_features():
            continue
        given = {k: str(folder / v) if k == "cal_conf" else v for k, v in options.items()}
        net = atc.load(atc.compile(MODEL, folder / name, **given).folder)
        scores = [next(iter(net.run({"image": image[None]}).values())) for image in images]
        read = np.array([s.argmax() for s in scores])
        found[name] = float((read == labels).mean())
    return found


if __name__ == "__main__":
    main()
