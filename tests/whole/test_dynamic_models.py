"""Models in the style of exporters over ranges of shapes, against onnxruntime at several shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from dynamic_models import CASES, Case
from projects import compile_c, emit_graph, sources, write_project

from atc.backends.targets import get_target
from atc.importers.onnx import pin_inputs
from atc.lower import lower_model
from atc.lower.value_bounds import declare_ranges
from atc.options.shapes import shapes, value_ranges
from atc.runtime.network import Network
from support import runnable

QUICK = ("greedy_decode", "branches_sliced", "masked_sums", "skips", "spectrum",
         "relative_embeddings")
"""What the default run takes: loops, growth, counts, branches, sums over coordinates, joints,
frames, extents that exclude each other."""
TARGETS = ("c99", "x86-64-avx2", "x86-64-avx512")


def network_of(case: Case, folder: Path, target: str) -> Network:
    """Return the compiled network of a case."""
    model = pin_inputs(onnx_ir.from_proto(case.model), shapes(case.shapes), "test.onnx")
    declare_ranges(model, value_ranges(case.values))
    emission = emit_graph(lower_model(model, "test.onnx"), target=target)
    project = write_project(folder, emission)
    flags = ("-O0", "-fPIC", "-shared", "-fvisibility=hidden", *get_target(target).cflags)
    compile_c(project, *flags, "-o", "libnet.so", *sources(project), "-lm")
    return Network(project / "libnet.so", emission.name)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(n, t, marks=[] if n in QUICK and t == "c99" else pytest.mark.slow)
        for n in CASES for t in TARGETS
    ],
)  # fmt: skip
def test_a_model_is_right_at_every_shape(name: str, target: str, tmp_path: Path) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    case = CASES[name]()
    network = network_of(case, tmp_path, target)
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    for feed in case.feeds:
        wanted = session.run(None, dict(feed))
        found = network.run(dict(feed)).values()
        shown = {n: a.shape for n, a in feed.items()}
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape, shown
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(shown))


def test_what_does_not_fit_when_it_is_joined_is_a_status(tmp_path: Path) -> None:
    network = network_of(CASES["skips"](), tmp_path, "c99")
    with pytest.raises(ValueError, match="shape"):
        network.run({"x": np.zeros((1, 3, 9, 8), np.float32)})
