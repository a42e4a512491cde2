"""What all tests share: no configuration file of whoever runs them; which are slow by kind."""

from __future__ import annotations

import os
import zlib

import pytest

os.environ["ATC_CONFIG"] = os.devnull

SHARE = 4
"""One of so many of the standard's tests of single nodes is run by default; `-m suite` runs all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what repeats, for more instructions or more cases, what another test shows."""
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        words = {v for v in values.values() if isinstance(v, str)}
        repeats = "x86-64-avx2" in words  # as on AVX-512, with narrower vectors
        name = values.get("name", "")
        if item.name.startswith("test_standard") and isinstance(name, str):
            repeats = repeats or zlib.crc32(name.encode()) % SHARE != 0
        if repeats:
            item.add_marker(pytest.mark.slow)
