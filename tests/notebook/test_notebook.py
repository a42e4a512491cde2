"""What a notebook shows: networks, plans, reports, comparisons, and how far a compilation is."""

from __future__ import annotations

import html.parser
import importlib.util
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model

import atc
from atc.accuracy.compare import Verification
from atc.accuracy.differences import Difference
from atc.api import verify_compilation
from atc.diagnostics import Diagnostics
from atc.memory.arena import Arena
from atc.memory.planner import Buffer, MemoryPlan
from atc.notebook import in_notebook, with_progress
from atc.pipeline.pipeline import Compilation
from atc.runtime.shown import html_table
from atc.tools.profile import CallProfile, Profile

VOID = {"br", "img", "meta", "input"}
ALLOWED = {"table", "caption", "tr", "th", "td", "p", "svg", "title", "rect"}
HOSTILE = [
    "<script>alert(1)</script>", '" onload="x', "</table><img src=x onerror=y>", "]]>", "&lt;b&gt;",
    "a\n\0\x1b[1mb", "\u202e\ud83d", "'",
]  # fmt: skip


class Reader(html.parser.HTMLParser):
    """Reads HTML whose elements must nest, and be of those that we write."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)
        if tag in ("td", "th", "caption", "p", "title"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "caption", "p", "title"):
            self.cells[-1] += data


def read(text: str) -> list[str]:
    """Return the texts of a page's cells; it must be well-formed, and call nothing."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert not {a for a in reader.attributes if a.startswith(("on", "href", "src", "style"))}
    return reader.cells


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    folder = tmp_path_factory.mktemp("net")
    onnx.save(affine_model(), folder / "model.onnx")
    return atc.compile(folder / "model.onnx", folder / "net", target="c99")


def test_a_compilation_shows_what_became_of_the_model(done: Compilation) -> None:
    cells = read(done._repr_html_())
    assert cells[0] == "net"
    pairs = dict(zip(cells[1:-1:2], cells[2::2], strict=False))
    assert pairs["model"] == "model.onnx"
    assert pairs["target"] == "c99"
    assert pairs["arena"] == f"{done.arena.plan.size:,} bytes"


def test_a_shell_shows_a_compilation_in_a_line(done: Compilation) -> None:
    assert repr(done) == f"<net for c99 in {done.folder}>"


def test_a_plan_is_a_picture_of_its_buffers(done: Compilation) -> None:
    root = ET.fromstring(done.arena._repr_html_())
    space = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{space}rect")
    assert len(boxes) == sum(1 for b in done.arena.buffers if b.size)
    for box in boxes:
        x, y, width, height = (float(box.attrib[k]) for k in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= 640.2
        assert -0.2 <= y <= y + height <= 240.2


def test_buffers_that_live_at_the_same_time_do_not_overlap_in_the_picture() -> None:
    buffers = (Buffer("a", 64, 0, 1), Buffer("b", 128, 1, 2), Buffer("c", 64, 2, 3))
    plan = MemoryPlan({"a": 0, "b": 64, "c": 0}, 192, 192, "by hand")
    root = ET.fromstring(Arena({}, {}, buffers, plan)._repr_html_())
    boxes = [tuple(float(e.attrib[k]) for k in ("x", "y", "width", "height"))
             for e in root if e.tag.endswith("rect")]  # fmt: skip
    assert boxes == [(160, 0, 320, 160), (0, 160, 320, 80), (320, 160, 320, 80)]


def test_a_report_shows_every_kernel(done: Compilation) -> None:
    cells = read(done.report._repr_html_())
    for node in done.report["nodes"]:
        assert node["kernel"] in cells
    assert done.report == {**done.report}


def test_a_network_shows_its_inputs_and_outputs(done: Compilation) -> None:
    with atc.load(done.folder) as net:
        cells = read(net._repr_html_())
    assert cells[4:7] == ["input", "x", "float32 [2, 5]"]
    assert "output" in cells
    spec = importlib.util.spec_from_file_location("net", done.folder / "net.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["net"] = module
    spec.loader.exec_module(module)
    del sys.modules["net"]
    with module.load() as net:  # without atc, the same
        assert read(net._repr_html_()) == cells


def test_a_comparison_shows_each_output(done: Compilation) -> None:
    cells = read(verify_compilation(done)._repr_html_())
    assert cells.count("ok") == 2
    wrong = Verification("x", "y", 1e-4, (Difference("o", "f", 1, 2, 0, False),))
    assert "DIFFERS" in read(wrong._repr_html_())


def test_a_profile_shows_the_longest_call_first() -> None:
    short, long = ("a", "Map", "k", 1, 1, 1e3, 1), ("b", "Conv", "l", 1, 1, 3e3, 1)
    calls = (CallProfile(*short), CallProfile(*long))
    cells = read(Profile("net", (4000, 4000), calls)._repr_html_())
    assert cells[6:11] == ["b", "Conv", "l", "3.00", "75.0 %"]
    assert cells[-1] == "median of 2 runs: 4.00 us"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_text(name: str, tmp_path: Path) -> None:
    assert len(read(html_table(name, (name,), [(name, 1)], name))) == 5
    buffers = (Buffer(name, 64, 0, 0), Buffer("s", 64, 0, 0, scratch_of=name))
    plan = MemoryPlan({name: 0, "s": 64}, 128, 128, name)
    picture = Arena({}, {}, buffers, plan)._repr_html_()
    assert len(read(picture)) == 3
    ET.fromstring(picture.encode("utf-8", "replace"))
    text = read(html_table("t", (), [(name,)]))[1]
    kept = "".join(c if c.isprintable() else " " for c in name)
    assert text == kept


def test_a_model_with_hostile_names_shows_as_text(tmp_path: Path) -> None:
    name = HOSTILE[0]
    nodes = [helper.make_node("Relu", [name], ["y</td>"], name="<img src=x>")]
    onnx.save(make_model(nodes, [(name, F32, (2,))], [("y</td>", F32, (2,))]),
              tmp_path / "<b>.onnx")  # fmt: skip
    done = atc.compile(tmp_path / "<b>.onnx", tmp_path / "net", target="c99")
    assert "<b>.onnx" in read(done._repr_html_())
    assert "<img src=x>" in "".join(read(done.report._repr_html_()))
    with atc.load(done.folder) as net:
        cells = read(net._repr_html_())
        assert name in cells
        assert net(np.ones(2, np.float32)).tolist() == [1, 1]


# ------------------------------------------------------------------------------------- progress


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make this process a notebook's kernel; returns the states of what it shows."""
    shown: list[str] = []

    class Handle:
        def update(self, thing: Any) -> None:
            shown.append(thing._repr_html_())

    def display(thing: Any, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(thing._repr_html_())
        return Handle()

    python, module = ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(python, "get_ipython", lambda: SimpleNamespace(kernel=1), raising=False)
    monkeypatch.setattr(module, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_shows_how_far_a_compilation_is(kernel: list[str]) -> None:
    reported: list[str] = []
    with with_progress(Diagnostics(stage=reported.append)) as diagnostics:
        diagnostics.stage("compiling <b>C</b>")
        diagnostics.progress("compiling C", 3, 8)
        diagnostics.progress("compiling C", 4, 8)  # too soon to be shown
    assert reported == ["compiling <b>C</b>"]
    assert kernel == [
        "<progress></progress> starting",
        "<progress></progress> compiling &lt;b&gt;C&lt;/b&gt;",
        '<progress value="3" max="8"></progress> compiling C 3/8',
        "",
    ]


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    diagnostics = Diagnostics()
    with with_progress(diagnostics) as same:
        assert same is diagnostics
    assert capsys.readouterr() == ("", "")


def test_compiling_in_a_notebook_leaves_no_bar(kernel: list[str], tmp_path: Path) -> None:
    onnx.save(affine_model(), tmp_path / "model.onnx")
    atc.compile(tmp_path / "model.onnx", tmp_path / "net", target="c99")
    assert any("compiling C" in state for state in kernel)
    assert kernel[-1] == ""
    with pytest.raises(atc.errors.AtcError):
        atc.compile(tmp_path / "none.onnx", tmp_path / "net")
    assert kernel[-1] == ""


@pytest.mark.slow
def test_ipython_shows_it_itself(tmp_path: Path) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.utils.capture")
    shell.InteractiveShell.clear_instance()
    ours = shell.InteractiveShell.instance()
    ours.kernel = object()
    onnx.save(affine_model(), tmp_path / "model.onnx")
    with capture.capture_output() as captured:
        done = atc.compile(tmp_path / "model.onnx", tmp_path / "net", target="c99")
    shell.InteractiveShell.clear_instance()
    bars = [output.data["text/html"] for output in captured.outputs]
    assert bars[0].startswith("<progress>")
    data, _ = ours.display_formatter.format(done)
    assert "<svg" in data["text/html"]
