"""Shell completion: what a shell really does with the script when somebody presses Tab."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from atc.backends.cpu.targets import TARGETS
from atc.cli.main import main
from atc.options.completion import SHELLS, completion
from atc.options.help import COMMANDS
from atc.options.table import options_of

LINES = {
    "atc --op_compiler_cache_m": "atc --op_compiler_cache_mode=",
    "atc --op-compiler-cache-m": "atc --op_compiler_cache_mode=",
    "atc --op_compiler_cache_mode=ena": "atc --op_compiler_cache_mode=enable ",
    "atc --op-compiler-cache-mode dis": "atc --op-compiler-cache-mode disable ",
    "atc --model=ne": "atc --model=net.onnx ",
    "atc --model ne": "atc --model net.onnx ",
    "atc --output=ou": "atc --output=out/",
    "atc --target=x86-64-ss": "atc --target=x86-64-sse2 ",
    "atc --verify --expl": "atc --verify --explain=",
    "atc cac": "atc cache ",
    "atc cache st": "atc cache stats ",
    "atc cache stats --op_compiler_cache_d": "atc cache stats --op_compiler_cache_dir=",
    "atc completion fi": "atc completion fish ",
    "atc verify --tol": "atc verify --tolerance=",
    "atc load_and_run --ite": "atc load_and_run --iter=",
    "load_and_run ne": "load_and_run net.onnx ",
    "load_and_run --warmup": "load_and_run --warmup_iter=",
}
"""What stands on the command line after Tab."""


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Type all LINES into an interactive bash, with Tab, and return what it made of them."""
    if shutil.which("bash") is None:
        pytest.skip("bash isn't installed")
    folder = tmp_path_factory.mktemp("shell")
    (folder / "net.onnx").touch()
    (folder / "out").mkdir()
    (folder / "atc.bash").write_text(completion("bash"))
    (folder / "rc").write_text(
        "PS1='> '\nsource atc.bash\nbind 'set enable-bracketed-paste off'\n"
        "bind 'set bell-style none'\n"
    )
    master, side = pty.openpty()
    process = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", "rc", "-i"], stdin=side, stdout=side, stderr=side,
        cwd=folder, env={**os.environ, "TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    typed = [f"{line}\t\x01printf '%s\\n' '\x05' >>typed\n" for line in LINES]  # ^A, ^E: ends
    os.write(master, "".join([*typed, "exit\n"]).encode())
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            os.read(master, 4096)
    process.kill()
    process.wait()
    os.close(master)
    os.close(side)
    return (folder / "typed").read_text().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_bash_completes(line: str, completed: list[str]) -> None:
    assert completed[list(LINES).index(line)] == LINES[line]


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_can_read_their_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} isn't installed")
    (tmp_path / "script").write_text(completion(shell))
    done = subprocess.run([shell, "-n", "script"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish isn't installed")
    (tmp_path / "atc.fish").write_text(completion("fish"))
    for line, expected in (("atc --op_compiler_cache_mode=en", "=enable"), ("atc cac", "cache")):
        code = f"source atc.fish; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert expected in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_every_option_and_target(shell: str) -> None:
    script = completion(shell)
    for command in COMMANDS:
        for name, setting in options_of(command).items():
            assert name in script or setting.role == "ignored"
        assert command in script or command == "compile"
    assert all(target.name in script for target in TARGETS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == completion("bash")
    for line in (["completion"], ["completion", "csh"]):
        assert main(line) == 1
        assert "use one of bash, zsh, fish" in capsys.readouterr().err
