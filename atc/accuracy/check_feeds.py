"""Check inputs against a model before it is compiled, so that wrong ones are reported at once."""

from __future__ import annotations

from atc.accuracy.feeds import fitting
from atc.options.options import Options
from atc.pipeline.input_types import input_types


def check_given(options: Options, text: str) -> None:
    """Raise OptionError for inputs that the network of these options won't take."""
    types = input_types(options) if text else None
    if types is not None:
        fitting({name: (t.shape, t.dtype) for name, t in types.items()}, text)
