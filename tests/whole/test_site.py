"""The documentation site: whole, its links lead somewhere, what it shows is what was measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "atc/docs"
sys.path.insert(0, str(ROOT / "tests/benchmarks"))

import charts  # noqa: E402
import gallery  # noqa: E402

DOCUMENTS = sorted(
    p for place in ("*.md", "cache/*.md", "atc/docs/**/*.md") for p in ROOT.glob(place)
)
_LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)")


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the links of a document to files of the repository: path and anchor."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S)
    for found in _LINK.finditer(text):
        yield found[1], found[2] or ""


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as mkdocs and the hosts of code make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", t.lower()).strip()) for t in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path):
        there = (path.parent / target) if target else path
        assert there.exists(), f"{target} isn't there"
        if anchor:
            assert anchor in anchors(there), f"{target} has no #{anchor}"


def test_the_site_has_all_pages() -> None:
    listed = set(re.findall(r"^ *- (\S+\.md)$", (DOCS / "mkdocs.yml").read_text("utf-8"), re.M))
    outside = {"cache.md", "contributing.md", "architecture.md", "changelog.md"}
    assert listed - outside == {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")}


@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings_handlers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} isn't installed: pip install '.[docs]'")
    command = ["mkdocs", "build", "--strict", "-q", "-f", str(DOCS / "mkdocs.yml"), "-d"]
    done = subprocess.run([sys.executable, "-m", *command, str(tmp_path)], capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "python/index.html").read_text("utf-8")
    assert "input_shape" in shown
    assert "positional arrays" in shown
    assert "What counts" in (tmp_path / "settings/index.html").read_text("utf-8")
    assert "Modes" in (tmp_path / "cache/index.html").read_text("utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


def test_the_page_about_c_names_what_headers_declare() -> None:
    header = "".join(
        (ROOT / f"templates/project/{name}.h.j2").read_text() for name in ("net", "sequences")
    )
    declared = set(re.findall(r"API [^;(]*?\{\{ name \}\}_(\w+)\(", header))
    told = set(re.findall(r"`digits_(\w+)`", (DOCS / "c.md").read_text("utf-8")))
    assert declared
    assert told == declared


# ----------------------------------------------------------------------------- what was measured


def test_the_chart_of_speeds_is_what_the_script_draws() -> None:
    stored = json.loads((DOCS / "speed.json").read_text("utf-8"))
    assert (DOCS / "images/speed.svg").read_text("utf-8") == charts.speed_chart(stored)


def test_the_table_of_speeds_has_the_charts_numbers() -> None:
    stored = json.loads((DOCS / "speed.json").read_text("utf-8"))
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (\S.*?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| \*\*([\d.]+)\*\*", text, re.M
    )
    told = [{"model": m, "atc": float(a), "onnxruntime": float(o), "openvino": float(v)}
            for m, a, o, v, _ in rows]  # fmt: skip
    assert told == stored["rows"]
    for model, ours, *others, ratio in rows:
        best = min(map(float, others)) / float(ours)
        assert best == pytest.approx(float(ratio), rel=0.02), model
    assert stored["cpu"] in text


def test_bars_are_as_long_as_their_values() -> None:
    rows = [charts.Row("a<b", (1.0, 4.0)), charts.Row("c", (2.0, None))]
    text = charts.bars("t & u", ("x", "y"), rows)
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="10" fill="#\w+"/><text x="\d+\.', text)]  # noqa: E501
    assert widths == [107.5, 430.0, 215.0]
    assert "a&lt;b" in text
    assert "t &amp; u" in text


def test_the_gallery_is_what_was_stored() -> None:
    lines = gallery.stored(gallery.STORED)
    assert (DOCS / "gallery.md").read_text("utf-8") == gallery.page(lines)
    for name, text in gallery.charts(lines).items():
        assert (DOCS / "images" / name).read_text("utf-8") == text


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


def test_the_gallery_tells_ratios_and_failures(tmp_path: Path) -> None:
    lines = {
        "ResNet-18": line("ResNet-18", 0.001, 0.002), "ResNet-50": line("ResNet-50", 0.002, 0.001),
        "Swin-T": {**line("Swin-T", 1.0, 1.0), "engines": {}, "failure": "build: no such thing"},
    }  # fmt: skip
    text = gallery.page(lines)
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
