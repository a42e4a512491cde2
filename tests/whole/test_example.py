"""The example program of the generated folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from projects import (
    affine_model,
    build_example,
    emit_model,
    reference,
    run_example,
    typed_model,
    write_project,
)


def test_example_prints_what_the_reference_computes(tmp_path: Path) -> None:
    model = affine_model()
    x = np.random.default_rng(1).standard_normal((2, 5)).astype(np.float32)
    write_project(tmp_path, emit_model(model))
    program = build_example(tmp_path)
    x.tofile(tmp_path / "x.bin")
    np.save(tmp_path / "x.npy", x)
    y, hidden = reference(model, x)
    for file in ("x.bin", "x.npy"):
        printed = run_example(program, tmp_path / file)
        assert list(printed) == ["y", "hidden"]
        np.testing.assert_allclose(printed["y"], y.ravel(), rtol=1e-5)
        np.testing.assert_allclose(printed["hidden"], hidden.ravel(), rtol=1e-5)


def test_example_reads_and_prints_every_type(tmp_path: Path) -> None:
    model = typed_model()
    write_project(tmp_path, emit_model(model))
    program = build_example(tmp_path)
    values = {
        "h": np.array([-1.5, 6.1e-5, np.inf], np.float16), "b": np.array([-2, 0.5, 3e38]),
        "d": np.array([-1e300, 0.1, 3]), "i": np.array([-7, 0, 127], np.int8),
        "u": np.array([0, 1, 2**64 - 1], np.uint64), "n": np.array([-(2**53), 0, 5], np.int64),
        "d2": np.array([0.0, 0, 9]),
    }  # fmt: skip
    files = []
    for name, array in values.items():
        if name == "b":
            bits = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            bits.tofile(tmp_path / name)
        else:
            np.save(tmp_path / name, array)
        files.append(tmp_path / (name if name == "b" else f"{name}.npy"))
    printed = run_example(program, *files)
    for name in ("h", "d", "i", "u", "n"):
        expected = np.abs(values[name].astype(np.float64))
        np.testing.assert_allclose(printed[f"{name}_out"], expected, rtol=1e-4)
    np.testing.assert_allclose(printed["b_out"], [2, 0.5, 3e38], rtol=5e-3)
    assert printed["flag"] == [0, 1, 0]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["short", "long", "dtype", "order", "missing", "many"])
def test_example_refuses_files_that_do_not_fit(case: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model()))
    program = build_example(tmp_path)
    x = np.zeros((2, 5), np.float32)
    match case:
        case "short":
            x.ravel()[:9].tofile(tmp_path / "x")
        case "long":
            np.zeros(11, np.float32).tofile(tmp_path / "x")
        case "dtype":
            np.save(tmp_path / "x.npy", x.astype(np.int32))
        case "order":
            np.save(tmp_path / "x.npy", np.asfortranarray(x))
    files = [tmp_path / ("x.npy" if case in ("dtype", "order") else "x")] * (1 + (case == "many"))
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert ("usage" if case == "many" else "x") in done.stderr
    assert not done.stdout


def test_example_prints_the_status_of_a_network_that_cannot_run(tmp_path: Path) -> None:
    emission = emit_model(affine_model())
    write_project(tmp_path, emission)
    main = (tmp_path / "example/main.c").read_text()
    smaller = main.replace("&arena, sizeof arena", "&arena, sizeof arena - 1")
    assert smaller != main
    (tmp_path / "example/main.c").write_text(smaller)
    done = subprocess.run([build_example(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the arena is NULL or too small" in done.stderr
