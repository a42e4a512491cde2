"""States that are windows over what came last move on in memory; their numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import atc
from atc.pipeline.pipeline import Compilation
from atc.program import states

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\nnet (float%s x, float%s s) => '
BODY = {
    "a frame behind frames, channels first": ("[1, 6, 1]", "[1, 6, 5]", """
        (float y, float[1, 6, 5] t) <float[4, 6, 3] w = {W}, int64[1] one = {1},
            int64[1] end = {99}, int64[1] axis = {2}> {
        whole = Concat<axis = 2>(s, x)
        t = Slice(whole, one, end, axis)
        y = Conv<dilations = [2]>(whole, w) }"""),
    "two frames, one last frame of which is kept longer": ("[2, 3, 2]", "[2, 3, 5]", """
        (float y, float[2, 3, 5] t)
        <int64[1] begin = {-5}, int64[1] end = {99}, int64[1] axis = {2}> {
        whole = Concat<axis = 2>(s, x)
        t = Slice(whole, begin, end, axis)
        y = ReduceMax<keepdims = 0>(whole, axis) }"""),
    "a row behind rows": ("[1, 1, 6]", "[1, 4, 6]", """(float y, float[1, 4, 6] t)
        <int64[1] one = {1}, int64[1] end = {99}> {
        whole = Concat<axis = 1>(s, x)
        t = Slice(whole, one, end, one)
        p = Softmax<axis = 1>(whole)
        both = Mul(p, whole)
        y = ReduceSum<keepdims = 0>(both, one) }"""),
    "the oldest leaves first, channels first": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <float[4, 6, 4] w = {W}, int64[1] one = {1},
            int64[1] end = {99}, int64[1] axis = {2}> {
        kept = Slice(s, one, end, axis)
        t = Concat<axis = 2>(kept, x)
        y = Conv(t, w) }"""),
    "the oldest leaves first, in one row": ("[2, 6]", "[7, 6]", """(float y, float[7, 6] t)
        <int64[1] two = {2}, int64[1] end = {99}, int64[1] axis = {0}> {
        kept = Slice(s, two, end, axis)
        t = Concat<axis = 0>(kept, x)
        y = CumSum(t, axis) }"""),
    "the newest comes first, channels first": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <float[4, 6, 4] w = {W}, int64[1] nought = {0},
            int64[1] end = {-1}, int64[1] axis = {2}> {
        kept = Slice(s, nought, end, axis)
        t = Concat<axis = 2>(x, kept)
        y = Conv(t, w) }"""),
    "the newest before frames": ("[1, 6, 1]", "[1, 6, 5]", """
        (float y, float[1, 6, 5] t) <float[4, 6, 3] w = {W}, int64[1] nought = {0},
            int64[1] end = {5}, int64[1] axis = {2}> {
        mean = ReduceMean(s, axis)
        new = Sub(x, mean)
        whole = Concat<axis = 2>(new, s)
        t = Slice(whole, nought, end, axis)
        y = Conv<dilations = [2]>(whole, w) }"""),
    "two frames before frames, the next ones are read": ("[2, 3, 2]", "[2, 3, 5]", """
        (float y, float[2, 3, 5] t)
        <int64[1] nought = {0}, int64[1] end = {5}, int64[1] axis = {2}> {
        whole = Concat<axis = 2>(x, s)
        t = Slice(whole, nought, end, axis)
        p = Softmax<axis = -1>(t)
        q = Softmax<axis = 1>(s)
        y = Sub(p, q) }"""),
    "rows before rows": ("[2, 6]", "[7, 6]", """(float y, float[7, 6] t)
        <int64[1] nought = {0}, int64[1] five = {5}, int64[1] axis = {0}> {
        kept = Slice(s, nought, five, axis)
        t = Concat<axis = 0>(x, kept)
        y = CumSum(t, axis) }"""),
    "transposed, the newest first": ("[1, 6, 1]", "[1, 4, 6]", """
        (float y, float[1, 4, 6] t) <float[4, 6, 3] w = {W}, int64[1] nought = {0},
            int64[1] end = {4}, int64[1] axis = {2}> {
        old = Transpose<perm = [0, 2, 1]>(s)
        whole = Concat<axis = 2>(x, old)
        new = Slice(whole, nought, end, axis)
        t = Transpose<perm = [0, 2, 1]>(new)
        y = Conv(whole, w) }"""),
    "rolled": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <float[4, 6, 4] w = {W}, int64[1] nought = {0},
            int64[1] one = {1}, int64[1] end = {99}, int64[1] axis = {2}, int64[1, 6, 1, 3] last = {
            0, 0, 3, 0, 1, 3, 0, 2, 3, 0, 3, 3, 0, 4, 3, 0, 5, 3}> {
        oldest = Slice(s, nought, one, axis)
        kept = Slice(s, one, end, axis)
        turned = Concat<axis = 2>(kept, oldest)
        t = ScatterND(turned, last, x)
        y = Conv(t, w) }"""),
    "the old one is read before and after": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <int64[1] one = {1}, int64[1] end = {99}, int64[1] axis = {2}> {
        mean = ReduceMean(s, axis)
        new = Sub(x, mean)
        whole = Concat<axis = 2>(s, new)
        t = Slice(whole, one, end, axis)
        sums = CumSum(whole, axis)
        most = ReduceMax(sums, axis)
        share = Softmax<axis = 1>(s)
        y = Add(share, most) }"""),
    "the next one is read, too": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <int64[1] one = {1}, int64[1] end = {99}, int64[1] axis = {2}> {
        whole = Concat<axis = 2>(s, x)
        t = Slice(whole, one, end, axis)
        y = Softmax<axis = -1>(t) }"""),
    "three parts": ("[1, 6, 1]", "[1, 6, 4]", """
        (float y, float[1, 6, 4] t) <int64[1] two = {2}, int64[1] end = {99}, int64[1] axis = {2}> {
        other = Neg(x)
        whole = Concat<axis = 2>(s, x, other)
        t = Slice(whole, two, end, axis)
        y = ReduceMin(whole, axis) }"""),
    "transposed": ("[1, 6, 1]", "[1, 4, 6]", """
        (float y, float[1, 4, 6] t) <float[4, 6, 3] w = {W}, int64[1] one = {1},
            int64[1] end = {99}, int64[1] axis = {2}> {
        old = Transpose<perm = [0, 2, 1]>(s)
        whole = Concat<axis = 2>(old, x)
        new = Slice(whole, one, end, axis)
        t = Transpose<perm = [0, 2, 1]>(new)
        y = Conv(whole, w) }"""),
    "reshaped": ("[1, 6, 1]", "[6, 4]", """
        (float y, float[6, 4] t) <int64[1] nought = {0}, int64[1] one = {1}, int64[1] end = {99},
            int64[1] axis = {2}> {
        old = Unsqueeze(s, nought)
        whole = Concat<axis = 2>(old, x)
        new = Slice(whole, one, end, axis)
        t = Squeeze(new, nought)
        y = ReduceL2(whole, axis) }"""),
}  # fmt: skip
RUNS = 40
"""More than a state has room for, several times."""


def write(name: str, folder: Path) -> tuple[Path, tuple[int, ...], tuple[int, ...]]:
    """Write a network; return it and the shapes of its input and of its state."""
    x, s, body = BODY[name]
    weights = np.random.default_rng(0).standard_normal(4 * 6 * 4).round(2)
    for count in (72, 96):
        text = ", ".join(map(str, weights[:count]))
        body = body.replace("{W}", f"{{{text}}}") if f"[4, 6, {count // 24}] w" in body else body
    model = onnx.parser.parse_model(HEAD % (x, s) + body)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx", eval(x.replace("[", "(").replace("]", ",)")), eval(
        s.replace("[", "(").replace("]", ",)")
    )


def inputs(shape: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal(shape).astype(np.float32) for _ in range(RUNS)]


def expected(path: Path, xs: list[np.ndarray], state: np.ndarray) -> tuple[list[np.ndarray], ...]:
    """Return the results and the states behind each run, by onnxruntime."""
    session = onnxruntime.InferenceSession(path)
    ys, kept = [], []
    for x in xs:
        y, state = session.run(["y", "t"], {"x": x, "s": state})
        ys.append(y)
        kept.append(state)
    return ys, kept


def compiled(path: Path, folder: Path, target: str = "host", **options: object) -> Compilation:
    return atc.compile(path, folder / "net", state="s:t", target=target, **options)


@pytest.mark.few(3)
@pytest.mark.parametrize("target", ["host", pytest.param("c99", marks=pytest.mark.slow)])
@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("name", BODY)
def test_results_and_saved_states_are_the_models(
    name: str, room: bool, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not room:
        monkeypatch.setattr(states, "_room", lambda *_: 0)
    path, shape, held = write(name, tmp_path)
    done = compiled(path, tmp_path, target)
    (state,) = done.program.states
    assert state.slide is not None
    assert bool(state.room) is room
    assert state.next == done.program.steps[_writer(done)].node.outputs[0]  # nothing is copied
    xs = inputs(shape)
    ys, kept = expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net:
        assert net.state_size == 4 * np.prod(held)
        saved = b""
        for k, (x, y, after) in enumerate(zip(xs, ys, kept, strict=True)):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5, err_msg=f"run {k}")
            found = np.frombuffer(net.save_state(), np.float32).reshape(held)
            np.testing.assert_allclose(found, after, rtol=1e-5, atol=1e-5)
            saved = net.save_state() if k == RUNS // 2 else saved
        net.restore_state(saved)
        for x, y in zip(xs[RUNS // 2 + 1 :], ys[RUNS // 2 + 1 :], strict=True):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5)
        net.reset()
        assert not any(net.save_state())
        np.testing.assert_allclose(net(xs[0]), ys[0], rtol=1e-5, atol=1e-5)


def _writer(done: Compilation) -> int:
    """Return the step that writes what is new into the state."""
    kinds = [step.node.op.kind for step in done.program.steps]
    return kinds.index("Scatter")


def check_bound(
    name: str, folder: Path, options: dict[str, object], runs: int | None = None
) -> None:
    """Run two networks whose arrays are bound, each with states of its own; save one's."""
    path, shape, held = write(name, folder)
    done = compiled(path, folder, **options)
    xs = inputs(shape)[:runs]
    ys, kept = expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net:
        frame = xs[0].copy()
        first, second = net.bind(frame), net.bind(xs[0])
        for x, y in zip(xs, ys, strict=True):
            frame[...] = x
            np.testing.assert_allclose(first(), y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second(), ys[0], rtol=1e-5, atol=1e-5)
        saved = np.frombuffer(first.save_state(), np.float32).reshape(held)
        np.testing.assert_allclose(saved, kept[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sanity_check": "1"}, {"num_threads": 2}, {"step": True}, {"oo_level": "O0"},
        {"memory_in_place": False}, {"disable_reuse_memory": True}, {"target": "x86-64,host"},
        {"hooks": True}, {"selftest": True}, {"external_weight": 1}, {"io": "arena"},
    ],
    ids=lambda o: "-".join(o),
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    ["a frame behind frames, channels first", "the oldest leaves first, channels first",
     "the newest before frames", "the newest comes first, channels first"],
)
def test_whatever_the_library_is_built_for(
    name: str, options: dict[str, object], tmp_path: Path
) -> None:
    check_bound(name, tmp_path, options)


STACKED = """<ir_version: 8, opset_import: ["" : 18]>
net (float[2, 1, 3] x, float[2, 2, 4, 3] s) => (float[2, 1, 3] y, float[2, 2, 4, 3] t)
    <int64[1] nought = {0}, int64[1] one = {1}, int64[1] end = {99}, int64[2] sizes = {1, 1}> {
    first, second = Split(s, sizes)
    past = Squeeze(first, nought)
    whole = Concat<axis = 1>(past, x)
    mean = ReduceMean(whole, one)
    next = Slice(whole, one, end, one)
    row = Unsqueeze(next, nought)
    past2 = Squeeze(second, nought)
    whole2 = Concat<axis = 1>(past2, mean)
    y = ReduceMax(whole2, one)
    next2 = Slice(whole2, one, end, one)
    row2 = Unsqueeze(next2, nought)
    t = Concat(row, row2)
}"""


def test_windows_of_several_layers_in_one_state_slide_apart(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(STACKED.replace("Concat(row", "Concat<axis = 0>(row"))
    onnx.save(model, tmp_path / "m.onnx")
    done = compiled(tmp_path / "m.onnx", tmp_path)
    assert [(s.value, s.slide is not None) for s in done.program.states] == [
        ("s.0", True), ("s.1", True)
    ]  # fmt: skip
    xs = inputs((2, 1, 3))
    ys, kept = expected(tmp_path / "m.onnx", xs, np.zeros((2, 2, 4, 3), np.float32))
    with atc.load(done.folder) as net:
        assert net.state_size == 4 * 48
        for x, y, after in zip(xs, ys, kept, strict=True):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5)
            found = np.frombuffer(net.save_state(), np.float32).reshape(after.shape)
            np.testing.assert_allclose(found, after, rtol=1e-5, atol=1e-5)


def test_other_stacks_stay_together(tmp_path: Path) -> None:
    text = STACKED.replace("Concat(row", "Concat<axis = 0>(row")
    text = text.replace("Slice(whole2, one, end, one)", "Identity(past2)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    (state,) = compiled(tmp_path / "m.onnx", tmp_path).program.states
    assert state.slide is None


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("a row behind rows", ("[1, 5, 6]", "[1, 4, 6]")),  # most of it is new
        ("the old one is read before and after", ("[1, 6, 5]", "[1, 6, 4]")),
    ],
)
def test_what_is_mostly_new_is_computed_in_place(
    name: str, shapes: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = BODY[name][2].replace("{99}", "{99}, int64[1] begin = {-4}")
    body = body.replace("Slice(whole, one", "Slice(whole, begin")
    monkeypatch.setitem(BODY, name, (*shapes, body))
    path, *_ = write(name, tmp_path)
    (state,) = compiled(path, tmp_path).program.states
    assert state.slide is None


@pytest.mark.parametrize("target", ["c99", pytest.param("cuda-emulated", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["force_fp16", "allow_mix_precision"])
def test_windows_of_values_that_are_rounded_slide(mode: str, target: str, tmp_path: Path) -> None:
    """They are rounded when they are made, and not anew in each run."""
    path, shape, held = write("a frame behind frames, channels first", tmp_path)
    done = compiled(path, tmp_path, target, precision_mode=mode)
    (state,) = done.program.states
    assert state.slide is not None
    xs = inputs(shape)
    ys, _ = expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net:
        found = [net(x) for x in xs]
        kept = np.frombuffer(net.save_state(), np.float32)
    np.testing.assert_allclose(found, ys, rtol=1e-2, atol=1e-2)
    rounded = kept.astype(np.float16).astype(np.float32)
    assert np.array_equal(kept, rounded) or mode != "force_fp16"
