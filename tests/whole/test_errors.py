"""What a user gets for a wrong model or output: one line with code, place and reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import content, conv_net, save
from onnx import helper, numpy_helper

from atc import errors
from atc.build import objects
from atc.cli.main import main
from atc.errors import AtcError, OptionError, one_line, reason_of, way_out
from atc.pipeline import planning, writing

Make = Callable[[Path], object]


def relu(path: Path, **changes: object) -> Path:
    """Write a model of one node `act`: x [2] -> y [2]."""
    values: dict[str, object] = {"op_type": "Relu", "inputs": ["x"], "domain": "", **changes}
    node = helper.make_node(
        str(values["op_type"]), list(values["inputs"]), ["y"], "act",  # type: ignore[call-overload]
        domain=str(values["domain"]),
    )  # fmt: skip
    domains = (str(values["domain"]),) if values["domain"] else ()
    return save([node], {"x": [2]}, {"y": [2]}, path, domains=domains)


def text_file(path: Path) -> None:
    path.write_text("this is no model\nreally not\n" * 20)


def truncated(path: Path) -> None:
    data = conv_net(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def open_dimension(path: Path) -> None:
    conv_net(path, batch="batch")


def unknown_operator(path: Path) -> None:
    relu(path, op_type="FrobnicateTensor")


def unknown_domain(path: Path) -> None:
    relu(path, op_type="Special", domain="com.example.custom")


def missing_value(path: Path) -> None:
    relu(path, inputs=["nobody"])


def shapes_that_do_not_fit(path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((3, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    save([node], {"x": [1, 2]}, {"y": [1, 4]}, path, [weight])


def missing_data(path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((2,), np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"], "sum")
    save([node], {"x": [2]}, {"y": [2]}, path, [weight])
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    path.write_bytes(model.SerializeToString())


def outside_data(path: Path) -> None:
    missing_data(path)
    path.write_bytes(path.read_bytes().replace(b"gone.bin", b"../a.bin"))


def complex_numbers(path: Path) -> None:
    save([helper.make_node("Identity", ["x"], ["y"], "same")], {"x": [2]}, {"y": [2]}, path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.COMPLEX64
    path.write_bytes(model.SerializeToString())


def folder(path: Path) -> None:
    path.mkdir()


MODELS: dict[str, tuple[Make, str, tuple[str, ...]]] = {
    "missing file": (lambda path: None, "E10041", ("No such file",)),
    "folder": (folder, "E10041", ("directory",)),
    "empty file": (lambda path: path.write_bytes(b""), "E10041", ("no graph",)),
    "text file": (text_file, "E10041", ("not a readable ONNX model",)),
    "truncated protobuf": (truncated, "E10041", ("not a readable ONNX model",)),
    "unknown operator": (unknown_operator, "E10055", ("FrobnicateTensor", "'act'")),
    "unknown domain": (unknown_domain, "E10055", ("com.example.custom", "Special", "'act'")),
    "open dimension": (open_dimension, "E10055", ("'x'", "'batch'", "--input_shape=")),
    "missing value": (missing_value, "E10041", ("'nobody'", "'act'")),
    "wrong shapes": (shapes_that_do_not_fit, "E10041", ("'product'", "MatMul")),
    "missing data": (missing_data, "E10041", ("gone.bin", "'w'")),
    "data elsewhere": (outside_data, "E10041", ("../a.bin", "outside", "'w'")),
    "unsupported type": (complex_numbers, "E10055", ("'x'", "COMPLEX64")),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_bad_model_is_one_line_and_leaves_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, code, words = MODELS[case]
    model = tmp_path / "given.onnx"
    make(model)
    before = sorted(os.listdir(tmp_path))
    assert main([f"--model={model}", f"--output={tmp_path / 'out/net'}", "--target=c99"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"{code}: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    for word in ("given.onnx", *words):
        assert word in err
    assert out.splitlines()[-1].startswith("ATC run failed")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.9, 0.99])
def test_no_truncation_is_a_mistake_of_the_compiler(
    share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "cut.onnx")
    data = model.read_bytes()
    model.write_bytes(data[: int(share * len(data))])
    assert main([f"--model={model}", f"--output={tmp_path / 'net'}", "--target=c99"]) == 1
    assert "cut.onnx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "code"),
    [("z:1,3,8,8", "E10017"), ("x:1,3,8", "E10049"), ("x:1,4,8,8", "E10050"), ("x:1", "E10049"),
     ("x:-5,3,8,8", "E10011"), ("x:-1,3,8,8", "E10002"), ("x:4~1,3,8,8", "E10011"),
     ("x:b+1,3,8,8", "E10002"), ("x:1,0,8,8", "E10050"),
     ("x", "E10002")],
)  # fmt: skip
def test_a_wrong_input_shape(
    shape: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "net.onnx", batch="n")
    arguments = [f"--model={model}", f"--output={tmp_path / 'out'}", f"--input_shape={shape}"]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"{code}: ")
    assert err.count("\n") == 1


# ------------------------------------------------------------------------------------ the output


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that nothing is compiled: what can't be written is reported before the work."""
    monkeypatch.setattr(writing, "build_library", lambda *a, **k: pytest.fail("compiled"))


@pytest.mark.parametrize("output", ["file", "file/net", "link", "model.onnx"])
@pytest.mark.usefixtures("no_compiler")
def test_a_file_in_the_place_of_the_output(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "model.onnx")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("nowhere")
    before = content(tmp_path)
    assert main([f"--model={model}", f"--output={tmp_path / output}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("E10001: ")
    assert "is a file [--output]" in err
    assert err.count("\n") == 1
    assert content(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.usefixtures("no_compiler")
def test_an_output_folder_without_permission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "model.onnx")
    (tmp_path / "closed").mkdir(mode=0o555)
    assert main([f"--model={model}", f"--output={tmp_path / 'closed/net'}"]) == 1
    assert "permission denied [--output]" in capsys.readouterr().err


def test_foreign_files_in_the_output_folder_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "model.onnx")
    foreign = tmp_path / "out/src/out.c"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    assert main([f"--model={model}", f"--output={tmp_path / 'out'}", "--target=c99"]) == 1
    assert "was not written by atc" in capsys.readouterr().err
    assert content(tmp_path / "out") == {"src/out.c": b"precious"}


@pytest.mark.parametrize("option", ["dump", "debug_dir"])
@pytest.mark.usefixtures("no_compiler")
def test_other_folders_are_checked_too(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "model.onnx")
    arguments = [f"--model={model}", f"--output={tmp_path / 'net'}", "--op_debug_level=1"]
    assert main([*arguments, f"--{option}={model}"]) == 1
    assert f"is a file [--{option}]" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ the classes


def classes() -> Iterator[type[AtcError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, AtcError):
            yield value


@pytest.mark.parametrize("kind", [*classes()])
def test_every_kind_has_a_code_and_a_status(kind: type[AtcError]) -> None:
    assert kind.code.startswith("E1")
    assert len(kind.code) == 6
    assert 1 <= kind.exit_status < 126
    assert str(kind("wrong", where="file", hint="mend it")) == (
        f"{kind.code}: wrong [file] (hint: mend it)"
    )


def test_an_error_is_always_one_printable_line() -> None:
    error = OptionError("a\nb\x1b[2J", where="c\td", hint="e\u2028f", code="E10002")
    assert str(error) == r"E10002: a\nb\x1b[2J [c\td] (hint: e\u2028f)"
    assert one_line("x" * 5000).endswith("...")
    assert len(one_line("x" * 5000)) == 2000


NAMING = {
    "--op_debug_config": ["--model={net}", "--output={out}", "--op_debug_config={folder}"],
    "--keep_dtype": ["--model={net}", "--output={out}", "--keep_dtype={folder}",
                     "--precision_mode=force_fp16"],
    "--fast_run_algo_policy": ["--model={net}", "--output={out}",
                               "--fast_run_algo_policy={folder}"],
    "--c_opr_lib": ["--model={net}", "--output={out}", "--c_opr_lib={folder}"],
    "--input": ["diff", "--model={net}", "--input={folder}/none.npy"],
    "none.npz": ["verify", "--model={net}", "--input={folder}/none.npz"],
    "--flagfile": ["load_and_run", "{net}", "--flagfile={folder}"],
    "--profile": ["report", "{folder}", "--profile={folder}"],
    "not a report": ["explain", "{report}", "node"],
    "sound": ["quantize", "--model={net}", "--calibration={folder}/sound.npz",
              "--output={out}.onnx"],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMING)
def test_what_the_system_refuses_is_reported_in_words(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders, and files that aren't there: even root meets them."""
    folder, report = tmp_path / "folder", tmp_path / "report"
    folder.mkdir()
    (report / "net.report.json").mkdir(parents=True)
    net = conv_net(tmp_path / "net.onnx")
    places = {"net": net, "out": tmp_path / "out", "folder": folder, "report": report}
    assert main([word.format(**places) for word in NAMING[name]]) == 1
    err = capsys.readouterr().err
    assert name in err
    assert "Errno" not in err
    assert err.count("\n") == 1
    assert any(text in err.lower() for text in ("is a directory", "no such file", "no library"))


def test_a_configuration_file_that_cannot_be_read_is_reported_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATC_CONFIG", str(tmp_path))
    assert main(["--model=x", "--output=y"]) == 1
    err = capsys.readouterr().err
    assert f"can't be read: is a directory: {tmp_path} [ATC_CONFIG]" in err


def test_an_error_of_the_system_anywhere_is_no_mistake_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object, **keywords: object) -> None:
        raise PermissionError(13, "Permission denied", "/closed/x")

    monkeypatch.setattr(planning, "plan_memory", refused)
    net = conv_net(tmp_path / "net.onnx")
    assert main([f"--model={net}", f"--output={tmp_path / 'out'}", "--target=c99"]) == 1
    assert capsys.readouterr().err == (
        "E10001: permission denied: /closed/x "
        "(hint: change the permissions, or name another place)\n"
    )


def test_reasons_are_words() -> None:
    assert reason_of(FileNotFoundError(2, "No such file or directory", "a/b")) == (
        "no such file or directory: a/b"
    )
    assert reason_of(FileNotFoundError(2, "No such file or directory", "a/b"), Path("a/b")) == (
        "no such file or directory"
    )
    assert reason_of(OSError("of our own")) == "of our own"
    assert reason_of(ValueError("a value")) == "a value"
    assert "free some room" in way_out(OSError(28, "No space left on device"))
    assert way_out(ValueError("a value")) == way_out(OSError("of our own")) == ""


def test_no_room_to_build_in_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(objects, "write_files", full)
    net = conv_net(tmp_path / "net.onnx")
    assert main([f"--model={net}", f"--output={tmp_path / 'out'}", "--target=c99"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("E19010: can't work in /")
    assert err.endswith(
        ": No space left on device (hint: set TMPDIR, or --build_dir, to a free folder)\n"
    )
