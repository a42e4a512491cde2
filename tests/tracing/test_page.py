"""The page about tracing: its snippets run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "atc/docs/tracing.md"


@pytest.mark.parametrize("count", [1, pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_the_snippets_of_the_page_run(
    count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8").partition("\n## PyTorch")[0]
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 4
    names: dict[str, object] = {}
    for snippet in snippets[:count]:
        exec(compile(snippet, str(PAGE), "exec"), names)
