"""`atc quantize`: what it writes, what it reports, and how well the compiled result classifies."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from decoders import DECODERS

import atc
from atc.cli.main import main
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.program.steps import calls
from atc.quantize import calibrated, quantize
from atc.quantize.calibration import read_labelled, read_samples
from atc.tools.commands import run_command

pytest.importorskip("onnxruntime")

SAMPLES = Path(__file__).parents[2] / "samples"
sys.path.insert(0, str(SAMPLES))

import compare_precisions  # noqa: E402
import digits  # noqa: E402

TYPES = {"x": ((1, 2), np.dtype("float32"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with calibration images and a labelled set that the training has not seen."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "images").mkdir()
    images, _ = digits.draw_digits(60, seed=21)
    np.save(folder / "images" / "a.npy", images[:40])
    np.savez(folder / "images" / "b.npz", image=images[40:])
    images, labels = digits.draw_digits(200, seed=22)
    np.savez(folder / "test.npz", image=images, digit=labels)
    return folder


def run(data: Path, output: Path, *more: str) -> list[str]:
    return [
        "quantize", f"--model={SAMPLES / 'digits.onnx'}", f"--calibration={data / 'images'}",
        f"--output={output}", *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_compiled_digits_classify_as_well_in_int8(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    assert main(run(data, output, f"--labels={data / 'test.npz'}", "--json")) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["accuracy"]["count"] == 200
    assert reported["accuracy"]["float32"] >= 0.97
    assert reported["accuracy"]["int8"] >= reported["accuracy"]["float32"] - 0.02
    assert reported["samples"] == 60
    layers = {layer["node"]: layer for layer in reported["layers"]}
    assert {"conv1", "conv2", "dense"} <= layers.keys()
    assert all(layers[n]["quantised"] for n in ("conv1", "conv2", "dense"))
    assert all(20 < layers[n]["sqnr_db"] < 70 for n in ("conv1", "conv2", "dense"))
    kinds = {t.data_type for t in onnx.load(output).graph.initializer if len(t.dims) > 1}
    assert kinds == {onnx.TensorProto.INT8}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("method", quantize.METHODS)
def test_nodes_stay_in_float_on_request(
    method: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    more = (f"--method={method}", "--keep_float=dense", "--keep_worst=1", "--per_channel=0")
    assert main(run(data, output, *more, "--activations=int8")) == 0
    text = capsys.readouterr().out
    assert text.startswith("node ")  # nothing of onnxruntime's own
    (line,) = re.findall("kept in float: (.*)", text)
    kept = re.findall("'(.*?)'", line)
    assert (kept[0], len(kept)) == ("dense", 2)
    graph = onnx.load(output).graph
    float_weights = {t.name for t in graph.initializer
                     if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1}  # fmt: skip
    assert "dense.weight" in float_weights
    assert f"({method}, per tensor)" in text
    assert [row.split()[2] for row in text.splitlines() if row.startswith("dense ")] == ["float"]


def test_sqnr_is_what_its_definition_says(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    output = tmp_path / "int8.onnx"
    assert main(run(data, output, "--json")) == 0
    layer = json.loads(capsys.readouterr().out)["layers"][-1]
    assert layer["value"] == "scores"
    images = digits.draw_digits(60, seed=21)[0]
    options = onnxruntime.SessionOptions()  # without the integer kernels' own roundings
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = [
        onnxruntime.InferenceSession(model, options)
        for model in (SAMPLES / "digits.onnx", output)
    ]
    wide, narrow = (
        np.concatenate([session.run(["scores"], {"image": image[None]})[0] for image in images])
        for session in sessions
    )
    noise = ((wide.astype(np.float64) - narrow) ** 2).sum()
    assert layer["sqnr_db"] == pytest.approx(
        10 * np.log10((wide.astype(np.float64) ** 2).sum() / noise), abs=1e-3
    )


def test_constants_may_be_listed_among_the_inputs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = onnx.load(SAMPLES / "digits.onnx")
    old.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in old.graph.initializer
    )
    onnx.save(old, tmp_path / "old.onnx")
    given = [*run(data, tmp_path / "int8.onnx"), f"--model={tmp_path / 'old.onnx'}"]
    assert main([word for word in given if "samples/digits" not in word]) == 0
    assert "'conv1'" in capsys.readouterr().out
    assert [v.name for v in onnx.load(tmp_path / "int8.onnx").graph.input] == ["image"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--keep_float=nobody",), "no node is called 'nobody'"),
        (("--calibration=nowhere.npy",), "nowhere.npy"),
        (("--labels=nowhere.npz",), "nowhere.npz"),
        (("--percentile=101",), "101 is more than 100"),
        (("--method=mean",), "invalid value 'mean'"),
    ],
)
def test_what_is_wrong_is_reported_in_a_line(
    more: tuple[str, ...], words: str, data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = {word.partition("=")[0]: word for word in run(data, tmp_path / "y.onnx")}
    given |= {word.partition("=")[0]: word for word in more}
    assert main([*given.values()]) == 1
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_without_onnxruntime_the_extra_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    assert main(run(data, tmp_path / "y.onnx")) == 1
    assert "pip install 'atc[quantize]'" in capsys.readouterr().err


# ------------------------------------------------------------------------------ calibration data


@pytest.mark.parametrize(
    ("shape", "count"), [((1, 2), 1), ((3, 2), 3), ((3, 1, 2), 3), ((0, 2), None), ((2,), None)]
)
def test_an_array_holds_one_input_or_many(
    shape: tuple[int, ...], count: int | None, tmp_path: Path
) -> None:
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.save(tmp_path / "x.npy", values)
    if count is None:
        with pytest.raises(OptionError):
            read_samples(tmp_path / "x.npy", TYPES)
        return
    samples = read_samples(tmp_path / "x.npy", TYPES)
    assert len(samples) == count
    assert all((s["x"].shape, s["x"].dtype) == TYPES["x"] for s in samples)
    np.testing.assert_array_equal(np.stack([s["x"] for s in samples]).ravel(), values.ravel())


def test_labels_may_be_those_of_the_calibration_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([4, 5]))
    samples = [{"x": np.zeros((1, 2), np.float32)}] * 2
    assert read_labelled(tmp_path / "y.npy", TYPES, samples).labels == (4, 5)
    with pytest.raises(OptionError, match="the labels are 2 of int64, there are 1 inputs"):
        read_labelled(tmp_path / "y.npy", TYPES, samples[:1])


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(OptionError, match="can't be read"):
        read_samples(tmp_path / "x.npy", TYPES)


@pytest.mark.slow
def test_every_precision_reads_the_digits(tmp_path: Path) -> None:
    found = compare_precisions.compare(300, tmp_path)
    assert found.keys() == compare_precisions.PRECISIONS.keys()
    assert all(right >= 0.97 for right in found.values())
    report = json.loads((tmp_path / "int8" / "int8.report.json").read_text())
    kernels = {n["op"]: n["operands"][0] for n in report["nodes"]}
    assert kernels["MatMul"].startswith("u8")
    assert {e["why"] for e in report["in_float"] if e["op"] == "Map"} <= {
        "an input of the network is float", "what reads it computes in float",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("method=percentile", "names no inputs"),
        ("calibration=x.npy\nbatch=4", "unknown setting 'batch=4'.*line 2.*names are"),
        ("calibration=x.npy\n\npercentile=101", "percentile: 101 is more than 100.*line 3"),
    ],
)
def test_a_wrong_calibration_file_is_named_with_its_line(
    text: str, reported: str, tmp_path: Path
) -> None:
    file = tmp_path / "calibration.conf"
    file.write_text(text)
    with pytest.raises(OptionError) as caught:
        calibrated.read_calibration(file)
    assert re.search(reported, str(caught.value))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "decibels"),
    [((), 18), (("--symmetric=0", "--block=16"), 20)],
)
def test_weights_of_four_bits(
    options: tuple[str, ...], decibels: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = DECODERS["genai_llama"]()
    onnx.save(decoder.model, tmp_path / "m.onnx")
    arguments = [f"--model={tmp_path / 'm.onnx'}", f"--output={tmp_path / 'q.onnx'}"]
    assert main(["quantize", *arguments, "--weights=int4", "--json", *options]) == 0
    reported = json.loads(capsys.readouterr().out)
    made = onnx.load(tmp_path / "q.onnx")
    products = [n for n in made.graph.node if n.op_type == "MatMulNBits"]
    assert len(products) == len(reported["products"]) == 6
    assert all(len(n.input) == (4 if "--symmetric=0" in options else 3) for n in products)
    assert not any(n.op_type == "MatMul" for n in made.graph.node)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    for scales in (constants[n.input[2]] for n in products):
        assert np.array_equal(scales.astype(np.float16), scales)
    sessions = [onnxruntime.InferenceSession(str(tmp_path / f)) for f in ("m.onnx", "q.onnx")]
    feeds = next(decoder.calls(lambda f: sessions[0].run(None, dict(f)), 5))[0]
    assert all(decibels < p["sqnr_db"] < 30 for p in reported["products"])
    narrow = sessions[1].run(None, dict(feeds))[0]
    shapes = decoder.shapes.replace("1~2", "1")
    atc.compile(tmp_path / "q.onnx", tmp_path / "net", input_shape=shapes, target="c99")
    with atc.load(tmp_path / "net") as net:
        got = net.run(dict(feeds))["logits"]
    np.testing.assert_allclose(got, narrow, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_decoder_becomes_one_of_four_bits_with_states(tmp_path: Path) -> None:
    decoder = DECODERS["genai_llama"]()
    onnx.save(decoder.model, tmp_path / "m.onnx")
    (tmp_path / "cal.txt").write_text("weights=int4\nsymmetric=0\n")
    done = atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", cal_conf=tmp_path / "cal.txt", state="auto",
        input_shape=decoder.shapes.replace("1~2", "1"), target="c99",
    )  # fmt: skip
    assert len(done.program.states) == 2
    packed = [c for c in calls(done.program.steps) if "packed" in c.candidate]
    shapes = {i.name: [*i.dims] for i in decoder.model.graph.initializer}
    weights = [n.input[1] for n in decoder.model.graph.node if n.op_type == "MatMul"]
    columns = [shapes[name][1] for name in weights if name in shapes]
    assert len(columns) == 6
    assert sum(c.node.op.n for c in packed) == sum(columns)  # some of them in one product


def test_weights_of_four_bits_need_no_inputs(tmp_path: Path) -> None:
    model = SAMPLES / "digits.onnx"
    for more, said in (
        (["--weights=int4", f"--calibration={tmp_path}"], "--calibration and --weights=int4"),
        (["--weights=int4", "--block=24"], "24 is not a power of two"),
        ([], "no inputs are given to calibrate with"),
    ):
        arguments = [f"--model={model}", f"--output={tmp_path / 'q.onnx'}", *more]
        with pytest.raises(OptionError) as caught:
            run_command("quantize", arguments, Diagnostics())
        assert said in str(caught.value)
        assert not (tmp_path / "q.onnx").exists()
