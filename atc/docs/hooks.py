"""Hooks of mkdocs: pages from outside this folder, and links out of it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).parent
ROOT = DOCS.parents[1]
PAGES = {
    "cache.md": "cache/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site that are files of the repository, where readers of the code look for them."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PLACES = {path: page for page, path in PAGES.items()}


def on_config(config: Any) -> Any:
    """Take this folder's pages: mkdocs refuses the folder of its file as `docs_dir`."""
    config.docs_dir = str(DOCS)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside."""
    for page, path in PAGES.items():
        content = (ROOT / path).read_text("utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into those between pages.

    What is no page of the site (sources, samples) is its path, without a link.
    """
    here = page.file.src_uri
    origin = posixpath.dirname(PAGES.get(here, f"atc/docs/{here}"))

    def place(link: re.Match[str]) -> str:
        mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = posixpath.normpath(posixpath.join(origin, target))
        inside = _PLACES.get(path, path.removeprefix("atc/docs/"))
        if inside == path and not path.startswith("atc/docs/"):
            return f"`{path}`" if text.strip("`") in (path, target) else f"{text} (`{path}`)"
        return f"{mark}[{text}]({posixpath.relpath(inside, posixpath.dirname(here))}{anchor})"

    parts = _CODE.split(markdown)  # text and fenced code in turns
    return "".join(part if k % 2 else _LINK.sub(place, part) for k, part in enumerate(parts))
