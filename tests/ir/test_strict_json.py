from __future__ import annotations

import json

from atc.ir.strict_json import dumps


def test_numbers_that_json_lacks_are_texts() -> None:
    data = {"a": [float("inf"), -float("inf"), 1.5, (2, None)], 3: {"n": float("nan")}}
    expected = {"a": ["inf", "-inf", 1.5, [2, None]], "3": {"n": "nan"}}
    assert json.loads(dumps(data), parse_constant=lambda name: 1 / 0) == expected
