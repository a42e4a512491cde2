"""`atc report`: one self-contained page of HTML about a compiled network.

Drawings are computed here; the page's script only moves, sorts and highlights. May import
what `tools` may.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from atc import __version__
from atc.templates import FOLDER
from atc.tools.profile import Profile
from atc.tools.report_page import charts, memory_map
from atc.tools.report_page.data import Page, read_page
from atc.tools.report_page.graphs import kernel_picture, model_picture
from atc.tools.report_page.text import bytes_text, percent, time_text

__all__ = ["report_page"]


def report_page(folder: Path, profile: Profile | None = None) -> str:
    """Return the page about an output folder; raises OptionError where it holds no report."""
    page = read_page(folder, profile)
    template = _environment().get_template("page.html.j2")
    return template.render(_values(page))


@cache
def _environment() -> Environment:
    """Return the environment of the page: all that comes from a model is escaped."""
    return Environment(
        loader=FileSystemLoader(FOLDER / "report"), undefined=StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def _values(page: Page) -> Mapping[str, object]:
    pictures = [p for p in (model_picture(page), kernel_picture(page)) if p is not None]
    return {
        "version": __version__, "name": page.report["name"], "target": page.report["target"],
        "page": page, "measured": page.measured, "tiles": _tiles(page), "pictures": pictures,
        "inputs": page.report["inputs"], "outputs": page.report["outputs"],
        "memory": memory_map.memory_map(page), "map": memory_map,
        "rows": charts.layer_rows(page), "candidates": charts.candidate_chart(page),
        "sizes": charts.size_bars(page), "code": charts.code_bars(page),
        "cache": page.report.get("cache"), "bytes_text": bytes_text,
        "style": _text("style.css.j2"), "script": _text("script.js.j2"),
    }  # fmt: skip


def _text(name: str) -> str:
    return (FOLDER / "report" / name).read_text("utf-8")


def _tiles(page: Page) -> list[tuple[str, str, str]]:
    """Return the figures at the page's head: what, how much, and a remark."""
    memory, report = page.memory, page.report
    fused = len(page.nodes) - len(page.steps)
    tuned = sum(s.record["tier"] == "tuned" for s in page.steps)
    tiles = []
    if page.profile is not None:
        peak = page.profile.gflops_peak
        remark = f"median of {len(page.profile.run_ns)} runs, spread {page.profile.spread:.0%}"
        tiles.append(("time of a run", time_text(page.profile.median_ns), remark))
        rate = sum(s.operations for s in page.steps) / page.profile.median_ns
        detail = f"{percent(rate / peak, 0)} of the core's peak of {peak:.0f}" if peak else ""
        if rate:
            tiles.append(("GFLOP/s", f"{rate:.1f}", detail or "sums of products"))
    tiles += [
        ("kernel calls", str(len(page.steps)),
         f"of {len(page.nodes)} nodes" + (f", {fused} fewer" if fused > 0 else "")),
        ("arena", bytes_text(memory["arena_bytes"]),
         "the lower bound" if memory["gap_percent"] == 0
         else f"{memory['gap_percent']:g} % above the bound"),
        ("weights", bytes_text(memory["weights_bytes"]), "packed for their kernels"),
    ]  # fmt: skip
    if swapped := report.get("swapped"):
        there = bytes_text(swapped["host_bytes"])
        detail = f"{len(swapped['copies'])} copies; {time_text(swapped['waiting_ns'])} of waiting"
        tiles.append(("on the host", there, f"{detail}, estimated"))
    if page.sizes:
        detail = f"{tuned} calls of tuned kernels" if tuned else "portable kernels"
        tiles.append(("code", bytes_text(page.sizes.code), detail))
    if cache := report.get("cache"):
        total = cache["cached"] + cache["compiled"]
        tiles.append(("from the cache", f"{cache['cached']} of {total}", f"mode {cache['mode']}"))
    return tiles
