"""Networks on an imitated GPU that has little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from networks import save
from onnx import helper

from atc.compile import compile_model
from atc.options.options import Options
from atc.runtime.load import load


def square_of_floats(path: Path) -> Path:
    """Write a model whose two tensors take 4 KiB each."""
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    return save([product], {"x": [32, 32]}, {"y": [32, 32]}, path)


def runs_in_memory(
    options: Options, memory: int, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check whether that model's network is able to run on a GPU with so many bytes."""
    done = compile_model(options)
    monkeypatch.setenv("ATC_EMULATED_MEMORY", str(memory))
    x = np.eye(32, dtype=np.float32)
    if able:
        np.testing.assert_array_equal(load(done.folder)(x), x)
    else:
        with pytest.raises(RuntimeError, match="memory"):
            load(done.folder)(x)
