"""Measuring on a machine that nothing reaches: the project, and the text that it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import pooled_net
from onnx import helper
from projects import make_model
from stores import need

import atc
from atc.errors import OptionError
from atc.fast_run.export import FIRST, read_times
from atc.pipeline.pipeline import Compilation

KEY = "a" * 64


def compile(tmp_path: Path, name: str, **options: object) -> Compilation:
    return atc.compile(
        pooled_net(tmp_path / "net.onnx"), tmp_path / name / "net",
        fast_run_cache_dir=tmp_path / name / "times", **options,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.slow
def test_what_the_project_prints_is_imported(tmp_path: Path) -> None:
    need("cmake")
    project = compile(tmp_path, "a", fast_run="export").folder / "fast_run"
    first = (project / "CMakeLists.txt").read_text().splitlines()[0]
    command = first.removeprefix("# ").replace("--build build", "--build build -j2")
    done = subprocess.run(
        ["sh", "-ec", command], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "warning" not in done.stderr + done.stdout
    times = project / "times.txt"
    assert times.read_text().endswith("end\n")
    with_times = compile(tmp_path, "b", fast_run_import=times)
    assert any(c.measurements for c in with_times.selection.values())
    plain = compile(tmp_path, "c")
    assert not any(c.measurements for c in plain.selection.values())


def product(path: Path) -> Path:
    """Write a model whose long sums blocks of a GPU may share."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    w = np.ones((400, 70), np.float32)
    onnx.save(make_model([node], [("x", 1, (20, 400))], [("y", 1, (20, 70))], {"w": w}), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda-emulated", "cuda-sm80"])
def test_a_gpus_kernels_are_measured_elsewhere_too(target: str, tmp_path: Path) -> None:
    """Those that the host imitates; others are compiled, and need a device."""
    need("cmake")
    if target != "cuda-emulated" and shutil.which("nvcc") is None:
        pytest.skip("nvcc isn't there")
    model, options = product(tmp_path / "net.onnx"), {"target": target, "tensor_cores": False}
    first = atc.compile(model, tmp_path / "a/net", fast_run="export", **options)
    project = first.folder / "fast_run"
    build = "cmake -S . -B build && cmake --build build -j2"
    done = subprocess.run(
        ["sh", "-ec", build], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "warning" not in done.stderr + done.stdout
    if target != "cuda-emulated":
        return
    printed = subprocess.run(["build/measure"], cwd=project, stdout=subprocess.PIPE, check=True)
    times = tmp_path / "times.txt"
    times.write_bytes(printed.stdout)
    assert read_times(times).machine.endswith(", cuda-emulated")
    second = atc.compile(model, tmp_path / "b/net", fast_run_import=times, **options)
    assert any(c.measurements for c in second.selection.values())


@pytest.mark.slow
def test_times_decide(tmp_path: Path) -> None:
    """The text says that the candidate which is estimated to be best is the slowest."""
    project = compile(tmp_path, "a", fast_run="export").folder / "fast_run"
    text = (project / "measure.c").read_text()
    found = re.findall(r'symbols_w\d+\[\] = \{\n((?:  "\w+",\n)+)\}', text)
    rows = [re.findall(r'"(\w+)"', symbols) for symbols in found]
    keys = re.findall(r'\{ "w\d+", "(\w+)"', text)
    lines = [FIRST, "machine a board, 4 cores"]
    for key, symbols in zip(keys, rows, strict=True):
        lines += [f"workload {key} {' '.join(symbols)}"]
        lines += [f"{k} {1000.0 if k else 1.0} 0" for k in range(len(symbols))] + ["done"]
    (tmp_path / "times.txt").write_text("\n".join([*lines, "end", ""]))
    done = compile(tmp_path, "b", fast_run_import=tmp_path / "times.txt")
    measured = [c for c in done.selection.values() if c.measurements]
    assert measured
    assert all(c.candidate.kernel.portable for c in measured)


def test_nothing_to_measure_is_reported(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    onnx.save(make_model([node], [("x", 1, (4,))], [("y", 1, (4,))]), tmp_path / "net.onnx")
    done = atc.compile(tmp_path / "net.onnx", tmp_path / "net", target="c99", fast_run="export")
    assert done.warnings[-1].startswith("--fast_run=export writes no project")
    assert not (done.folder / "fast_run").exists()


def read(tmp_path: Path, *lines: str, first: str = FIRST) -> dict[str, dict[str, float | None]]:
    path = tmp_path / "times.txt"
    path.write_text("\n".join([first, "machine a board, 4 cores", *lines]) + "\n")
    found = read_times(path)
    assert found.machine == "a board, 4 cores"
    return {key: dict(row) for key, row in found.times.items()}


def test_failures_crashes_and_what_was_cut_off(tmp_path: Path) -> None:
    whole = (f"workload {KEY} f g h", "1 failed 0.5", "board 40.0 1", "0 12.5 0", "done")
    crash = (f"workload {KEY}b f g", "alone 0", "0 7 0", "alone 1", "0 9 0", "done")
    cut = (f"workload {KEY}c f", "0 7 0")
    assert read(tmp_path, *whole, *crash, *cut) == {
        KEY: {"f": 12.5, "g": None, "h": None}, f"{KEY}b": {"f": 7.0, "g": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["3 1 0", "-1 1 0", "0 nan 0", "0 -5 0", "x", "workload ../x f", "0 1e99 0", "1 2 3 4"]
)
def test_wrong_lines_are_reported_by_number(line: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="line 4"):
        read(tmp_path, f"workload {KEY} f", line)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no measured times"):
        read(tmp_path, first="something else")
    with pytest.raises(OptionError, match="can't read"):
        read_times(tmp_path / "missing")
