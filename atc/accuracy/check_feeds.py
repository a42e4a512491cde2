"""Check inputs against a model before it is compiled, so that wrong ones are reported at once."""

from __future__ import annotations

from atc.accuracy.feeds import fitting
from atc.pipeline.input_types import input_types
from atc.pipeline.request import Request


def check_given(request: Request, text: str) -> None:
    """Raise OptionError for inputs that the network of a request won't take."""
    types = input_types(request) if text else None
    if types is not None:
        fitting({name: (t.shape, t.dtype) for name, t in types.items()}, text)
