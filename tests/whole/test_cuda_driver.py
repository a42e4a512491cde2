"""Networks for GPUs beside a driver that refuses what the real one would, their cubins read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from cuda_networks import (
    X,
    attention_model,
    compiled,
    depthwise_model,
    image_model,
    joined_model,
    large_model,
    lasting_model,
    mixed_model,
)
from dynamic_models import floats
from networks import training_net
from own_process import in_own_process
from passes.canonical import test_slide_states as windows
from product_cases import F32, needs_nvcc
from strict_driver import build_driver, drive
from whole.test_cuda import towers_model
from whole.test_cuda_ranges import rows_model, state_beside_a_text

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, what it is given, the kernels that it must have, and options."""

    model: Callable[[], onnx.ModelProto]
    feeds: Sequence[Feed]
    kernels: Sequence[str] = ()
    arch: int = 90
    captured: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def large(dtype: Any) -> Sequence[Feed]:
    shapes = {"x": (32, 64, 33, 33), "m": (1024, 512), "n": (1024, 1024)}
    return [{name: floats(*shape).astype(dtype) for name, shape in shapes.items()}]


def gradients() -> onnx.ModelProto:
    with TemporaryDirectory() as folder:
        return onnx.load(training_net(Path(folder, "step.onnx"), (64,) * 9))


def window() -> onnx.ModelProto:
    with TemporaryDirectory() as folder:
        return onnx.load(windows.write("rows before rows", Path(folder))[0])


IMAGES = [{"x": floats(32, 32, 16, 16)}]
BOXES = ("cuda_matmul_wgmma", "cuda_conv_wgmma", "cuda_conv_wgmma_im2col")
CASES = {
    "warpgroups": Case(lambda: large_model(F32), large(F32), BOXES),
    "warpgroups in halves": Case(lambda: large_model(np.float16), large(np.float16), BOXES),
    "warpgroups in tf32": Case(
        lambda: large_model(F32), large(F32), BOXES, options={"allow_hf32": True}
    ),
    "older tiles": Case(image_model, IMAGES, ("cuda_conv_bf16x3",), arch=80),
    "attention": Case(attention_model, [{"x": floats(2, 100, 64)}], ("cuda_attention_bf16x3",)),
    "attention in float16": Case(
        lambda: attention_model(np.float16), [{"x": floats(2, 100, 64).astype(np.float16)}],
        ("cuda_attention_tensor",),
    ),
    "depthwise": Case(depthwise_model, [{"x": floats(4, 32, 28, 28)}], ("cuda_conv_depthwise",)),
    "branches": Case(
        towers_model, [{"x": floats(16, 64)}], arch=80, options={"gpu_streams": 2}
    ),
    "joined": Case(
        lambda: joined_model(8),
        [{"x": floats(32, 32).astype(np.float16), "s": floats(8).astype(np.float16)}],
    ),
    "texts on the host": Case(mixed_model, [{"x": X}], captured=False),
    "copies on streams": Case(
        lambda: rows_model(48, 40).model, rows_model(48, 40).feeds,
        options={"input_shape": "x:1~300,48"},
    ),
    "shapes beside ranges": Case(
        lambda: rows_model(192, 160).model, rows_model(192, 160).feeds, arch=80,
        options={"input_shape": "x:1~300,192", "dynamic_dims": "1;65"},
    ),
    "a state": Case(
        state_beside_a_text, [{"x": floats(2, 200)}], captured=False, options={"state": "s:t"}
    ),
    "a window": Case(
        window, [{"x": floats(2, 6)}], ("cuda_move_rows",), options={"state": "s:t"}
    ),
    "timed": Case(image_model, IMAGES, captured=False, options={"profile": True}),
    "swaps": Case(
        lambda: lasting_model(), [{"x": floats(64, 64)}], captured=False,
        options={"gpu_swap": True, "memory_budget": 1 << 17},
    ),
    "gradients": Case(
        gradients, [{t: floats(64, 64) for t in ("x", *(f"w{k}" for k in range(8)))}],
        options={"gpu_swap": True, "memory_budget": 9 << 13},
    ),
    "turing": Case(image_model, IMAGES, arch=75),
}  # fmt: skip


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_the_driver_refuses_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.setenv("FAKE_ARCH", str(case.arch))
    report = compiled(case.model(), tmp_path, target=f"cuda-sm{case.arch}", **case.options).report
    chosen = " ".join(node["kernel"] for node in report["nodes"])
    assert all(kernel in chosen for kernel in case.kernels), chosen
    assert ("swapped" in report) == ("gpu_swap" in case.options)
    library = build_driver(tmp_path)
    in_own_process(120, drive, library, tmp_path / "net", case.feeds, case.captured)
