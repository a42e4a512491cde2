"""The documented ways from other libraries, each where its exporter is installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "atc/docs/tracing.md"


def snippet(heading: str) -> str:
    """Return the Python snippet under a heading of the page."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2]
    found = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def run(heading: str) -> dict[str, object]:
    """Run a snippet, which compares its results itself; returns its names."""
    names: dict[str, object] = {}
    exec(compile(snippet(heading), f"{PAGE}: {heading}", "exec"), names)
    return names


@pytest.mark.slow
def test_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn isn't installed")
    pytest.importorskip("skl2onnx", reason="skl2onnx isn't installed")
    monkeypatch.chdir(tmp_path)
    scores = np.asarray(run("scikit-learn")["probabilities"])
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)


def test_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX isn't installed")
    pytest.importorskip("jax2onnx", reason="jax2onnx isn't installed")
    monkeypatch.chdir(tmp_path)
    assert np.isfinite(np.asarray(run("JAX")["result"])).all()
