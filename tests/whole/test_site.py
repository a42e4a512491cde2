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

sys.path.pop(0)

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
    reported = set(re.findall(r"`digits_(\w+)`", (DOCS / "c.md").read_text("utf-8")))
    assert declared
    assert reported == declared


# ----------------------------------------------------------------------------- what was measured


def test_the_chart_of_speeds_is_what_the_script_draws() -> None:
    stored = json.loads((DOCS / "speed.json").read_text("utf-8"))
    assert (DOCS / "images/speed.svg").read_text("utf-8") == charts.speed_chart(stored)


def test_the_table_of_speeds_has_the_charts_numbers() -> None:
    stored = json.loads((DOCS / "speed.json").read_text("utf-8"))
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (\S[^|]*?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| \*\*([\d.]+)\*\*", text, re.M
    )
    reported = [{"model": m, "atc": float(a), "onnxruntime": float(o), "openvino": float(v)}
            for m, a, o, v, _ in rows]  # fmt: skip
    assert reported == stored["rows"]
    for model, ours, *others, ratio in rows:
        best = min(map(float, others)) / float(ours)
        assert best == pytest.approx(float(ratio), rel=0.02), model
    assert stored["cpu"] in text


def test_the_gallery_is_what_was_stored() -> None:
    lines = gallery.stored(gallery.STORED)
    assert (DOCS / "gallery.md").read_text("utf-8") == gallery.page(lines)
    for name, text in gallery.charts(lines).items():
        assert (DOCS / "images" / name).read_text("utf-8") == text
