"""Several shapes in one library, as Ascend's ATC lists them (rows A-10, A-11, A-12)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from networks import conv_net, save
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import atc
from atc.dims import Named, Sum
from atc.errors import OptionError
from atc.options.options import make_options
from atc.options.shape_profiles import fallback_of, shape_profiles_of
from atc.options.table import read_values


def shape_profiles(**given: object) -> list[object]:
    values = {"model": "net.onnx", "output": "out", **given}
    return [
        dict(o.input_shape) for o in shape_profiles_of(make_options(read_values(values, "compile")))
    ]


def test_what_the_lists_stand_for() -> None:
    assert shape_profiles(input_shape="x:1,3,8,8") == []
    assert shape_profiles(input_shape="x:-1,3;y:-1;z:4", dynamic_batch_size="1,8") == [
        {"x": (1, 3), "y": (1,), "z": (4,)}, {"x": (8, 3), "y": (8,), "z": (4,)}
    ]  # fmt: skip
    assert shape_profiles(input_shape="x:1,3,-1,-1", dynamic_image_size="8,9;16,4") == [
        {"x": (1, 3, 8, 9)}, {"x": (1, 3, 16, 4)}
    ]  # fmt: skip
    given = {"x": (-1, 3), "y": (2, -1)}
    assert shape_profiles(input_shape=given, dynamic_dims=[(1, 2), (3, 4)]) == [
        {"x": (1, 3), "y": (2, 2)}, {"x": (3, 3), "y": (2, 4)}
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["dynamic_batch_size", "dynamic_dims"])
def test_one_shape_is_enough_beside_a_range(option: str) -> None:
    assert shape_profiles(input_shape="x:1~4,3", **{option: "2"}) == [{"x": (2, 3)}]


def test_an_empty_profile_and_extents_with_names() -> None:
    total = Sum((("s", 1), ("p", 1)))
    given = "ids:1,s=-1;past:p=-1,4;mask:1,s+p"
    assert shape_profiles(input_shape=given, dynamic_dims="5,0;1,8") == [
        {"ids": (1, Named("s", s)), "past": (Named("p", p), 4), "mask": (1, total)}
        for s, p in ((5, 0), (1, 8))
    ]
    with pytest.raises(OptionError, match="not sizes"):
        shape_profiles(input_shape="x:-1,3", dynamic_batch_size="0,1")


def test_lists_beside_ranges_say_which_shapes_are_fast() -> None:
    values = {"model": "net.onnx", "output": "out", "input_shape": "x:1~8,3,8~64,8~64"}
    given = read_values({**values, "dynamic_dims": "1,8,8;8,64,32"}, "compile")
    options = make_options(given)
    shapes = [dict(o.input_shape) for o in shape_profiles_of(options)]
    assert shapes == [{"x": (1, 3, 8, 8)}, {"x": (8, 3, 64, 32)}]
    general = fallback_of(options)
    assert general is not None
    assert general.input_shape == options.input_shape
    assert not general.dynamic_dims
    assert fallback_of(make_options(read_values(values, "compile"))) is None


BATCH, IMAGE, DIMS = "dynamic_batch_size", "dynamic_image_size", "dynamic_dims"


@pytest.mark.parametrize(
    ("shape", "lists", "code"),
    [
        ("x:-1,3", {BATCH: "1,2", DIMS: "1;2"}, "E10009"),
        ("x:1,3", {BATCH: "1,2"}, "E10012"),
        ("", {BATCH: "1,2"}, "E10012"),
        ("x:1,-1", {BATCH: "1,2"}, "E10018"),
        ("x:-1,-1", {BATCH: "1,2"}, "E10031"),
        ("x:1,3,8,8", {IMAGE: "8,8;9,9"}, "E10019"),
        ("x:-1,3,-1,8", {IMAGE: "8,8;9,9"}, "E10020"),
        ("x:-1,-1", {IMAGE: "8,8;9,9"}, "E10020"),
        ("x:1,3", {DIMS: "1;2"}, "E10040"),
        ("x:-1,3", {BATCH: "1"}, "E10035"),
        ("x:-1,3", {DIMS: ";".join(map(str, range(1, 103)))}, "E10036"),
        ("x:-1,-1", {DIMS: "1,2;3"}, "E10037"),
        ("x:-1,3", {BATCH: "1,2,1"}, "E10039"),
        ("x:-1,-1", {DIMS: "1;2"}, "E10045"),
        ("x:-1,3", {DIMS: "1,2;3,4"}, "E10046"),
        ("x:-1,3", {BATCH: "1,0"}, "E10014"),
        ("x:-1,3", {BATCH: "1,-1"}, "E10014"),
        ("x:1,3,-1,-1", {IMAGE: "1;2"}, "E10014"),
        ("x:-1,3", {DIMS: "1;b"}, "E10014"),
        ("x:-1,3", {BATCH: "1,2", "profile": "1"}, "E10047"),
        ("x:1~4,3", {BATCH: "1,5"}, "E10014"),
        ("x:1~4,-1", {DIMS: "1,5;2,6"}, "E10002"),
        ("x:1~4,3~6", {BATCH: "1,2"}, "E10031"),
    ],
)
def test_wrong_lists(shape: str, lists: dict[str, str], code: str) -> None:
    with pytest.raises(OptionError) as caught:
        shape_profiles(input_shape=shape, **lists)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("shape", "lists", "message"),
    [
        ("x:1~8,3,8~64,8", {IMAGE: "8,8"}, "a range is at axes 0, 2 of 'x'"),
        ("x:1~8,3~4", {BATCH: "1,2"}, "a range is at axes 0, 1 of 'x'"),
        ("x:1~8,3~4", {DIMS: "1;2"}, "'1' has 1 values, --input_shape has 2 ranges"),
        ("x:-1,-1", {DIMS: "1;2"}, "'1' has 1 values, --input_shape has 2 times -1"),
    ],
)
def test_ranges_are_called_ranges(shape: str, lists: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        shape_profiles(input_shape=shape, **lists)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    conv_net(folder / "net.onnx", batch="n")
    atc.compile(
        folder / "net.onnx", folder / "net", input_shape="x:-1,3,8,8", dynamic_batch_size="1,2,5",
        target="c99",
    )  # fmt: skip
    return folder


@pytest.mark.slow
def test_a_batch_of_each_size(folder: Path) -> None:
    network = atc.load(folder / "net")
    reference = ReferenceEvaluator(str(folder / "net.onnx"))
    assert str(network.inputs[0]) == "x: float32 [1~5, 3, 8, 8]"
    for batch in (2, 5, 1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(network(x), want, atol=1e-5)
    for wrong in (3, 4):
        with pytest.raises(ValueError, match="out of its range"):
            network(np.zeros((wrong, 3, 8, 8), np.float32))


@pytest.mark.slow
def test_profiles_and_all_other_shapes_of_a_range(folder: Path) -> None:
    atc.compile(
        folder / "net.onnx", folder / "both", input_shape="x:1~5,3,8,8",
        dynamic_batch_size="1,4", target="c99",
    )  # fmt: skip
    network = atc.load(folder / "both")
    reference = ReferenceEvaluator(str(folder / "net.onnx"))
    assert str(network.inputs[0]) == "x: float32 [1~5, 3, 8, 8]"
    sizes = []
    library = network._library
    assert library is not None
    for batch in (1, 2, 4, 5, 3, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(network(x), want, atol=1e-5)
        shape = library.ffi.new("int64_t[]", [batch, 3, 8, 8])
        pointers = library.ffi.new("int64_t *[]", [shape])
        sizes.append(library.function("arena_size_for")(pointers))
    assert sizes[0] < sizes[1] < sizes[4] < sizes[3] <= library.function("arena_size")()
    with pytest.raises(ValueError, match="must have a shape in"):
        network(np.zeros((6, 3, 8, 8), np.float32))
    shape_profile = (folder / "net" / "net_weights.bin").read_bytes()
    assert len((folder / "both" / "both_weights.bin").read_bytes()) == len(shape_profile)


def test_profiles_share_the_weights(folder: Path) -> None:
    one = atc.compile(
        folder / "net.onnx", folder / "one", input_shape="x:5,3,8,8", target="c99", verify=False
    )  # fmt: skip
    weights = (folder / "net" / "net_weights.bin").read_bytes()
    assert len(weights) == len(one.emission.weights)


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["8,32", "32,8"])
def test_profiles_share_the_weights_rather_than_save_a_little_time(
    batches: str, tmp_path: Path
) -> None:
    """The fastest kernel of 32 rows packs weights as none of 8 rows can."""
    weights = np.random.default_rng(0).standard_normal((768, 768)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    known = [numpy_helper.from_array(weights, "w")]
    model = save(nodes, {"x": ["n", 768]}, {"y": ["n", 768]}, tmp_path / "m.onnx", known)
    how = {"target": "x86-64-avx512", "machine": "zen4", "verify": False}
    both = atc.compile(
        model, tmp_path / "both", input_shape="x:-1,768", dynamic_batch_size=batches, **how
    )
    size = len(both.emission.weights)
    assert size < 1.5 * weights.nbytes


def test_smaller_profiles_take_less_memory(folder: Path) -> None:
    library = atc.load(folder / "net")._library
    assert library is not None
    sizes = []
    for batch in (1, 2, 5, 3):
        shape = library.ffi.new("int64_t[]", [batch, 3, 8, 8])
        pointers = library.ffi.new("int64_t *[]", [shape])
        sizes.append(library.function("arena_size_for")(pointers))
    assert 0 < sizes[0] < sizes[1] < sizes[2] == library.function("arena_size")()
    assert sizes[3] == 0


def test_image_sizes_and_dims_of_two_inputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GlobalMaxPool", ["x"], ["top"]),
        helper.make_node("Flatten", ["top"], ["row"]),
        helper.make_node("MatMul", ["row", "w"], ["y"]),
    ]
    shapes = {"x": [1, 3, "h", "w"], "w": [3, "k"]}
    model = save(nodes, shapes, {"y": [1, "k"]}, tmp_path / "two.onnx")  # type: ignore[arg-type]
    atc.compile(
        model, tmp_path / "two", input_shape="x:1,3,-1,-1;w:3,-1", dynamic_dims="4,6,2;5,5,1",
        target="c99", verify=True,
    )  # fmt: skip
    network = atc.load(tmp_path / "two")
    for h, w, k in [(4, 6, 2), (5, 5, 1)]:
        x = np.random.default_rng(h).standard_normal((1, 3, h, w)).astype(np.float32)
        m = np.random.default_rng(k).standard_normal((3, k)).astype(np.float32)
        np.testing.assert_allclose(network(x, m), x.max((2, 3)) @ m, atol=1e-5)
    with pytest.raises(ValueError, match="out of its range"):
        network(np.zeros((1, 3, 4, 6), np.float32), np.zeros((3, 1), np.float32))


@pytest.mark.slow
def test_the_command_line(folder: Path) -> None:
    line = [sys.executable, "-P", "-m", "atc", "--model=net.onnx", "--output=sizes", "--target=c99",
            "--input_shape=x:-1,3,8,8", "--dynamic_batch_size=1,3", "--verify"]  # fmt: skip
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "sizes/sizes.report.json").read_text())
    assert report["inputs"]["x"] == "f32[3,3,8,8]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status"),
    [
        (["--input_shape=x:-1,3,8,8", "--dynamic_batch_size=1,3"], 0),
        pytest.param(["--input_shape=x:1~4,3,8,8"], 0, marks=pytest.mark.slow),
        (["--input_shape=x:1~4,3,3~8,8"], 1),  # the model has 8 rows
    ],
)
def test_a_dry_run_of_several_shapes(folder: Path, line: list[str], status: int) -> None:
    command = [sys.executable, "-P", "-m", "atc", "check", "--model=net.onnx", "--target=c99"]
    command += line
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
