"""Importing MXNet models: files, inputs, names, errors, real exports and damaged ones."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from importers.make_mxnet_dumps import CASES
from importers.mxnet_files import (
    assert_close,
    node,
    params,
    run,
    run_model,
    symbol,
    variable,
    write,
)

from atc.errors import AtcError, ModelError, OptionError, UnsupportedError
from atc.importers.mxnet import is_mxnet, load_mxnet
from atc.importers.mxnet.load import newest_params

STORED = Path(__file__).parents[2] / "../shared/models/mxnet"
NAMES = ("lenet", "mobilenetv2", "squeezenet")

F4 = np.float32


def dense(label: bool = False) -> tuple[Any, dict[str, Any]]:
    """Return a dense layer (with a softmax on a label) and its parameters."""
    nodes = [variable("data"), variable("fc_weight"), variable("fc_bias"),
             node("FullyConnected", "fc", [(0, 0), (1, 0), (2, 0)], num_hidden=2)]  # fmt: skip
    if label:
        nodes += [variable("softmax_label"),
                  node("SoftmaxOutput", "softmax", [(3, 0), (4, 0)])]  # fmt: skip
    weights = {"arg:fc_weight": np.asarray([[1, 2], [3, 4]], F4), "arg:fc_bias": np.ones(2, F4)}
    return symbol(nodes, [(len(nodes) - 1, 0)]), weights


X = np.asarray([[1, -1], [2, 0.5]], F4)


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "found"),
    [(b'{\n  "nodes": [', True), (b'\xef\xbb\xbf {"heads": [[1', True), (b"{}", False),
     (b"\x08\x09\x12\x07pytorch", False), (b"", False), (b"mgb0001", False),
     (b'{"model": "nodes"}', False)],
)  # fmt: skip
def test_content_detection(head: bytes, found: bool) -> None:
    assert is_mxnet(head) is found


def test_highest_epoch_is_taken(tmp_path: Path) -> None:
    for name in ("net-0000.params", "net-0012.params", "net-0003.params", "other-0099.params"):
        (tmp_path / name).touch()
    assert newest_params(tmp_path / "net-symbol.json") == tmp_path / "net-0012.params"


def test_weights_by_name(tmp_path: Path) -> None:
    root, weights = dense()
    path, file = write(tmp_path, root), tmp_path / "any.bin"
    file.write_bytes(params(weights))
    assert_close(run(path, {"data": X}, weights=file)[0], X @ [[1, 3], [2, 4]] + 1)


def test_no_weights_beside_the_symbol(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="net-0000.params") as caught:
        load_mxnet(write(tmp_path, dense()[0]), None, {"data": (1, 2)})
    assert caught.value.code == "E10008"


def test_symbol_without_weights_needs_no_file(tmp_path: Path) -> None:
    path = write(tmp_path, symbol([variable("x"), node("relu", "y", [(0, 0)])], [(1, 0)]))
    assert_close(run(path, {"x": X})[0], X.clip(0))


def test_a_weight_is_missing(tmp_path: Path) -> None:
    root, weights = dense()
    del weights["arg:fc_bias"]
    with pytest.raises(ModelError, match="fc_bias") as caught:
        load_mxnet(write(tmp_path, root, weights), None, {"data": (1, 2)})
    assert caught.value.code == "E10008"
    assert "net-0000.params" in str(caught.value)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-symbol.json"):
        load_mxnet(tmp_path / "no-symbol.json", None, {})


# ---- inputs and outputs ------------------------------------------------------------------------


def test_label_is_no_input(tmp_path: Path) -> None:
    root, weights = dense(label=True)
    model = load_mxnet(write(tmp_path, root, weights), None, {"data": (2, 2)})
    assert [v.name for v in model.graph.inputs] == ["data"]
    assert [v.name for v in model.graph.outputs] == ["softmax_output"]


def test_unknown_shape_asks_for_the_option(tmp_path: Path) -> None:
    root, weights = dense()
    with pytest.raises(ModelError, match="'data'.*--input_shape"):
        load_mxnet(write(tmp_path, root, weights), None, {})


def test_shape_from_the_symbol(tmp_path: Path) -> None:
    root, weights = dense()
    root["nodes"][0]["attrs"] = {"__shape__": "(2, 2)"}
    model = load_mxnet(write(tmp_path, root, weights), None, {})
    assert model.graph.inputs[0].shape == onnx_ir.Shape((2, 2))


@pytest.mark.parametrize("shapes", [{"date": (1, 2)}, {"data": (0, 2)}, {"data": (-1, 2)}])
def test_wrong_input_shape(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    root, weights = dense()
    with pytest.raises(OptionError, match="dat"):
        load_mxnet(write(tmp_path, root, weights), None, shapes)


@pytest.mark.parametrize(("flag", "kind"), [("0", "float32"), ("4", "int32"), ("2", "float16")])
def test_annotated_input_type(tmp_path: Path, flag: str, kind: str) -> None:
    nodes = [variable("x", __dtype__=flag), node("Flatten", "y", [(0, 0)])]
    model = load_mxnet(write(tmp_path, symbol(nodes, [(1, 0)])), None, {"x": (2, 3)})
    assert model.graph.inputs[0].dtype == onnx_ir.DataType.from_numpy(np.dtype(kind))


def test_input_takes_the_type_of_the_weights(tmp_path: Path) -> None:
    root, weights = dense()
    half = {k: v.astype(np.float16) for k, v in weights.items()}
    model = load_mxnet(write(tmp_path, root, half), None, {"data": (2, 2)})
    assert model.graph.inputs[0].dtype == onnx_ir.DataType.FLOAT16
    assert model.graph.outputs[0].dtype == onnx_ir.DataType.FLOAT16


def test_nodes_keep_their_names(tmp_path: Path) -> None:
    root, weights = dense(label=True)
    model = load_mxnet(write(tmp_path, root, weights), None, {"data": (2, 2)})
    assert [n.name for n in model.graph] == ["fc", "softmax"]
    assert set(model.graph.initializers) == {"fc_weight", "fc_bias"}


def test_names_that_repeat_or_are_odd(tmp_path: Path) -> None:
    nodes = [variable("x"), node("exp", "a", [(0, 0)]), node("relu", "a", [(1, 0)]),
             node("tanh", "x", [(2, 0)]), node("abs", "\x00\n\ud800 ü", [(3, 0)]),
             variable("x"), node("elemwise_add", "", [(4, 0), (5, 0)])]  # fmt: skip
    path = write(tmp_path, symbol(nodes, [(6, 0), (6, 0), (0, 0), (4, 0)]))
    sums, again, same, last = run(path, {"x": X})
    assert_close(sums, np.tanh(np.exp(X)) + X)
    assert_close(again, sums)
    assert_close(same, X)
    assert_close(last, np.tanh(np.exp(X)))


def test_constants_may_be_outputs(tmp_path: Path) -> None:
    nodes = [variable("x"), node("shape_array", "s", [(0, 0)]), node("_ones", "o", [], shape=3)]
    shape, ones = run(write(tmp_path, symbol(nodes, [(1, 0), (2, 0)])), {"x": X})
    assert shape.tolist() == [2, 2]
    assert ones.tolist() == [1, 1, 1]


def test_start_state_of_unknown_batch(tmp_path: Path) -> None:
    """Gluon writes the batch of a start state as 0, to be found from the data."""
    hidden, inputs = 2, 3
    blob = np.linspace(-1, 1, 4 * hidden * (inputs + hidden + 2)).astype(F4)
    nodes = [variable("x"), variable("p"), node("_zeros", "h", [], shape=(1, 0, hidden)),
             node("_zeros", "c", [], shape=(1, 0, hidden)),
             node("RNN", "r", [(0, 0), (1, 0), (2, 0), (3, 0)], mode="lstm", num_layers=1,
                  state_size=hidden)]  # fmt: skip
    path = write(tmp_path, symbol(nodes, [(4, 0)]), {"arg:p": blob})
    x = np.ones((4, 5, inputs), F4)
    (y,) = run(path, {"x": x})
    assert y.shape == (4, 5, hidden)
    assert_close(y[:, 0], y[:, 4])


def test_parameters_of_an_rnn_are_cut_when_importing(tmp_path: Path) -> None:
    weights = {f"arg:p{i}": np.full(shape, i, F4) for i, shape in
               enumerate([(8, 3), (8, 2), (8,), (8,)])}  # fmt: skip
    nodes = [variable("x")]
    for i in range(4):
        nodes += [variable(f"p{i}"), node("Reshape", f"r{i}", [(1 + 2 * i, 0)], shape="(-1,)")]
    nodes += [node("_rnn_param_concat", "p", [(2 + 2 * i, 0) for i in range(4)], dim=0, num_args=4),
              node("_zeros", "s", [], shape=(1, 0, 2)),
              node("RNN", "lstm", [(0, 0), (9, 0), (10, 0), (10, 0)], mode="lstm", state_size=2,
                   num_layers=1)]  # fmt: skip
    path = write(tmp_path, symbol(nodes, [(11, 0)]), weights)
    model = load_mxnet(path, None, {"x": (4, 1, 3)})
    assert [n.op_type for n in model.graph] == ["LSTM", "Squeeze"]


def test_file_of_version_0_8(tmp_path: Path) -> None:
    """'param' and 'attr', entries of two numbers, no auxiliary states, keys of the executor."""
    def old(op: str, name: str, inputs: list[list[int]], **param: str) -> dict[str, Any]:
        return {"op": op, "param": param, "name": name, "inputs": inputs,
                "backward_source_id": -1, "attr": {"ctx_group": "dev1"}}  # fmt: skip

    nodes = [old("null", "data", []), old("null", "bn_gamma", []), old("null", "bn_beta", []),
             old("BatchNorm", "bn", [[0, 0], [1, 0], [2, 0]], eps="0.001", momentum="0.9",
                 fix_gamma="False"),
             old("_PlusScalar", "plus", [[3, 0]], scalar="2"),
             old("null", "softmax_label", []),
             old("Softmax", "softmax", [[4, 0], [5, 0]], grad_scale="1")]  # fmt: skip
    root = {"nodes": nodes, "arg_nodes": [0, 1, 2, 5], "heads": [[6, 0]]}
    gamma, beta, mean, variance = (np.asarray(v, F4) for v in ([1, 2], [3, 4], [0, 1], [1, 4]))
    weights = {"arg:bn_gamma": gamma, "arg:bn_beta": beta, "aux:bn_moving_mean": mean,
               "aux:bn_moving_var": variance}  # fmt: skip
    (y,) = run(write(tmp_path, root, weights), {"data": X})
    e = np.exp((X - mean) / np.sqrt(variance + 1e-3) * gamma + beta)
    assert_close(y, e / e.sum(axis=1, keepdims=True))


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attrs", "shape", "says"),
    [
        ("Custom", {"op_type": "mine"}, (1, 2), "Custom"),
        ("Dropout", {"mode": "always"}, (1, 2), "random"),
        ("Pooling", {"kernel": (9, 9)}, (1, 1, 4, 4), "exceeds"),
        ("Pooling", {"kernel": (2, 2), "layout": "CHWN"}, (1, 1, 4, 4), "CHWN"),
        ("Reshape", {"shape": (5, -1)}, (2, 3), "don't fit"),
        ("Reshape", {"shape": (-1, -1)}, (2, 3), "inferred"),
        ("transpose", {"axes": (0, 0)}, (2, 3), "repeats"),
        ("softmax", {"axis": 7}, (2, 3), "axis 7"),
        ("Activation", {}, (2, 3), "act_type"),
        ("Activation", {"act_type": "what"}, (2, 3), "what"),
        ("clip", {"a_min": "x", "a_max": 1}, (2, 3), "a_min"),
        ("slice_axis", {"axis": 0, "begin": 5, "end": 2}, (2, 3), "empty"),
        ("_contrib_MultiBoxPrior", {"sizes": (0.1,) * 3000}, (1, 1, 99, 99), "too many"),
        ("topk", {"k": 9}, (2, 3), "k is 9"),
        ("elemwise_add", {}, (2, 3), "input 1"),
        ("tile", {"reps": (1 << 40,) * 3}, (2, 3), "too large"),
        ("one_hot", {"depth": 1 << 50}, (2, 3), "depth"),
        ("broadcast_to", {"shape": (3, 3)}, (2, 3), "broadcast"),
    ],
)  # fmt: skip
def test_error_names_file_node_and_operator(
    tmp_path: Path, op: str, attrs: dict[str, object], shape: tuple[int, ...], says: str
) -> None:
    path = write(tmp_path, symbol([variable("x"), node(op, "bad", [(0, 0)], **attrs)], [(1, 0)]))
    with pytest.raises((ModelError, UnsupportedError), match=says) as caught:
        load_mxnet(path, None, {"x": shape})
    text = str(caught.value)
    assert "net-symbol.json" in text
    assert "'bad'" in text
    assert op in text
    assert "\n" not in text


def test_output_that_a_node_has_not(tmp_path: Path) -> None:
    path = write(tmp_path, symbol([variable("x"), node("relu", "y", [(0, 0)])], [(1, 3)]))
    with pytest.raises(ModelError, match="output 3"):
        load_mxnet(path, None, {"x": (1, 2)})


def test_constants_are_limited(tmp_path: Path) -> None:
    path = write(tmp_path, symbol([node("_ones", "o", [], shape=(1 << 30, 1 << 30))], [(0, 0)]))
    with pytest.raises(ModelError, match="too large"):
        load_mxnet(path, None, {})


@pytest.mark.slow
def test_all_constants_together_are_limited(tmp_path: Path) -> None:
    nodes = [node("_ones", f"o{i}", [], shape=1 << 22) for i in range(200)]
    path = write(tmp_path, symbol(nodes, [(i, 0) for i in range(200)]))
    with pytest.raises(ModelError, match="too large together"):
        load_mxnet(path, None, {})


# ---- stored models -----------------------------------------------------------------------------


def stored(name: str) -> tuple[Path, dict[str, tuple[int, ...]]]:
    folder = STORED / name
    if not folder.is_dir():
        pytest.skip("the stored MXNet models are not beside the repository")
    meta = json.loads((folder / "meta.json").read_text())
    return folder, {k: tuple(v) for k, v in meta["input_shapes"].items()}


@pytest.mark.parametrize("name", NAMES)
def test_stored_model(name: str) -> None:
    folder, shapes = stored(name)
    model = load_mxnet(folder / "model-symbol.json", None, shapes)
    for case in sorted(folder.glob("case*_in.npz")):
        with np.load(case) as given, np.load(str(case).replace("_in", "_out")) as wanted:
            inputs = {k: given[f"i{i}"] for i, k in enumerate(shapes)}
            for i, y in enumerate(run_model(model, inputs)):
                assert_close(y, wanted[f"o{i}"])


# ---- damaged files -----------------------------------------------------------------------------


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes flipped, cut, replaced by noise or text, or with a number made huge."""
    place = rng.randrange(len(data))
    match rng.randrange(7):
        case 0:
            flips = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                flips[rng.randrange(min(len(data), 4096))] ^= 1 << rng.randrange(8)
            return bytes(flips)
        case 1:
            return data[:place]
        case 2:
            return rng.randbytes(rng.randrange(2000))
        case 3:
            return b"not a model at all\n" * rng.randrange(50)
        case 4:
            return rng.randbytes(4) + data[4:]
        case 5:
            return data[:place] + b"\xff" * rng.choice((1, 4, 8)) + data[place + 8 :]
        case _:
            digits = [i for i, c in enumerate(data[:20000]) if 48 <= c < 58] or [0]
            at = rng.choice(digits)
            number = str(rng.choice((-1, 0, 7, 1 << 31, 10**18)))
            return data[:at] + number.encode() + data[at + 1 :]


def outcome(path: Path, shapes: dict[str, tuple[int, ...]]) -> AtcError | onnx_ir.Model:
    try:
        return load_mxnet(path, None, shapes)
    except AtcError as error:
        return error


def check_damaged(name: str, seed: int, folder: Path) -> None:
    """Damage one of a stored model's files: an AtcError, or a model that onnx accepts."""
    source, shapes = stored(name)
    rng = random.Random(f"{name}{seed}")
    hit = rng.choice(("model-symbol.json", "model-0000.params"))
    for file in ("model-symbol.json", "model-0000.params"):
        data = (source / file).read_bytes()
        target = folder / file
        if file == hit:
            target.write_bytes(damaged(data, rng))
        elif not target.exists():
            target.symlink_to((source / file).resolve())
    result = outcome(folder / "model-symbol.json", shapes)
    if isinstance(result, AtcError):
        assert "\n" not in str(result)
        assert result.code != "E19999"
    else:
        onnx.checker.check_model(onnx_ir.to_proto(result))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    for seed in range(40):
        (tmp_path / str(seed)).mkdir()
        check_damaged(name, seed, tmp_path / str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_files(tmp_path: Path, name: str) -> None:
    for seed in range(250):
        (tmp_path / str(seed)).mkdir()
        check_damaged(name, seed, tmp_path / str(seed))


# ---- real exports ------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all of make_mxnet_dumps.py's cases with the interpreter that MXNET_PYTHON names."""
    python = os.environ.get("MXNET_PYTHON")
    if not python:
        pytest.skip("MXNET_PYTHON names no interpreter with mxnet 1.9.1")
    folder = tmp_path_factory.mktemp("mxnet")
    script = Path(__file__).with_name("make_mxnet_dumps.py")
    subprocess.run([python, str(script), str(folder)], check=False, stdout=sys.stderr)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_real_export(exports: Path, name: str) -> None:
    if not (exports / name / "case.npz").exists():
        pytest.skip("MXNet could not write it, a package may be missing there")
    quantized = name.startswith("quantized_")
    with np.load(exports / name / "case.npz") as data:
        inputs = {k[2:]: data[k] for k in data.files if k.startswith("i:")}
        found = run(exports / name / "model-symbol.json", inputs, optimize=not quantized)
        for i, y in enumerate(found):
            assert y.dtype == data[f"o{i}"].dtype
            # int8 results may differ by a step or two
            assert_close(y, data[f"o{i}"], atol=0.02 if quantized else 1e-4)
