from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from networks import content, conv_net
from onnx.reference import ReferenceEvaluator

import atc
from atc.cli.main import main
from atc.errors import ModelError, OptionError, VerificationError
from atc.options.table import OPTIONS, options_of
from atc.options.values import required_path

SIGNATURE = inspect.signature(atc.compile)


def test_the_keywords_are_the_options() -> None:
    assert set(SIGNATURE.parameters) == {
        name for name, s in options_of("compile").items()
        if s.role not in ("help", "ignored", "train")
    }


def test_keywords_have_the_defaults_and_the_types_of_their_options() -> None:
    for name, parameter in SIGNATURE.parameters.items():
        setting = OPTIONS[name]
        assert parameter.annotation is not inspect.Parameter.empty, name
        if setting.parse is required_path:
            assert parameter.default is inspect.Parameter.empty, name
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name
        else:
            assert parameter.default == setting.default, name
            assert type(parameter.default) is type(setting.default), name
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name


def test_a_model_compiles_and_runs(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "x.onnx", batch="n")
    done = atc.compile(
        model, tmp_path / "out/x", input_shape={"x": (2, 3, 8, 8)}, target="c99",
        op_compiler_cache_mode="enable", op_compiler_cache_dir=tmp_path / "cache", num_threads=1,
        fast_run=True,
    )  # fmt: skip
    assert done.folder == tmp_path / "out/x"
    assert done.library == tmp_path / "out/x/libx.so"
    assert done.library.is_file()
    assert done.cache.stored == done.build.compiled > 0
    assert done.report["memory"]["arena_bytes"] == done.arena.plan.size
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})
    np.testing.assert_allclose(atc.load(done.folder)(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("form", ["proto", "bytes", "program"])
def test_a_model_in_memory_compiles_to_the_same_bytes(form: str, tmp_path: Path) -> None:
    model = onnx.load(conv_net(tmp_path / "net.onnx"))
    given = {
        "proto": model, "bytes": model.SerializeToString(),
        "program": SimpleNamespace(model_proto=model),
    }[form]  # fmt: skip
    of_file = atc.compile(tmp_path / "net.onnx", tmp_path / "a/net", target="c99")
    of_model = atc.compile(given, tmp_path / "b/net", target="c99")
    made = content(of_file.folder)
    changed = {name for name, data in content(of_model.folder).items() if data != made[name]}
    assert changed <= {"net.report.json"}


def test_what_cannot_be_serialized_says_what_to_do(tmp_path: Path) -> None:
    class Large:
        def SerializeToString(self, deterministic: bool) -> bytes:
            raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

    with pytest.raises(OptionError, match=r"of 2GB .*hint: save .* save_as_external_data=True"):
        atc.compile(Large(), tmp_path / "out")
    with pytest.raises(ModelError, match="E10041"):
        atc.compile(b"no model", tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_python_and_command_line_make_the_same_bytes(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "net.onnx", batch="n")
    atc.compile(
        str(model), tmp_path / "a/net", input_shape="x:1,3,8,8", out_nodes=["y", "c1"],
        target="c99", disable_reuse_memory=True, external_weight=2,
        op_compiler_cache_mode="disable",  # the report says what it found
    )  # fmt: skip
    arguments = ["--input_shape=x:1,3,8,8", "--out_nodes=y;c1", "--soc_version=c99",
                 "--disable_reuse_memory", "--external_weight", "2",
                 "--op_compiler_cache_mode=disable"]  # fmt: skip
    assert main([f"--model={model}", f"--output={tmp_path / 'b/net'}", *arguments]) == 0
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.slow
def test_a_network_compiled_again_is_the_new_one(tmp_path: Path) -> None:
    x = np.ones((1, 3, 8, 8), np.float32)
    results = []
    for seed in (0, 1):
        model = conv_net(tmp_path / "net.onnx", seed)
        done = atc.compile(model, tmp_path / "net", target="c99")
        results.append(atc.load(done.folder)(x))
    assert not np.array_equal(*results)


def test_wrong_keywords_are_the_command_lines_errors(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "net.onnx")
    with pytest.raises(OptionError, match="E10013"):
        atc.compile(model, tmp_path / "net", op_debug_level=7)
    assert issubclass(OptionError, atc.AtcError)
    with pytest.raises(OptionError, match=r"E10002.*--input_shape"):
        atc.compile(model, tmp_path / "net", input_shape="x")
    with pytest.raises(TypeError):
        atc.compile(model, tmp_path / "net", no_such_option=1)  # type: ignore[call-arg]
    assert not (tmp_path / "net").exists()


@pytest.mark.slow
def test_warnings_are_logged_and_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "net.onnx")
    with caplog.at_level(logging.DEBUG, "atc"):
        done = atc.compile(model, tmp_path / "net", target="c99", num_threads=2, hooks=True)
        assert len(done.warnings) == 1
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        caplog.clear()
        atc.compile(model, tmp_path / "net", target="c99", log="debug", display_model_info=True)
    text = caplog.text
    assert "fuse_epilogue" in text
    assert "compiling C" in text
    assert "lower bound" in text
    assert capsys.readouterr() == ("", "")


def test_verify_raises_where_the_outputs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = conv_net(tmp_path / "net.onnx")
    atc.compile(model, tmp_path / "net", target="c99", verify=True)
    monkeypatch.setattr(
        "atc.accuracy.compare.run_reference", lambda *a: ("zeros", [np.zeros((1, 4), np.float32)])
    )
    with pytest.raises(VerificationError, match="output 'y' differs from zeros"):
        atc.compile(model, tmp_path / "net", target="c99", verify=True)


@pytest.mark.slow
def test_importing_atc_is_cheap_and_its_functions_stay_functions() -> None:
    code = (
        "import sys, atc; assert not {'numpy', 'onnx', 'onnx_ir'} & set(sys.modules); "
        "assert 'compile' in dir(atc); import atc.compile; from atc.entry import compile; "
        "from atc.runtime.load import load; assert atc.compile is compile and atc.load is load"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
