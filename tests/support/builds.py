"""A model's libraries for targets and numbers of threads, each compiled when a test asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from default_run import unoptimised

import atc

Build = tuple[str, int, bool]
"""Target, number of threads, and whether calls are divided only where that is worth it."""


class Builds(dict[Build, Path]):
    """The folders of a model that is compiled with some options."""

    def __init__(self, root: Path, model: onnx.ModelProto, **options: Any) -> None:
        self.root, self.options = root, options
        onnx.save(model, root / "model.onnx")

    def __missing__(self, build: Build) -> Path:
        target, threads, tuned = build
        folder = self.root / "-".join(map(str, build)) / "net"
        atc.compile(
            self.root / "model.onnx", folder, target=target, num_threads=threads,
            thread_tuning=tuned, build_config=unoptimised(), **self.options,
        )  # fmt: skip
        self[build] = folder
        return folder


def bits(outputs: Sequence[np.ndarray[Any, Any]]) -> list[bytes]:
    """Return the bytes of a run's outputs."""
    return [o.tobytes() for o in outputs]
