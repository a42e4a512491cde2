"""Batches: matrices and what is wrong in them, killed runs, libraries of several networks."""

from __future__ import annotations

import errno
import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import pooled_net
from onnx import TensorProto, helper, numpy_helper
from projects import require
from waiting import happens

import atc
from atc.batch import run
from atc.batch.command import PAGE, run_batch
from atc.batch.journal import NAME, Journal, Outcome, changes
from atc.batch.matrix import read_matrix
from atc.batch.run import Event
from atc.build.sdk import weights_of
from atc.cli.main import main
from atc.errors import OptionError

HEAD = """\
output = "out"
targets = ["c99"]
[options]
build_config = "cc -O0"
op_compiler_cache_mode = "enable"
op_compiler_cache_dir = "cache"
"""
X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
VALUES = {"jobs": 1, "again": False, "sdk": ""}


def matrix(tmp_path: Path, text: str = "", models: int = 2) -> Path:
    for k in range(models):
        pooled_net(tmp_path / f"net{k}.onnx", seed=k)
        text += f'[[model]]\npath = "net{k}.onnx"\n'
    path = tmp_path / "matrix.toml"
    path.write_text(HEAD + text)
    return path


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Compile rows in this process: a new one takes a second to begin."""
    if "processes" not in request.keywords:
        monkeypatch.setattr(
            run._RowThread, "_compiled",
            lambda hand, row: run.replace(
                run.compile_row(row, 1), digest=hand._digests[row.output]
            ),
        )


def batch(path: Path, **values: object) -> tuple[list[str], list[Outcome]]:
    """Run a batch; returns `kind row` of what happened, and the outcomes."""
    events: list[Event] = []
    done = run_batch(path, {**VALUES, **values}, events.append)
    return [f"{e.kind} {e.row.name}" for e in events], list(done.outcomes)


def test_rows_are_compiled_once(tmp_path: Path) -> None:
    path = matrix(tmp_path)
    reported, outcomes = batch(path)
    assert reported == ["begins net0, c99", "done net0, c99", "begins net1, c99", "done net1, c99"]
    assert all(o.ok and o.library and o.arena for o in outcomes)
    assert batch(path)[0] == ["same net0, c99", "same net1, c99"]
    pooled_net(tmp_path / "net1.onnx", seed=7)
    assert batch(path)[0] == ["same net0, c99", "begins net1, c99", "done net1, c99"]
    shutil.rmtree(tmp_path / "out/c99/net0")
    assert batch(path)[0][:2] == ["same net1, c99", "begins net0, c99"]
    assert len(batch(path, again=True)[0]) == 4


def test_models_targets_and_variants_are_multiplied(tmp_path: Path) -> None:
    path = matrix(tmp_path, '[[variant]]\nname = "a"\n[[variant]]\nname = "b"\n'
                  'options = {oo_level = "O1"}\n')  # fmt: skip
    rows = read_matrix(path).rows
    assert [row.name for row in rows] == [
        "net0, c99, a", "net0, c99, b", "net1, c99, a", "net1, c99, b"
    ]  # fmt: skip
    assert rows[1].output == tmp_path / "out/c99/b/net0"
    assert rows[1].options["oo_level"] == "O1"
    assert rows[0].options["op_compiler_cache_dir"] == str(tmp_path / "cache")
    assert len({row.digest() for row in rows}) == 4


def test_a_row_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    path = matrix(tmp_path)
    (tmp_path / "net0.onnx").write_bytes(b"<no model>")
    _, (bad, good) = batch(path)
    assert (bad.ok, good.ok) == (False, True)
    assert bad.message.startswith("E")
    page = (tmp_path / "out" / PAGE).read_text()
    assert "1 failed" in page
    pooled_net(tmp_path / "net0.onnx")
    assert batch(path)[0] == ["same net1, c99", "begins net0, c99", "done net0, c99"]
    assert "works now" in (tmp_path / "out" / PAGE).read_text()


@pytest.mark.slow
def test_a_torn_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = matrix(tmp_path)
    batch(path)
    journal = tmp_path / "out" / NAME
    journal.write_bytes(journal.read_bytes()[:-20] + b"\xff")
    assert batch(path)[0] == ["same net0, c99", "begins net1, c99", "done net1, c99"]
    assert batch(path)[0] == ["same net0, c99", "same net1, c99"]
    journal.write_text('[]\n{"row": 1}\nnull\n')
    assert not Journal(tmp_path / "out").last


def test_what_changed_is_reported() -> None:
    old = Outcome("r", "d", True, library=100, arena=50)
    assert changes(old, None) == {"status": "new"}
    assert changes(old, old) == {}
    assert changes(Outcome("r", "e", True, library=120, arena=40), old) == {
        "library": "+20 bytes", "arena": "-10 bytes"
    }  # fmt: skip
    assert changes(Outcome("r", "e", False), old) == {"status": "worked before"}


def test_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    path = matrix(tmp_path, models=1)
    path.write_text(path.read_text() + 'name = "<script>x"\n')
    _, (outcome,) = batch(path)
    assert outcome.row == "<script>x, c99"
    page = (tmp_path / "out" / PAGE).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no"),
        ("modle = 1", "has no 'modle'"),
        ("[[model]]", "path is missing"),
        ('[[model]]\npath = "a.onnx"\nname = "../x"', "can't name a folder"),
        ('[[model]]\npath = "a.onnx"\ntargets = []', "not a list of names"),
        ('[[model]]\npath = "a.onnx"\n[[model]]\npath = "b/a.onnx"', "two rows are written"),
        ('[[model]]\npath = "a.onnx"\noptions = {ouput = "x"}', "not an option of a row"),
        ('[[model]]\npath = "a.onnx"\noptions = {output = "x"}', "not an option of a row"),
        ('[[model]]\npath = "a.onnx"\noptions = {jobs = [1]}', "neither text nor number"),
        ("[model]\n", "not a list of tables"),
        ("[[model]\n", "is not TOML"),
    ],
)
def test_wrong_matrices(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(text)
    with pytest.raises(OptionError, match=message):
        read_matrix(tmp_path / "matrix.toml")


def test_the_command_s_lines_and_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = matrix(tmp_path)
    assert main(["batch", str(path), "--jobs=1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["ok"] for row in json.loads(out)["rows"]] == [True, True]
    assert "[2/2] net1, c99: ok" in err
    (tmp_path / "net1.onnx").unlink()
    assert main(["batch", str(path), "--jobs=1"]) == 1
    assert "1 of 2 rows are compiled" in capsys.readouterr().out
    assert main(["batch"]) == 1


def test_a_library_of_several_networks(tmp_path: Path) -> None:
    """Equal kernels stand in it once, equal weights too, and each network computes as alone."""
    path = matrix(tmp_path, models=3)
    shutil.copy(tmp_path / "net1.onnx", tmp_path / "net2.onnx")
    done = run_batch(path, {**VALUES, "sdk": "all"}, lambda event: None)
    (sdk,) = done.sdks
    assert (sdk.kernels, sdk.distinct) == (6, 2)
    assert sorted(p.name for p in sdk.folder.glob("*_weights.bin")) == [
        "net0_weights.bin", "net1_weights.bin"
    ]  # fmt: skip
    for name in ("net0", "net1", "net2"):
        alone = atc.load(tmp_path / "out/c99" / name)
        expected = alone(X)
        shutil.copytree(tmp_path / "out/c99" / name, tmp_path / "joined" / name)
        shutil.copy(sdk.folder / "liball.so", tmp_path / "joined" / name / f"lib{name}.so")
        found = atc.load(tmp_path / "joined" / name)(X)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_library_of_several_networks_for_windows(tmp_path: Path) -> None:
    """It is a DLL, in which two networks find the same weights."""
    path = matrix(tmp_path, models=3)
    compiler = require("x86_64-w64-mingw32-gcc")
    path.write_text(path.read_text("utf-8").replace('"cc -O0"', f'"{compiler} -O0"'))
    shutil.copy(tmp_path / "net1.onnx", tmp_path / "net2.onnx")
    (sdk,) = run_batch(path, {**VALUES, "sdk": "all"}, lambda event: None).sdks
    data = (sdk.folder / "all.dll").read_bytes()
    assert data[:2] == b"MZ"
    assert len(data) == sdk.library
    assert not (sdk.folder / "liball.so").exists()
    for name in ("net0", "net1"):
        assert data.count(weights_of(tmp_path / "out/c99" / name)) == 1


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "a\0"])
def test_a_library_is_named_as_a_folder(name: str, tmp_path: Path) -> None:
    """Else those of two targets would be written to one place."""
    with pytest.raises(OptionError, match=r"can't name a folder \[--sdk\]"):
        run_batch(matrix(tmp_path), {**VALUES, "sdk": name}, lambda event: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("strip", [False, True])
def test_a_library_of_several_networks_is_stripped(strip: bool, tmp_path: Path) -> None:
    path = matrix(tmp_path, f"strip = {str(strip).lower()}\n")
    (sdk,) = run_batch(path, {**VALUES, "sdk": "all"}, lambda event: None).sdks
    assert (b".symtab\0" in (sdk.folder / "liball.so").read_bytes()) is not strip


def with_head(path: Path, outputs: int, body_last: bool) -> Path:
    """Write a model of a body that all have and a head of its own: x [1,64] -> y [1,outputs]."""
    body = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    head = np.random.default_rng(outputs).standard_normal((64, outputs)).astype(np.float32)
    other = np.random.default_rng(outputs).standard_normal((64, 64)).astype(np.float32)
    weights = {"own": other, "body": body} if body_last else {"body": body}
    value, nodes = "x", []
    for name in (*weights, "head"):
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}_out"]))
        value = f"{name}_out"
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, outputs])],
        [numpy_helper.from_array(w, name) for name, w in {**weights, "head": head}.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.slow
def test_networks_share_constants_one_by_one(tmp_path: Path) -> None:
    """A body that two networks have, though not at the same place, lies in their library once."""
    with_head(tmp_path / "net0.onnx", 10, False)
    with_head(tmp_path / "net1.onnx", 20, True)
    path = tmp_path / "matrix.toml"
    path.write_text(HEAD + "".join(f'[[model]]\npath = "net{k}.onnx"\n' for k in range(2)))
    done = run_batch(path, {**VALUES, "sdk": "all"}, lambda event: None)
    (sdk,) = done.sdks
    body = 64 * 64 * 4
    assert sdk.weights <= sdk.separate_weights - body
    assert f"{sdk.weights:,} bytes of weights instead of {sdk.separate_weights:,}" in done.text
    (blob,) = sdk.folder.glob("*_weights.bin")
    assert blob.stat().st_size == sdk.weights
    x = np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)
    for name in ("net0", "net1"):
        folder = tmp_path / "joined" / name
        expected = atc.load(tmp_path / "out/c99" / name)(x)
        shutil.copytree(tmp_path / "out/c99" / name, folder)
        shutil.copy(sdk.folder / "liball.so", folder / f"lib{name}.so")
        np.testing.assert_array_equal(atc.load(folder)(x), expected)


@pytest.mark.slow
@pytest.mark.processes
def test_a_process_that_is_killed_costs_its_row(tmp_path: Path) -> None:
    path = matrix(tmp_path, models=3)
    rows = read_matrix(path).rows

    killed = []

    def report(event: Event) -> None:
        if event.kind == "begins" and not killed:
            killed.append(event.row)
            assert happens(lambda: bool(multiprocessing.active_children()))
            multiprocessing.active_children()[0].kill()

    done = run_batch(path, {**VALUES}, report)
    assert [o.ok for o in done.outcomes] == [row != killed[0] for row in rows]
    assert "signal 9" in next(o.message for o in done.outcomes if not o.ok)


@pytest.mark.processes
@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "too many processes"), RuntimeError()])
def test_a_process_that_can_not_be_started_costs_its_row(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(process: object) -> None:
        raise error

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", start)
    done = run_batch(matrix(tmp_path), {**VALUES}, lambda event: None)
    assert all("no process can be started" in outcome.message for outcome in done.outcomes)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_that_is_killed_goes_on(sent: signal.Signals, tmp_path: Path) -> None:
    path = matrix(tmp_path, models=4)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "atc", "batch", str(path), "--jobs=1"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "[1/4]" in process.stderr.readline()
    process.send_signal(sent)
    process.wait()
    process.stderr.close()
    reported, outcomes = batch(path)
    assert reported[0] == "same net0, c99"
    assert all(o.ok for o in outcomes)
    assert batch(path)[0] == [f"same net{k}, c99" for k in range(4)]
