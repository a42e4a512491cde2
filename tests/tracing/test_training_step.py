"""Training steps as libraries: against numpy, and in C against Python."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from importers.mxnet_files import node, symbol, variable, write
from networks import content
from onnx import TensorProto, helper, numpy_helper, parser
from projects import STRICT

import atc
from atc import Tensor
from atc.cli.main import main
from atc.errors import AtcError
from atc.options.table.training import LOSSES, OPTIMIZERS, TRAINING
from atc.tracing import TrainingStep, functional, training
from support import runnable

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
    labels = {"wanted": ("float64", (8, 2)), "weight": (np.float64, (8, 1))}

    def loss(y: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
        return y.__array_namespace__().sum((y - wanted) ** 2.0 * weight)

    step = atc.training_step(path, tmp_path / "line", loss=loss, labels=labels, lr=0.1)
    weight = RNG.uniform(size=(8, 1))
    assert step(LX, LY, weight) == pytest.approx(((LX @ LW.T - LY) ** 2 * weight).sum())
    wanted = LW - 0.1 * (2 * ((LX @ LW.T - LY) * weight).T @ LX)
    np.testing.assert_allclose(step.get("w"), wanted, rtol=1e-9)


def test_weights_that_the_loss_does_not_depend_on_stay_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = LINE.replace("y =", "u = MatMul(x, v) y =").replace("(double[8,2] y)",
                                                             "(double[8,2] y, double[8,1] u)")
    rest = RNG.normal(size=(3, 1))
    path = saved(tmp_path / "line.onnx", text, {"w": LW, "v": rest})
    step = atc.training_step(
        path, tmp_path / "line", loss=lambda y, u: functional.square_loss(y, y * 2.0), lr=0.1,
        optimizer="adamw", clip_norm=9.0, accumulate=2,
    )  # fmt: skip
    for _ in range(2):
        step(LX)
    np.testing.assert_array_equal(step.get("v"), rest)
    assert not np.array_equal(step.get("w"), LW)
    assert caplog.messages == ["no gradient goes to v: the loss doesn't depend on it"]
    with pytest.raises(AtcError, match="depends on no weights that are trainable"):
        atc.training_step(path, tmp_path / "no", trainable="v", loss="square_loss")


def test_a_model_may_compute_its_loss(tmp_path: Path) -> None:
    path = saved(tmp_path / "line.onnx", LINE, {"w": LW})
    step = atc.training_step(path, tmp_path / "line", lr=0.1,
                             loss=lambda y: y.__array_namespace__().sum(y * y))  # fmt: skip
    assert step.inputs == ["x"]
    assert step(LX) == pytest.approx(((LX @ LW.T) ** 2).sum())
    np.testing.assert_allclose(step.get("w"), LW - 0.2 * (LX @ LW.T).T @ LX, rtol=1e-9)


def test_gradients_stop_where_an_mxnet_symbol_blocks_them(tmp_path: Path) -> None:
    nodes = [variable("x"), variable("w"), node("FullyConnected", "y", [[0, 0], [1, 0]],
             num_hidden=2, no_bias=True), node("BlockGrad", "b", [[2, 0]]),
             node("elemwise_mul", "z", [[2, 0], [3, 0]])]  # fmt: skip
    path = write(tmp_path, symbol(nodes, [[4, 0]]), {"arg:w": LW.astype(np.float32)})
    x, label = LX.astype(np.float32), LY.astype(np.float32)
    step = atc.training_step(path, tmp_path / "step", loss="square_loss", lr=0.1,
                             input_shape={"x": (8, 3)})  # fmt: skip
    y = LX @ LW.T
    assert step(x, label) == pytest.approx(((y * y - LY) ** 2).mean(), rel=1e-5)
    wanted = LW - 0.1 * (2 * (y * y - LY) * y).T @ LX / LY.size  # half of the whole gradient
    np.testing.assert_allclose(step.get("w"), wanted, rtol=1e-4)


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
        monkeypatch.setattr("atc.pipeline.held.in_place", lambda *_: frozenset())
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


def test_inputs_may_be_called_as_the_header_calls_things(tmp_path: Path) -> None:
    text = LINE.replace("(double[8,3] x)", "(double[8,3] state, double[8,3] status, double[8,3] s, "
                        "double[8,3] lr, double[8,3] loss, double[8,3] atc_state)")  # fmt: skip
    text = text.replace("MatMul(x, t)", "MatMul(sum, t)").replace(
        "t = Trans", "sum = Sum(state, status, s, lr, loss, atc_state) t = Trans")
    path = saved(tmp_path / "m.onnx", text, {"w": LW})
    step = atc.training_step(path, tmp_path / "out", loss="square_loss", lr=0.5, target="c99")
    assert step(*[LX] * 6, LY) == pytest.approx(((6 * LX @ LW.T - LY) ** 2).mean())
    (tmp_path / "main.c").write_text('#include "out_step.h"\n')
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    subprocess.run([compiler, *STRICT, "-std=c99", "-fsyntax-only", "-Iout/include", "main.c"],
                   cwd=tmp_path, check=True)  # fmt: skip


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
        ({"trainable": "w9"}, "'w9' names no weights"), ({"trainable": []}, "no weights"),
        ({"accumulate": 0}, r"0 is out of range \[--accumulate"),
        ({"clip_norm": -1}, r"'-1' is not .* \[--clip_norm"),
        ({"lr": -1}, r"'-1' is not .* \[--lr"),
        ({"verify": True}, "--verify doesn't apply to training steps"),
        ({"frobnicate": 1}, "no keyword 'frobnicate'"),
        ({"optimizer_options": "gamma=1"}, "sgd doesn't take gamma"),
        ({"labels": "x:int64[4]"}, "the label 'x' is an input"),
        ({"labels": "a:int64[4];b:int64[4]"}, "compares one label, not 2"),
        ({"labels": "a:int64[5]"}, r"labels of int64 \[5\] for"),
        ({"labels": {"a": ("thing", (4,))}}, "labels: data type"),
        ({"loss": lambda y, label: y}, "needs the labels"),
        ({"loss": lambda y, t: y, "labels": {"t": ("int64", (4,))}}, r"has the shape \[4, 3\]"),
        ({"loss": lambda y: None}, "the loss is NoneType, not a tensor"),
        ({"loss": functional.cross_entropy, "labels": {"t": ("int64", (5,))}}, r"int64 \[5\]"),
        ({"memory_budget": 64, "recompute": "all"}, r"state \(\d+\) need .*more than 64"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(
    keywords: dict[str, Any], said: str, net: Path, tmp_path: Path
) -> None:
    with pytest.raises(AtcError, match=said) as error:
        atc.training_step(net, tmp_path / "out", **keywords)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_of_16_bits_are_not_left_untrained_without_a_word(
    kind: int, tmp_path: Path
) -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        n (float[2,3] x) => (float[2,2] y) {
            h = MatMul(x, w) g = CastLike(h, v) p = MatMul(g, v) y = CastLike(p, x) }""")
    first = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    second = helper.make_tensor("v", kind, (2, 2), [1.0] * 4)
    model.graph.initializer.extend([first, second])
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(AtcError, match="weights of b?float16 aren't trained: v"):
        atc.training_step(tmp_path / "net.onnx", tmp_path / "out", loss="square_loss")
    if kind == TensorProto.FLOAT16:
        step = atc.training_step(tmp_path / "net.onnx", tmp_path / "out", loss="square_loss",
                                 target="c99", trainable="w")  # fmt: skip
        assert step.names() == ["w"]


def test_the_keywords_are_the_options() -> None:
    found = {n: p.default for n, p in inspect.signature(atc.training_step).parameters.items()}
    assert found.pop("model") is found.pop("output") is found.pop("options")
    assert found == {s.name: s.default for s in TRAINING}
    assert (tuple(training.LOSSES), tuple(training.OPTIMIZERS)) == (LOSSES, OPTIMIZERS)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "square_loss"])
def test_the_command_line_makes_the_same_step(loss: str, net: Path, tmp_path: Path) -> None:
    atc.training_step(
        net, tmp_path / "a/net", loss=loss, optimizer="adam", lr=0.1, trainable=["w2", "b*"],
        clip_norm=2, accumulate=2, optimizer_options={"betas": (0.8, 0.9), "eps": 1e-6},
        target="c99", oo_level="O0",
    )  # fmt: skip
    line = (
        f"--mode=train --model {net} --loss={loss} --optimizer=adam --lr=0.1 --trainable=w2;b* "
        f"--clip_norm=2 --accumulate=2 --optimizer_options=betas=0.8,0.9;eps=1e-6 --target=c99 "
        f"--oo_level=O0 --output={tmp_path / 'b/net'}"
    )
    assert main(line.split(" ")) == 0
    report = "net/net.report.json"
    made = [content(tmp_path / folder) for folder in ("a", "b")]
    told = [json.loads(files.pop(report)) for files in made]
    for each in told:
        each.pop("cache", None)  # the second takes what the first compiled
    assert made[0] == made[1]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--loss=l1_loss"], "--loss is for --mode=train"),
        (["--mode=train", "--loss=hinge"], "there is no loss 'hinge' [--loss] (hint: use cross"),
        (["--mode=train", "--labels=a:b"], "'a:b' is not a label [--labels]"),
        (["--mode=train", "--optimizer_options=momentum"], "'momentum' is not a number"),
        (["--mode=train", "--lr=nan"], "'nan' is not a number of 0 or more [--lr]"),
        (["--mode=train", "--state=a=b"], "--state doesn't apply to training steps"),
    ],
    ids=lambda v: v[-1] if isinstance(v, list) else "",
)  # fmt: skip
def test_a_command_line_that_makes_no_sense_is_told(
    words: list[str], said: str, net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--model={net}", f"--output={tmp_path / 'out'}", *words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_labels_of_another_shape_are_told(whole: Path) -> None:
    step = TrainingStep(whole)
    with pytest.raises(ValueError, match=r"^input 'label' must have the shape \(4,\), not \(3,\)$"):
        step(X, LABEL[:3])
    with pytest.raises(AtcError, match="1 arrays for x, label"):
        step(X)


@pytest.mark.slow
def test_a_budget_counts_weights_and_state(net: Path, tmp_path: Path) -> None:
    def sizes(**keywords: Any) -> tuple[int, int]:
        step = atc.training_step(net, tmp_path / "out", target="c99", lr=0.1, **keywords)
        assert step.network._library is not None
        arena = step.network._library.function("arena_size")()
        header = (tmp_path / "out/include/out_step.h").read_text()
        state = re.search(r"OUT_STATE_SIZE (\d+)u", header)
        assert state is not None
        return arena, int(state[1])

    arena, state = sizes()
    assert sizes(memory_budget=arena + state) == (arena, state)
    with pytest.raises(AtcError, match=rf"arena \({arena}\), weights and state \({state}\)"):
        sizes(memory_budget=arena + state - 1)
    saved_size = len(TrainingStep(tmp_path / "out").save())
    assert saved_size <= state < 2 * saved_size
    assert sizes(inplace_update=False) == (arena, 2 * saved_size)


@pytest.mark.slow
def test_a_step_for_a_gpu_swaps_values_within_a_budget(tmp_path: Path) -> None:
    """The step's losses and weights have the same bits; its budget counts the state, too."""
    layers, random = range(8), np.random.default_rng(3)
    text = "".join(f"m{k} = MatMul(h{k}, w{k}) h{k + 1} = Tanh(m{k})\n" for k in layers)
    model = '<ir_version: 8, opset_import: ["": 17]> net (float[64,64] h0) => (float[64,64] h8) {'
    weights = {f"w{k}": random.normal(size=(64, 64)).astype(np.float32) / 8 for k in layers}
    path = saved(tmp_path / "net.onnx", f"{model}{text}}}", weights)
    x, y = random.normal(size=(2, 64, 64)).astype(np.float32)

    def trained(folder: str, **keywords: Any) -> tuple[TrainingStep, list[Any], dict[str, Any]]:
        step = atc.training_step(path, tmp_path / folder, loss="square_loss",
                                 target="cuda-emulated", **keywords)  # fmt: skip
        losses = [step(x, y) for _ in range(3)]
        return step, losses, json.loads((tmp_path / folder / f"{folder}.report.json").read_text())

    plain, losses, report = trained("plain")
    arena = report["memory"]["arena_bytes"]
    header = (tmp_path / "plain/include/plain_step.h").read_text()
    state = int(re.findall(r"PLAIN_STATE_SIZE (\d+)u", header)[0])
    budget = state + arena * 2 // 3
    swapping, same, report = trained("swapping", gpu_swap=True, memory_budget=budget)
    assert report["memory"]["arena_bytes"] <= arena * 2 // 3
    assert report["swapped"]["copies"]
    assert same == losses
    for name in weights:
        np.testing.assert_array_equal(swapping.get(name), plain.get(name))


DROPPED = """<ir_version: 8, opset_import: ["": 17]> net (float[8,64] x) => (float[8,64] y)
    <float r = {0.25}, bool t = {1}> { h = Mul(x, w) y = Dropout(h, r, t) }"""


def test_dropout_follows_the_seed(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", DROPPED, {"w": np.ones(64, np.float32)})
    step = atc.training_step(path, tmp_path / "out", loss="square_loss", lr=1.0)
    x, wanted = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    losses, masks = [], []
    for seed in (5, 6, 5):
        step.seed = seed
        step.set("w", np.ones(64, np.float32))
        losses.append(step(x, wanted))
        # What is kept is 1 / 0.75, so each element kept adds 2 (4 / 3)^2 / 512 to the slope.
        masks.append((1 - step.get("w")) / (2 * (4 / 3) ** 2 / 512))
        assert step.seed == seed + 1
    assert losses[0] == losses[2] != losses[1]
    for loss, mask in zip(losses, masks, strict=True):
        np.testing.assert_allclose(mask, np.round(mask), atol=1e-3)  # the same mask both ways
        assert loss == pytest.approx(mask.sum() / 512 * (4 / 3) ** 2, rel=1e-4)
        assert abs(mask.sum() / 512 - 0.75) < 0.08
    assert "int64_t seed,\n" in (tmp_path / "out/include/out_step.h").read_text()


NORMAL = """<ir_version: 8, opset_import: ["": 17]> net (double[6,2] x) => (double[6,2] y)
    { y, m1, v1 = BatchNormalization<training_mode=1, momentum=0.8>(x, s, b, m, v) }"""


def test_running_statistics_are_state_and_no_weights(tmp_path: Path) -> None:
    start = {"s": np.ones(2), "b": np.zeros(2), "m": np.array([1.0, 2.0]), "v": np.ones(2)}
    path = saved(tmp_path / "net.onnx", NORMAL, start)
    step = atc.training_step(path, tmp_path / "out", loss="square_loss", lr=0.1)
    assert step.names()[:2] == ["s", "b"]
    x, wanted = LX[:6, :2].copy(), LY[:6]
    step(x, wanted)
    np.testing.assert_allclose(step.get("m"), 0.8 * start["m"] + 0.2 * x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(step.get("v"), 0.8 * start["v"] + 0.2 * x.var(0), rtol=1e-6)
    np.testing.assert_allclose(step.get("b"), 0.1 * 2 * wanted.sum(0) / 12, rtol=1e-9)


def test_settings_of_layers_are_no_weights(tmp_path: Path) -> None:
    text = LINE.replace("y = MatMul(x, t)", "c = MatMul(x, t) d = Clip(c, low) y = Div(d, scale)")
    weights = {"w": LW, "low": np.float64(-5), "scale": np.float64(2)}
    path = saved(tmp_path / "m.onnx", text, weights)
    assert atc.training_step(path, tmp_path / "out", loss="square_loss").names() == ["w"]
    named = atc.training_step(path, tmp_path / "own", loss="square_loss", trainable=["w", "scale"])
    assert named.names() == ["w", "scale"]
    with pytest.raises(AtcError, match="'low' names no weights"):
        atc.training_step(path, tmp_path / "out", loss="square_loss", trainable="low")


CONTROL = """<ir_version: 8, opset_import: ["": 17]> net (double[3,2,4] x) => (double[2,3] y)
    <int64 n = {2}, bool go = {1}, int64[1] o = {0}> {
    p, q = LSTM<hidden_size=3>(x, w, r) h = Squeeze(q, o) m = ReduceMax<keepdims=0>(h)
    c = Less(m, limit) b = If<then_branch = g1 () => (double[2,3] t) { t = Mul(h, s) },
        else_branch = g2 () => (double[2,3] e) { d = Div(h, s) e = Tanh(d) }>(c)
    y = Loop<body = g3 (int64 i, bool k, double[2,3] u) => (bool z, double[2,3] v) {
        z = Identity(k) a = Mul(u, s) v = Sin(a) }>(n, go, b) }"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [-1.0, 2.0])
def test_recurrent_layers_and_control_flow_are_trained(limit: float, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    start = {"w": random.normal(size=(1, 12, 4)), "r": random.normal(size=(1, 12, 3)),
             "s": random.uniform(0.5, 1, 3), "limit": np.float64(limit)}  # fmt: skip
    path = saved(tmp_path / "net.onnx", CONTROL, start)
    step = atc.training_step(path, tmp_path / "out", loss="square_loss", lr=1e-3, target="c99")
    assert step.names() == ["w", "r", "s"]
    x, y = random.normal(size=(3, 2, 4)), random.normal(size=(2, 3))
    before = step.save()
    loss = step(x, y)
    after = {name: step.get(name) for name in step.names()}
    step.lr, h = 0.0, 1e-5
    for name, place in (("w", (0, 5, 2)), ("r", (0, 1, 1)), ("s", (1,))):
        found = []
        for sign in (1, -1):
            step.load(before)
            moved = step.get(name)
            moved[place] += sign * h
            step.set(name, moved)
            found.append(step(x, y))
        slope = (found[0] - found[1]) / (2 * h)
        wanted = start[name][place] - 1e-3 * slope
        assert after[name][place] == pytest.approx(wanted, rel=1e-9)
        assert abs(slope) > 1e-4
    assert loss > 0


CONVS = """<ir_version: 8, opset_import: ["": 17]> convs (float[2,3,32,32] x) => (float[2,4] y) {
    a = Conv<strides=[2,2], pads=[2,2,2,2]>(x, w1)
    n, m1, v1 = BatchNormalization<training_mode=1>(a, s, t, m, v) r = Relu(n)
    p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(r)
    c = Conv<pads=[1,1,1,1]>(p, w2) q = Relu(c)
    d = Conv<strides=[2,2], pads=[1,1,1,1]>(q, w3) e = Conv<strides=[2,2]>(p, w4)
    z = Add(d, e) k = Conv<group=48, strides=[2,2], pads=[1,1,1,1]>(z, w6)
    l = Conv<group=48, pads=[1,1,1,1]>(k, w7) i = Add(l, k) g = GlobalAveragePool(i)
    f = Flatten(g) y = Gemm<transB=1>(f, w5) }"""
FILTERS = {"w1": (32, 3, 5, 5), "w2": (32, 32, 3, 3), "w3": (48, 32, 3, 3), "w4": (48, 32, 1, 1),
           "w5": (4, 48), "w6": (48, 1, 3, 3), "w7": (48, 1, 3, 3),
           "s": (32,), "t": (32,), "m": (32,), "v": (32,)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_convolutions_are_trained_in_blocks_as_in_float64(target: str, tmp_path: Path) -> None:
    """Both passes run on vector kernels, with the same bits for any number of threads."""
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    random = np.random.default_rng(3)
    weights = {n: random.normal(size=s) * 0.2 + (n == "v") for n, s in FILTERS.items()}
    x, y = random.normal(size=(2, 3, 32, 32)), random.normal(size=(2, 4))

    def trained(name: str, kind: Any, **options: Any) -> dict[str, Any]:
        text = CONVS.replace("float[", "double[") if kind is np.float64 else CONVS
        own = {n: w.astype(kind) for n, w in weights.items()}
        path = saved(tmp_path / f"{name}.onnx", text, own)
        step = atc.training_step(path, tmp_path / name, loss="square_loss", lr=0.02, **options)
        for _ in range(3):
            step(x.astype(kind), y.astype(kind))
        return {n: step.get(n) for n in step.names()}

    truth = trained("truth", np.float64, target="c99")
    found = trained("one", np.float32, target=target)
    kernels = " ".join(p.name for p in (tmp_path / "one" / "src" / "kernels").iterdir())
    assert "conv_filter_tiles" in kernels
    assert "conv_filter_depthwise" in kernels
    assert "conv_transpose" not in kernels
    assert "conv_direct" in kernels
    shared = trained("two", np.float32, target=target, num_threads=2)
    for name, wanted in truth.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=2e-5, err_msg=name)
        np.testing.assert_array_equal(found[name], shared[name], err_msg=name)


@pytest.mark.parametrize("name", ["", "rounded"])
def test_an_operator_without_a_derivative_is_named(tmp_path: Path, name: str) -> None:
    """By the name of its node, or of what it makes."""
    text = LINE.replace('"": 13', '"": 21')
    text = text.replace("y = MatMul(x, t)", "m = MatMul(x, t) "
                        "s = Constant<value=float {0.1}>() f = Cast<to=1>(m) "
                        "z = Constant<value=int8 {0}>() q = QuantizeLinear(f, s, z) "
                        "d = DequantizeLinear(q, s, z) y = Cast<to=11>(d)")
    path = saved(tmp_path / "m.onnx", text, {"w": LW})
    model = onnx.load(path)
    next(n for n in model.graph.node if n.op_type == "DequantizeLinear").name = name
    onnx.save(model, path)
    message = f"gradient of DequantizeLinear.*train the floats.*'{name or 'd'}' .DequantizeLinear"
    with pytest.raises(AtcError, match=message):
        atc.training_step(path, tmp_path / "out", loss="square_loss")


def test_a_broken_model_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", LINE.replace("MatMul(x, t)", "MatMul(x, u)"), {"w": LW})
    with pytest.raises(AtcError, match="Input u is undefined|reads 'u'") as error:
        atc.training_step(path, tmp_path / "out", loss="square_loss")
    assert "\n" not in str(error.value)


def test_open_shapes_are_given_or_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", LINE.replace("[8", "[N"), {"w": LW})
    with pytest.raises(AtcError, match="the shape of input 'x' is open"):
        atc.training_step(path, tmp_path / "out", loss="square_loss")
    step = atc.training_step(
        path, tmp_path / "out", loss="square_loss", input_shape={"x": (8, 3)}, lr=0.5
    )
    step(LX, LY)
    np.testing.assert_allclose(step.get("w"), LW - 0.5 * slope(LW), rtol=1e-9)


def test_the_output_may_be_called_out(net: Path, tmp_path: Path) -> None:
    atc.training_step(net, out=tmp_path / "step", target="c99", lr=0.1)
    assert (tmp_path / "step/include/step_step.h").is_file()
