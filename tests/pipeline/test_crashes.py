"""A kernel on which its compiler crashes costs that kernel, not the build."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx.helper import make_node
from projects import F32, make_model

from atc.compile import compile_model
from atc.options.options import Options
from atc.pipeline.pipeline import Compilation
from atc.program.steps import calls

NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;;
  --list-gpu-code) echo sm_80; exit;;
esac
for word; do case "$word" in *.cu) source=$word;; esac; last=$word; done
grep -qE 'CRASHES' "$source" && kill -SEGV $$
echo cubin > "$last"
"""


def compiled(crashes: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Compilation:
    """Compile a product with an nvcc that crashes on kernels of some names."""
    nvcc = folder / "nvcc"
    nvcc.write_text(NVCC.replace("CRASHES", crashes))
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    sides = [(name, F32, (64, 64)) for name in "xw"]
    onnx.save(
        make_model([make_node("MatMul", ["x", "w"], ["y"])], sides, [("y", F32, (64, 64))]),
        folder / "net.onnx",
    )
    return compile_model(Options(folder / "net.onnx", folder / "net", target="cuda-sm80"))


def test_the_next_best_kernel_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = compiled(r"cuda_matmul_bf16x3\(|cuda_matmul_shared", tmp_path, monkeypatch)
    (choice,) = done.selection.values()
    estimates = dict(choice.estimates)
    crashing = {label for label, reason in choice.excluded if reason == "crashes its compiler"}
    assert crashing
    assert all("cuda_matmul_bf16x3" in label or "cuda_matmul_shared" in label for label in crashing)
    assert estimates[choice.candidate.label] == min(
        v for k, v in estimates.items() if k not in crashing
    )
    assert {w for w in done.warnings if "crashes" in w} == {
        f"the compiler crashes on {label}: the next best kernel is taken" for label in crashing
    }


def test_the_host_computes_what_no_kernel_of_the_gpu_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = compiled("KERNEL", tmp_path, monkeypatch)
    assert all(call.source.launch is None for call in calls(done.program.steps))
