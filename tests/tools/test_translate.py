"""`--mode=1`: a model of any format as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import json_format
from importers.test_three_forms import NETWORKS, WRITERS

from atc.cli.main import main


def save(form: str, folder: Path) -> Path:
    writer = WRITERS[form]()
    return writer.save(NETWORKS["lenet"](writer), folder)


@pytest.mark.parametrize("form", WRITERS)
def test_the_translated_model_is_valid_and_the_same(form: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    original = save("onnx", tmp_path)
    path = tmp_path / "deep" / "translated.onnx"
    assert main([f"--model={save(form, tmp_path)}", "--mode=1", f"--json={path}"]) == 0
    onnx.checker.check_model(str(path), full_check=True)
    x = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype(np.float32)
    results = [runtime.InferenceSession(str(p)).run(None, {"data": x})[0] for p in (original, path)]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_another_suffix_gives_json(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    assert main([f"--model={save('megengine', tmp_path)}", "--mode=1", f"--json={path}"]) == 0
    onnx.checker.check_model(json_format.Parse(path.read_text(), onnx.ModelProto()))


def test_the_file_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--model={save('onnx', tmp_path)}", "--mode=1"]) == 1
    assert "E10007" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "net.onnx"
    assert main([f"--model={save('onnx', tmp_path)}", "--mode=1", f"--json={path}"]) == 1
    assert str(path) in capsys.readouterr().err
