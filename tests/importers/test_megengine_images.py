"""Images and recurrent layers of MegEngine dumps, written by hand, against numpy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from importers import test_megengine_conv as convolutions
from importers import test_megengine_data as data
from importers import test_megengine_indexing as indexing
from importers import test_megengine_layers as layers
from importers import test_megengine_multi_type as multi_type
from importers.megengine_check import Case, Const, build, check, load
from importers.megengine_numpy import lstm_step, resized_cubic, rnn_step, sample
from importers.megengine_writer import write_v2
from onnx.reference import ReferenceEvaluator

from atc.importers.megengine.translate import RULES
from atc.importers.megengine.typeid import KINDS

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


IMAGE = normal(2, 3, 6, 8)
LAST = IMAGE.transpose(0, 2, 3, 1).copy()


def size(*extents: int) -> Const:
    return Const(np.array(extents, np.int32))


def linear(x: np.ndarray, extents: tuple[int, int]) -> np.ndarray:
    h, w = extents
    y = np.clip((np.arange(h) + 0.5) * x.shape[2] / h - 0.5, 0, x.shape[2] - 1)
    z = np.clip((np.arange(w) + 0.5) * x.shape[3] / w - 0.5, 0, x.shape[3] - 1)
    px, py = np.meshgrid(z, y)
    grid = [np.broadcast_to(p, (x.shape[0], h, w)) for p in (px, py)]
    return sample(x, *grid, "REPLICATE")


def nearest(x: np.ndarray, extents: tuple[int, int]) -> np.ndarray:
    rows = [i * x.shape[2] // extents[0] for i in range(extents[0])]
    columns = [i * x.shape[3] // extents[1] for i in range(extents[1])]
    return x[:, :, rows][..., columns]


@pytest.mark.parametrize("extents", [(12, 16), (9, 5), (3, 4), (6, 8), (14, 21), (1, 1)])
@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST", "CUBIC"])
def test_resize(mode: str, extents: tuple[int, int], tmp_path: Path) -> None:
    function = {"LINEAR": linear, "NEAREST": nearest, "CUBIC": resized_cubic}[mode]
    params = {"Resize": {"imode": mode, "format": "NCHW"}}
    check(
        Case("Resize", [IMAGE, size(*extents)], params, lambda x, _: function(x, extents)), tmp_path
    )


def test_resize_is_channels_last_by_default(tmp_path: Path) -> None:
    truth = linear(IMAGE, (9, 11)).transpose(0, 2, 3, 1)
    check(Case("Resize", [LAST, size(9, 11)], {"Resize": {}}, lambda *_: truth), tmp_path)


@pytest.mark.parametrize("extents", [(12, 16), (14, 21)])
def test_only_whole_factors_become_a_nearest_resize(
    extents: tuple[int, int], tmp_path: Path
) -> None:
    params = {"Resize": {"imode": "NEAREST", "format": "NCHW"}}
    dump, _, _ = build(Case("Resize", [IMAGE, size(*extents)], params, lambda x, _: x))
    used = {node.op_type for node in load(write_v2(dump), tmp_path).graph}
    assert used == ({"Resize"} if extents == (12, 16) else {"Gather"})


@pytest.mark.parametrize("aligned", [False, True])
def test_resize_volume(aligned: bool, tmp_path: Path) -> None:
    x = np.broadcast_to(
        np.arange(4.0, dtype=np.float32)[None, None, :, None, None], (1, 2, 4, 3, 3)
    )
    places = np.arange(7) * 3 / 6 if aligned else np.clip((np.arange(7) + 0.5) * 4 / 7 - 0.5, 0, 3)
    truth = np.broadcast_to(places[None, None, :, None, None], (1, 2, 7, 5, 3))
    params = {"Resize3D": {"format": "NCDHW", "align_corners": aligned}}
    check(Case("Resize3D", [x.copy(), size(7, 5, 3)], params, lambda *_: truth), tmp_path)


MATRIX = np.array([[[0.9, 0.1, 0.3], [-0.1, 1.1, -0.6], [0.01, 0.02, 1]]] * 2, np.float32)
MATRIX[1] *= np.float32(1.3)
MATRIX[1, 0, 2] -= 1


def mapped(matrix: np.ndarray, h: int, w: int) -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[:h, :w].astype(np.float64)
    points = np.einsum(
        "nij,jhw->nihw", matrix.astype(np.float64), np.stack([x, y, np.ones_like(x)])
    )
    if matrix.shape[1] == 2:
        return points[:, 0], points[:, 1]
    return points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]


BORDERS = ["REPLICATE", "CONSTANT", "REFLECT", "REFLECT_101"]


@pytest.mark.parametrize("border", BORDERS)
def test_warp_perspective(border: str, tmp_path: Path) -> None:
    truth = lambda x, m, _: sample(x, *mapped(m, 5, 7), border, 1.5)  # noqa: E731
    params = {"WarpPerspective": {"bmode": border, "border_val": 1.5}}
    check(
        Case("WarpPerspective", [IMAGE, MATRIX, size(5, 7)], params, truth, tolerance=1e-4),
        tmp_path,
    )


def test_warp_perspective_picks_images(tmp_path: Path) -> None:
    order = np.array([1, 0], np.int32)
    truth = lambda x, m, i, _: sample(x[i], *mapped(m, 5, 7), "REPLICATE")  # noqa: E731
    inputs = [IMAGE, MATRIX, order, size(5, 7)]
    check(Case("WarpPerspective", inputs, {"WarpPerspective": {}}, truth, tolerance=1e-4), tmp_path)


def test_aligned_corners_become_a_resize(tmp_path: Path) -> None:
    matrix = np.diag([7 / 12, 5 / 10, 1]).astype(np.float32)[None].repeat(2, 0)
    truth = lambda x, m, _: sample(x, *mapped(m, 11, 13), "REPLICATE")  # noqa: E731
    case = Case(
        "WarpPerspective", [IMAGE, Const(matrix), size(11, 13)], {"WarpPerspective": {}}, truth
    )
    check(case, tmp_path)
    graph = load(write_v2(build(case)[0]), tmp_path).graph
    assert [node.op_type for node in graph] == ["Resize"]


@pytest.mark.parametrize("border", BORDERS)
def test_warp_affine(border: str, tmp_path: Path) -> None:
    truth = sample(IMAGE, *mapped(MATRIX[:, :2], 5, 7), border).transpose(0, 2, 3, 1)
    inputs = [LAST, MATRIX[:, :2].copy(), size(5, 7)]
    params = {"WarpAffine": {"border_mode": border}}
    check(Case("WarpAffine", inputs, params, lambda *_: truth, tolerance=1e-4), tmp_path)


@pytest.mark.parametrize("border", BORDERS)
def test_remap(border: str, tmp_path: Path) -> None:
    places = RNG.uniform(-1, 8, (2, 4, 5, 2)).astype(np.float32)
    truth = lambda x, m: sample(x, m[..., 0], m[..., 1], border, 0.5)  # noqa: E731
    params = {"Remap": {"border_type": border, "format": "NCHW", "scalar": 0.5}}
    check(Case("Remap", [IMAGE, places], params, truth, tolerance=1e-4), tmp_path)


@pytest.mark.parametrize("mode", ["RGB2GRAY", "BGR2GRAY", "RGB2BGR"])
def test_colours(mode: str, tmp_path: Path) -> None:
    weights = np.array([0.299, 0.587, 0.114])

    def truth(x: np.ndarray) -> np.ndarray:
        if mode == "RGB2BGR":
            return x[..., ::-1]
        return (x @ (weights if mode == "RGB2GRAY" else weights[::-1]))[..., None]

    check(Case("CvtColor", [LAST], {"CvtColor": {"mode": mode}}, truth), tmp_path)


def test_overlapping_boxes_are_dropped(tmp_path: Path) -> None:
    boxes = np.array(
        [[[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [21, 20, 30, 31], [5, 0, 15, 10]]],
        np.float32,
    )
    params = {"NMSKeep": {"iou_thresh": 0.5, "max_output": 4}}
    truth = np.array([[0, 2, 4, 0]]), np.array([3])
    check(Case("NMSKeepMGB", [boxes], params, lambda _: truth, tolerance=0), tmp_path)


def test_deformed_taps_move_by_their_offsets(tmp_path: Path) -> None:
    x, w = normal(1, 2, 6, 6), normal(3, 2, 1, 1)
    offset, mask = normal(1, 2, 6, 6) * 0.6, RNG.uniform(0, 1, (1, 1, 6, 6)).astype(np.float32)
    rows, columns = np.mgrid[:6, :6]
    moved = sample(
        x,
        columns + offset[:, 1].astype(np.float64),
        rows + offset[:, 0].astype(np.float64),
        "CONSTANT",
    )
    truth = np.einsum("nchw,oc->nohw", moved * mask, w[..., 0, 0])
    dump, feeds, _ = build(
        Case("DeformableConv", [x, Const(w), offset, mask], {"Convolution": {}}, lambda *_: truth)
    )
    model = load(write_v2(dump), tmp_path)
    assert [node.op_type for node in model.graph] == ["DeformConv"]
    result = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)[0]
    np.testing.assert_allclose(result, truth, rtol=1e-3, atol=1e-4)


STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 3, 4
ACTIVATIONS = {"IDENTITY": np.copy, "RELU": lambda v: np.maximum(v, 0), "TANH": np.tanh}


def network(kind: str, layers: int, directions: int, biased: bool, word: str = "TANH"):  # type: ignore[no-untyped-def]
    """Return flat weights and the function of a recurrent network in numpy."""
    gates, width, parts, weights = (4 if kind == "LSTM" else 1), WIDTH, [], []
    for _ in range(layers * directions):
        rows = gates * HIDDEN
        slices = [normal(rows, width), normal(rows, HIDDEN)]
        slices += [normal(rows), normal(rows)] if biased else []
        parts += [p.ravel() for p in slices]
        weights.append((slices[0], slices[1], sum(slices[2:]) if biased else np.zeros(rows)))
        if len(weights) % directions == 0:
            width = directions * HIDDEN

    def truth(x, *states):  # type: ignore[no-untyped-def]
        ends = []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                state = tuple(s[number].astype(np.float64) for s in states[:-1])
                order = range(len(x))[:: -1 if direction else 1]
                ys = [None] * len(x)
                for t in order:
                    if kind == "LSTM":
                        state = lstm_step(x[t], state, *weights[number])
                    else:
                        state = (rnn_step(x[t], *state, *weights[number], ACTIVATIONS[word]),)
                    ys[t] = state[0]
                outputs.append(np.stack(ys))
                ends.append(state)
            x = np.concatenate(outputs, -1)
        return (x, *(np.stack(end) for end in zip(*ends, strict=True)), None)

    return np.concatenate(parts), truth


@pytest.mark.parametrize(
    ("layers", "directions", "biased"), [(1, 1, True), (2, 1, False), (2, 2, True)]
)
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_recurrent(kind: str, layers: int, directions: int, biased: bool, tmp_path: Path) -> None:
    flat, truth = network(kind, layers, directions, biased)
    states = [normal(layers * directions, BATCH, HIDDEN) for _ in range(2 if kind == "LSTM" else 1)]
    params: dict[str, object] = {
        "num_layers": layers,
        "bidirectional": directions == 2,
        "bias": biased,
    }
    params["hidden_size"] = HIDDEN
    if kind == "RNN":
        params["nonline_mode"] = "TANH"
    inputs = [normal(STEPS, BATCH, WIDTH), *states, Const(flat)]
    check(Case(kind, inputs, {kind: params}, truth, tolerance=1e-4), tmp_path)


@pytest.mark.parametrize("word", sorted(ACTIVATIONS))
def test_rnn_activation(word: str, tmp_path: Path) -> None:
    flat, truth = network("RNN", 1, 1, True, word)
    params = {"hidden_size": HIDDEN, "nonline_mode": word}
    inputs = [normal(STEPS, BATCH, WIDTH), normal(1, BATCH, HIDDEN), Const(flat)]
    check(Case("RNN", inputs, {"RNN": params}, truth, tolerance=1e-4), tmp_path)


@pytest.mark.parametrize("word", sorted(ACTIVATIONS))
def test_rnn_cell(word: str, tmp_path: Path) -> None:
    def truth(x, w_ih, b_ih, h, w_hh, b_hh):  # type: ignore[no-untyped-def]
        return rnn_step(x, h, w_ih, w_hh, b_ih + b_hh, ACTIVATIONS[word])

    inputs = [
        normal(2, 3),
        Const(normal(4, 3)),
        Const(normal(1, 4)),
        normal(2, 4),
        Const(normal(4, 4)),
    ]
    case = Case(
        "RNNCell", [*inputs, Const(normal(1, 4))], {"RNNCell": {"nonline_mode": word}}, truth
    )
    check(case, tmp_path)


def test_lstm_cell(tmp_path: Path) -> None:
    def truth(x, w_ih, b_ih, h, w_hh, b_hh, c):  # type: ignore[no-untyped-def]
        gates = x @ w_ih.T + h @ w_hh.T + b_ih + b_hh
        return (*lstm_step(x, (h, c), w_ih, w_hh, b_ih + b_hh), gates)

    inputs = [normal(2, 3), Const(normal(16, 3)), Const(normal(1, 16)), normal(2, 4)]
    inputs += [Const(normal(16, 4)), Const(normal(1, 16)), normal(2, 4)]
    check(Case("LSTMCell", inputs, {"Empty": {}}, truth), tmp_path)


def test_every_operator_is_tested() -> None:
    tables = [convolutions.CONVOLUTIONS, layers.NORMS, data.SEARCHES, data.SHAPES, data.CREATION]
    tables += [indexing.INDEXING, multi_type.SCALAR]
    tabled = {case.kind for table in tables for case in table}
    modules = (convolutions, layers, data, multi_type, sys.modules[__name__])
    text = "".join(Path(module.__file__ or "").read_text() for module in modules)
    missing = {kind for kind in RULES if kind not in tabled and f'"{kind}"' not in text}
    assert not missing


def test_every_operator_has_a_type_id() -> None:
    assert set(RULES) <= set(KINDS)
