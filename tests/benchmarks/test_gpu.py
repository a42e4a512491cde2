"""The comparison on a GPU reports what it should; nothing is timed here."""

from __future__ import annotations

import json
import signal
from pathlib import Path

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
    assert rows[0].line.split() == ["bert:1", "bf16", "1.000", "2.000", "1.500", "1.50", "25%",
                                    "1.0e-03", "-"]  # fmt: skip
    assert rows[2].line.endswith("No module named 'ultralytics'")
    assert [*gpu.means(rows)] == ["bf16: 0.87 in the geometric mean of 2, 0.50 at least"]


WORKER = """
import json, os, sys, time
network, *options = sys.argv[1:]
(listed,) = (o.partition("=")[2] for o in options if o.startswith("--precisions="))
for precision in listed.split(","):
    if precision == "tf32" and network == "resnet50:1":
        os.abort()
    if precision == "tf32" and network == "bert:1":
        time.sleep(60)
    why = "illegal address" if precision == "tf32" else ""
    print(json.dumps({"network": network, "precision": precision, "why": why}), flush=True)
    if why:
        break
"""


@pytest.mark.slow
def test_what_fails_hangs_or_dies_spoils_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(gpu, "__file__", str(worker))
    monkeypatch.setattr(gpu, "compute_capabilities", lambda: ((9, 0),))
    wanted = ["fp32", "tf32", "bf16"]
    networks = ["resnet50:1", "bert:1", "vit_b_16"]
    assert gpu.main([*networks, f"--precisions={','.join(wanted)}", "--row_seconds=5",
                     "--json"]) == 0  # fmt: skip
    rows = [gpu.Row(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(r.network, r.precision) for r in rows] == [(n, p) for n in networks for p in wanted]
    assert [r.why for r in rows] == [
        "", f"its process ended with status {-signal.SIGABRT}", "",
        "", "it took longer than 5 s", "", "", "illegal address", "",
    ]  # fmt: skip
    assert gpu.main(["bert:1", "--precisions=bf16", "--minutes=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"] == "not begun: no time was left"


@pytest.mark.slow
def test_a_dry_run_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert gpu.main(["product", "gram", "--precisions=bf16x3", "--peers=eager", "--rounds=1",
                     "--runs=1", "--dry", "--json"]) == 0  # fmt: skip
    rows = [gpu.Row(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [r.network for r in rows] == ["product", "gram"]
    for row in rows:
        assert row.why == ""
        assert 1e-7 < (row.error or 0) < 3e-5
        assert row.ours
        assert row.eager
