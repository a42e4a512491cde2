"""Key-value caches that lie in the library: token by token the numbers of a run without them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoders import DECODERS, Decoder
from dynamic_models import Array, Feed
from networks import save
from onnx import TensorProto, helper
from projects import build_example, compile_c, run_example, sources

import atc
from atc.accuracy.compare import subject_of, verify_library
from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.cli.main import main
from atc.errors import AtcError
from atc.pipeline.pipeline import Compilation

PROMPT, STEPS = 5, 4


@cache
def decoder(name: str) -> Decoder:
    """Return a decoder for one row."""
    found = DECODERS[name]()
    return replace(found, shapes=found.shapes.replace("1~2", "1"))


def option(wanted: Decoder) -> str:
    return ";".join(f"{a}:{b}" for a, b in wanted.caches.items())


def compiled(name: str, folder: Path, **options: Any) -> Compilation:
    wanted = decoder(name)
    onnx.save(wanted.model, folder / "m.onnx")
    options = {"target": "c99", "state": option(wanted), **options}
    return atc.compile(folder / "m.onnx", folder / "net", input_shape=wanted.shapes, **options)


def calls(
    name: str, prompt: int = PROMPT, steps: int = STEPS
) -> Iterator[tuple[Feed, Mapping[str, Array]]]:
    """Yield what each call takes and makes, caches that are empty at first handed on outside."""
    wanted = decoder(name)
    session = onnxruntime.InferenceSession(wanted.model.SerializeToString())
    names = [v.name for v in wanted.model.graph.output]

    def run(feed: Feed) -> Sequence[Array]:
        fixed = {k: np.zeros_like(a) for k, a in feed.items() if k in wanted.caches and first}
        found: list[Array] = session.run(None, {**feed, **fixed})
        return found

    first = True
    for feed, results in wanted.calls(run, prompt, steps=steps):
        first = False
        yield (
            {k: a for k, a in feed.items() if k not in wanted.caches},
            {k: a for k, a in zip(names, results, strict=True) if k not in wanted.caches.values()},
        )


def check(net: Any, wanted: Sequence[tuple[Feed, Mapping[str, Array]]]) -> None:
    for feed, results in wanted:
        got = net.run(dict(feed))
        assert got.keys() == results.keys()
        for key, array in results.items():
            np.testing.assert_allclose(got[key], array, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"), [*((n, "c99") for n in DECODERS), ("genai_lfm2", "host")]
)
def test_tokens_are_those_of_onnxruntime(name: str, target: str, tmp_path: Path) -> None:
    done = compiled(name, tmp_path, target=target)
    caches = decoder(name).caches
    assert {s.value: s.next for s in done.program.states} == dict(caches)  # all made in place
    assert not caches.keys() & {*done.program.inputs}
    with atc.load(tmp_path / "net") as net:
        for prompt in (PROMPT, 1):  # reset, it is as it was
            check(net, [*calls(name, prompt)])
            net.reset()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    """One decoder for all who only look at it."""
    return compiled("optimum_llama", tmp_path_factory.mktemp("llama"), state="auto")


@pytest.mark.few(1)
@pytest.mark.parametrize("prompt", [PROMPT, 1])
def test_tokens_after_a_prompt(prompt: int, llama: Compilation) -> None:
    with atc.load(llama.folder) as net:
        check(net, [*calls("optimum_llama", prompt)])


@pytest.mark.parametrize("machine", ["zen5", "zen4"])
def test_words_ask_for_keys_as_the_machine_wants(machine: str, tmp_path: Path) -> None:
    """On Zen 5 for each line, of the next head as values are read; else for one in sixteen."""
    done = compiled("genai_llama", tmp_path, target="x86-64-avx2", machine=machine)
    (text,) = (f.read_text() for f in done.folder.glob("src/kernels/*attention_tile*.c"))
    near = machine == "zen5"
    assert ("v_prefetch_l1(next" in text, "v_prefetch_l2(all_k" in text) == (near, not near)
    if get_target("x86-64-avx2").features <= host_features():
        check(atc.load(done.folder), [*calls("genai_llama", 6, steps=10)])


def test_auto_takes_the_caches_and_says_so(llama: Compilation) -> None:
    assert llama.program.inputs == ("input_ids", "attention_mask", "position_ids")
    assert llama.program.outputs == ("logits",)
    (reported,) = llama.warnings
    assert reported.startswith("--state=auto took past_key_values.0.key -> present.0.key, ")


def test_nothing_but_the_caches_is_as_long_as_they_may_become(llama: Compilation) -> None:
    types = llama.program.types
    room = types["past_key_values.0.key"]
    assert room.shape == (1, 2, 18, 16)
    assert [n for n, t in types.items() if t.shape == room.shape and n not in
            {v for s in llama.program.states for v in (s.value, s.next)}] == []  # fmt: skip


def test_states_are_saved_restored_and_apart(llama: Compilation) -> None:
    runs = [*calls("optimum_llama")]
    with atc.load(llama.folder) as net:
        assert net.state_size == 8 + 2 * 4 * 2 * 18 * 16
        check(net, runs[:2])
        saved = net.save_state()
        assert np.frombuffer(saved[:8], np.int64).tolist() == [PROMPT + 1]
        check(net, runs[2:])
        with atc.load(llama.folder) as other:
            check(other, runs[:1])
            other.restore_state(saved)
            check(other, runs[2:])
        net.restore_state(saved)
        check(net, runs[2:])
        net.reset()
        assert not any(net.save_state())
        check(net, runs)


@pytest.mark.parametrize("length", [-1, 19, 1 << 40])
def test_no_state_is_restored_that_has_no_room(llama: Compilation, length: int) -> None:
    runs = [*calls("optimum_llama")]
    with atc.load(llama.folder) as net:
        check(net, runs[:2])
        saved = net.save_state()
        with pytest.raises(RuntimeError, match="pointer is NULL|argument"):
            net.restore_state(np.int64(length).tobytes() + saved[8:])
        check(net, runs[2:])


def words(count: int, done: int) -> dict[str, Array]:
    return {
        "input_ids": np.full((1, count), 7), "position_ids": np.arange(done, done + count)[None],
        "attention_mask": np.ones((1, done + count), np.int64),
    }  # fmt: skip


def test_a_full_cache_ends_the_run_and_stays_as_it_is(llama: Compilation) -> None:
    with atc.load(llama.folder) as net:
        for done in (0, 6, 12):
            net.run(words(6, done))
        before = net.save_state()
        with pytest.raises(ValueError, match="shape"):
            net.run(words(1, 18))
        assert net.save_state() == before


def test_inputs_must_be_as_long_as_what_is_held_says(llama: Compilation) -> None:
    with atc.load(llama.folder) as net:
        net.run(words(5, 0))
        with pytest.raises(ValueError, match="shape"):
            net.run(words(1, 4))
        net.run(words(1, 5))


@pytest.mark.slow
def test_bound_calls_go_on_where_no_input_is_longer(tmp_path: Path) -> None:
    wanted = decoder("genai_whisper")
    onnx.save(wanted.model, tmp_path / "m.onnx")
    shapes = wanted.shapes.replace("input_ids:1,1~6", "input_ids:1,1")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=shapes, state=option(wanted),
                target="c99")  # fmt: skip
    runs = [*calls("genai_whisper", prompt=1, steps=6)]
    with atc.load(tmp_path / "net") as net:
        feed = {k: np.array(a) for k, a in runs[0][0].items()}
        bound = net.bind(*(feed[t.name] for t in net.inputs))
        for given, wanted_results in runs:
            for key, array in given.items():
                feed[key][:] = array
            np.testing.assert_allclose(
                bound(), wanted_results["logits"], rtol=1e-3, atol=1e-4
            )


MAIN = r"""
#include "net.h"
#include <stdio.h>

static net_arena arenas[2];

static int tokens(net_context *ctx, int64_t count, int64_t done, float *logits)
{
  int64_t ids[18], places[18], mask[18];
  const int64_t own[] = {1, count}, all[] = {1, done + count};
  const int64_t *const shapes[] = {own, all, own};
  int status = net_set_input_shapes(ctx, shapes);
  for (int k = 0; k < 18; k++) {
    ids[k] = 7 + done + k, places[k] = done + k, mask[k] = 1;
  }
  if (status == NET_OK) status = net_run(ctx, ids, mask, places, logits);
  return status;
}

int main(void)
{
  static float whole[18 * 40], parts[18 * 40], again[18 * 40];
  static unsigned char saved[NET_STATE_SIZE];
  const int64_t shape[] = {1, 6};
  const int64_t *const shapes[] = {shape, shape, shape};
  net_context one, two;
  double worst = 0;

  if (net_init(&one, &arenas[0], 16) != NET_ERROR_ARENA) return 1;
  if (net_init(&one, &arenas[0], sizeof arenas[0]) != NET_OK) return 2;
  if (net_init(&two, &arenas[1], sizeof arenas[1]) != NET_OK) return 3;
  if (net_arena_size_for(shapes) == 0 || net_arena_size_for(shapes) > NET_ARENA_SIZE) return 4;
  if (tokens(&one, 6, 0, whole) != NET_OK) return 5;
  for (int k = 0; k < 6; k++) {
    if (tokens(&two, 1, k, parts + 40 * k) != NET_OK) return 6;
    if (k == 2 && net_save_state(&two, saved) != NET_OK) return 7;
  }
  if (tokens(&two, 1, 5, again) != NET_ERROR_SHAPE) return 8;
  if (net_restore_state(&two, saved) != NET_OK) return 9;
  if (tokens(&two, 3, 3, again + 120) != NET_OK) return 10;
  for (int k = 0; k < 240; k++) {
    const double other = k < 120 ? parts[k] : again[k];
    const double apart = whole[k] > other ? whole[k] - other : other - whole[k];
    const double more = whole[k] > parts[k] ? whole[k] - parts[k] : parts[k] - whole[k];
    worst = apart > worst ? apart : more > worst ? more : worst;
  }
  printf("%s\n", worst < 1e-4 ? "same" : "other");
  return net_state_size() == sizeof saved ? 0 : 11;
}
"""


@pytest.mark.slow
def test_a_program_in_c(llama: Compilation) -> None:
    folder = llama.folder
    assert folder is not None
    (folder / "main.c").write_text(MAIN)
    compile_c(folder, "-Iinclude", "-Isrc", "main.c", *sources(folder), "-lm", "-o", "main")
    out = subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout
    assert out == "same\n"


@pytest.mark.slow
def test_the_example_does_a_first_run(llama: Compilation, tmp_path: Path) -> None:
    assert llama.folder is not None
    program = build_example(llama.folder)
    paths = []
    for name, array in words(6, 0).items():
        paths.append(tmp_path / f"{name}.npy")
        np.save(paths[-1], array)
    ids, places, mask = paths
    printed = run_example(program, ids, mask, places)
    with atc.load(llama.folder) as net:
        np.testing.assert_allclose(
            printed["logits"], net.run(words(6, 0))["logits"].ravel(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimum_gpt2", "genai_lfm2", "genai_whisper"])
def test_verify_lets_them_grow(name: str, tmp_path: Path) -> None:
    done = compiled(name, tmp_path, verify=True)
    found = verify_library(subject_of(done.request), done.folder)
    assert [d.name for d in found.differences] == [f"logits, run {k}" for k in (1, 2, 3)]


def test_the_audit_reads_what_is_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the past is read once more behind the append, it is copied, not spoilt."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present"], ["a"], keepdims=0),
        helper.make_node("ReduceSum", ["past"], ["b"], keepdims=0),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    model = save(nodes, {"past": [2, "p", 4], "x": [2, "s", 4]},
                 {"present": [2, "t", 4], "y": []}, tmp_path / "m.onnx", [])  # fmt: skip
    atc.compile(model, tmp_path / "net", input_shape="past:2,0~9,4;x:2,1~3,4", state="past:present",
                target="c99")  # fmt: skip
    with atc.load(tmp_path / "net") as net:
        for count in (2, 1, 3):
            x = np.random.default_rng(count).standard_normal((2, count, 4)).astype(np.float32)
            np.testing.assert_allclose(net(x), x.sum(), rtol=1e-4, atol=1e-5)


JOIN: Callable[..., Any] = helper.make_node


@pytest.mark.parametrize(
    ("nodes", "shapes", "problem"),
    [
        ([JOIN("Concat", ["x", "past"], ["present"], axis=1)], "past:2,0~9,4;x:2,1~3,4",
         "output 'present' is not input 'past' with more behind it"),
        ([JOIN("Concat", ["past", "x"], ["j"], axis=1), JOIN("Neg", ["j"], ["present"])],
         "past:2,0~9,4;x:2,1~3,4", "output 'present' is not input 'past' with more behind it"),
        ([JOIN("Concat", ["past", "x"], ["present"], axis=1)], "past:1~2,0~9,4;x:1~2,1~3,4",
         "a state is numbers of one type and shape, or grows along one axis"),
        ([JOIN("Concat", ["past", "x"], ["present"], axis=1)], "past:2,1~9,4;x:2,1~3,4",
         "input 'past' is never shorter than 1, but nothing is kept at first"),
        ([JOIN("Concat", ["past", "x"], ["present"], axis=1)], "past:2,0~2,4;x:2,1~3,4",
         "output 'present' grows by up to 3 in a run, but the range of its input has room for 2"),
        ([JOIN("Concat", ["past", "x"], ["present"], axis=1)], "past:2,5,4;x:2,2,4",
         "a state is numbers of one type and shape, or grows along one axis"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(
    nodes: list[onnx.NodeProto], shapes: str, problem: str, tmp_path: Path
) -> None:
    model = save(nodes, {"past": ["b", "p", 4], "x": ["b", "s", 4]}, {"present": ["b", "t", 4]},
                 tmp_path / "m.onnx", [])  # fmt: skip
    with pytest.raises(AtcError) as caught:
        atc.compile(model, tmp_path / "net", input_shape=shapes, state="past:present", target="c99")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "net").exists()


@pytest.mark.slow
def test_a_library_for_several_targets(tmp_path: Path) -> None:
    compiled("genai_lfm2", tmp_path, target="host,c99")
    runs = [*calls("genai_lfm2")]
    with atc.load(tmp_path / "net") as net:
        check(net, runs[:2])
        saved = net.save_state()
        assert len(saved) == net.state_size
        check(net, runs[2:])
        net.restore_state(saved)
        check(net, runs[2:])
        net.reset()
        check(net, runs)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["", "force_fp32"])
@pytest.mark.parametrize("code", ["FLOAT", "FLOAT16", "BFLOAT16", "INT8"])
@pytest.mark.parametrize("target", ["c99", pytest.param("cuda-emulated", marks=pytest.mark.slow)])
def test_caches_are_kept_in_the_models_type(
    target: str, code: str, mode: str, tmp_path: Path
) -> None:
    """Except where no value may be of 16 bits."""
    type_ = getattr(TensorProto, code)
    nodes = [
        helper.make_node("Cast", ["x"], ["more"], to=type_),
        helper.make_node("Concat", ["past", "more"], ["present"], axis=2),
        helper.make_node("Cast", ["present"], ["all"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["q", "all"], ["y"]),
    ]
    inputs = {"q": [2, "m", 3], "x": [2, 3, "s"]}
    graph = helper.make_graph(
        nodes, "g",
        [*(helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()),
         helper.make_tensor_value_info("past", type_, [2, 3, "p"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
         helper.make_tensor_value_info("present", type_, None)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target, precision_mode=mode,
                       state="auto", input_shape="q:2,1~2,3;x:2,3,1~3;past:2,3,0~8")  # fmt: skip
    assert [s.next for s in done.program.states] == ["present"]  # it is written where it lies
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    held_as = np.dtype(np.float32) if mode and code != "INT8" else dtype
    assert done.program.types["past"].nbytes == 2 * 3 * 8 * held_as.itemsize
    random = np.random.default_rng(0)
    held = np.empty((2, 3, 0), np.float32)
    with atc.load(tmp_path / "net") as net:
        for rows, count in ((2, 3), (1, 1), (2, 2)):
            q, x = (random.uniform(-5, 5, s).astype(np.float32) for s in ((2, rows, 3),
                                                                        (2, 3, count)))  # fmt: skip
            held = np.concatenate([held, x.astype(dtype).astype(np.float32)], 2)
            np.testing.assert_allclose(net.run({"q": q, "x": x})["y"], q @ held, rtol=1e-5,
                                       atol=1e-4)  # fmt: skip


def test_a_state_is_restored_before_the_first_run(tmp_path: Path) -> None:
    """No byte of it changes: of all pages of the arena one is written when shapes are set."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Cast", ["present"], ["all"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["all"], ["y"], keepdims=0),
    ]
    types = {"past": [2, "p", 4], "x": [2, "s", 4], "present": [2, "t", 4]}
    past, x, present = (
        helper.make_tensor_value_info(n, TensorProto.INT8, t) for n, t in types.items()
    )
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [past, x], [y, present])),
              tmp_path / "m.onnx")  # fmt: skip
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", state="past:present", target="c99",
                input_shape="past:2,0~6000,4;x:2,1~6000,4")  # fmt: skip
    with atc.load(tmp_path / "net") as net:
        assert net(np.ones((2, 5990, 4), np.int8)) == 8 * 5990
        saved = net.save_state()
    with atc.load(tmp_path / "net") as net:
        net.restore_state(saved)
        assert net(np.ones((2, 1, 4), np.int8)) == 8 * 5991


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["force_fp16", "allow_mix_precision"])
@pytest.mark.parametrize("name", ["genai_whisper", "optimum_gpt2", "genai_llama"])
def test_what_is_appended_may_be_rounded(name: str, mode: str, tmp_path: Path) -> None:
    done = compiled(name, tmp_path, precision_mode=mode)
    assert {s.value: s.next for s in done.program.states} == dict(decoder(name).caches)
    with atc.load(tmp_path / "net") as net:
        for feed, results in calls(name):
            got = net.run(dict(feed))
            for key, array in results.items():
                scale = np.abs(array).max()
                assert 1e-5 * scale < np.abs(got[key] - array).max() < 1e-2 * scale


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"disable_reuse_memory": True}, {"memory_in_place": False}, {"num_threads": 2},
        {"hooks": True, "profile": True}, {"external_weight": 1}, {"oo_level": "O0"},
        {"runtime_log": True},
    ],
    ids=lambda o: "-".join(o),
)  # fmt: skip
def test_whatever_the_library_is_built_for(options: dict[str, Any], tmp_path: Path) -> None:
    compiled("optimum_gpt2", tmp_path, **options)
    with atc.load(tmp_path / "net") as net:
        check(net, [*calls("optimum_gpt2")])


@pytest.mark.slow
def test_a_prompt_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every run begins with an empty cache; the largest shapes don't belong together."""
    compiled("optimum_llama", tmp_path, state="auto", profile=True)
    feed, _ = next(calls("optimum_llama"))
    np.savez(tmp_path / "prompt.npz", **feed)
    arguments = ["profile", str(tmp_path / "net"), "--runs=30"]
    assert main([*arguments, f"--input={tmp_path / 'prompt.npz'}"]) == 0
    assert "median of 30" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "doesn't fit the others" in capsys.readouterr().err
