"""The CUDA compiler: where it is looked for, and that it takes all kernels without a warning."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cuda_cases import CASES, cubin_of, kernels_of, texts_of, write_kernels

from atc.backends.cuda.targets import ARCHITECTURES
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.nvcc import find_nvcc, nvcc_flags
from atc.errors import AtcError, ToolchainError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")


@needs_nvcc
def test_a_kernel_becomes_a_cubin(tmp_path: Path) -> None:
    (source,) = kernels_of("map")
    write_kernels([source], tmp_path)
    nvcc = find_nvcc("sm_90", os.environ)
    cubin = compile_object(nvcc, nvcc_flags("sm_90"), source.path, tmp_path)
    assert list(texts_of(cubin)) == [source.symbol]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("device", ARCHITECTURES)
def test_every_kernel_compiles_for_every_gpu(device: str, tmp_path: Path) -> None:
    sources = kernels_of(*CASES)
    assert len(sources) >= len(CASES)
    cubin, _ = cubin_of(sources, device, tmp_path)
    assert texts_of(cubin).keys() == {s.symbol for s in sources}


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


NVCC = """case "$*" in
*version*) echo 'Cuda compilation tools, release 12.4, V12.4.131' ;;
*) echo sm_80; echo sm_90 ;;
esac"""


def test_nvcc_is_looked_for_in_order(tmp_path: Path) -> None:
    own = script(tmp_path / "own", "my-nvcc", NVCC)
    home = script(tmp_path / "home" / "bin", "nvcc", NVCC)
    path = script(tmp_path / "path", "nvcc", NVCC)
    environ = {"NVCC": f"{own} --flag", "CUDA_HOME": str(tmp_path / "home"),
               "PATH": str(tmp_path / "path")}  # fmt: skip
    assert find_nvcc("sm_80", environ).argv == (str(own), "--flag")
    del environ["NVCC"]
    assert find_nvcc("sm_80", environ).argv == (str(home),)
    del environ["CUDA_HOME"]
    found = find_nvcc("sm_80", environ)
    assert found.argv == (str(path),)
    assert (found.kind, found.version) == ("nvcc", "nvcc release 12.4, V12.4.131")


def test_errors_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = str(script(tmp_path / "path", "nvcc", NVCC).parent)
    for environ, pattern in (
        ({"PATH": str(tmp_path)}, "no CUDA compiler: nvcc isn't there"),
        ({"PATH": path, "NVCC": "nowhere"}, "NVCC names a program that isn't there: nowhere"),
        ({"PATH": path, "NVCC": "'"}, "NVCC can't be split"),
        ({"PATH": path, "CUDA_HOME": "/nowhere"}, "CUDA_HOME holds no bin/nvcc: /nowhere"),
    ):
        with pytest.raises(AtcError) as caught:
            find_nvcc("sm_90", environ)
        assert pattern in str(caught.value) + caught.value.hint
    with pytest.raises(ToolchainError, match="doesn't know sm_120; it knows sm_80, sm_90"):
        find_nvcc("sm_120", {"PATH": path})
    other = str(script(tmp_path / "other", "nvcc", "echo hello").parent)
    with pytest.raises(ToolchainError, match="is not nvcc"):
        find_nvcc("sm_90", {"PATH": other})
