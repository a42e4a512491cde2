"""Sequences and optionals against onnxruntime, through the backend and a compiled library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from joined_sources import compile_joined
from onnx.parser import parse_model

import atc
import atc.onnx_backend as backend
from atc.accuracy.compare import Subject, verify_library
from atc.errors import AtcError

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'


def model(text: str) -> onnx.ModelProto:
    return parse_model(HEAD + text)


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def at(position: int) -> Any:
    return np.array(position, np.int64)


ROWS = [noise(3, seed=k) for k in range(4)]
NEW = noise(3, seed=9)

AT = "g (seq(float[3]) s, int64 p) => (float[3] y) { y = SequenceAt(s, p) }"
INSERT = """g (seq(float[3]) s, float[3] x, int64 p) => (seq(float[3]) y) {
  y = SequenceInsert(s, x, p) }"""
ERASE = "g (seq(float[3]) s, int64 p) => (seq(float[3]) y) { y = SequenceErase(s, p) }"

CASES: dict[str, tuple[str, list[Any]]] = {
    "at": (AT, [ROWS, at(2)]),
    "at, from the end": (AT, [ROWS, at(-3)]),
    "insert": (INSERT, [ROWS, NEW, at(1)]),
    "insert, from the end": (INSERT, [ROWS, NEW, at(-1)]),
    "insert, at the end": (INSERT, [ROWS, NEW, at(4)]),
    "erase": (ERASE, [ROWS, at(1)]),
    "erase, from the end": (ERASE, [ROWS, at(-1)]),
    "erase the last": (
        "g (seq(float[M]) s) => (seq(float[M]) y) { y = SequenceErase(s) }", [[noise(2), noise(5)]]
    ),
    "concat and length": (
        """g (seq(float[M,2]) s) => (float[M,2] y, float[M,2,K] z, int64 n) {
        y = ConcatFromSequence<axis=0>(s) zero = Constant<value_int=0>() a = SequenceAt(s, zero)
        u = SequenceConstruct(a, a) z = ConcatFromSequence<axis=-1, new_axis=1>(u)
        n = SequenceLength(s) }""",
        [[noise(1, 2), noise(4, 2)]],
    ),
    "split and map, over a sequence and a tensor": (
        """g (float[7,2] x, float[2] k) => (seq(float[2]) y, seq(int64[2]) shapes) {
        three = Constant<value_int=3>() s = SplitToSequence<axis=0>(x, three)
        y, shapes = SequenceMap<body = b (float[N,2] e, float[2] f) => (float[2] r, int64[2] t) {
          p = Mul(e, f) axes = Constant<value_ints=[0]>() r = ReduceSum<keepdims=0>(p, axes)
          t = Shape(e) }>(s, k) }""",
        [noise(7, 2), noise(2)],
    ),
    "an If that the run decides": (
        """g (bool c, float[3] x) => (seq(float[3]) y) {
        y = If<then_branch = a () => (seq(float[3]) p) { n = Neg(x) p = SequenceConstruct(x, n) },
          else_branch = b () => (seq(float[3]) q) { e = Exp(x) q = SequenceConstruct(e, x) }>(c)
        }""",
        [np.array(False), noise(3)],
    ),
    "a loop that builds a sequence of growing tensors": (
        """g (float[2] x) => (seq(float[M]) y, float[K] last) {
        n = Constant<value_int=4>() e = SequenceEmpty()
        y, last = Loop<body = b (int64 i, bool c, seq(float[M]) s, float[K] v)
          => (bool d, seq(float[M]) r, float[L] w) {
          d = Identity(c) w = Concat<axis=0>(v, x) r = SequenceInsert(s, v) }>(n, , e, x) }""",
        [noise(2)],
    ),
    "a loop that ends where its condition says so": (
        """g (float[5,2] x, int64[4] ends) => (float[3,2] y) {
        e = SequenceEmpty() t = Constant<value=bool {1}>() zero = Constant<value_int=0>()
        k, z = Loop<body = b (int64 i, bool c, int64 j, seq(float[1,2]) s)
          => (bool d, int64 m, seq(float[1,2]) r) {
          o = Constant<value_int=1>() m = Add(j, o) n = Constant<value_int=3>() d = Less(m, n)
          a = Gather<axis=0>(ends, j) f = Gather<axis=0>(ends, m) v = Constant<value_ints=[1]>()
          p = Reshape(a, v) q = Reshape(f, v) w = Constant<value_ints=[0]>()
          g = Slice(x, p, q, w) u = ReduceSum<keepdims=1>(g, w) r = SequenceInsert(s, u) }
          >(, t, zero, e)
        y = ConcatFromSequence<axis=0>(z) }""",
        [noise(5, 2), np.array([0, 2, 2, 5])],
    ),
}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the outputs of all cases, compiled into one library; no input is a constant there."""
    reps = {n: backend.prepare(model(text), target="c99") for n, (text, _) in CASES.items()}
    arrays = {n: reps[n].arrays(inputs) for n, (_, inputs) in CASES.items()}
    graphs = [reps[n].lower(arrays[n]) for n in CASES]
    networks = backend.compile_networks(graphs, reps["at"].target, "O0", compile_all=compile_joined)
    for name, network in zip(CASES, networks, strict=True):
        assert [v.name for v in network.parameters] == list(arrays[name])
        reps[name].remember(arrays[name], network)
    return {n: reps[n].run(inputs) for n, (_, inputs) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_run_time_values(name: str, results: dict[str, Any]) -> None:
    runtime = pytest.importorskip("onnxruntime")  # onnx.reference errs where a position is the end
    text, inputs = CASES[name]
    proto = model(text)
    feeds = dict(zip((v.name for v in proto.graph.input), inputs, strict=True))
    session = runtime.InferenceSession(proto.SerializeToString())
    for got, expected in zip(results[name], session.run(None, feeds), strict=True):
        assert isinstance(got, list) == isinstance(expected, list)
        pairs = zip(got, expected, strict=True) if isinstance(got, list) else [(got, expected)]
        for a, b in pairs:
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-6)


BORDER = """g (optional(float[2]) o, seq(float[N]) s, float[2] x, optional(seq(float[2])) n)
  => (seq(float[N]) t, float[2] z, optional(float[2]) w, bool h) {
  a = OptionalGetElement(o) z = Add(a, x) t = SequenceInsert(s, x)
  w = Optional<type=float[2]>() h = OptionalHasElement(n) }"""


def test_a_library_takes_and_gives_lists(tmp_path: Path) -> None:
    file, folder = tmp_path / "m.onnx", tmp_path / "net"
    proto = model(BORDER.replace("w = Optional<type=float[2]>()", "w = Optional(z)"))
    onnx.save(proto, file)
    atc.compile(
        file, folder, input_shape="s:[3][2][1];n:none;o:2", target="c99",
        op_compiler_cache_mode="disable",
    )  # fmt: skip
    net = atc.load(folder)
    assert [t.name for t in net.inputs] == ["o", "s_0", "s_1", "s_2", "x"]
    assert [t.name for t in net.outputs] == ["t_0", "t_1", "t_2", "t_3", "z", "w", "h"]
    one, two = noise(2), noise(2, seed=1)
    parts = [noise(3), noise(2), noise(1)]
    t, z, w, h = net(one, parts, two, None)
    for got, expected in zip(t, [*parts, two], strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(z, one + two)
    np.testing.assert_array_equal(w, one + two)
    assert not h
    assert [type(v) for v in net.run({"o": one, "s": parts, "x": two, "n": None}).values()] == [
        list, np.ndarray, np.ndarray, np.ndarray,
    ]  # fmt: skip
    for wrong in ((one, parts[:2], two, None), (one, one, two, None), (one, parts, two, one)):
        with pytest.raises(TypeError, match="input '[sn]' must be"):
            net(*wrong)
    assert verify_library(Subject(file), folder).passed


def test_an_absent_optional_and_an_empty_sequence(tmp_path: Path) -> None:
    onnx.save(
        model("""g (seq(float[2]) s, float[2] x, optional(float[2]) o)
        => (seq(float[2]) e, float[2] y, optional(float[2]) p) {
        e = Identity(s) y = Neg(x) p = Identity(o) }"""), tmp_path / "m.onnx"
    )  # fmt: skip
    shapes: dict[str, Any] = {"s": "empty", "o": None}
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=shapes, target="c99")
    e, y, p = atc.load(tmp_path / "net")([], NEW[:2], None)
    assert (e, p) == ([], None)
    np.testing.assert_array_equal(y, -NEW[:2])


REFUSED = {
    "a sequence of an unknown number": (AT, ""),
    "'s' is a sequence, but one shape \\[2, 3\\]": (ERASE, "s:2,3"),
    "input 'p' is not a sequence": (AT, "s:[3];p:[3]"),
    "input 'p' is not optional": (AT, "s:[3];p:none"),
    "sequence of different types": (AT.replace("[3]", "[N]"), "s:[3][4]"),
    "axis 0 of input 's' is 3": (AT, "s:[4]"),
    "'\\[2,3' is not a sequence": (AT, "s:[2,3"),
    "the sequence is empty": (AT, "s:empty"),
    "is a sequence or an empty optional|given where a tensor": (
        "g (seq(float[3]) s) => (float[3] y) { y = Neg(s) }", "s:[3]"
    ),
    "a sequence of 1000000000 tensors": (
        """g (float[1000000000] x) => (int64 n) {
        s = SplitToSequence(x) n = SequenceLength(s) }""", "",
    ),
    "runs 600 times; at most 512": (
        """g (seq(float[3]) s, float[3] x) => (seq(float[3]) y) { n = Constant<value_int=600>()
        y = Loop<body = b (int64 i, bool c, seq(float[3]) t) => (bool d, seq(float[3]) u) {
          d = Identity(c) l = SequenceLength(t) u = SequenceInsert(t, x) }>(n, , s) }""", "s:[3]",
    ),
    "more than 512 iterations": (
        """g (seq(float[3]) s, float[3] x) => (seq(float[3]) y) {
        y = Loop<body = b (int64 i, bool c, seq(float[3]) t) => (bool d, seq(float[3]) u) {
          d = Constant<value=bool {1}>() u = SequenceInsert(t, x) }>(, , s) }""", "s:[3]",
    ),
    "a number of times known only at run time": (
        """g (seq(float[3]) s, int64 n) => (seq(float[3]) y) {
        y = Loop<body = b (int64 i, bool c, seq(float[3]) t) => (bool c, seq(float[3]) t)
        { }>(n, , s) }""", "s:[3]",
    ),
    "a sequence of 2 and a sequence of 1": (
        CASES["an If that the run decides"][0].replace("Construct(e, x)", "Construct(e)"), "",
    ),
}  # fmt: skip


def test_a_bound_is_no_trip_count(tmp_path: Path) -> None:
    onnx.save(model(REFUSED["a number of times known only at run time"][0]), tmp_path / "m.onnx")
    with pytest.raises(AtcError, match="known only at run time"):
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape="s:[3]", target="c99",
                    value_range="y:0~4")  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_known_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    text, shapes = REFUSED[message]
    onnx.save(model(text), tmp_path / "m.onnx")
    with pytest.raises(AtcError, match=message) as caught:
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=shapes, target="c99")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "net").exists()
