"""Errors of tracing, and the user's line that caused them."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

from atc.errors import AtcError, OptionError

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class TracingError(AtcError, RuntimeError):
    """A function can't be traced as it is written; `where` is its line."""

    code = "E10055"


class ArgumentError(OptionError, ValueError):
    """An invalid argument."""


class OperandError(OptionError, TypeError):
    """An operand of a type that the operation doesn't take."""


def place() -> str:
    """Return the user's line that is running: `file:line: text`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}: {text}" if text else f"{file}:{line}"
