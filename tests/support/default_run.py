"""What the default run of the tests is: a share of many cases, compiled without optimisation."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_VARIABLE = "ATC_TESTS_LEVEL"

SHARE = 8
"""One of so many of the standard's tests of single nodes is run by default; `-m suite` runs all."""


def repeats(name: str) -> bool:
    """Whether a case of many isn't run by default."""
    return zlib.crc32(name.encode()) % SHARE != 0


def level() -> str:
    """Return the optimisation level of the models that tests compile."""
    return os.environ.get(_VARIABLE, "-O1")


def compile_quickly() -> None:
    """Let this process and its children compile models without optimisation."""
    os.environ.setdefault(_VARIABLE, "-O0")


@contextmanager
def settings(folder: Path) -> Iterator[None]:
    """Let `atc` compile plain C without optimisation where no more is asked for.

    By a configuration file in `folder`, for tests of what calls the compiler by itself; the slow
    tests compile as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        if level() == "-O0":
            file = folder / "atc.cfg"
            file.write_text("target=c99\nbuild_config=cc -O0\n")
            patch.setenv("ATC_CONFIG", str(file))
        yield
