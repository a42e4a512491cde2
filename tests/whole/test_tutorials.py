"""Tutorials, recipes and concepts are followed as a reader would: block by block, in one folder.

A block of `sh` is run by a shell, one of `python` by Python; one with a title is the content of a
file. Each line of a block of `text` must be found in what the block before it printed, in their
order; three dots stand for anything, and so do any number of spaces for one another.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from default_run import level
from readers_folder import ROOT, install_programs, lay_out

FOLDER = ROOT / "atc/docs"
PAGES = [
    str(path.relative_to(FOLDER).with_suffix(""))
    for place in ("python.md", "howto.md", "concepts/*.md", "tutorials/*.md")
    for path in sorted(FOLDER.glob(place))
]
NEEDS: dict[str, tuple[str, ...]] = {
    "tutorials/pytorch": ("import torch", "import onnxscript"),
    "tutorials/cortex_m": ("import onnxruntime", "arm-none-eabi-gcc", "qemu-system-arm", "make"),
    "tutorials/quantize": ("import onnxruntime",),
    "tutorials/gpu": ("g++",),
    "howto": ("cmake",),
    "concepts/states": ("cmake",),
}
"""Programs and packages without which a page is left out."""

INSTEAD: dict[str, dict[str, str]] = {
    "tutorials/pytorch": {"pip install '.[torch]'\n": ""},
    "tutorials/gpu": {"pip install '.[cuda]'\n": "", "cuda-sm90,x86-64-avx2": "cuda-emulated"},
}  # fmt: skip
"""What isn't run as it stands: what installs packages, and what needs nvcc."""

APART = ("tutorials/cache", "tutorials/cortex_m")
"""Pages without the others' configuration: of a cache of its own, and of another compiler."""

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page, and the number of its first line."""

    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start()) + 1)


def as_run(page: str, text: str) -> str:
    for old, new in INSTEAD.get(page, {}).items():
        text = text.replace(old, new)
    return text


def lacks_line(said: str, expected: str) -> str:
    """Return the first line of the expected ones that wasn't said; '' where all were."""
    lines = iter(said.splitlines())
    for wanted in expected.splitlines():
        parts = [r"\s+".join(map(re.escape, part.split())) for part in wanted.split("...")]
        form = re.compile(r"\s*" + r".*".join(parts) + r"\s*")
        spaced = re.compile(r".*".join(parts))
        if not any(spaced.search(x) if "..." in wanted else form.fullmatch(x) for x in lines):
            return wanted
    return ""


def follow(page: str, folder: Path, environ: dict[str, str]) -> None:
    said = ""
    for block in blocks(page):
        place = f"{page}.md:{block.line}"
        text = as_run(page, block.text)
        if block.title:
            (folder / block.title).write_text(text)
        elif block.language == "text":
            assert not (missing := lacks_line(said, text)), f"{place}: {missing}\nnot in\n{said}"
        else:
            command = {"sh": ["bash", "-e"], "python": ["python"]}[block.language]
            done = subprocess.run(
                command, input=text, cwd=folder, env=environ, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said = done.stdout
            assert done.returncode == 0, f"{place}:\n{text}\n{said}"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration by which the pages take less time: they share a cache, at -O0."""
    folder = tmp_path_factory.mktemp("shared")
    words = ["op_compiler_cache_mode=enable", f"op_compiler_cache_dir={folder / 'cache'}"]
    words += ["build_config=cc -O0", *(["target=c99"] if level() == "-O0" else [])]
    (folder / "atc.cfg").write_text("\n".join(words) + "\n")
    return folder / "atc.cfg"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed(page: str, tmp_path: Path, settings: Path) -> None:
    for need in NEEDS.get(page, ()):
        package = need.removeprefix("import ")
        there = find_spec(package) if package != need else shutil.which(need)
        if not there:
            pytest.skip(f"{package} isn't installed")
    reader = tmp_path / "reader"
    reader.mkdir()
    environ = lay_out(reader, install_programs(tmp_path), tmp_path / "cache")
    if page not in APART:
        environ["ATC_CONFIG"] = str(settings)
    follow(page, reader, environ)


def test_each_page_has_something_to_run() -> None:
    assert len(PAGES) >= 13
    for page in PAGES:
        found = [b for b in blocks(page) if b.language in ("sh", "python") and not b.title]
        assert found, page
        text = (FOLDER / f"{page}.md").read_text("utf-8")
        assert text.count("```") == 2 * len([*blocks(page)]), page
        for old in INSTEAD.get(page, {}):
            assert old in text, f"{page}: {old}"
        for block in blocks(page):
            assert block.title or block.language in ("sh", "python", "text"), page


@pytest.mark.parametrize(
    ("said", "expected", "missing"),
    [
        ("a\nb 1,234  of 5\n", "a\nb 1,234 of 5", ""),
        ("a\nb\n", "b\na", "a"),
        ("it took 20 s", "it took ... s", ""),
        ("ab", "a", "a"),
    ],
)
def test_what_is_shown_must_have_been_said(said: str, expected: str, missing: str) -> None:
    assert lacks_line(said, expected) == missing
