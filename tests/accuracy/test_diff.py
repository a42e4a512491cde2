"""`atc diff` names the first node whose result is wrong, where and by how much."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from codegen.test_sanity import with_evil_kernel
from cuda_networks import mixed_model
from networks import conv_net

from atc.accuracy.diff import ulp_distance
from atc.accuracy.feeds import read_feeds
from atc.cli.main import main
from atc.codegen.emit import Emission, emit
from atc.errors import OptionError
from atc.pipeline import writing


def doctored(node: str, statement: str) -> Callable[..., Emission]:
    """Return an `emit` that makes the kernel of a node do something more at its end."""

    def evil(*arguments: Any, **options: Any) -> Emission:
        return with_evil_kernel(emit(*arguments, **options), node, statement)

    return evil


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
def test_the_first_wrong_node_is_named(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(writing, "emit", doctored("conv1", "{out}[1] += 2.0f;"))
    arguments = [f"--model={conv_net(tmp_path / 'm.onnx')}", f"--target={target}"]
    assert main(["diff", *arguments, "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    first = reported["first"]
    assert (first["value"], first["nodes"]) == ("r1", ["conv1", "relu1"])
    assert first["got"] - first["expected"] == pytest.approx(2, abs=1e-5)
    assert first["max_abs"] == pytest.approx(2, abs=1e-5)
    assert first["ulp"] > 1000
    assert first["index"] in ([0, 0, 0, 1], [0, 1, 0, 0])  # plain, or channels in blocks
    assert [d["value"] for d in reported["differences"]][-1] == "y"


def test_the_text_says_which_nodes_are_fused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writing, "emit", doctored("conv2", "{out}[0] = 1e30f;"))
    model = conv_net(tmp_path / "m.onnx")
    assert main(["diff", f"--model={model}", "--target=c99"]) == 1
    out = capsys.readouterr().out
    assert "'c2' is the first value that differs" in out
    assert "node 'conv2'" in out
    assert "it differs most at [0, 0, 0, 0]: 1e+30 is not" in out.replace("1.00000002e+30", "1e+30")
    table = out.splitlines()
    assert [line.split()[1] for line in table if line.endswith(("differs", "FIRST"))][:2] == [
        "c2", table[3].split()[1]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "target", ["c99", pytest.param("cuda-emulated", marks=pytest.mark.slow)]
)
def test_networks_with_texts_are_compared(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(mixed_model(), tmp_path / "m.onnx")
    arguments = [f"--model={tmp_path / 'm.onnx'}", f"--target={target}"]
    assert main(["diff", *arguments, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["first"] is None
    assert {"a", "b", "c", "y"} == {d["value"] for d in reported["differences"]}


def test_what_is_right_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = conv_net(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    np.savez(tmp_path / "x.npz", x=np.ones((1, 3, 8, 8), np.float32))
    for given in ("", f"--input={tmp_path}/x.npy", f"--input={tmp_path}/x.npz",
                  f"--input=x:{tmp_path}/x.npy"):  # fmt: skip
        arguments = ["diff", f"--model={model}", "--target=c99", *filter(None, [given]),
                     f"--op_compiler_cache_dir={tmp_path}/cache",
                     "--op_compiler_cache_mode=enable"]  # fmt: skip
        assert main(arguments) == 0
        assert "compared values agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [("x.npy", np.ones((1, 3, 8, 7), np.float32), r"'x' is float32 \[1, 3, 8, 7\]"),
     ("x.npy", np.ones((1, 3, 8, 8)), "'x' is float64"), ("x.npy", None, "can't be read"),
     ("z:x.npy", np.ones(1), "no array for 'x'")],
)  # fmt: skip
def test_wrong_inputs_are_refused(
    name: str, array: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if array is not None:
        np.save("x.npy", array)
    tensor = SimpleNamespace(name="x", shape=(1, 3, 8, 8), dtype=np.dtype(np.float32))
    net: Any = SimpleNamespace(inputs=(tensor,))
    with pytest.raises(OptionError, match=words):
        read_feeds(net, name, 0)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "distance"),
    [(np.float32, 1.0, 1.0, 0), (np.float32, 1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
     (np.float32, -0.0, 0.0, 0), (np.float64, 1e-310, -1e-310, None),
     (np.float16, 1.0, 1.0009765625, 1), (ml_dtypes.bfloat16, 1.0, 1.0078125, 1),
     (np.int32, 1, 5, None), (np.float32, np.nan, 1.0, None)],
)  # fmt: skip
def test_ulp(dtype: Any, a: float, b: float, distance: int | None) -> None:
    found = ulp_distance(np.array([a], dtype), np.array([b], dtype), 0)
    if distance is None and dtype is np.float64:
        step = np.nextafter(0.0, 1.0)
        assert found == round(1e-310 / step) * 2
    else:
        assert found == distance
