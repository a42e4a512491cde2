"""Decoders of exporters over ranges from an empty cache, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from decoders import DECODERS, Decoder
from dynamic_models import Case
from whole.test_dynamic_models import TARGETS, network_of

from atc.importers.onnx import pin_inputs
from atc.lower import lower_model
from atc.lower.ranges import check_range
from atc.options.shapes import shapes
from support import runnable

QUICK = ("genai_llama",)
"""What the default run compiles; the others are lowered at both ends of their ranges."""


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(n, t, marks=[] if n in QUICK and t == "c99" else pytest.mark.slow)
        for n in DECODERS for t in TARGETS
    ],
)  # fmt: skip
def test_a_decoder_runs_from_the_first_word(name: str, target: str, tmp_path: Path) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    decoder = DECODERS[name]()
    network = network_of(Case(decoder.model, decoder.shapes, []), tmp_path, target)
    session = onnxruntime.InferenceSession(decoder.model.SerializeToString())
    batches = {1, network.inputs[0].shape[0]}
    for prompt, batch in [(5, b) for b in batches] + [(1, 1)]:
        calls = decoder.calls(lambda feed: session.run(None, dict(feed)), prompt, batch)
        for feed, wanted in calls:
            shown = str({n: a.shape for n, a in feed.items()})
            for got, want in zip(network.run(dict(feed)).values(), wanted, strict=True):
                assert got.shape == want.shape, shown
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=shown)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_lowered_as_its_single_shapes_are(name: str) -> None:
    decoder: Decoder = DECODERS[name]()
    model = pin_inputs(onnx_ir.from_proto(decoder.model), shapes(decoder.shapes), "test.onnx")
    graph = lower_model(model, "test.onnx")
    assert len([s for s in graph.dims if s.given]) <= 4  # rows, words, cache, frames
    assert not graph.guards
    check_range(model, graph, lambda: lower_model(model, "test.onnx"), "test.onnx")
