"""Networks that carry states from run to run: the same numbers as with states in the signature."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from networks import save
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from projects import compile_c, sources

import atc
from atc.accuracy.compare import verify_library
from atc.accuracy.golden import expected_of
from atc.adapt.states import likely_states
from atc.codegen.selftest import inputs_by_formula
from atc.errors import AtcError, InternalError
from atc.pipeline.pipeline import Compilation
from atc.program import states
from atc.program.steps import calls

Shapes = dict[str, list[int | str]]


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def constant(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return constant(
        name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) / 4
    )


@dataclass(frozen=True)
class Case:
    """A step of a network: `states` are pairs of an input and an output."""

    nodes: list[onnx.NodeProto]
    inputs: Shapes
    outputs: Shapes
    states: tuple[tuple[str, str], ...]
    constants: tuple[onnx.TensorProto, ...] = ()

    def write(self, folder: Path) -> Path:
        return save(self.nodes, self.inputs, self.outputs, folder / "m.onnx", [*self.constants])

    @property
    def option(self) -> str:
        return ";".join(f"{a}:{b}" for a, b in self.states)


V: list[int | str] = [2, 8]
CASES = {
    "sum": Case(
        [node("Add", "s x", "t")], {"x": V, "s": V}, {"t": V}, (("s", "t"),),
    ),
    "sum beside a result": Case(
        [node("Add", "s x", "t"), node("Mul", "t t", "y")], {"x": V, "s": V}, {"t": V, "y": V},
        (("s", "t"),),
    ),
    "old one read after the new one is made": Case(
        [node("Add", "s x", "t"), node("Mul", "t t", "u"), node("Softmax", "s", "p"),
         node("Add", "u p", "y")],
        {"x": V, "s": V}, {"t": V, "y": V}, (("s", "t"),),
    ),
    "two change places": Case(
        [node("Identity", "b", "a2"), node("Add", "a x", "b2"), node("Sub", "a b", "y")],
        {"x": V, "a": V, "b": V}, {"a2": V, "b2": V, "y": V}, (("a", "a2"), ("b", "b2")),
    ),
    "unchanged": Case(
        [node("Identity", "s", "t"), node("Add", "s x", "y")], {"x": V, "s": V},
        {"t": V, "y": V}, (("s", "t"),),
    ),
    "from an input": Case(
        [node("Identity", "x", "t"), node("Sub", "x s", "y")], {"x": V, "s": V},
        {"t": V, "y": V}, (("s", "t"),),
    ),
    "constant": Case(
        [node("Identity", "k", "t"), node("Add", "x s", "y")], {"x": V, "s": V},
        {"t": V, "y": V}, (("s", "t"),), (weights("k", 2, 8),),
    ),
    "reshaped": Case(
        [node("Reshape", "s flat", "r"), node("Softmax", "r", "m"), node("Reshape", "m back", "n"),
         node("Add", "n x", "t"), node("Relu", "t", "y")],
        {"x": V, "s": V}, {"t": V, "y": V}, (("s", "t"),),
        (constant("flat", np.array([16])), constant("back", np.array([2, 8]))),
    ),
    "ring of frames": Case(
        [node("Slice", "s one end axis", "kept"), node("Concat", "kept x", "t", axis=2),
         node("Conv", "t w", "y")],
        {"x": [1, 4, 1], "s": [1, 4, 3]}, {"t": [1, 4, 3], "y": [1, 5, 1]}, (("s", "t"),),
        (constant("one", np.array([1])), constant("end", np.array([99])),
         constant("axis", np.array([2])), weights("w", 5, 4, 3)),
    ),
    "lstm": Case(
        [node("LSTM", "x w r b  h c".replace("  ", " none "), "y h2 c2", hidden_size=8)],
        {"x": [1, 1, 4], "h": [1, 1, 8], "c": [1, 1, 8]},
        {"y": [1, 1, 1, 8], "h2": [1, 1, 8], "c2": [1, 1, 8]}, (("h", "h2"), ("c", "c2")),
        (weights("w", 1, 32, 4), weights("r", 1, 32, 8), weights("b", 1, 64)),
    ),
    "layers of lstm": Case(
        [node("Split", "h", "h0 h1", axis=0),
         node("Split", "c", "c0 c1", axis=0),
         node("LSTM", "x w r b none h0 c0", "z h2 c2", hidden_size=8),
         node("Squeeze", "z one", "z1"),
         node("LSTM", "z1 v r b none h1 c1", "y h3 c3", hidden_size=8),
         node("Concat", "h2 h3", "hn", axis=0), node("Concat", "c2 c3", "cn", axis=0)],
        {"x": [1, 1, 4], "h": [2, 1, 8], "c": [2, 1, 8]},
        {"y": [1, 1, 1, 8], "hn": [2, 1, 8], "cn": [2, 1, 8]}, (("h", "hn"), ("c", "cn")),
        (weights("w", 1, 32, 4), weights("v", 1, 32, 8), weights("r", 1, 32, 8),
         weights("b", 1, 64), constant("one", np.array([1]))),
    ),
    "row of a cache": Case(
        [node("ScatterND", "s at x", "t"), node("ReduceSum", "t axes", "y", keepdims=0),
         node("Add", "n one", "n2")],
        {"x": [1, 8], "s": [4, 8], "n": [1]}, {"t": [4, 8], "y": [8], "n2": [1]}, (("s", "t"),),
        (constant("at", np.array([[2]])), constant("axes", np.array([0])),
         constant("one", np.ones(1, np.float32))),
    ),
    "rows of a cache": Case(
        [node("ScatterND", "s at x", "r"), node("ReduceSum", "r axes", "z", keepdims=0),
         node("Tanh", "z", "v"), node("Unsqueeze", "v axes", "row"),
         node("ScatterND", "r at2 row", "q"), node("ScatterND", "q at3 row", "t"),
         node("ReduceSum", "t axes", "y", keepdims=0)],
        {"x": [1, 8], "s": [4, 8]}, {"t": [4, 8], "y": [8]}, (("s", "t"),),
        (constant("at", np.array([[2]])), constant("at2", np.array([[0]])),
         constant("at3", np.array([[2]])), constant("axes", np.array([0]))),
    ),
    "rows of a cache, one of them read late": Case(
        [node("ScatterND", "s at x", "r"), node("ScatterND", "r at2 x", "t"),
         node("ReduceSum", "t axes", "z", keepdims=0), node("ReduceSum", "r axes", "v", keepdims=0),
         node("Sub", "z v", "y")],
        {"x": [1, 8], "s": [4, 8]}, {"t": [4, 8], "y": [8]}, (("s", "t"),),
        (constant("at", np.array([[2]])), constant("at2", np.array([[0]])),
         constant("axes", np.array([0]))),
    ),
    "from a branch": Case(
        [node("ReduceSum", "x", "total", keepdims=0), node("Greater", "total nought", "up"),
         node("If", "up", "t", then_branch=helper.make_graph(
             [node("Add", "s x", "a")], "then", [],
             [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 8])]),
             else_branch=helper.make_graph(
             [node("Neg", "s", "b")], "else", [],
             [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 8])])),
         node("Relu", "t", "y")],
        {"x": V, "s": V}, {"t": V, "y": V}, (("s", "t"),),
        (constant("nought", np.float32(0)),),
    ),
}  # fmt: skip


def _lstm(case: Case) -> Case:
    """Return the case with the LSTM's absent operand as the standard writes it."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in case.nodes]
    for each in nodes:
        each.input[:] = ["" if name == "none" else name for name in each.input]
    return replace(case, nodes=nodes)


CASES |= {name: _lstm(CASES[name]) for name in ("lstm", "layers of lstm")}
RUNS = 4


def feeds(case: Case, run: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(run)
    held = {a for a, _ in case.states}
    return {
        name: random.standard_normal([int(n) for n in shape]).astype(np.float32)
        for name, shape in case.inputs.items() if name not in held
    }  # fmt: skip


def expected(case: Case, runs: int = RUNS) -> list[dict[str, np.ndarray]]:
    """Return the results of runs by the standard's reference, states handed on from outside."""
    with TemporaryDirectory() as folder:
        session = ReferenceEvaluator(str(case.write(Path(folder))))
    carried = {
        a: np.zeros([int(n) for n in case.inputs[a]], np.float32) for a, _ in case.states
    }
    found = []
    for run in range(runs):
        results = dict(
            zip(case.outputs, session.run([*case.outputs], {**feeds(case, run), **carried}),
                strict=True)
        )  # fmt: skip
        carried = {a: results[b] for a, b in case.states}
        found.append({k: v for k, v in results.items() if k not in dict(case.states).values()})
    return found


def compiled(case: Case, folder: Path, **options: Any) -> Compilation:
    return atc.compile(case.write(folder), folder / "net", state=case.option, **options)


def check(case: Case, net: Any, runs: list[dict[str, np.ndarray]]) -> None:
    for run, wanted in enumerate(runs):
        got = net.run(feeds(case, run))
        assert got.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["host", pytest.param("c99", marks=pytest.mark.slow)])
def test_runs_go_on_where_the_last_one_ended(name: str, target: str, tmp_path: Path) -> None:
    case = CASES[name]
    compiled(case, tmp_path, target=target)
    with atc.load(tmp_path / "net") as net:
        assert net.state_size == sum(
            4 * int(np.prod([int(n) for n in case.inputs[a]])) for a, _ in case.states
        )
        check(case, net, expected(case))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"disable_reuse_memory": True}, {"memory_in_place": False}, {"num_threads": 2},
        {"sanity_check": "1"}, {"hooks": True, "profile": True}, {"external_weight": 1},
        {"oo_level": "O0"}, {"runtime_log": True},
    ],
    ids=lambda o: "-".join(o),
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    [
        "ring of frames", pytest.param("lstm", marks=pytest.mark.slow),
        pytest.param("two change places", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_whatever_the_library_is_built_for(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    case = CASES[name]
    compiled(case, tmp_path, **options)
    with atc.load(tmp_path / "net") as net:
        check(case, net, expected(case))


def test_a_result_is_made_in_the_states_own_memory(tmp_path: Path) -> None:
    done = compiled(CASES["sum beside a result"], tmp_path)
    assert [s.next for s in done.program.states] == ["t"]
    assert done.arena.plan.size == 64  # the state's alone


def test_a_row_after_another_is_written_in_the_states_own_memory(tmp_path: Path) -> None:
    done = compiled(CASES["rows of a cache"], tmp_path, target="c99")
    (state,) = done.program.states
    assert (state.former, state.next) == (("r", "q"), "t")
    assert done.arena.plan.size < 2 * 4 * 8 * 4  # the cache is there once
    late = compiled(CASES["rows of a cache, one of them read late"], tmp_path, target="c99")
    assert late.program.states[0].former == ()


def _lstm_of(units: int) -> Case:
    return _lstm(Case(
        [node("LSTM", "x w r b none h c", "y h2 c2", hidden_size=units)],
        {"x": [1, 1, 4], "h": [1, 1, units], "c": [1, 1, units]},
        {"y": [1, 1, 1, units], "h2": [1, 1, units], "c2": [1, 1, units]},
        (("h", "h2"), ("c", "c2")),
        (weights("w", 1, 4 * units, 4), weights("r", 1, 4 * units, units),
         weights("b", 1, 8 * units)),
    ))  # fmt: skip


@pytest.mark.parametrize("target", ["c99", "cuda-emulated"])
def test_layers_whose_states_are_stacked_replace_them_where_they_lie(
    target: str, tmp_path: Path
) -> None:
    done = compiled(CASES["layers of lstm"], tmp_path, target=target)
    assert {s.value: s.next for s in done.program.states} == {
        "h.0": "h2", "h.1": "h3", "c.0": "c2", "c.1": "c3"
    }  # fmt: skip
    assert {c.node.op.kind for c in calls(done.program.steps)} == {"MatMul", "Recurrent"}


@pytest.mark.parametrize(("threads", "units"), [(1, 8), (2, 512)])
def test_recurrent_states_are_replaced_where_they_lie(
    threads: int, units: int, tmp_path: Path
) -> None:
    """But for an h that other threads still read while one writes its part of the next."""
    case = _lstm_of(units)
    done = compiled(case, tmp_path, target="c99", num_threads=threads)
    (split,) = (getattr(c.choice.candidate.params, "units", 0) for c in calls(done.program.steps)
                if c.node.op.kind == "Recurrent")  # fmt: skip
    assert split == threads
    assert [s.next for s in done.program.states] == ["h2" if threads == 1 else "h#next", "c2"]
    check(case, atc.load(done.folder), expected(case))


def test_the_audit_sees_a_state_that_is_replaced_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "may_replace", lambda _, result, *others: result == "t")
    with pytest.raises(InternalError, match="reads 's', which was overwritten"):
        compiled(CASES["old one read after the new one is made"], tmp_path)


def test_states_are_reset_saved_and_restored(tmp_path: Path) -> None:
    case = CASES["lstm"]
    compiled(case, tmp_path)
    runs = expected(case)
    with atc.load(tmp_path / "net") as net:
        check(case, net, runs[:2])
        saved = net.save_state()
        assert len(saved) == net.state_size == 64
        rest = [net.run(feeds(case, k))["y"] for k in (2, 3)]
        net.restore_state(saved)
        np.testing.assert_array_equal([net.run(feeds(case, k))["y"] for k in (2, 3)], rest)
        net.reset()
        assert not any(net.save_state())
        check(case, net, runs)
        with pytest.raises(ValueError, match="the states are 64 bytes, not 3"):
            net.restore_state(b"abc")


def test_bound_calls_have_states_of_their_own(tmp_path: Path) -> None:
    case = CASES["sum beside a result"]
    compiled(case, tmp_path)
    ones = np.ones((2, 8), np.float32)
    with atc.load(tmp_path / "net") as net:
        first, second = net.bind(ones), net.bind(ones)
        assert [float(first()[0, 0]) for _ in range(3)] == [1, 4, 9]
        assert [float(second()[0, 0]) for _ in range(2)] == [1, 4]
        saved = first.save_state()
        second.restore_state(saved)
        assert float(second()[0, 0]) == 16
        first.reset()
        assert float(first()[0, 0]) == 1
        assert float(net(ones)[0, 0]) == 1


@pytest.mark.slow
def test_threads_that_share_a_network_alternate(tmp_path: Path) -> None:
    compiled(CASES["sum beside a result"], tmp_path)
    ones = np.ones((2, 8), np.float32)
    with atc.load(tmp_path / "net") as net, ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(lambda _: float(net(ones)[0, 0]), range(100)))
    assert found == [k * k for k in range(1, 101)]


MAIN = r"""
#include "net.h"
#include <stdio.h>
#include <string.h>

static double arena[NET_ARENA_SIZE / sizeof(double) + NET_ALIGNMENT];

int main(void)
{
  unsigned char *at = (unsigned char *)arena, saved[NET_STATE_SIZE];
  float x[16], y[16];
  net_context ctx = {0};
  at += -(uintptr_t)at % NET_ALIGNMENT;
  memset(at, 255, NET_ARENA_SIZE); /* init makes the states zero, not whoever brings the arena */
  for (int k = 0; k < 16; k++) x[k] = 1;
  if (net_save_state(&ctx, NULL) != NET_ERROR_ARGUMENT) return 1;
  if (net_init(&ctx, at, NET_ARENA_SIZE) != NET_OK || net_state_size() != sizeof saved) return 2;
  for (int k = 0; k < 3; k++) {
    if (net_run(&ctx, x, y) != NET_OK) return 3;
    printf("%g ", (double)y[0]);
    if (k == 0 && net_save_state(&ctx, saved) != NET_OK) return 4;
  }
  if (net_restore_state(&ctx, saved) != NET_OK || net_run(&ctx, x, y) != NET_OK) return 5;
  printf("%g ", (double)y[0]);
  if (net_reset(&ctx) != NET_OK || net_run(&ctx, x, y) != NET_OK) return 6;
  printf("%g\n", (double)y[0]);
  return 0;
}
"""


def test_a_program_in_c(tmp_path: Path) -> None:
    compiled(CASES["sum beside a result"], tmp_path, target="c99")
    folder = tmp_path / "net"
    (folder / "main.c").write_text(MAIN)
    compile_c(folder, "-Iinclude", "-Isrc", "main.c", *sources(folder), "-lm", "-o", "main")
    out = subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout
    assert out == "1 4 9 4 1\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lstm", "ring of frames"])
def test_verify_compares_several_runs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    done = compiled(case, tmp_path, verify=True)
    from atc.accuracy.compare import subject_of

    found = verify_library(subject_of(done.request), done.folder)
    assert [d.name for d in found.differences] == ["y, run 1", "y, run 2", "y, run 3"]
    other = {"lstm": "h:c2;c:h2"}.get(name)
    if other:  # a library that carries other states is not this model's
        wrong = replace(done.request, options=replace(done.options, state=tuple(other.split(";"))))
        subject = replace(
            subject_of(wrong), adaptation=replace(subject_of(wrong).adaptation,
                                                  states=tuple(other.split(";"))),
        )  # fmt: skip
        assert not verify_library(subject, done.folder).passed


NAMED = [
    ("past_key_values.3.key", "present.3.key"), ("past_0", "present_0"), ("h0", "hn"), ("h", "hn"),
    ("c_0", "c_n"), ("enc_in", "enc_out"), ("conv_cache", "conv_cache_out"), ("state", "stateN"),
    ("cache_in_2", "cache_out_2"), ("hidden_state", "new_hidden_state"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "computed"), NAMED)
def test_names_of_exporters_are_known(given: str, computed: str, tmp_path: Path) -> None:
    model = onnx_ir.load(named(given, computed).write(tmp_path))
    assert likely_states(model) == [(given, computed)]


def named(given: str, computed: str) -> Case:
    return Case(
        [node("Add", f"{given} x", computed), node("Relu", "x", "y")], {"x": V, given: V},
        {computed: V, "y": V}, ((given, computed),),
    )  # fmt: skip


@pytest.mark.slow
def test_states_are_reported_or_taken_when_asked_for(tmp_path: Path) -> None:
    model = named("h0", "hn").write(tmp_path)
    plain = atc.compile(model, tmp_path / "plain")
    assert plain.program.inputs == ("x", "h0")
    assert [text.split(";")[0] for text in plain.warnings] == ["h0 -> hn look like states"]
    done = atc.compile(model, tmp_path / "net", state="auto")
    assert done.program.inputs == ("x",)
    assert done.warnings == ("--state=auto took h0 -> hn; inputs are 'x'",)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"input": V}, {"output": V}), ({"x": V}, {"y": V}), ({"h0": V}, {"hn": [2, 9]}),
        ({"past": [1, "p"]}, {"present": [1, "p + 1"]}),
    ],
)  # fmt: skip
def test_what_is_no_state_is_not_taken_for_one(inputs: Shapes, outputs: Shapes) -> None:
    (a, x), (b, y) = next(iter(inputs.items())), next(iter(outputs.items()))
    graph = helper.make_graph(
        [node("Relu", a, b)], "g", [helper.make_tensor_value_info(a, TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(b, TensorProto.FLOAT, y)],
    )  # fmt: skip
    assert likely_states(onnx_ir.from_proto(helper.make_model(graph))) == []


def refused(case: Case, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(AtcError) as caught:
        atc.compile(case.write(tmp_path), tmp_path / "net", **options)
    assert not (tmp_path / "net").exists()
    return str(caught.value)


Change = Callable[[Case], Case]
OTHER = Case(
    [node("Add", "s x", "t"), node("ReduceSum", "x axes", "u")], {"x": V, "s": V, "z": V},
    {"t": V, "u": [1, 8]}, (), (constant("axes", np.array([0])),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("s", "'s' is not a pair of an input and an output"),
        ("q:t", "'q' is not an input of the model; the inputs are 'x', 's', 'z'"),
        ("s:tt", "'tt' is not an output of the model; the outputs are 't', 'u'"),
        ("s:t;x:t", "'t' belongs to two states"),
        ("s:t;s:u", "'s' belongs to two states"),
        ("x:u", "input 'x' is f32[2,8], output 'u' is f32[1,8]"),
        ("auto", "no input and output look like a state"),
        ("auto", "Those of one type are x -> t)"),
    ],
)
def test_a_wrong_option_says_what_is_wrong(option: str, problem: str, tmp_path: Path) -> None:
    text = refused(OTHER, tmp_path, state=option)
    assert problem in text
    assert "--state" in text
    assert "\n" not in text


def test_states_of_any_shape_are_refused(tmp_path: Path) -> None:
    case = replace(
        CASES["sum"], inputs={"x": ["n", 8], "s": ["n", 8]}, outputs={"t": ["n", 8]}
    )
    text = refused(case, tmp_path, state="s:t", input_shape="x:1~4,8;s:1~4,8")
    assert "a state is numbers of one type and shape" in text


@pytest.mark.slow
def test_a_library_for_several_targets(tmp_path: Path) -> None:
    case = CASES["lstm"]
    compiled(case, tmp_path, target="host,c99")
    runs = expected(case)
    with atc.load(tmp_path / "net") as net:
        check(case, net, runs[:2])
        saved = net.save_state()
        assert len(saved) == net.state_size == 64
        net.reset()
        check(case, net, runs)
        net.restore_state(saved)
        np.testing.assert_allclose(net.run(feeds(case, 2))["y"], runs[2]["y"], rtol=1e-5, atol=1e-5)


IN_PARTS = r"""
#include "net.h"
#include <stdio.h>

static net_arena arena;

static float made(net_context *ctx, size_t budget)
{
  float *const x = net_input(ctx, 0), *const y = net_output(ctx, 0);
  int status = NET_MORE;
  for (int k = 0; k < 16; k++) x[k] = 1;
  while (status == NET_MORE) status = net_step(ctx, x, y, budget);
  return status == NET_OK ? y[0] : -1;
}

int main(void)
{
  net_context ctx;
  if (net_init(&ctx, &arena, sizeof arena) != NET_OK) return 1;
  printf("%g ", (double)made(&ctx, 1));
  printf("%g ", (double)made(&ctx, 5));
  if (net_step(&ctx, net_input(&ctx, 0), net_output(&ctx, 0), 1) != NET_MORE) return 2;
  if (net_reset(&ctx) != NET_OK) return 3; /* a run in progress is forgotten */
  printf("%g ", (double)made(&ctx, 1));
  if (net_selftest(&ctx, net_input(&ctx, 0), net_output(&ctx, 0), NULL) != NET_OK) return 4;
  printf("%g\n", (double)made(&ctx, 1));
  return 0;
}
"""


def test_in_parts_with_room_for_inputs_and_a_self_test(tmp_path: Path) -> None:
    compiled(
        CASES["sum beside a result"], tmp_path, target="c99", step=True, io="arena",
        selftest=True,
    )  # fmt: skip
    folder = tmp_path / "net"
    (folder / "main.c").write_text(IN_PARTS)
    compile_c(folder, "-Iinclude", "-Isrc", "main.c", *sources(folder), "-lm", "-o", "main")
    out = subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout
    assert out == "1 4 1 1\n"


def test_a_self_test_is_of_a_run_that_goes_on(tmp_path: Path) -> None:
    case = CASES["sum beside a result"]
    done = compiled(case, tmp_path, target="c99", selftest=True)
    (golden,) = expected_of(done.request).outputs
    x = inputs_by_formula((2, 8), np.dtype(np.float32), 0)
    np.testing.assert_allclose(golden.values, ((2 * x) ** 2).reshape(-1), rtol=1e-5)


SELF_TEST = r"""
#include "net.h"
#include <stdio.h>

static net_arena arena;
static float x[NET_X_SIZE], y[NET_Y_SIZE];

int main(void)
{
  net_context ctx;
  net_difference found = {0};
  if (net_init(&ctx, &arena, sizeof arena) != NET_OK) return 1;
  if (net_selftest(&ctx, x, y, &found) == NET_OK) return 0;
  puts(found.node != NULL ? found.node : "output");
  return 2;
}
"""


@pytest.mark.parametrize("case", [
    CASES["ring of frames"],
    Case(  # what lies in the state is the last that is computed
        [node("Concat", "s x", "all", axis=2), node("Slice", "all one end axis", "t"),
         node("ReduceSum", "all axis", "y", keepdims=0)],
        {"x": [1, 4, 1], "s": [1, 4, 3]}, {"t": [1, 4, 3], "y": [1, 4]}, (("s", "t"),),
        CASES["ring of frames"].constants[:3],
    ),
])  # fmt: skip
@pytest.mark.parametrize("room", ["some", "none"])
def test_a_self_test_looks_for_values_where_a_window_has_moved(
    case: Case, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if room == "none":  # as on small cores
        monkeypatch.setattr(states, "_room", lambda *_: 0)
    done = compiled(case, tmp_path, target="c99", step=True, selftest=True)
    assert all(s.slide is not None for s in done.program.states)
    folder = tmp_path / "net"
    sizes = [f"-DNET_{v.upper()}_SIZE={done.program.types[v].size}" for v in "xy"]
    (folder / "main.c").write_text(SELF_TEST)
    compile_c(folder, *sizes, "-Iinclude", "-Isrc", "main.c", *sources(folder), "-lm", "-o", "main")
    subprocess.run([str(folder / "main")], check=True)


def test_names_may_hold_colons(tmp_path: Path) -> None:
    case = Case(
        [node("Add", "s:0 x", "t:0"), node("Relu", "x", "y")], {"x": V, "s:0": V},
        {"t:0": V, "y": V}, (("s:0", "t:0"),),
    )  # fmt: skip
    assert compiled(case, tmp_path).program.inputs == ("x",)
