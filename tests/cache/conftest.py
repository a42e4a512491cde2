"""A cache in a temporary folder, and a pretended compilation that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_site import NodeContext


@pytest.fixture
def site(tmp_path: Path) -> NodeContext:
    return NodeContext(tmp_path / "cache")
