"""Convolutions of images without pixels."""

from __future__ import annotations

import numpy as np
import pytest

from support import compile_models, node_model


@pytest.mark.parametrize("target", ["c99", "host"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_of_padding_alone_are_the_bias(target: str, dtype: type) -> None:
    x, w, bias = (np.ones(s, dtype) for s in ((2, 3, 0, 5), (4, 3, 3, 3), (4,)))
    bias *= np.arange(4, dtype=dtype)
    pads = [2, 1, 2, 1]
    given = [node_model("Conv", [x, w, bias], pads=pads), node_model("Conv", [x, w], pads=pads)]
    for run, each in zip(compile_models(given, target), (bias, 0 * bias), strict=True):
        assert not isinstance(run, Exception), run
        (y,) = run([x, w, bias][: 3 if each is bias else 2])
        np.testing.assert_array_equal(y, np.broadcast_to(each[:, None, None], (2, 4, 2, 5)))
