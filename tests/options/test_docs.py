"""The documentation page of all settings is there, complete and up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atc.options.docs import settings_page
from atc.options.table import SETTINGS
from atc.options.unsupported import LATER

PAGE = Path(__file__).parents[2] / "atc/docs/settings.md"

ROWS = {
    "M": {f"M-{k:02}" for k in range(1, 39)},
    "X": {f"X-{k:02}" for k in range(1, 43)},
    "L": {f"L-{k:02}" for k in range(1, 63)},
    "O": {f"O-{k:02}" for k in range(1, 9)},
    "A": {f"A-{k:02}" for k in range(1, 36)},
}
"""The rows of the specification's tables."""

REFUSED = {
    "A-10": "dynamic_batch_size", "A-11": "dynamic_image_size", "A-12": "dynamic_dims",
}  # fmt: skip
"""Rows whose options are refused by name."""


@pytest.mark.parametrize("letter", ROWS)
def test_the_tables_have_every_row(letter: str) -> None:
    have = {s.row for s in SETTINGS if s.row[:1] == letter}
    refused = {row for row, name in REFUSED.items() if name in LATER}
    assert have | {row for row in refused if row[:1] == letter} == ROWS[letter]


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text("utf-8") == settings_page(), (
        "run: atc env --documentation > atc/docs/settings.md"
    )


def test_each_row_of_the_page_has_all_columns() -> None:
    lines = [x for x in settings_page().splitlines() if x.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    states = {re.split(r"(?<!\\)\|", line)[7].strip().partition(":")[0] for line in lines}
    assert states == {"state", "---", "works", "accepted"}


def test_every_setting_is_on_the_page() -> None:
    page = settings_page()
    assert not [s.name for s in SETTINGS if s.label not in page]
    assert not [name for name in LATER if f"`--{name}`" not in page]
