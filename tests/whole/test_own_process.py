"""What becomes of checks in processes of their own that fail, die or hang."""

from __future__ import annotations

import operator
import os
import time

import pytest
from own_process import in_own_process


def test_what_passes_is_silent() -> None:
    in_own_process(60, operator.floordiv, 1, 1)


@pytest.mark.slow
def test_what_fails_says_why() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_own_process(60, operator.floordiv, 1, 0)
    with pytest.raises(AssertionError, match="ended with status -6"):
        in_own_process(60, os.abort)
    with pytest.raises(AssertionError, match="longer than 2 s"):
        in_own_process(2, time.sleep, 60)
