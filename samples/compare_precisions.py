"""Compiles digits.onnx in several precisions and counts what each reads correctly.

usage: python samples/compare_precisions.py [IMAGES]     (needs numpy and onnxruntime)

The images are drawn anew: the network has seen none of them, and those that int8 is calibrated with
are others than those that are counted. bf16x3 runs on AMX only; elsewhere the model is evaluated in
float64, with the operands of its products rounded to the bits that two bfloat16 hold.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir
from digits import draw_digits

import atc
from atc.accuracy.float64 import run_in_double
from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.pipeline.precision import HEAVY

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
SPLIT = "bf16x3"


def main() -> None:
    """Print a line for each precision."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        for name, right in compare(count, Path(folder)).items():
            how = "" if runs(name) else "  (evaluated in float64: this CPU lacks AMX)"
            print(f"{name:8} {right:.2%}{how}")


def runs(name: str) -> bool:
    """Return whether this CPU can run a precision."""
    return name != SPLIT or get_target("x86-64-amx").features <= host_features()


def compare(count: int, folder: Path) -> dict[str, float]:
    """Return the part of `count` images that each precision reads correctly.

    Files are written to `folder`.
    """
    np.save(folder / "images.npy", draw_digits(CALIBRATION, seed=31)[0])
    (folder / "calibration.conf").write_text(f"calibration={folder / 'images.npy'}\n")
    images, labels = draw_digits(count, seed=32)
    found = {}
    for name, options in PRECISIONS.items():
        if runs(name):
            given = {k: str(folder / v) if k == "cal_conf" else v for k, v in options.items()}
            net = atc.load(atc.compile(MODEL, folder / name, **given).folder)
            scores = [net(image[None]).reshape(-1) for image in images]
        else:
            scores = split_scores(images)
        read = np.array([s.argmax() for s in scores])
        found[name] = float((read == labels).mean())
    return found


def split_scores(images: np.ndarray) -> list[np.ndarray]:
    """Return what the network gives with operands of products split into two bfloat16."""
    model = onnx_ir.load(MODEL)
    products = [str(node.name) for node in model.graph if node.op_type in HEAVY]
    outputs = [str(value.name) for value in model.graph.outputs]
    _, (scores,) = run_in_double(model, outputs, {"image": images}, products)
    return [*scores]


if __name__ == "__main__":
    main()
