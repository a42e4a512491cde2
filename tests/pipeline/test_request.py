"""What a compilation is asked for is resolved once, however many compilations a search makes."""

from __future__ import annotations

import builtins
import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import save
from onnx import TensorProto, helper, numpy_helper
from projects import require

import atc
from atc.backends.target import host_arch
from atc.cli.main import main
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import InternalError, OptionError
from atc.fast_run.policy import HEADER
from atc.options.options import Options
from atc.pipeline import request as requests
from atc.pipeline.request import Decisions, resolve_request

FILES = {
    "keep_dtype": "OpType::Relu\n",
    "modify_mixlist": '{"white-list": {"to-add": ["Mul"]}}',
    "customize_dtypes": "product::InputDtype:float16,float16,OutputDtype:float16\n",
    "fusion_switch_file": "fold_affine:off\n",
    "op_precision_mode": "MatMul=high_precision\n",
    "op_debug_config": "op_debug_config=dump_bin\n",
    "fast_run_algo_policy": f"{HEADER}\n",
}
READERS = (
    "read_policy", "read_switches", "read_operator_modes", "read_debugging", "read_algo_policy"
)  # fmt: skip
TARGETS = {"x86_64": "x86-64,c99", "aarch64": "aarch64-neon,c99"}


def small_net(path: Path) -> Path:
    """Write a model of one product and a Relu."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
             helper.make_node("Relu", ["a"], ["y"], "relu")]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy")
    known = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def written(folder: Path) -> dict[str, Path]:
    """Write the files of options; return them by option."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in FILES}


@dataclass
class Counts:
    """How often files were opened, and readers of their content called."""

    opened: Counter[str] = field(default_factory=Counter)
    derived: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found, plain = Counts(), builtins.open

    def opening(file: Any, *rest: Any, **named: Any) -> Any:
        found.opened[str(file)] += 1
        return plain(file, *rest, **named)

    def counting(name: str) -> Any:
        own = getattr(requests, name)

        def read(*arguments: Any) -> Any:
            found.derived[name] += 1
            return own(*arguments)

        return read

    monkeypatch.setattr(io, "open", opening)
    monkeypatch.setattr(builtins, "open", opening)
    for name in READERS:
        monkeypatch.setattr(requests, name, counting(name))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("given", "compilations"),
    [
        ({}, 1), ({"max_error": 0.05}, 2), ({"target": TARGETS[host_arch()]}, 2),
        ({"selftest": True}, 1),
    ],
    ids=["one", "a search", "two targets", "a self-test"],
)
def test_every_file_is_opened_once_and_every_policy_derived_once(
    given: dict[str, Any], compilations: int, tmp_path: Path, counts: Counts
) -> None:
    files, readers = written(tmp_path), [*READERS]
    if "target" in given:  # a policy is one target's
        del files["fast_run_algo_policy"]
        readers.remove("read_algo_policy")
    options = Options(
        small_net(tmp_path / "m.onnx"), tmp_path / "net", **{"target": "c99", **given}, **files,
        precision_mode="allow_mix_precision", debug_dir=tmp_path / "debug",
    )  # fmt: skip
    stages = Counter[str]()
    counts.opened.clear()  # of what was written
    compile_model(options, diagnostics=Diagnostics(stage=lambda text: stages.update([text])))
    assert stages["compiling C"] == compilations
    assert {n: counts.opened[str(path)] for n, path in files.items()} == dict.fromkeys(files, 1)
    assert counts.derived == dict.fromkeys(readers, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["check", "verify", "diff"])
def test_tools_open_every_file_once(
    command: str, tmp_path: Path, counts: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("keep_dtype", "fusion_switch_file")
    files = {name: path for name, path in written(tmp_path).items() if name in names}
    inputs = [f"--input={tmp_path / 'feeds.npz'}"] * (command != "check")
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 4), np.float32))
    given = [f"--{name}={path}" for name, path in files.items()]
    model = small_net(tmp_path / "m.onnx")
    arguments = [f"--model={model}", "--precision_mode=allow_mix_precision", *given, *inputs]
    counts.opened.clear()  # of what was written
    assert main([command, "--build_config=cc -O0", *arguments]) == 0, capsys.readouterr()
    assert {n: counts.opened[str(path)] for n, path in files.items()} == dict.fromkeys(files, 1)
    assert {counts.derived[name] for name in READERS[:2]} == {1}


@pytest.mark.parametrize(
    ("option", "text"), [("keep_dtype", "OpType::\n"), ("op_precision_mode", "Conv=fast\n")]
)
def test_a_wrong_file_is_reported_before_the_model_is_looked_at(
    option: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(OptionError, match=f"--{option}: .*file, line 1"):
        atc.compile(tmp_path / "absent.onnx", tmp_path / "net", **{option: tmp_path / "file"})


def test_an_unknown_target_is_reported_by_the_option_that_gave_it(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown target 'none'.*\[--soc_version\]"):
        atc.compile(small_net(tmp_path / "m.onnx"), tmp_path / "net", soc_version="none")


def test_what_is_decided_stands_beside_the_options() -> None:
    options = Options(Path("m.onnx"), Path("net"), optimization_switch="fold_affine:on")
    assert "fold_affine" not in resolve_request(options).switches.off
    decided = resolve_request(options, decisions=Decisions(skip_passes=frozenset({"fold_affine"})))
    assert decided.switches.off == {"fold_affine"}
    assert decided.options == options


def test_options_that_were_resolved_change_no_more() -> None:
    request = resolve_request(Options(Path("m.onnx"), Path("net"), target="c99"))
    assert request.with_options(hooks=True).options.hooks
    for name, value in (("target", "host"), ("keep_dtype", Path("other"))):
        with pytest.raises(InternalError, match=f"{name} is resolved already"):
            request.with_options(**{name: value})


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cuda-emulated", "cortex-m4f"])
def test_threads_that_a_target_has_none_of_are_a_warning(tmp_path: Path, target: str) -> None:
    if target != "cuda-emulated":
        require("arm-none-eabi-gcc")
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = save(nodes, {"x": [4]}, {"y": [4]}, tmp_path / "m.onnx")
    alone = atc.compile(model, tmp_path / "alone" / "d", target=target)
    done = atc.compile(model, tmp_path / "several" / "d", target=target, num_threads=2)
    assert any("--num_threads=2 has no effect" in text for text in done.warnings)
    source = "src/d.c"
    assert (done.folder / source).read_text() == (alone.folder / source).read_text()
