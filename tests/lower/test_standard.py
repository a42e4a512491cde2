"""Operators by some of the standard's own tests; `-m suite` runs all of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from default_run import repeats

from support import Batch, assert_close, node_cases, pinned

EXCEPTED = (
    "test_bernoulli", "test_image_decoder_decode_jpeg2k", "test_image_decoder_decode_webp",
    "test_unique",
)  # fmt: skip
"""suite_exceptions.txt has their reasons; how much Unique returns only a whole library shows."""
CASES = {
    name: (model, *runs[0])
    for name, model, runs in node_cases({schema.name for schema in onnx.defs.get_all_schemas()})
    if not repeats(name) and not name.startswith(EXCEPTED)
}
COMPILED = Batch({name: pinned(model, inputs) for name, (model, inputs, _) in CASES.items()})


@pytest.mark.few(10)
@pytest.mark.parametrize("name", CASES)
def test_standard(name: str) -> None:
    _, inputs, expected = CASES[name]
    half = any(e.dtype == np.float16 for e in expected)
    assert_close(COMPILED[name](inputs), expected, rtol=2e-3 if half else 1e-3, atol=1e-6)
