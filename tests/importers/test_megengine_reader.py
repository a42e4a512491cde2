"""Containers, names and errors of MegEngine dumps."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import load, run
from importers.megengine_writer import Dump, Op, Tensor, write_v1, write_v2

from atc.errors import AtcError, ModelError, OptionError, UnsupportedError
from atc.importers.megengine import is_megengine, load_megengine
from atc.importers.megengine.typeid import KINDS, kind_of_id, normalized, type_id, xxh64
from atc.importers.megengine.types import DType

ONES = np.ones((2, 3), np.float32)


def small() -> Dump:
    """Return a dump of relu(x + c)."""
    dump = Dump()
    x = dump.input("x", (2, 3))
    total = dump.op(
        "Elemwise", [x, dump.constant(ONES, name="c")], {"Elemwise": {"mode": "ADD"}}, name="sum"
    )
    dump.output(dump.op("Elemwise", total, {"Elemwise": {}}, name="out")[0], "y")
    return dump


FEED = {"x": np.array([[-5, 1, 2], [0, -1, -0.5]], np.float32)}
RESULT = np.maximum(FEED["x"] + 1, 0)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (write_v2(small()), True),
        (write_v1(small()), True),
        (write_v1(small(), b"MGBS"), True),
        (b"mgbtest0" + bytes(20), True),
        (b"mgb0001\0" + bytes(20), True),
        (b"\x08\x07\x12\x07pytorch" + bytes(20), False),
        (b'{"nodes": []}', False),
        (b"", False),
    ],
)
def test_a_dump_is_recognized_by_its_first_bytes(data: bytes, wanted: bool) -> None:
    assert is_megengine(data[:16]) is wanted


@pytest.mark.parametrize("make", [write_v2, write_v1, lambda d: write_v1(d, b"MGBS")])
def test_every_container_gives_the_same_model(make, tmp_path: Path) -> None:
    np.testing.assert_array_equal(run(load(make(small()), tmp_path), FEED)[0], RESULT)


def test_operators_are_found_by_id_where_names_are_missing(tmp_path: Path) -> None:
    data = write_v2(replace(small(), typed=False))
    np.testing.assert_array_equal(run(load(data, tmp_path), FEED)[0], RESULT)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_of_known_texts(text: bytes, wanted: int) -> None:
    assert xxh64(text, 0) == wanted


@pytest.mark.parametrize(
    ("name", "terminated", "wanted"),
    [
        ("Host2DeviceCopy", True, 0x21D09889FD709229),
        ("Host2DeviceCopy", False, 0x9F9DB55D661D5F11),
        ("ConvolutionV2", True, 0x0589235F97273D9F),
        ("Convolution", False, 0x0DF58829A4C725CD),
        ("Convolution3DBackwardData", False, 0x3C5CD24381018CAE),
        ("MultipleDeviceTensorHolder", True, 0x13267EDDD4493D87),
        ("IndexingMultiAxisVec", False, 0xE7FCDD9C15385967),
    ],
)
def test_type_ids_are_those_of_real_files(name: str, terminated: bool, wanted: int) -> None:
    assert type_id(name, terminated=terminated) == wanted
    assert kind_of_id(wanted, "file") == normalized(name)


def test_versions_and_forward_are_dropped_from_types() -> None:
    names = {
        "PoolingV1": "Pooling",
        "ConvBiasForward": "ConvBias",
        "LSTMForward": "LSTM",
        "Convolution3D": "Convolution3D",
    }
    assert {name: normalized(name) for name in names} == names
    assert len(set(KINDS)) == len(KINDS)


def test_names_of_the_dump_stay(tmp_path: Path) -> None:
    graph = load(write_v2(small()), tmp_path).graph
    assert [value.name for value in graph.inputs] == ["x"]
    assert [value.name for value in graph.outputs] == ["y"]
    assert [node.name for node in graph] == ["sum", "y"]
    assert list(graph.initializers) == ["c"]


def test_equal_and_unprintable_names_are_distinguished(tmp_path: Path) -> None:
    dump = Dump()
    x = dump.input("x", (2, 3))
    first = dump.op("Elemwise", [x], {"Elemwise": {"mode": "EXP"}}, name="a\nb")
    second = dump.op("Elemwise", first, {"Elemwise": {"mode": "SIN"}}, name="a\nb")
    dump.output(dump.op("Elemwise", [*first, *second], {"Elemwise": {"mode": "ADD"}})[0], "y")
    names = [node.name for node in load(write_v2(dump), tmp_path).graph]
    assert names == ["a_b", "a_b.1", "y"]


def test_without_names_outputs_are_numbered(tmp_path: Path) -> None:
    dump = small()
    dump.names.clear()
    model = load(write_v2(dump), tmp_path)
    assert [value.name for value in model.graph.outputs] == ["unnamed0"]
    np.testing.assert_array_equal(run(model, FEED)[0], RESULT)


def test_inputs_constants_and_repeats_may_be_outputs(tmp_path: Path) -> None:
    dump = small()
    dump.outputs = [3, 0, 1, 3]
    results = run(load(write_v2(dump), tmp_path), FEED)
    for result, truth in zip(results, (RESULT, FEED["x"], ONES, RESULT), strict=True):
        np.testing.assert_array_equal(result, truth)


def test_aliases_replace_the_outputs(tmp_path: Path) -> None:
    dump = small()
    dump.output(2, "other")
    dump.aliases = [(2, "renamed")]
    model = load(write_v2(dump), tmp_path)
    assert [value.name for value in model.graph.outputs] == ["renamed"]
    np.testing.assert_array_equal(run(model, FEED)[0], FEED["x"] + 1)


def test_an_alias_of_no_output_is_an_error(tmp_path: Path) -> None:
    dump = small()
    dump.aliases = [(2, "renamed")]
    with pytest.raises(ModelError, match="renamed"):
        load(write_v2(dump), tmp_path)


def test_only_the_first_of_several_models_is_read(tmp_path: Path) -> None:
    data = write_v2(small())
    np.testing.assert_array_equal(run(load(data + data, tmp_path), FEED)[0], RESULT)


@pytest.mark.parametrize("make", [write_v2, write_v1])
def test_test_cases_are_dropped(make, tmp_path: Path) -> None:
    dump = Dump()
    expected, x = dump.input("prob:expect", (2, 3)), dump.input("x", (2, 3))
    y = dump.op("Elemwise", [x], {"Elemwise": {"mode": "EXP"}}, name="exp")[0]
    error = dump.op("Elemwise", [expected, y], {"Elemwise": {"mode": "SUB"}})[0]
    dump.output(dump.op("AssertEqual", [expected, y, error], {"AssertEqual": {}})[0], "assert")
    data = b"mgbtest0" + struct.pack("<I", 1) + make(dump)
    model = load(data, tmp_path)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == ["prob"]
    np.testing.assert_allclose(run(model, FEED)[0], np.exp(FEED["x"]), rtol=1e-6)


@pytest.mark.parametrize("kind", ["SharedDeviceTensor", "MultipleDeviceTensorHolder"])
@pytest.mark.parametrize("make", [write_v2, write_v1])
def test_shared_parameters_are_constants(make, kind: str, tmp_path: Path) -> None:
    dump = Dump()
    x = dump.input("x", (2, 3))
    tensor = Tensor(DType("Float32"), (2, 3), ONES.tobytes(), "weight")
    count = 1 if kind == "SharedDeviceTensor" else 2
    weights = dump.op(kind, [], {}, [tensor] * count, outputs=count)
    dump.output(dump.op("Elemwise", [x, weights[-1]], {"Elemwise": {"mode": "ADD"}})[0], "y")
    np.testing.assert_array_equal(run(load(make(dump), tmp_path), FEED)[0], FEED["x"] + 1)


def test_batch_norm_reads_its_last_output_in_the_old_format(tmp_path: Path) -> None:
    """The old format numbers an operator's outputs by a table, BatchNorm's y is its fourth."""
    dump = Dump()
    x = dump.input("x", (1, 2, 3, 3))
    ones = [dump.constant(np.ones((1, 2, 1, 1), np.float32)) for _ in range(4)]
    params = {"BN": {"param_dim": "DIM_1C11", "fwd_mode": "INFERENCE", "epsilon": 1e-9}}
    y = dump.op("BatchNorm", [x, *ones], params, outputs=4)[3]
    dump.output(dump.op("Elemwise", [y], {"Elemwise": {}})[0], "y")
    feeds = {"x": np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)}
    np.testing.assert_allclose(run(load(write_v1(dump), tmp_path), feeds)[0], feeds["x"], atol=1e-5)


def test_input_shapes_replace_those_of_the_dump(tmp_path: Path) -> None:
    dump = Dump()
    x = dump.input("x", (2, 3))
    shape = dump.op("GetVarShape", [x], {"OptionalAxisV1": {}})[0]
    first = dump.op(
        "Subtensor",
        [shape, dump.constant(np.array([0], np.int32))],
        {"IndexDescMaskDump": {"items": [(0, 0, 0, 0, 1)]}},
    )[0]
    rest = dump.constant(np.array([-1], np.int32))
    target = dump.op("Concat", [first, rest], {"Axis": {}})[0]
    dump.output(dump.op("Reshape", [x, target], {"OptionalAxisV1": {"axis": 1}})[0], "y")
    model = load(write_v2(dump), tmp_path, {"x": (4, 6)})
    assert list(model.graph.outputs[0].shape or ()) == [4, 6]


@pytest.mark.parametrize("shapes", [{"y": (2, 3)}, {"x": (2, 3, 4)}])
def test_input_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"input_shape.*net\.mge"):
        load(write_v2(small()), tmp_path, shapes)


def test_an_output_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    dump = Dump()
    x, shape = dump.input("x", (2, 3)), dump.input("shape", (2,), DType("Int32"))
    taken = dump.op("CondTake", [shape, shape], {"CondTake": {}}, outputs=2)[0]
    dump.output(dump.op("Reshape", [x, taken], {"OptionalAxisV1": {}})[0], "y")
    with pytest.raises(UnsupportedError, match="rank of an output depends on data.*output y"):
        load(write_v2(dump), tmp_path)


def with_op(op: Op) -> Dump:
    dump = small()
    dump.ops[-1] = op
    return dump


ADD = (("Elemwise", {"mode": "ADD"}),)
BROKEN = {
    "unknown operator": (
        with_op(Op("Frobnicate", (2,), (3,))),
        "operator Frobnicate is not covered.*node",
    ),
    "refused operator": (with_op(Op("MatrixInverse", (2,), (3,))), "MatrixInverse is not covered"),
    "unknown mode": (
        with_op(Op("Elemwise", (2,), (3,), (("Elemwise", {"mode": 999}),))),
        "mode = 999.*Elemwise",
    ),
    "no parameters": (
        with_op(Op("Elemwise", (2,), (3,))),
        "expected the parameters Elemwise, found none",
    ),
    "other parameters": (with_op(Op("Elemwise", (2,), (3,), (("Axis", {}),))), "found Axis"),
    "too few inputs": (
        with_op(Op("Elemwise", (2,), (3,), ADD)),
        "mode ADD takes 2 inputs, found 1",
    ),
    "too many inputs": (
        with_op(Op("PowC", (2, 1), (3,), (("PowC", {}),))),
        "2 inputs do not fit operator PowC",
    ),
    "future variable": (with_op(Op("Elemwise", (2, 7), (3,), ADD)), "variable 7 is read before"),
    "no such output": (
        with_op(Op("Elemwise", (2, 1), (9,), ADD)),
        "variable 3 is read before.*output y",
    ),
    "twice computed": (with_op(Op("Elemwise", (2, 1), (2,), ADD)), "variable 2 is computed twice"),
    "mixed types": (with_op(Op("Elemwise", (2, 4), (3,), ADD)), "variable 4"),
    "wrong size": (
        with_op(Op("ImmutableTensor", (), (3,), (), (Tensor(DType("Float32"), (2, 3), b"abc"),))),
        "needs 24 bytes, has 3",
    ),
    "huge tensor": (
        with_op(
            Op(
                "ImmutableTensor",
                (),
                (3,),
                (),
                (Tensor(DType("Float32"), (2**31, 2**31), b"abcd"),),
            )
        ),
        "has 4",
    ),
    "rank 8": (
        with_op(
            Op("ImmutableTensor", (), (3,), (), (Tensor(DType("Float32"), (1,) * 8, bytes(4)),))
        ),
        "rank 8",
    ),
    "no data": (
        with_op(Op("ImmutableTensor", (), (3,), (), (Tensor(DType("Float32"), (2,)),))),
        "no data",
    ),
    "packed type": (
        with_op(
            Op(
                "ImmutableTensor",
                (),
                (3,),
                (),
                (Tensor(DType("QuantizedS4", 0.1), (2,), bytes(1)),),
            )
        ),
        "QuantizedS4",
    ),
    "zero scale": (
        with_op(Op("TypeCvt", (2,), (3,), (("DType", {"dtype": DType("QuantizedS8", 0.0)}),))),
        "has the scale 0",
    ),
    "newer model": (replace(small(), model_version=3), "model version 3"),
    "no output": (replace(small(), outputs=[]), "no outputs"),
}


@pytest.mark.parametrize("label", sorted(BROKEN))
def test_a_wrong_dump_gives_one_line(label: str, tmp_path: Path) -> None:
    dump, message = BROKEN[label]
    with pytest.raises(AtcError, match=message) as caught:
        load(write_v2(dump), tmp_path)
    assert "net.mge" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_type_id_is_named(tmp_path: Path) -> None:
    dump = replace(with_op(Op("Frobnicate", (2,), (3,))), typed=False)
    for data in (write_v2(dump), write_v1(dump)):
        with pytest.raises(UnsupportedError, match=r"type id [0-9a-f]{16}.*net\.mge"):
            load(data, tmp_path)


GOOD = write_v2(small())
DAMAGED = {
    "empty": b"",
    "text": b"this is no network at all\n" * 9,
    "zeros": bytes(400),
    "half": GOOD[: len(GOOD) // 2],
    "one byte short": GOOD[:-1],
    "header only": GOOD[:12],
    "size prefix": b"\xff\xff\xff\x7f" + GOOD[4:],
    "root offset": GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:],
    "old": b"mgb0001\0" + bytes(99),
    "test cases only": b"mgbtest0" + struct.pack("<I", 1),
    "v1 half": write_v1(small())[:80],
    "v1 header": write_v1(small())[:20],
    "v1 area": write_v1(small())[:16] + b"\xff" * 8 + write_v1(small())[24:],
    "v1 identifier": write_v1(small()).replace(b"mgb1", b"mgb9"),
}


@pytest.mark.parametrize("label", sorted(DAMAGED))
def test_a_damaged_file_gives_one_line(label: str, tmp_path: Path) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=r"net\.mge") as caught:
        load(DAMAGED[label], tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the model.*gone\.mge"):
        load_megengine(tmp_path / "gone.mge", {})


@pytest.mark.parametrize("turn", [False, True])
def test_mistakes_of_the_dumper_are_warned_of(turn: bool, tmp_path: Path) -> None:
    """clip(x, -1, 2) written as min(max(x, -1), -1), and sign(x) as (x < 0) - (0 < x)."""
    dump = Dump()
    x = dump.input("x", (2, 3))
    bound = dump.constant(np.array([0 if turn else -1], np.float32))
    words = [("LT", [x, bound]), ("LT", [bound, x])] if turn else [("MAX", [x, bound])]
    found = [dump.op("Elemwise", ins, {"Elemwise": {"mode": word}})[0] for word, ins in words]
    last = ("SUB", found) if turn else ("MIN", [bound, *found])
    dump.output(dump.op("Elemwise", last[1], {"Elemwise": {"mode": last[0]}}, name="f")[0], "f")
    model = load(write_v2(dump), tmp_path)
    truth = -np.sign(FEED["x"]) if turn else np.full((2, 3), -1)
    np.testing.assert_array_equal(run(model, FEED)[0], truth)
    assert model.metadata_props["atc.warnings"].startswith(
        "f is the negative" if turn else "f clips"
    )


def test_a_real_clip_gives_no_warning(tmp_path: Path) -> None:
    dump = Dump()
    x = dump.input("x", (2, 3))
    low, high = (dump.constant(np.array([n], np.float32)) for n in (-1, 2))
    most = dump.op("Elemwise", [x, low], {"Elemwise": {"mode": "MAX"}})
    dump.output(dump.op("Elemwise", [*most, high], {"Elemwise": {"mode": "MIN"}})[0], "y")
    assert "atc.warnings" not in load(write_v2(dump), tmp_path).metadata_props
