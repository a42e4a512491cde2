"""The gallery: what is measured is kept, goes on where it was, and is shown as it was measured."""

from __future__ import annotations

import json
import math
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import architectures  # noqa: E402
import charts  # noqa: E402
import gallery  # noqa: E402


def test_bars_are_as_long_as_their_values() -> None:
    rows = [charts.Row("a<b", (1.0, 4.0)), charts.Row("c", (2.0, None))]
    text = charts.bars("t & u", ("x", "y"), rows)
    bar = r'width="([\d.]+)" height="10" fill="#\w+"/><text x="\d+\.\d'
    widths = [float(w) for w in re.findall(bar, text)]
    assert widths == [107.5, 430.0, 215.0]
    assert "a&lt;b" in text
    assert "t &amp; u" in text


def line(name: str, ours: float, other: float) -> dict[str, object]:
    """Return what is stored of a network, with these medians."""
    engine = {"error": 1e-6, "peak_rss": 3 << 20, "failure": ""}
    return {
        "name": name, "package": "timm", "parameters": 1_500_000, "library_bytes": 2 << 20,
        "build_cpu": 7.4, "bare_rss": 1 << 20, "operations": 1,
        "on": {"date": "2026-01-01", "cpu": "a CPU", "target": "c99", "cores": 2, "load": 1.0,
               "atc": "1", "onnxruntime": "2"},
        "engines": {"atc": {**engine, "median": ours}, "onnxruntime": {**engine, "median": other}},
    }  # fmt: skip


def test_the_gallery_shows_ratios_and_failures(tmp_path: Path) -> None:
    lines = {
        "ResNet-18": line("ResNet-18", 0.001, 0.002), "ResNet-50": line("ResNet-50", 0.002, 0.001),
        "Swin-T": {**line("Swin-T", 1.0, 1.0), "engines": {}, "failure": "build: no such thing"},
    }  # fmt: skip
    text = " ".join(gallery.page(lines).split())
    assert "| ResNet-18 | timm | 1.5 | 1.00 | 2.00 | **2.00** | 1e-06 / 1e-06 | 7 |" in text
    assert "geometric mean of the 2 is **1.00**, the least 0.50" in text
    assert "- Swin-T: build: no such thing" in text
    assert "a CPU, 2 cores" in text
    path = tmp_path / "gallery.jsonl"
    gallery.keep(path, lines)
    path.write_text(path.read_text() + json.dumps(line("ResNet-18", 1.0, 3.0)) + "\n")
    again = gallery.stored(path)
    assert [*again] == [*lines]
    assert gallery.ratio(again["ResNet-18"]) == 3.0


def test_thirty_architectures_have_names_of_their_own() -> None:
    names = [a.name for a in architectures.ARCHITECTURES]
    assert len(names) == len(set(names)) == 30
    with pytest.raises(SystemExit, match="there is no Perceptron"):
        architectures.named("Perceptron")


@pytest.fixture
def exporter(tmp_path: Path) -> Path:
    """Return a program that stands for a Python with torch: it exports the digits, or fails."""
    program = tmp_path / "exporter"
    program.write_text(
        f"""#!/bin/sh
echo "$2" >> {tmp_path}/asked
[ "$2" != ResNet-18 ] || {{ echo "no torch here" >&2; exit 1; }}
cp {ROOT}/samples/digits.onnx "$3"
echo '{{"parameters": 13000, "packages": {{}}}}'
"""
    )
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_what_is_stored_is_not_measured_again(
    exporter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(gallery, "DOCS", tmp_path)
    monkeypatch.setattr(gallery, "STORED", tmp_path / "gallery.jsonl")
    words = [f"--exporter={exporter}", "--only=SqueezeNet,ResNet-18", "--rounds=1"]
    for _ in range(2):
        assert gallery.main(words) == 0
    assert (tmp_path / "asked").read_text().splitlines() == ["ResNet-18", "SqueezeNet 1.1"]
    lines = gallery.stored(tmp_path / "gallery.jsonl")
    assert lines["ResNet-18"]["failure"] == "export: no torch here"
    found = lines["SqueezeNet 1.1"]
    assert found["parameters"] == 13000
    assert found["engines"]["atc"]["error"] < 1e-5
    assert found["build_cpu"] > 0
    assert gallery.ratio(found) > 0
    page = (tmp_path / "gallery.md").read_text("utf-8")
    assert "| SqueezeNet 1.1 | torchvision | 0.0 |" in page
    assert "- ResNet-18: export: no torch here" in page
    assert (tmp_path / "images/gallery_speed.svg").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SqueezeNet 1.1", "DeiT-Tiny", "ALBERT, 4 layers of 256"])
def test_an_architecture_is_exported(name: str, tmp_path: Path) -> None:
    a = architectures.named(name)
    for package in ("torch", "onnxscript", a.package):
        if find_spec(package) is None:
            pytest.skip(f"{package} isn't installed")
    reported = architectures.export(a, str(tmp_path / "net.onnx"))
    model = onnx.load(tmp_path / "net.onnx")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert tuple(d.dim_value for d in dims) == a.shape
    held = sum(math.prod(t.dims) for t in model.graph.initializer)
    assert held == pytest.approx(reported["parameters"], rel=0.1)
