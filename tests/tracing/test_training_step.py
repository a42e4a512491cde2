"""Training steps as libraries: against numpy, and in C against Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from projects import STRICT

import atc
from atc import Tensor
from atc.errors import AtcError
from atc.tracing import TrainingStep, functional

RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 1, 6, 6)).astype(np.float32)
LABEL = np.array([0, 1, 2, 0])
NET = """<ir_version: 8, opset_import: ["": 17]> net (float[4,1,6,6] x) => (float[4,3] y) {
    c = Conv(x, w1) r = Relu(c) f = Flatten(r) y = Gemm<transB=1>(f, w2, b2) }"""
LINE = """<ir_version: 8, opset_import: ["": 13]> line (double[8,3] x) => (double[8,2] y) {
    t = Transpose(w) y = MatMul(x, t) }"""
WEIGHTS = {"w1": (2, 1, 3, 3), "w2": (3, 32), "b2": (3,)}


def saved(path: Path, text: str, weights: dict[str, Any]) -> Path:
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    weights = {n: random.normal(size=s).astype(np.float32) * 0.3 for n, s in WEIGHTS.items()}
    return saved(tmp_path_factory.mktemp("net") / "net.onnx", NET, weights)


@pytest.fixture(scope="module")
def whole(net: Path) -> Path:
    """The folder of a step that trains all weights, by SGD with momentum."""
    atc.training_step(net, net.parent / "whole", lr=0.1, target="c99", clip_norm=1,
                      optimizer_options={"momentum": 0.9})  # fmt: skip
    return net.parent / "whole"


LX, LY, LW = RNG.normal(size=(8, 3)), RNG.normal(size=(8, 2)), RNG.normal(size=(2, 3))


def slope(w: Any, x: Any = LX, y: Any = LY) -> Any:
    return 2 * (x @ w.T - y).T @ x / y.size


def line_step(tmp_path: Path, **keywords: Any) -> TrainingStep:
    path = saved(tmp_path / "line.onnx", LINE, {"w": LW})
    return atc.training_step(path, tmp_path / "line", loss="square_loss", lr=0.5, **keywords)


def test_a_step_is_the_formula_and_obeys_its_rate(tmp_path: Path) -> None:
    step = line_step(tmp_path)
    assert step(LX, LY) == pytest.approx(((LX @ LW.T - LY) ** 2).mean())
    once = LW - 0.5 * slope(LW)
    np.testing.assert_allclose(step.get("w"), once, rtol=1e-9)
    step.lr = 0.25
    step(LX, LY)
    np.testing.assert_allclose(step.get("w"), once - 0.25 * slope(once), rtol=1e-9)


def test_gradients_are_clipped_to_a_norm(tmp_path: Path) -> None:
    norm = np.linalg.norm(slope(LW))
    step = line_step(tmp_path, clip_norm=norm / 3)
    step(LX, LY)
    np.testing.assert_allclose(step.get("w"), LW - 0.5 * slope(LW) / 3, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_gradients_are_accumulated(optimizer: str, tmp_path: Path) -> None:
    step = line_step(tmp_path, accumulate=2, optimizer=optimizer)
    step(LX, LY)
    np.testing.assert_array_equal(step.get("w"), LW)
    step(LX[::-1].copy(), LY)
    g = (slope(LW) + slope(LW, LX[::-1])) / 2
    change = g if optimizer == "sgd" else g / (abs(g) + 1e-8)
    np.testing.assert_allclose(step.get("w"), LW - 0.5 * change, rtol=1e-9)
    if optimizer == "adam":
        assert step.get("step") == 1
    assert step.get("accumulated") == 0


def test_a_function_may_be_the_loss(tmp_path: Path) -> None:
    path = saved(tmp_path / "line.onnx", LINE, {"w": LW})
    labels = {"wanted": ("float64", (8, 2)), "weight": ("float64", (8, 1))}

    def loss(y: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
        return y.__array_namespace__().sum((y - wanted) ** 2.0 * weight)

    step = atc.training_step(path, tmp_path / "line", loss=loss, labels=labels, lr=0.1)
    weight = RNG.uniform(size=(8, 1))
    assert step(LX, LY, weight) == pytest.approx(((LX @ LW.T - LY) ** 2 * weight).sum())
    wanted = LW - 0.1 * (2 * ((LX @ LW.T - LY) * weight).T @ LX)
    np.testing.assert_allclose(step.get("w"), wanted, rtol=1e-9)


@pytest.mark.slow
def test_frozen_layers_cost_nothing(net: Path, whole: Path, tmp_path: Path) -> None:
    every = TrainingStep(whole)
    last = atc.training_step(
        net, tmp_path / "last", lr=0.1, target="c99", clip_norm=1, trainable=["w2", "b2"],
        optimizer_options={"momentum": 0.9},
    )
    assert last.names()[:2] == ["w2", "b2"]
    assert len(last.save()) < len(every.save())
    libraries = [step.network._library for step in (every, last)]
    sizes = [library.function("arena_size")() for library in libraries if library is not None]
    assert sizes[1] < sizes[0]
    reports = [json.loads((folder / f"{folder.name}.report.json").read_text())
               for folder in (whole, tmp_path / "last")]  # fmt: skip
    assert len(reports[1]["nodes"]) < len(reports[0]["nodes"])
    losses = [last(X, LABEL) for _ in range(4)]
    assert losses[3] < losses[0]


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "STEP_step.h"

static void *aligned(size_t size) { return aligned_alloc(64, (size + 63) / 64 * 64); }

int main(int argc, char **argv)
{
  static float x[144];
  static int64_t label[4];
  static unsigned char saved[STEPX_SAVED_SIZE];
  STEP_context ctx;
  void *arena = aligned(STEPX_ARENA_SIZE + 64), *state = aligned(STEPX_STATE_SIZE);
  float loss = 0;
  int k;
  FILE *file = fopen(argv[1], "rb");
  if (argc != 4 || fread(saved, 1, sizeof saved, file) != sizeof saved) return 2;
  fclose(file);
  file = fopen(argv[2], "rb");
  if (fread(x, 4, 144, file) != 144 || fread(label, 8, 4, file) != 4) return 3;
  fclose(file);
  if (STEP_init(&ctx, arena, STEPX_ARENA_SIZE) != STEPX_OK) return 4;
  if (STEP_load(state, saved, sizeof saved - 1) != STEPX_ERROR_ARGUMENT) return 5;
  if (STEP_load(state, saved, sizeof saved) != STEPX_OK) return 6;
  if (STEP_get(state, STEPX_STATE_COUNT, saved) != STEPX_ERROR_ARGUMENT) return 7;
  if (STEP_get(state, 0, saved) || STEP_set(state, 0, saved)) return 8;
  for (k = 0; k < 5; k++) {
    if (STEP_step(&ctx, state, x, label, 0.1, &loss)) return 9;
    printf("%.9g\n", (double)loss);
  }
  if (STEP_save(state, saved, sizeof saved)) return 10;
  file = fopen(argv[3], "wb");
  if (fwrite(saved, 1, sizeof saved, file) != sizeof saved) return 11;
  fclose(file);
  free(arena);
  free(state);
  return 0;
}
"""


@pytest.mark.parametrize(
    ("optimizer", "in_place"),
    [("sgd", True), pytest.param("sgd", False, marks=pytest.mark.slow),
     pytest.param("adamw", True, marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_step_in_c_has_the_same_bits(
    optimizer: str, in_place: bool, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if not in_place:
        monkeypatch.setattr("atc.tracing.training.in_place", lambda *_: frozenset())
    more = {"momentum": 0.9} if optimizer == "sgd" else {"weight_decay": 0.1}
    step = atc.training_step(net, tmp_path / "small", optimizer=optimizer, lr=0.1, clip_norm=1,
                             optimizer_options=more)  # fmt: skip
    header = (tmp_path / "small/include/small_step.h").read_text()
    count, size = len(step.names()), len(step.save())
    assert f"{count if in_place else 0} of {count} tensors are updated where" in header
    assert f"SMALL_STATE_SIZE {size if in_place else 2 * size}u" in header
    text = PROGRAM.replace("STEPX", "SMALL").replace("STEP", "small")
    (tmp_path / "main.c").write_text(text)
    (tmp_path / "batch").write_bytes(X.tobytes() + LABEL.tobytes())
    build = [compiler, *STRICT, "-std=c11", "-fsanitize=address,undefined", "-Ismall/include",
             "main.c", "small/libsmall.a", "-lm", "-o", "main"]  # fmt: skip
    subprocess.run(build, cwd=tmp_path, check=True)
    run = ["./main", "small/small_state.bin", "batch", "after"]
    done = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert [float(v) for v in done.stdout.split()] == pytest.approx(
        [step(X, LABEL) for _ in range(5)], rel=1e-7
    )
    assert (tmp_path / "after").read_bytes() == step.save()


@pytest.mark.slow
def test_a_library_for_several_targets_replaces_nothing_in_place(tmp_path: Path) -> None:
    line_step(tmp_path, target="x86-64-sse2,c99")
    header = (tmp_path / "line/include/line_step.h").read_text()
    assert "0 of 1 tensors are updated where" in header


def test_a_state_is_saved_and_loaded(whole: Path, tmp_path: Path) -> None:
    step = TrainingStep(whole)
    step(X, LABEL)
    kept, next_loss = step.save(), step(X, LABEL)
    again = TrainingStep(whole)
    again.load(kept)
    assert again(X, LABEL) == next_loss
    again.set("w1", np.zeros((2, 1, 3, 3), np.float32))
    assert not again.get("w1").any()
    with pytest.raises(AtcError, match="w1 is float32"):
        again.set("w1", np.zeros(3, np.float32))
    with pytest.raises(AtcError, match="a state of 3 bytes"):
        again.load(b"abc")
    with pytest.raises(AtcError, match="no training step"):
        TrainingStep(tmp_path)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"loss": "hinge"}, "no loss 'hinge'"), ({"optimizer": "lion"}, "no optimizer 'lion'"),
        ({"trainable": "w9"}, "'w9' names no weights"), ({"accumulate": 0}, "accumulate is 0"),
        ({"clip_norm": -1}, "clip_norm -1"), ({"lr": -1}, "lr is -1"),
        ({"loss": lambda y: y}, "needs the labels"),
        ({"loss": lambda y, t: y, "labels": {"t": ("int64", (4,))}}, r"has the shape \[4, 3\]"),
        ({"loss": functional.cross_entropy, "labels": {"t": ("int64", (5,))}}, r"int64 \[5\]"),
        ({"memory_budget": 64, "recompute": "all"}, "more than 64"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(
    keywords: dict[str, Any], said: str, net: Path, tmp_path: Path
) -> None:
    with pytest.raises(AtcError, match=said) as error:
        atc.training_step(net, tmp_path / "out", **keywords)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_operator_without_a_derivative_is_named(tmp_path: Path) -> None:
    text = LINE.replace("y = MatMul(x, t)", "m = MatMul(x, t) y = LpNormalization(m)")
    path = saved(tmp_path / "m.onnx", text, {"w": LW})
    with pytest.raises(AtcError, match="gradient of LpNormalization"):
        atc.training_step(path, tmp_path / "out", loss="square_loss")


def test_open_shapes_are_given_or_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", LINE.replace("[8", "[N"), {"w": LW})
    with pytest.raises(AtcError, match="the shape of input 'x' is open"):
        atc.training_step(path, tmp_path / "out", loss="square_loss")
    step = atc.training_step(
        path, tmp_path / "out", loss="square_loss", input_shape={"x": (8, 3)}, lr=0.5
    )
    step(LX, LY)
    np.testing.assert_allclose(step.get("w"), LW - 0.5 * slope(LW), rtol=1e-9)
