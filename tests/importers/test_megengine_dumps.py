"""Real MegEngine dumps: stored ones, ones made on the spot, and damaged copies of all."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from importers.make_megengine_dumps import GROUPS
from importers.megengine_check import run
from importers.megengine_writer import write_v1, write_v2
from importers.test_megengine_reader import small

from atc.errors import AtcError
from atc.importers.megengine import load_megengine

SCRIPT = Path(__file__).with_name("make_megengine_dumps.py")
MODELS = Path(__file__).parents[3] / "shared" / "models" / "mge"
STORED = sorted(path.parent for path in MODELS.glob("*/model.mge")) if MODELS.is_dir() else []
MUTATIONS = 500

needs_models = pytest.mark.skipif(not STORED, reason=f"no stored dumps in {MODELS}")


def assert_matches(result: np.ndarray, truth: np.ndarray, tolerance: float, label: str) -> None:
    """Compare within 1e-3 relative and `tolerance` of the largest finite value."""
    assert result.shape == truth.shape, label
    finite = truth[np.isfinite(truth)].astype(np.float64)
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    np.testing.assert_allclose(
        result.astype(np.float64), truth.astype(np.float64), 1e-3, tolerance * scale, err_msg=label
    )


@needs_models
@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_dump(folder: Path) -> None:
    model = load_megengine(folder / "model.mge", {})
    names = [value.name for value in model.graph.inputs]
    for path in sorted(folder.glob("case*_in.npz")):
        inputs = np.load(path)
        truths = np.load(path.with_name(path.name.replace("_in", "_out")))
        feeds = {name: inputs[f"i{k}"] for k, name in enumerate(names)}
        results = run(model, feeds)
        assert len(results) == len(truths.files)
        for k, result in enumerate(results):
            assert_matches(result, truths[f"o{k}"], 1e-4, f"{path.name} o{k}")


@needs_models
def test_a_larger_batch_computes_each_sample(tmp_path: Path) -> None:
    folder = next(folder for folder in STORED if folder.name == "lenet")
    inputs = [np.load(folder / f"case{k}_in.npz")["i0"] for k in range(2)]
    truths = [np.load(folder / f"case{k}_out.npz")["o0"] for k in range(2)]
    batch = np.concatenate(inputs)
    model = load_megengine(folder / "model.mge", {"data0": batch.shape})
    assert_matches(run(model, {"data0": batch})[0], np.concatenate(truths), 1e-4, "lenet")


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where the script writes groups of real dumps."""
    if not os.environ.get("MEGENGINE_PYTHON"):
        pytest.skip("MEGENGINE_PYTHON names no Python with MegEngine 1.13.0")
    return tmp_path_factory.mktemp("megengine")


@pytest.mark.parametrize("group", GROUPS)
def test_real_dumps(group: str, dumps: Path) -> None:
    command = [os.environ["MEGENGINE_PYTHON"], str(SCRIPT), str(dumps), group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = dumps / group
    assert [path.read_text() for path in folder.glob("*.skipped")] == []
    found = sorted(folder.glob("*.mge"))
    assert found
    for path in found:
        data = np.load(path.with_suffix(".npz"))
        results = run(load_megengine(path, {}), data)
        tolerance = 5e-3 if "f16" in path.name else 1e-4
        for k, result in enumerate(results):
            assert_matches(result, data[f"o{k}"], tolerance, f"{path.name} o{k}")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage a file: flipped bits, changed bytes, a cut, zeros, extreme words, or noise."""
    copy = bytearray(data)
    match rng.randrange(6):
        case 0:
            for _ in range(rng.randrange(1, 9)):
                copy[rng.randrange(len(copy))] ^= 1 << rng.randrange(8)
        case 1:
            for _ in range(rng.randrange(1, 64)):
                copy[rng.randrange(len(copy))] = rng.randrange(256)
        case 2:
            del copy[rng.randrange(len(copy)) :]
        case 3:
            start, count = rng.randrange(len(copy)), rng.randrange(1, 256)
            copy[start : start + count] = bytes(len(copy[start : start + count]))
        case 4:
            start = rng.randrange(len(copy) - 4)
            copy[start : start + 4] = rng.choice([b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80"])
        case _:
            start = rng.randrange(12, len(copy))
            copy[start:] = rng.randbytes(len(copy) - start)
    return bytes(copy)


def assert_survives(data: bytes, path: Path, rng: random.Random, count: int) -> None:
    """Assert that damaged copies give one clear line or a legal model."""
    lines: list[str] = []
    for _ in range(count):
        path.write_bytes(mutated(data, rng))
        try:
            model = load_megengine(path, {})
        except AtcError as error:
            lines.append(str(error))
        else:
            onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert lines
    assert all("\n" not in line and path.name in line for line in lines)


@pytest.mark.parametrize("make", [write_v2, write_v1])
def test_damaged_small_dump(make, tmp_path: Path) -> None:
    assert_survives(make(small()), tmp_path / "net.mge", random.Random(1), MUTATIONS)


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_damaged_stored_dump(folder: Path, tmp_path: Path) -> None:
    data = (folder / "model.mge").read_bytes()
    assert_survives(data, tmp_path / "net.mge", random.Random(2), MUTATIONS // 3)


@pytest.mark.parametrize("make", [write_v2, write_v1])
def test_every_cut_of_a_file_is_noticed(make, tmp_path: Path) -> None:
    data, path = make(small()), tmp_path / "net.mge"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(AtcError):
            load_megengine(path, {})
