"""What only a GPU can show; run with -m gpu. Elsewhere all is skipped, and imitated instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import suite
from cuda_cases import CASES, check_cases
from cuda_networks import X, attention_model, compiled, image_model, large_model, mixed_model
from own_process import in_own_process
from projects import reference
from shared_models import FILES, check_on_device

from atc.backends.cuda.device import architecture_for, compute_capabilities
from atc.backends.targets import get_target
from atc.runtime.load import load


def needs_gpu(test: Any) -> Any:
    """Mark a test that needs a GPU, and a compiler for it."""
    for missing, reason in (
        (not compute_capabilities(), "there is no GPU that CUDA's driver knows of"),
        (shutil.which("nvcc") is None, "nvcc isn't there"),
    ):
        test = pytest.mark.skipif(missing, reason=reason)(test)
    return pytest.mark.gpu(test)


@needs_gpu
def test_the_target_is_the_devices_own() -> None:
    architecture = architecture_for(compute_capabilities()[0])
    assert get_target("cuda").device == (architecture or "compute_80")


@needs_gpu
@pytest.mark.parametrize("names", suite.chunks([*CASES], 12), ids=lambda n: n[0])
def test_kernels_give_what_the_standard_defines(names: tuple[str, ...]) -> None:
    in_own_process(300, check_cases, names, "cuda")


@pytest.mark.slow
def test_what_a_gpu_is_asked_can_be_imitated() -> None:
    check_cases(["map", "softmax", "matmul"], "cuda-emulated")


@needs_gpu
def test_a_network_runs_on_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    compiled(mixed_model(), tmp_path, target="cuda")
    net = load(tmp_path / "net")
    right, _ = reference(mixed_model(), X)
    stream = torch.cuda.Stream()
    for _ in range(2):
        x = torch.tensor(X, device="cuda")
        y, _ = net(x)
        np.testing.assert_allclose(y.cpu().numpy(), right, rtol=1e-4)
        with torch.cuda.stream(stream):
            y, _ = net(x)  # on torch's current stream
            stream.synchronize()
        np.testing.assert_allclose(y.cpu().numpy(), right, rtol=1e-4)


@needs_gpu
@pytest.mark.parametrize("made", [mixed_model, image_model, attention_model, large_model])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(
    tool: str, made: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer isn't there")
    compiled(made(), tmp_path, target="cuda")
    program = (
        f"import numpy as np, atc; net = atc.load({str(tmp_path / 'net')!r}); "
        "net(*(np.ones(t.shape, np.float32) for t in net.inputs))"
    )
    done = subprocess.run(
        [sanitizer, f"--tool={tool}", "--error-exitcode=9", sys.executable, "-c", program],
        env={**os.environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer doesn't support this device")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@needs_gpu
@pytest.mark.skipif(not FILES, reason="../shared/models is not there")
@pytest.mark.parametrize("tensor_cores", [False, True], ids=["in floats", "on tensor cores"])
@pytest.mark.parametrize("model", FILES)
def test_a_real_model_gives_its_stored_outputs(model: str, tensor_cores: bool) -> None:
    in_own_process(300, check_on_device, model, "cuda", tensor_cores)


@needs_gpu
@pytest.mark.suite
@pytest.mark.parametrize("names", suite.chunks(suite.case_names("node")), ids=lambda n: n[0])
def test_the_nodes_of_the_suite(names: tuple[str, ...]) -> None:
    exceptions = suite.read_exceptions()
    outcomes = suite.run_isolated(names, "cuda", "O2")
    failed = {n: reason for n, reason in outcomes.items() if reason and n not in exceptions}
    assert not failed, "\n".join(f"{n}: {reason}" for n, reason in failed.items())
