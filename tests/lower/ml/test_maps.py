"""Maps: dicts in Python, tensors of keys and of values in C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from joined_sources import compile_joined
from onnx import TensorProto, helper

from atc.errors import AtcError
from atc.importers.onnx import load_onnx, pin_inputs
from atc.lower import lower_model
from atc.onnx_backend import compile_networks, get_target
from atc.runtime.network import Network

ML = "ai.onnx.ml"
INT64, STRING, FLOAT = TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT


def map_type(key: int, value: int) -> onnx.TypeProto:
    """Return the type of a map."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = value
    kind.map_type.value_type.tensor_type.shape.SetInParent()
    return kind


def model(op: str, given: onnx.ValueInfoProto, made: onnx.ValueInfoProto, **attributes: Any) -> Any:
    """Return a model of one node."""
    node = helper.make_node(op, [given.name], [made.name], domain=ML, **attributes)
    graph = helper.make_graph([node], "g", [given], [made])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def zip_map(rank: int, key: int, **labels: Any) -> Any:
    """Return ZipMap of three columns."""
    kind = onnx.TypeProto()
    kind.sequence_type.elem_type.CopyFrom(map_type(key, FLOAT))
    x = helper.make_tensor_value_info("x", FLOAT, [2, 3][2 - rank :])
    return model("ZipMap", x, helper.make_value_info("z", kind), **labels)


def cast_map(kind: int, to: str, form: str) -> Any:
    """Return CastMap to five places."""
    codes = {"TO_FLOAT": FLOAT, "TO_INT64": INT64, "TO_STRING": STRING}
    made = helper.make_tensor_value_info("z", codes[to], None)
    given = helper.make_value_info("x", map_type(INT64, kind))
    return model("CastMap", given, made, cast_to=to, map_form=form, max_map=5)


def vectorizer(key: int, **vocabulary: Any) -> Any:
    """Return DictVectorizer."""
    given = helper.make_value_info("x", map_type(key, FLOAT))
    return model("DictVectorizer", given, helper.make_tensor_value_info("z", FLOAT, [1, 3]),
                 **vocabulary)  # fmt: skip


X = np.arange(6, dtype=np.float32).reshape(2, 3)
FLOATS, TEXTS = {3: 2.5, 1: -7.25}, {3: "2.5", 1: "-7"}
CASES: dict[str, tuple[Any, Any]] = {
    "rows": (zip_map(2, INT64, classlabels_int64s=[3, 1, 2]), X),
    "row": (zip_map(1, STRING, classlabels_strings=["b", "", "a"]), X[1]),
    "words": (vectorizer(STRING, string_vocabulary=["a", "b", "c"]), {"b": 2.0, "zz": 7.0}),
    "numbers": (vectorizer(INT64, int64_vocabulary=[5, 2, 9]), {9: 1.5, 5: -1.0}),
    "dense": (cast_map(FLOAT, "TO_FLOAT", "DENSE"), FLOATS),
    "sparse": (cast_map(FLOAT, "TO_FLOAT", "SPARSE"), FLOATS),
    "whole": (cast_map(FLOAT, "TO_INT64", "SPARSE"), FLOATS),
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Network]:
    folder = tmp_path_factory.mktemp("maps")
    graphs = [_lowered(m, x, folder) for m, x in (*CASES.values(), *MORE.values())]
    made = compile_networks(graphs, get_target("c99"), "O0", compile_all=compile_joined)
    return dict(zip([*CASES, *MORE], made, strict=True))


MORE = {
    "texts to numbers": (cast_map(STRING, "TO_FLOAT", "DENSE"), TEXTS),
    "numbers to texts": (cast_map(FLOAT, "TO_STRING", "SPARSE"), FLOATS),
    "texts": (cast_map(STRING, "TO_STRING", "DENSE"), TEXTS),
}


def _lowered(proto: Any, x: Any, folder: Path) -> Any:
    path = folder / "m.onnx"
    onnx.save(proto, path)
    shape = {"x": (len(x),)} if isinstance(x, dict) else {}
    return lower_model(pin_inputs(load_onnx(path), shape, "m.onnx"), "m.onnx")


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, networks: dict[str, Network]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    proto, x = CASES[name]
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    got = networks[name](x)
    if isinstance(expected, list):
        assert got == expected
    else:
        np.testing.assert_array_equal(got, expected, strict=True)


def test_maps_of_texts(networks: dict[str, Network]) -> None:
    assert networks["texts to numbers"](TEXTS).tolist() == [[-7.0, 2.5]]
    assert networks["numbers to texts"](FLOATS).tolist() == [["0", "-7.25", "0", "2.5", "0"]]
    assert networks["texts"](TEXTS).tolist() == [["-7", "2.5"]]


def test_tensors_say_what_they_are(networks: dict[str, Network]) -> None:
    rows, words = networks["rows"], networks["words"]
    assert [str(t) for t in rows.outputs] == ["z_keys: int64 [3]", "z_values: float32 [2, 3]"]
    assert [str(t) for t in words.inputs] == ["x_keys: string [2]", "x_values: float32 [2]"]
    assert [v.name for v in rows.results] == ["z"]
    with pytest.raises(TypeError, match="'x' must be a dict, not list"):
        words([1.0, 2.0])
    with pytest.raises(ValueError, match="'x_keys' must have the shape"):
        words({"a": 1.0})


def test_a_bound_call_returns_the_maps_of_its_run(networks: dict[str, Network]) -> None:
    x = X.copy()
    call = networks["rows"].bind(x)
    assert call()[0] == {3: 0.0, 1: 1.0, 2: 2.0}
    x[0, 0] = 9.0
    assert call()[0] == {3: 9.0, 1: 1.0, 2: 2.0}


@pytest.mark.parametrize(
    ("proto", "shape", "message"),
    [
        (vectorizer(STRING, string_vocabulary=["a"]), {}, "a map of an unknown number of entries"),
        (vectorizer(STRING, string_vocabulary=["a"]), {"x": (2, 3)}, "a number of entries must be"),
        (vectorizer(STRING), {"x": (2,)}, "must be one vocabulary"),
        (zip_map(2, INT64, classlabels_int64s=[1, 2]), {}, "2 labels for f32"),
        (zip_map(2, INT64, classlabels_int64s=[1, 2, 1]), {}, "a label is there twice"),
        (zip_map(2, INT64), {}, "are missing"),
    ],
)
def test_mistakes_are_named(proto: Any, shape: Any, message: str, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(AtcError, match=message):
        lower_model(pin_inputs(load_onnx(tmp_path / "m.onnx"), shape, "m.onnx"), "m.onnx")
