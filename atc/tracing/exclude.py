"""`exclude_from_trace`: code that Python runs in every call of a traced function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atc.tracing.errors import TracingError, place
from atc.tracing.tape import reset_traced, set_traced, traced_tape


def is_tracing() -> bool:
    """Return whether a function is being traced."""
    return traced_tape() is not None


@contextmanager
def exclude_from_trace() -> Iterator[None]:
    """Leave what is in the block to Python, which runs it in every call of the traced function.

    The trace is cut there: what comes before and what comes behind are compiled networks of their
    own, functions of one library, and tensors have values in the block.
    """
    tape = traced_tape()
    if tape is None:
        yield
        return
    if tape.constants:
        raise TracingError(
            "exclude_from_trace in a function with capture_as_const", where=place(),
            hint="what Python does can't be dumped; leave one of them out",
        )  # fmt: skip
    if tape.differentiating:
        raise TracingError("exclude_from_trace where gradients are recorded", where=place(),
                           hint="leave the `with` block of the GradManager before")  # fmt: skip
    tape.excluded = True
    tape.finish()
    token = set_traced(None)
    try:
        yield
    finally:
        reset_traced(token)
