"""Pipes and devices where a file is asked for: reported at once, never read for ever."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from networks import pooled_net

from atc.cli import main as cli
from atc.files.regular import NotRegularError, is_file, regular

FILES = [
    "insert_op_conf", "op_debug_config", "fusion_switch_file", "keep_dtype", "modify_mixlist",
    "customize_dtypes", "fast_run_algo_policy", "weight", "singleop",
    "op_precision_mode", "cal_conf", "model",
]  # fmt: skip


SYMBOL = """{"nodes": [{"op": "null", "name": "x", "inputs": []},
{"op": "relu", "name": "y", "inputs": [[0, 0, 0]]}], "arg_nodes": [0], "heads": [[1, 0, 0]]}"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_only_files_that_end(tmp_path: Path, fifo: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path, tmp_path / "none", Path(os.devnull), Path("a\0b")):
        assert regular(path) is path
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    server.close()
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path / "socket", tmp_path / "link"):
        with pytest.raises(NotRegularError, match="^it is not a regular file$"):
            regular(path)


def test_what_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert not is_file(tmp_path / "none")
    assert not is_file(Path("/" + "x" * 5000))


@pytest.mark.parametrize("option", FILES)
@pytest.mark.parametrize("device", ["pipe", "/dev/zero"])
def test_an_option_file_that_never_ends_is_reported(
    option: str, device: str, tmp_path: Path, fifo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model": str(pooled_net(tmp_path / "m.onnx")), "output": str(tmp_path / "net")}
    if option == "weight":
        given["model"] = str(tmp_path / "m-symbol.json")
        Path(given["model"]).write_text(SYMBOL)
    if option == "modify_mixlist":
        given["precision_mode"] = "allow_mix_precision_fp16"
    if option == "singleop":
        del given["model"]
    given[option] = str(tmp_path / device)
    assert cli.main([f"--{name}={value}" for name, value in given.items()]) == 1
    error = capsys.readouterr().err
    assert "it is not a regular file" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "net").exists()


def test_the_configuration_file_may_be_no_pipe(fifo: Path) -> None:
    environment = {**os.environ, "ATC_CONFIG": str(fifo)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "atc", "cache", "stats"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("E10001: the configuration file can't be read: it is not a")


@pytest.mark.parametrize("argument", ["--flagfile={}", "--input={}.json", "--input=x:{}.npy"])
def test_load_and_run_reads_no_pipe(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = argument.format(tmp_path / "pipe")
    os.mkfifo(word.partition("=")[2].removeprefix("x:"))
    model = pooled_net(tmp_path / "m.onnx")
    assert cli.main(["load_and_run", str(model), word]) == 1
    assert "it is not a regular file" in capsys.readouterr().err
