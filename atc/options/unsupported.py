"""Options of Ascend's ATC that this version knows, but refuses by name."""

from __future__ import annotations

from collections.abc import Mapping

LATER: Mapping[str, str] = {}
"""What each is about, by name."""
