"""Command lines as MegEngine's documentation has them, the grammar of options, exit statuses."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from atc.errors import OptionError
from atc.load_and_run import fitting
from atc.load_and_run.arguments import read_arguments
from atc.load_and_run.statistics import statistics
from atc.options.table import LOAD_AND_RUN

EXAMPLES = """
MODEL
MODEL --iter 20 --warmup-iter 3
MODEL --iter=5 --thread 2
MODEL --input "data:{1,1,28,28}"
MODEL --input "data:PICTURE;bias:[0.0,1,2,3,4,5,6,7,8,9]"
MODEL --input "INPUTS.json"
MODEL --input "data:PICTURE" --batch-size 2
MODEL --fast-run --fast-run-algo-policy POLICY
MODEL --fast-run-algo-policy POLICY
MODEL --reproducible --binary-equal-between-batch
MODEL --io-dump FOLDER/values.txt --iter 1
MODEL --io-dump-stdout --iter 1
MODEL --bin-io-dump FOLDER --iter 1
MODEL --bin-out-dump FOLDER
MODEL --copy-to-host
MODEL --layout-transform cpu --layout-transform-dump FOLDER/lenet.graph
MODEL --enable-fuse-conv-bias-nonlinearity --enable-fuse-conv-bias-with-z
MODEL --enable-fuse-preprocess --weight-preprocess
MODEL --const --record-comp-seq
MODEL --const-shape --record-comp-seq2 --no-sanity-check
MODEL --fake-first
MODEL --disable_mem_opt
MODEL --workspace_limit 1000000
MODEL --enable_jit
MODEL --cpu --multithread 2 --multi-thread-core-ids CORE,CORE
MODEL --multithread-default 2
MODEL --cpu-default
MODEL --check-dispatch
MODEL --range 1000
MODEL --check-var-value 1:0 --iter 12
MODEL --profile FOLDER/profile.json --iter 3
MODEL --profile-host FOLDER/host.json
MODEL --model-info --verbose
MODEL --get-static-mem-info FOLDER
MODEL --disable-assert-throw
""".strip().splitlines()


def test_the_help_shows_the_defaults_of_this_tool(run: Any) -> None:
    found = " ".join(run("--help", "op_compiler_cache_mode").out.split())
    assert "enable (default): use stored ones" in found
    assert found.count("(default)") == 1


@pytest.mark.few(3)
@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(
    run: Any, model: Path, library: Path, picture: Path, tmp_path: Path, line: str
) -> None:
    """Those that compile something special run on the model, the others on the library."""
    (tmp_path / "inputs.json").write_text(json.dumps(
        {"data": {"shape": [1, 1, 28, 28], "type": "float32", "raw": [0.5] * 784}}
    ))  # fmt: skip
    special = re.search(r"batch|fast-run|layout|fuse|const|disable_mem|workspace|jit", line)
    policy = model.with_name("examples.policy")
    if "--fast-run-algo-policy" in line and "--fast-run " not in line and not policy.exists():
        policy.write_text("# atc algo policy 1: digest | nanoseconds | candidate | workload\n")
    places = {
        "MODEL": model if special else library, "PICTURE": picture, "FOLDER": tmp_path,
        "INPUTS.json": tmp_path / "inputs.json", "POLICY": policy,
        "CORE": min(os.sched_getaffinity(0)),
    }  # fmt: skip
    for word, place in places.items():
        line = line.replace(word, str(place))
    words = [*shlex.split(line), *(["--target=c99"] if special else [])]
    found = run(*words)
    assert re.search(r"=== finished test #0: time=", found.out, re.M)
    assert re.search(r"^=== total time: ", found.out, re.M)


MGE = Path(__file__).parents[3] / "shared" / "models" / "mge" / "lenet"


@pytest.mark.skipif(not MGE.is_dir(), reason="the MegEngine LeNet isn't there")
def test_a_lenet_that_megengine_dumped(run: Any, tmp_path: Path) -> None:
    from atc.load_and_run.binary_dump import read_dump

    with np.load(MGE / "case0_in.npz") as inputs, np.load(MGE / "case0_out.npz") as outputs:
        (given,), (wanted,) = inputs.values(), outputs.values()
    np.save(tmp_path / "x.npy", given)
    words = (f"--input=data0:{tmp_path}/x.npy", f"--bin-out-dump={tmp_path}", "--target=c99")
    run(MGE / "model.mge", *words, "--iter=1", "--warmup-iter=0")
    (file,) = tmp_path.glob("run0-var*")
    np.testing.assert_allclose(read_dump(file).array, wanted, atol=1e-5)


# ---- grammar ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--warmup-iter=3"], "warmup_iter", 3), (["--warmup_iter", "3"], "warmup_iter", 3),
        (["--io-dump-stdout"], "io_dump_stdout", True), (["--nojson"], "json", False),
        (["--enable-jit=false"], "enable_jit", False), (["--noenable-jit"], "enable_jit", False),
        (["--no-sanity-check"], "no_sanity_check", True),
        (["--nono-sanity-check"], "no_sanity_check", False),
        (["--const"], "const_shape", True), (["--iter=1", "--iter=2"], "iter", 2),
        (["--fromenv=iter"], "iter", 7), (["--check-var-value=3:1"], "check_var_value", (3, 1)),
    ],
)  # fmt: skip
def test_spellings(words: list[str], name: str, value: object) -> None:
    assert read_arguments(["x", *words], {"FLAGS_iter": "7"})[name] == value


def test_a_file_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "flags"
    path.write_text("# runs\n--iter=4 --warmup_iter=2\n")
    arguments = read_arguments([f"--flagfile={path}", "x"], {})
    assert (arguments["iter"], arguments["warmup_iter"]) == (4, 2)
    path.write_text(f"--flagfile={path}\n")
    with pytest.raises(OptionError, match="from within itself"):
        read_arguments([f"--flagfile={path}", "x"], {})


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no model or library"), (["x", "--itr=1"], "did you mean --iter"),
        (["x", "--iter=many"], "not a whole number"), (["x", "y"], "'y' is not an option"),
        (["x", "--fromenv=iter"], "FLAGS_iter is not set"),
        (["x", "--multi-thread-core-ids=a"], "not a list of cores"),
    ],
)  # fmt: skip
def test_wrong_command_lines(words: list[str], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_arguments(words, {})
    assert part in str(caught.value)


# ---- results ------------------------------------------------------------------------------------


def test_statistics() -> None:
    found = statistics([3.0, 1.0, 2.0, 10.0])
    assert (found.mean, found.median, found.least, found.most) == (4.0, 2.5, 1.0, 10.0)
    assert found.sd == pytest.approx(np.std([3, 1, 2, 10], ddof=1))
    assert statistics([1.0]).sd is None


def test_json_has_failures_too(run: Any, plain: Path) -> None:
    found = run(plain, "--json", "--iter=3").json
    assert found["exit_status"] == 0
    assert found["tests"][0]["statistics"]["count"] == 3
    failed = run(plain, "--json", "--input=x:[1]", status=1)
    assert failed.json["exit_status"] == 1
    assert "no input 'x'" in failed.err


def test_exit_statuses(run: Any, plain: Path, library: Path, tmp_path: Path) -> None:
    run(plain, "--iter=1")
    run(tmp_path / "none", status=1)
    (tmp_path / "text.so").write_text("no library")
    run(tmp_path / "text.so", status=1)
    run(library, "--range=0.001", status=5)
    words = [sys.executable, "-P", "-m", "atc", "load_and_run", str(plain), "--wait-gdb"]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    started.terminate()
    assert started.wait(60) == 128 + 15


def test_a_library_is_run_without_the_compiler(plain: Path) -> None:
    code = f"""
import sys
import tomllib
from atc.cli.main import main
assert main(["load_and_run", {str(plain)!r}, "--iter=1", "--model-info"]) == 0
loaded = set(sys.modules)
assert not loaded & {{"onnx", "onnx_ir", "atc.pipeline.pipeline", "atc.lower", "atc.passes"}}
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env={"CC": "/nowhere"})


def test_options_of_compilation_have_no_effect_on_a_library(run: Any, plain: Path) -> None:
    found = run(plain, "--fast-run", "--target=c99", "--iter=1")
    assert "--fast_run, --target: of no effect on a library" in found.err
    assert found.err.count("W10001") == 1


def test_open_dimensions_are_those_of_the_input(run: Any, tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("n", 3))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("n", 3))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 21)]
    path = tmp_path / "open.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    given = "--input=x:[[1.0,2,3],[4,5,6]]"
    assert "{2,3}" in run(path, given, "--model-info", "--target=c99").out
    ranges = ("--input_shape=x:1~8,3", "--target=c99")
    found = run(path, given, *ranges, "--json", "--thread=2", "--model-info").json
    assert found["outputs"]["y"] == {"shape": [2, 3], "dtype": "float32", "mean": 3.5}
    assert found["model_info"][0]["shape"] == "{1~8,3}"
    words = (path, "--input=x:{9,3}", *ranges)
    assert "from [1, 3] to [8, 3], not [9, 3]" in run(*words, status=1).err
    assert "several shapes" in run(path, given, *ranges, "--range=1", status=1).err
    for shape in ("2", "2,4", "1,2,3"):
        wrong = run(path, f"--input=x:{{{shape}}}", status=1).err
        assert f"must have the shape [?, 3], not [{shape.replace(',', ', ')}] [--input]" in wrong


def test_strings(run: Any, tmp_path: Path) -> None:
    text = onnx.TensorProto.STRING
    x, y = (onnx.helper.make_tensor_value_info(name, text, (1, 2)) for name in "xy")
    node = onnx.helper.make_node("StringConcat", ["x", "x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 21)]
    path = tmp_path / "text.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    found = run(path, "--target=c99", "--json", "--iter=1", f"--bin-out-dump={tmp_path}").json
    assert found["outputs"]["y"]["shape"] == [1, 2]
    run(path, "--target=c99", f"--io-dump={tmp_path}/values.txt", "--iter=1")


# ---- fitting ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fitting_keeps_the_fastest(
    run: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [{}, {"enable_jit": False, "enable_fuse_conv_bias_nonlinearity": False}]
    monkeypatch.setattr(fitting, "option_sets", lambda: iter(sets))
    kept = tmp_path / "best"
    words = ("--fitting", f"--dump-fitting-model={kept}", "--target=c99", "--iter=2")
    found = run(model, *words)
    medians = [float(m) for m in re.findall(r"^fitting \d: median=([\d.]+) ms", found.out, re.M)]
    assert len(medians) == 2
    assert "=== fitting: the best is" in found.out
    run(kept)
    assert "needs --fitting" in run(model, f"--dump-fitting-model={kept}", status=1).err


def test_fitting_tries_every_layout_estimated_and_measured() -> None:
    tried = [dict(options) for options in fitting.option_sets()]
    assert {} in tried
    assert {"full_run": True} in tried
    assert len(tried) == len({tuple(t.items()) for t in tried}) >= 4


def test_the_programs_are_there() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    for name in ("load_and_run", "compare_binary_iodump"):
        module, _, function = scripts["project"]["scripts"][name].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_help_shows_every_option(run: Any) -> None:
    assert "Exit status" in run("--help").out
    for setting in LOAD_AND_RUN:
        if setting.kind == "option":
            assert f"--{setting.name}" in run("--help", setting.name).out
    assert "--max-err" in run("--help", command="compare_binary_iodump").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input=data:{float64}"], "input 'data' must be float32, not float64 [--input]"),
        (["--fitting", "--input=data:{float64}"], "'data' must be float32, not float64"),
        (["--layout-transform=cpu", "--input=data:{float64}"], "must be float32, not float64"),
        (["--input=data:{1,1,27,28}"], "must have the shape [1, 1, 28, 28], not [1, 1, 27, 28]"),
        (["--batch-size=2", "--input=data:{float64}"], "must be float32, not float64"),
        (["--multithread=1", "--multi-thread-core-ids=99999"], "there is no core 99999"),
        (["--model-dump={file}/net"], "is a file [--model_dump]"),
    ],
)
def test_what_is_wrong_is_reported_before_compiling(
    words: list[str], said: str, model: Path, run: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def compiled(*arguments: object) -> None:
        raise AssertionError("the compiler was called")

    monkeypatch.setattr("atc.load_and_run.compilation.compile_model", compiled)
    monkeypatch.setattr("atc.pipeline.lowering.run_passes", compiled)
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 28, 28)))
    places = (("{float64}", tmp_path / "x.npy"), ("{file}", tmp_path / "x.npy"))
    for place, path in places:
        words = [word.replace(place, str(path)) for word in words]
    assert said in run(model, *words, status=1).err


@pytest.mark.parametrize("words", [(), ("--fitting",), ("--layout-transform=cpu",)])
def test_a_missing_compiler_is_reported_before_the_model_is_looked_at(
    words: tuple[str, ...], model: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr("atc.pipeline.lowering.load_model", read)
    monkeypatch.setattr("atc.load_and_run.compilation.load_model", read)
    found = run(model, *words, status=3)
    assert found.err.startswith("E19010: CC names a program that isn't there: no-such-compiler")
    assert found.err.count("\n") == 1


@pytest.mark.slow
def test_a_warning_of_every_trial_is_reported_once(
    model: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layout is tried, and the first one measured, too."""
    sets = [s for k, s in enumerate(fitting.option_sets()) if k < 2 or "full_run" not in s]
    monkeypatch.setattr(fitting, "option_sets", lambda: iter(sets))
    found = run(model, "--fitting", "--json", "--enable-nhwcd4")
    assert len(found.json["warnings"]) == found.err.count("W10001") == 1
