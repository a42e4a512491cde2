"""The page of `atc report`: complete in itself, true, and proof against the model's names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from networks import conv_net, save
from onnx import helper

from atc.cli.main import main
from atc.errors import OptionError
from atc.tools.profile import read_profile
from atc.tools.report_page import report_page
from atc.tools.report_page.data import read_page
from atc.tools.report_page.text import bytes_text, short, time_text

EVIL = '</script><script>document.title="taken"</script><img src=x onerror="alert(1)">'
QUOTES = "\"'><b>&amp;{{ 7*7 }}</text></svg>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a compiled network whose names are hostile, with a profile beside it."""
    root = tmp_path_factory.mktemp("report")
    nodes = [
        helper.make_node("Abs", [EVIL], ["a"], EVIL),
        helper.make_node("Softmax", ["a"], [QUOTES], QUOTES),
        helper.make_node("Softmax", [QUOTES], ["c"], "third", axis=0),
        helper.make_node("Add", ["c", QUOTES], ["y"], "sum"),
    ]
    model = save(nodes, {EVIL: [3, 4]}, {"y": [3, 4]}, root / "m.onnx")
    assert main([f"--model={model}", f"--output={root}/net", "--profile", "--target=c99"]) == 0
    return root / "net"


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    target = folder.parent / "page.html"
    assert main(["report", str(folder), f"--output={target}", "--runs=3"]) == 0
    return target.read_text("utf-8")


class Reader(HTMLParser):
    """Collects elements and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_names_stay_names(page: str) -> None:
    found = Reader(page).found
    tags = [tag for tag, _ in found]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not [a for _, a in found if any(k.startswith("on") for k in a)]
    tips = " ".join(a.get("data-tip") or "" for _, a in found)
    assert EVIL in tips  # and people can still read them
    assert QUOTES in tips


def test_the_page_is_complete_in_itself(page: str) -> None:
    for tag, attributes in Reader(page).found:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:,")), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_all_sections_are_there(page: str) -> None:
    found = Reader(page).found
    ids = {a["id"] for _, a in found if a.get("id")}
    assert {"graph", "memory", "layers", "candidates", "sizes", "before", "after"} <= ids
    boxes = [a for tag, a in found if tag == "g" and (a.get("class") or "").startswith("box")]
    groups = [a["data-group"] for a in boxes]
    calls = len([i for i in ids if re.fullmatch(r"row\d+", i)])
    assert calls >= 3
    assert set(map(str, range(calls))) <= set(groups)
    assert len([a for tag, a in found if a.get("class", "").startswith("buffer")]) >= 1


def test_a_profile_is_read_and_must_fit(folder: Path, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert main(["profile", str(folder), "--json", "--runs=2"]) == 0
    (tmp_path / "p.json").write_text(capsys.readouterr().out)
    text = report_page(folder, read_profile(tmp_path / "p.json"))
    assert "Median times" in text
    assert "Shares are of the estimated cost" in report_page(folder)
    other = conv_net(tmp_path / "m.onnx")
    assert main([f"--model={other}", f"--output={tmp_path}/net", "--target=c99"]) == 0
    with pytest.raises(OptionError, match="another library"):
        report_page(tmp_path / "net", read_profile(tmp_path / "p.json"))


@pytest.mark.parametrize("left", ["net.dll", "libnet.a"])
def test_a_library_of_any_system_is_measured(left: str, folder: Path, tmp_path: Path) -> None:
    report = next(folder.glob("*.report.json"))
    shutil.copy(report, tmp_path)
    found = folder / ("libnet.a" if left == "libnet.a" else "libnet.so")
    shutil.copy(found, tmp_path / left)
    page = read_page(tmp_path, None)
    assert page.library_bytes == found.stat().st_size
    assert page.sizes is not None
    assert page.sizes.of(page.steps[0].record["symbol"]) > 0


def test_an_older_report_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no report"):
        report_page(tmp_path)
    report = json.loads((folder / "net.report.json").read_text())
    del report["model"]
    (tmp_path / "net.report.json").write_text(json.dumps(report))
    with pytest.raises(OptionError, match="compile the model again"):
        report_page(tmp_path)


PROBE = """<script>addEventListener("load", () => setTimeout(() => {
const one = (what) => document.querySelector(what);
one("[data-show=before]").click();
one("#before .box:not(.port)").dispatchEvent(new MouseEvent("click", {bubbles: true}));
one("th[data-key]").click();
one("#theme").click();
const seen = {
  resources: performance.getEntriesByType("resource").length, title: document.title,
  shown: one(".graph:not([hidden])").id, linked: document.querySelectorAll(".linked").length,
  moved: one("#before .world").getAttribute("transform"),
  details: one("#details pre").textContent, theme: document.documentElement.dataset.theme,
  wide: document.documentElement.scrollWidth > innerWidth};
document.body.setAttribute("data-seen", JSON.stringify(seen)); }, 50));</script></body>"""


@pytest.mark.slow
def test_a_browser_shows_it(page: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium to show the page")
    (tmp_path / "page.html").write_text(page.replace("</body>", PROBE), "utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--no-first-run", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile",
        "--enable-logging=stderr", "--virtual-time-budget=2000", "--window-size=1300,900",
        f"--screenshot={tmp_path}/page.png", "--dump-dom", f"file://{tmp_path}/page.html",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    found = Reader(done.stdout).found
    (text,) = [a["data-seen"] for tag, a in found if tag == "body"]
    seen = json.loads(text or "{}")
    assert seen["resources"] == 0
    assert seen["title"] == "net · atc report"
    assert (seen["shown"], seen["theme"], seen["wide"]) == ("before", "dark", False)
    assert "scale(" in seen["moved"]
    assert seen["linked"] >= 2  # the node, and its kernel call
    assert "in kernel call" in seen["details"]
    assert (tmp_path / "page.png").stat().st_size > 10_000  # something is drawn


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (7_235_174, "6.9 MiB")]
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_times_and_names() -> None:
    assert [time_text(t) for t in (45.5, 1860, 68_900_000)] == ["45.5 ns", "1.86 µs", "68.9 ms"]
    assert short("/layer1/layer1.0/downsample/Conv", 28) == "/layer1/l….0/downsample/Conv"
    assert len(short("x" * 500, 28)) == 28


def test_a_network_with_ranges_of_shapes_has_a_page(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx", batch="n")
    arguments = [f"--model={model}", f"--output={tmp_path}/net", "--target=c99", "--profile"]
    assert main([*arguments, "--input_shape=x:1~4,3,8,8"]) == 0
    assert main(["report", f"{tmp_path}/net", "--runs=2"]) == 0
    assert "Median times" in (tmp_path / "net/net.html").read_text("utf-8")
