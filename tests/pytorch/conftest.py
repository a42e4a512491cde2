"""What tests of PyTorch print."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True, scope="session")
def _without_traces() -> None:
    """Keep PyTorch's structured traces, thousands of lines, out of what a failed test prints."""
    logging.getLogger("torch.__trace").propagate = False
