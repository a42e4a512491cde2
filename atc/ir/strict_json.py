"""JSON that every reader takes: numbers that JSON doesn't have become texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def dumps(value: object) -> str:
    """Return JSON in ASCII with `inf`, `-inf` and `nan` as strings, ending in a line break."""
    return json.dumps(_strict(value), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _strict(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(k): _strict(v) for k, v in value.items()}
        case list() | tuple():
            return [_strict(v) for v in value]
        case _:
            return value
