from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
from networks import conv_net
from onnx.reference import ReferenceEvaluator

import atc
from atc.accuracy.compare import (
    Subject,
    Verification,
    run_reference,
    verify_library,
)
from atc.accuracy.compare_text import verification_text
from atc.accuracy.differences import compare
from atc.accuracy.inputs import random_inputs
from atc.api import verify_compilation
from atc.errors import AtcError, OptionError, UnsupportedError, VerificationError


def test_a_small_difference_passes_as_a_part_of_the_largest_magnitude() -> None:
    expected = np.array([100.0, 1e-6, -50.0], np.float32)
    got = expected + np.array([0.005, 0.005, 0.0], np.float32)
    found = compare("y", got, expected, 1e-4)
    assert found.passed
    assert found.max_abs == pytest.approx(0.005, rel=1e-2)
    assert found.max_rel == pytest.approx(5e-5, rel=1e-2)
    assert found.cosine == pytest.approx(1.0)
    assert not compare("y", got, expected, 1e-5).passed


@pytest.mark.parametrize(
    ("got", "expected", "passed"),
    [
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([0, 0], [0, 0], True),
        ([1e-3, 0], [0, 0], False),
        ([np.nan, 1], [np.nan, 1], True),
        ([np.nan, 1], [0, 1], False),
        ([0, 1], [np.nan, 1], False),
        ([np.inf, 1], [np.inf, 1], True),
        ([-np.inf, 1], [np.inf, 1], False),
        ([np.inf, 1], [1, 1], False),
        ([np.nan, np.nan], [np.nan, np.nan], True),
        ([], [], True),
    ],
)
def test_floats(got: list[float], expected: list[float], passed: bool) -> None:
    a, b = np.array(got, np.float32), np.array(expected, np.float32)
    assert compare("y", a, b, 1e-4).passed is passed


@pytest.mark.parametrize(
    ("dtype", "difference", "passed"),
    [("int8", 1, True), ("uint8", 1, True), ("uint8", 2, False), ("int32", 1, False),
     ("int64", 0, True), ("bool", 1, False), ("bool", 0, True)],
)  # fmt: skip
def test_integers(dtype: str, difference: int, passed: bool) -> None:
    expected = np.zeros(3, dtype)
    got = expected.copy()
    got[1] = difference
    assert compare("y", got, expected, 1e-4).passed is passed


def test_large_integers_are_compared_exactly() -> None:
    expected = np.array([2**60], np.int64)
    assert not compare("y", expected + 1, expected, 1e-4).passed


def test_a_rounding_of_half_precision_passes() -> None:
    expected = np.array([1.0, 2.0], np.float16)
    got = np.nextafter(expected, np.float16(10))
    assert compare("y", got, expected, 1e-6).passed


def test_another_shape_or_type_is_reported() -> None:
    found = compare("y", np.zeros((2, 1), np.float32), np.zeros(2, np.float32), 1e-4)
    assert (found.passed, found.type) == (False, "float32 [2, 1], not float32 [2]")
    assert not compare("y", np.zeros(2, np.float32), np.zeros(2), 1e-4).passed


def test_random_inputs_depend_on_the_seed_only() -> None:
    types = {
        "f": ((50,), np.dtype("float32")), "i": ((50,), np.dtype("int64")),
        "b": ((500,), np.dtype("uint8")), "t": ((50,), np.dtype("bool")), "s": ((), np.dtype("f2")),
    }  # fmt: skip
    one, again, other = (random_inputs(types, seed) for seed in (1, 1, 2))
    for name, (shape, dtype) in types.items():
        assert (one[name].shape, one[name].dtype) == (shape, dtype)
        np.testing.assert_array_equal(one[name], again[name])
        assert not np.array_equal(one[name], other[name])
    assert set(one["i"]) == {0, 1}
    assert one["b"].max() > 200


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("verify")
    model = conv_net(folder / "net.onnx")
    return model, atc.compile(model, folder / "net", target="c99").folder


@pytest.mark.slow
def test_the_reference_is_another_programme(compiled: tuple[Path, Path]) -> None:
    pytest.importorskip("onnxruntime")
    model, library = compiled
    result = verify_library(Subject(model), library)
    assert result.reference == "onnxruntime"
    assert result.passed
    result.require()
    x = random_inputs({"x": ((1, 3, 8, 8), np.dtype("float32"))}, 0)
    name, outputs = run_reference(onnx_ir.load(model), ["y", "c1"], x)
    assert name == "onnxruntime"
    expected = ReferenceEvaluator(onnx.load(model)).run(None, x)
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5)
    assert outputs[1].shape == (1, 4, 8, 8)


@pytest.mark.slow
def test_without_onnxruntime_it_is_that_of_onnx(
    compiled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atc.accuracy.compare.find_spec", lambda name: None)
    model, library = compiled
    assert verify_library(Subject(model), library / "libnet.so").reference == "onnx.reference"


def test_what_options_add_to_an_old_model_is_verified_too(tmp_path: Path) -> None:
    """The network takes images, crops and pads them; the model is of opset 9."""
    model = onnx.load(conv_net(tmp_path / "net.onnx"))
    model.opset_import[0].version = 9
    onnx.save(model, tmp_path / "net.onnx")
    conf = tmp_path / "aipp.cfg"
    conf.write_text(
        "aipp_op { aipp_mode: static input_format: RGB888_U8 rbuv_swap_switch: true crop: true "
        "src_image_size_w: 12 src_image_size_h: 10 load_start_pos_h: 2 padding: true "
        "left_padding_size: 1 mean_chn_1: 100 var_reci_chn_2: 0.01 }"
    )
    done = atc.compile(
        tmp_path / "net.onnx", tmp_path / "net", target="c99", insert_op_conf=conf,
        output_type="FP16", precision_mode="force_fp16",
    )  # fmt: skip
    result = verify_compilation(done)
    assert result.passed
    assert [d.type for d in result.differences] == ["float16 [1, 4]"]
    with pytest.raises(AtcError, match="E10050"):
        verify_library(Subject(done.options.model), done.folder)


def test_a_failure_names_output_and_size(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    _, library = compiled
    other = conv_net(tmp_path / "other.onnx", seed=7)
    result = verify_library(Subject(other), library, tolerance=1e-3)
    assert not result.passed
    with pytest.raises(VerificationError, match=r"output 'y' differs .* 0\.001 is allowed; 1 of 1"):
        result.require()
    with pytest.raises(VerificationError, match="rounds, too: atc verify --float64 compares"):
        result.require()
    with pytest.raises(VerificationError, match="rounding adds up in deep networks"):
        replace(result, precision="default").require()
    text = verification_text(result)
    assert "DIFFERS" in text
    assert "0 of 1 outputs agree" in text


def test_inputs_from_a_file(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    model, library = compiled
    good = np.ones((1, 3, 8, 8), np.float32)
    file = tmp_path / "in.npz"
    np.savez(file, x=good, unused=good)
    assert verify_library(Subject(model), library, inputs=file).passed
    several = np.stack([good, 2 * good])
    np.savez(file, x=several)
    names = [d.name for d in verify_library(Subject(model), library, inputs=file).differences]
    assert names == ["y, run 1", "y, run 2"]
    assert len(verify_library(Subject(model), library, inputs=file, runs=1).differences) == 1
    with pytest.raises(OptionError, match="'x' has 2 runs, not 3"):
        verify_library(Subject(model), library, inputs=file, runs=3)
    for arrays, words in (
        ({"z": good}, "has no array 'x'"),
        ({"x": good[0]}, r"'x' is float32 \[3, 8, 8\]"),
        ({"x": good.astype(np.float64)}, "'x' is float64"),
    ):
        np.savez(file, **arrays)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=words):
            verify_library(Subject(model), library, inputs=file)
    file.write_text("no npz")
    with pytest.raises(OptionError, match=r"npz file.*in\.npz"):
        verify_library(Subject(model), library, inputs=file)
    with pytest.raises(OptionError, match="absent"):
        verify_library(Subject(model), library, inputs=tmp_path / "absent")


def test_a_file_may_hold_types_that_numpy_has_not(tmp_path: Path) -> None:
    model, library, file = (tmp_path / name for name in ("int4.onnx", "int4", "in.npz"))
    given = np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT)], "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT4, given.shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, given.shape)],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, ir_version=10), model)
    atc.compile(model, output=library, target="c99")
    np.savez(file, x=given)
    assert verify_library(Subject(model), library, inputs=file).passed


def test_a_library_of_another_model_is_refused(
    compiled: tuple[Path, Path], tmp_path: Path
) -> None:
    model, library = compiled
    with pytest.raises(OptionError, match="the library has 1 outputs, the model 2"):
        verify_library(Subject(model, out_nodes=("y", "c1")), library)
    with pytest.raises(AtcError, match="x"):
        verify_library(Subject(tmp_path / "none.onnx"), library)


def test_a_model_that_no_reference_can_run_is_reported(compiled: tuple[Path, Path]) -> None:
    model, _ = compiled
    with pytest.raises(UnsupportedError, match=r"no reference can run .*onnx\.reference: "):
        run_reference(onnx_ir.load(model), ["y"], {"x": np.zeros((3,), np.float32)})


def test_an_empty_comparison_passes() -> None:
    assert Verification("none", "seed 0", 1e-4, ()).passed
