"""The comparison on a GPU reports what it should; nothing is timed here."""

from __future__ import annotations

import pytest
from benchmarks import gpu


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "compute_capabilities", lambda: ())
    assert gpu.main([]) == 1
    assert "there is no GPU" in capsys.readouterr().err


def test_unknown_names_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["resnet"], ["--precisions=fp8"]):
        with pytest.raises(SystemExit):
            gpu.main(wrong)
        assert "unknown: " in capsys.readouterr().err


def test_a_table_compares_with_the_faster_peer() -> None:
    rows = [
        gpu.Row("bert:1", "bf16", 1.0, 2.0, 1.5, 1e-3, 0.25),
        gpu.Row("gpt2:1", "bf16", 2.0, 1.0, None, 2e-3, 0.1),
        gpu.Row("yolov8n", "fp32", why="No module named 'ultralytics'"),
    ]
    assert [r.ratio for r in rows] == [1.5, 0.5, None]
    lines = gpu.table(rows).splitlines()
    assert lines[1].split() == ["bert:1", "bf16", "1.000", "2.000", "1.500", "1.50", "25%",
                                "1.0e-03"]  # fmt: skip
    assert lines[3].endswith("No module named 'ultralytics'")
    assert lines[-1] == "bf16: 0.87 in the geometric mean of 2, 0.50 at least"
