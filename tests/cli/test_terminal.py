"""What a stage that takes long shows meanwhile."""

from __future__ import annotations

import io
import itertools

import pytest

from atc.cli.terminal import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two seconds pass at each look at the clock."""
    ticks = itertools.count(0.0, 2.0)
    monkeypatch.setattr("atc.cli.terminal.time.monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("clock")
def test_progress_estimates_what_is_left() -> None:
    stream = io.StringIO()
    diagnostics = Terminal("info", stream).diagnostics()
    diagnostics.stage("measuring")
    for done in (0, 1, 10):
        diagnostics.progress("measuring", done, 10)
    first, none, some, last = stream.getvalue().splitlines()
    assert first == "[INFO] measuring"
    assert none == "[INFO] measuring: 0 of 10"
    assert some.startswith("[INFO] measuring: 1 of 10, about ")
    assert last == "[INFO] measuring: 10 of 10, about 0 s left"


@pytest.mark.usefixtures("clock")
def test_a_quiet_level_shows_nothing() -> None:
    stream = io.StringIO()
    Terminal("warning", stream).diagnostics().progress("measuring", 1, 10)
    assert stream.getvalue() == ""
