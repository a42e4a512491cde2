"""Loop and Scan against onnxruntime: kept loops, unrolled ones, and what surrounds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from ort_cases import noise

from atc.errors import AtcError
from atc.passes import run_passes
from support import (
    Batch,
    assert_close,
    compile_graph,
    node_cases,
    pinned,
    run_model,
    with_constants,
)


def test_standard_loop_with_its_count_known() -> None:
    ((_, model, runs),) = [c for c in node_cases(["Loop"]) if c[0] == "test_loop11"]
    inputs, expected = runs[0]
    names = [v.name for v in model.graph.input]
    known = dict(zip(names[:2], inputs[:2], strict=True))
    assert_close(run_model(with_constants(model, known), inputs[2:]), expected)


HEAD = '<ir_version: 8, opset_import: ["" : 18]>'

MODELS: dict[str, tuple[str, list[Any]]] = {
    # a state and what it was at every step, of an outer value too
    "collects": (
        """g (float[3] x, float[3] k) => (float[3] y, float[COUNT,3] ys) {
        n = Constant<value_int=COUNT>()
        t = Exp(k)
        y, ys = Loop<body = b (int64 i, bool c, float[3] s) => (bool d, float[3] r, float[3] z) {
          d = Identity(c) u = Mul(s, t) r = Sin(u) z = Add(r, k) }>(n, , x) }""",
        [noise(3), noise(3, seed=1)],
    ),
    "two states change places": (
        """g (float[2] x, float[2] y) => (float[2] p, float[2] q) {
        n = Constant<value_int=COUNT>()
        p, q = Loop<body = b (int64 i, bool c, float[2] s, float[2] t)
          => (bool c, float[2] t, float[2] s) { }>(n, , x, y) }""",
        [noise(2), noise(2, seed=1)],
    ),
    "counts iterations": (
        """g (int64[2] x) => (int64[2] y, int64[COUNT] z) {
        n = Constant<value_int=COUNT>()
        y, z = Loop<body = b (int64 i, bool c, int64[2] s) => (bool d, int64[2] r, int64 j) {
          d = Identity(c) r = Add(s, i) j = Mul(i, i) }>(n, , x) }""",
        [np.array([5, 7])],
    ),
    "loop in loop": (
        """g (float[4] x) => (float[4] y) {
        n = Constant<value_int=COUNT>()
        y = Loop<body = a (int64 i, bool c, float[4] s) => (bool d, float[4] r) {
          d = Identity(c) f = Cast<to=1>(i)
          r = Loop<body = b (int64 j, bool e, float[4] t) => (bool h, float[4] u) {
            h = Identity(e) v = Add(t, f) w = Mul(v, x) u = Tanh(w) }>(n, , s) }>(n, , x) }""",
        [noise(4)],
    ),
    "choice in loop": (
        """g (float[2] x) => (float[2] y) {
        n = Constant<value_int=COUNT>() two = Constant<value_int=2>() zero = Constant<value_int=0>()
        y = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) {
          d = Identity(c) m = Mod(i, two) e = Equal(m, zero)
          r = If(e) <then_branch = t () => (float[2] o) { o = Add(s, x) },
                     else_branch = f () => (float[2] p) { p = Mul(s, x) }> }>(n, , x) }""",
        [noise(2)],
    ),
    "state that is not used": (
        """g (float[2] x) => (float[COUNT,2] z) {
        n = Constant<value_int=COUNT>() o = Constant<value_floats=[1.0, 2.0]>()
        y, z = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r, float[2] u) {
          d = Identity(c) r = Add(s, o) u = Mul(r, x) }>(n, , o) }""",
        [noise(2)],
    ),
}


def _counted() -> dict[str, tuple[onnx.ModelProto, list[Any]]]:
    """Return every model with few iterations, which are unrolled, and with many."""
    return {
        f"{name} {count}": (parse_model(HEAD + text.replace("COUNT", str(count))), inputs)
        for name, (text, inputs) in MODELS.items()
        for count in (3, 20)
    }


def _scans() -> dict[str, tuple[onnx.ModelProto, list[Any]]]:
    text = """g (float[2] s, float[LENGTH,3,2] x, float[3,LENGTH] w)
      => (float[2] y, float[3,2,LENGTH] z, float[LENGTH] q) {
    y, z, q = Scan<num_scan_inputs=2, scan_input_axes=[0, 1], scan_input_directions=[0, 1],
      scan_output_axes=[2, 0], scan_output_directions=[0, 1], body =
      b (float[2] s, float[3,2] x, float[3] w) => (float[2] r, float[3,2] p, float a) {
        axis = Constant<value_ints=[1]>() v = Unsqueeze(w, axis) u = Mul(x, v) p = Add(u, s)
        k = Constant<value_ints=[0]>() m = ReduceMean<keepdims=0>(p, k) r = Tanh(m)
        a = ReduceSum<keepdims=0>(u) }>(s, x, w) }"""
    return {
        f"scan {n}": (
            parse_model(HEAD + text.replace("LENGTH", str(n))),
            [noise(2), noise(n, 3, 2, seed=1), noise(3, n, seed=2)],
        )
        for n in (4, 30)
    }


def _at_run_time() -> dict[str, tuple[onnx.ModelProto, list[Any]]]:
    bounded = """g (float[2] x, int64 n, bool c) => (float[2] y) {
    y = Loop<body = b (int64 i, bool e, float[2] s) => (bool d, float[2] r) {
      d = Identity(e) r = Add(s, x) }>(n, c, x) }"""
    until = """g (float x, float limit) => (float y, int64 k) {
    one = Constant<value_int=1>() zero = Constant<value_int=0>()
    y, k = Loop<body = b (int64 i, bool e, float s, int64 t) => (bool d, float r, int64 u) {
      r = Add(s, x) u = Add(t, one) d = Less(r, limit) }>(, , x, zero) }"""
    nested = """g (bool c, float[12,3] x, float[3] k) => (float[3] y, float[12,3] z) {
    y, z = If(c) <then_branch = t () => (float[3] p, float[12,3] q) {
      n = Constant<value_int=12>()
      p, q = Scan<num_scan_inputs=1, scan_output_directions=[1], body = b (float[3] s, float[3] e)
        => (float[3] r, float[3] u) {
        r = Loop<body = l (int64 i, bool d, float[3] v) => (bool h, float[3] w) {
          h = Identity(d) f = Cast<to=1>(i) m = Mul(v, k) a = Add(m, f) w = Tanh(a) }>(n, , s)
        u = Add(r, e) }>(k, x) },
    else_branch = f () => (float[3] p, float[12,3] q) { p = Identity(k) q = Neg(x) }> }"""
    x = noise(2)
    cases = {
        f"{n} iterations, {c}": (bounded, [x, np.array(n), np.array(c)])
        for n, c in ((5, True), (0, True), (5, False), (-3, True))
    }
    fixed = bounded.replace("int64 n, ", "").replace(
        "y = Loop", "n = Constant<value_int=4>() y = Loop"
    )
    for c in (True, False):
        cases[f"4 iterations if {c}"] = (fixed, [x, np.array(c)])
    for c in (True, False):
        cases[f"loop in scan in choice, {c}"] = (nested, [np.array(c), noise(12, 3), noise(3)])
    cases["until"] = (until, [np.float32(0.3), np.float32(7)])
    return {k: (parse_model(HEAD + text), [*map(np.asarray, i)]) for k, (text, i) in cases.items()}


CASES = {**_counted(), **_scans(), **_at_run_time()}
CASES_COMPILED = Batch({n: pinned(m, i) for n, (m, i) in CASES.items()}, chunk=32)


def truth(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    results: list[Any] = session.run(None, dict(zip(names, inputs, strict=True)))
    return results


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    model, inputs = CASES[name]
    got = CASES_COMPILED[name](inputs)
    assert_close(got, truth(model, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["collects 20", "scan 30", "loop in loop 20", "until"])
def test_long_loops_stay_loops(name: str) -> None:
    kinds = [n.op.kind for n in run_passes(compile_graph(CASES[name][0])).nodes]
    assert kinds.count("Loop") == 1


def test_short_loops_are_written_out() -> None:
    for name in ("collects 3", "scan 4", "loop in loop 3"):
        kinds = [n.op.kind for n in run_passes(compile_graph(CASES[name][0])).nodes]
        assert "Loop" not in kinds


def test_nested_loops_are_written_out_up_to_a_bound() -> None:
    """Eight iterations in each of seven loops would be two million copies of the body."""
    body = "v0 = Sin(u0)"
    for k in range(6):
        body = (
            f"v{k + 1} = Loop<body = b{k} (int64 i{k}, bool c{k}, float[2] u{k}) => "
            f"(bool d{k}, float[2] v{k}) {{ d{k} = Identity(c{k}) {body} }}>(n, , u{k + 1})"
        )
    text = f"g (float[2] u6) => (float[2] v6) {{ n = Constant<value_int=8>() {body} }}"
    graph = compile_graph(parse_model(HEAD + text))
    assert [n.op.kind for n in graph.nodes].count("Loop") <= 64
    assert len(graph.nodes) <= 128


def test_a_growing_state_is_written_out() -> None:
    text = """g (float[1] x) => (float[13] y) {
    n = Constant<value_int=12>()
    y = Loop<body = b (int64 i, bool c, float[N] s) => (bool d, float[K] r) {
      d = Identity(c) t = Cos(x) r = Concat<axis=0>(s, t) }>(n, , x) }"""
    x = noise(1)
    (y,) = run_model(parse_model(HEAD + text), [x])
    assert np.allclose(y, np.concatenate([x, np.repeat(np.cos(x), 12)]))


@pytest.mark.parametrize("start", [(0, 1), (5, 0)])
def test_a_loop_that_never_begins_collects_nothing(start: tuple[int, int]) -> None:
    text = f"""g (float[2] x) => (float[2] y, float[N,3] ys) {{
    n = Constant<value_int={start[0]}>() s = Constant<value_int={start[1]}>() c = Cast<to=9>(s)
    y, ys = Loop<body = b (int64 i, bool e, float[2] s) => (bool d, float[2] r, float[3] z) {{
      d = Identity(e) r = Add(s, x) t = Constant<value_floats=[1.0]>() z = Concat<axis=0>(s, t)
      }}>(n, c, x) }}"""
    x = noise(2)
    assert_close(run_model(parse_model(HEAD + text), [x]), [x, np.empty((0, 3), np.float32)])


def test_a_condition_known_each_time_ends_an_unrolled_loop() -> None:
    text = """g (float[2] x) => (float[2] y) {
    n = Constant<value_int=6>() four = Constant<value_int=3>()
    y = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) {
      d = Less(i, four) r = Add(s, x) }>(n, , x) }"""
    x = noise(2)
    (y,) = run_model(parse_model(HEAD + text), [x])
    assert np.allclose(y, 5 * x)


def test_many_loops_share_one_arena() -> None:
    """Values around and between loops survive them, whatever memory they are given."""
    text = """g (float[40] x) => (float[40] y) {
    n = Constant<value_int=11>() zero = Constant<value_int=0>() a = Tanh(x) b = Sin(x)
    p = Loop<body = f (int64 i, bool c, float[40] s) => (bool d, float[40] r) {
      d = Identity(c) t = CumSum(s, zero) u = Mul(t, a) k = Tanh(u) r = Softmax(k) }>(n, , b)
    q = Loop<body = h (int64 i, bool c, float[40] s) => (bool d, float[40] r) {
      d = Identity(c) t = Mul(s, p) k = CumSum(t, zero) u = Sub(k, b) r = Sigmoid(u) }>(n, , p)
    u = Add(q, a) y = Mul(u, b) }"""
    x = noise(40)
    model = parse_model(HEAD + text)
    graph = run_passes(compile_graph(model))
    assert [n.op.kind for n in graph.nodes].count("Loop") == 2
    assert_close(run_model(model, [x]), truth(model, [x]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [("d = Identity(c) r = Add(s, x) z = Sin(r) }>(n, , x)", "only at run time"),
     ("d = Identity(c) r = Add(s, x) z = Sin(r) }>(, , x)", "only at run time")],
)  # fmt: skip
def test_limits_are_named(body: str, message: str) -> None:
    text = f"""g (float[2] x, int64 n) => (float[2] y, float[N,2] ys) {{
    y, ys = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r, float[2] z) {{
      {body} }}"""
    inputs = [noise(2), np.array(3)]
    with pytest.raises(AtcError, match=message):
        run_model(parse_model(HEAD + text), inputs)
