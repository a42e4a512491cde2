"""Runners: sshd on the loopback, an emulator, a user's command; hostile names and slow programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from networks import pooled_net
from stores import free_port, need, running

import atc
from atc.backends.toolchain.processes import TimedOut
from atc.errors import AtcError, OptionError
from atc.farm import runners
from atc.farm.runners import Board, Unreachable, open_runner
from atc.options.farm import parse_runner

PROGRAM = '#!/bin/sh\nfor w in "$@"; do printf "%s." "$w"; done; cat data; exit 3\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "program").write_text(PROGRAM)
    (folder / "program").chmod(0o755)
    (folder / "data").write_bytes(b"some data")
    return folder


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run sshd for this user on a port of the loopback."""
    sshd, port = need("sshd"), free_port()
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    (tmp_path / "config").write_text(
        f"IdentityFile {tmp_path}/user\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
        f"UserKnownHostsFile {tmp_path}/known\nLogLevel ERROR\n"
    )
    monkeypatch.setenv("ATC_SSH_CONFIG", str(tmp_path / "config"))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    argv = [sshd, "-D", "-e", "-f", "/dev/null", "-p", str(port), "-h", str(tmp_path / "host")]
    options = {
        "ListenAddress": "127.0.0.1", "AuthorizedKeysFile": str(tmp_path / "authorized"),
        "PidFile": str(tmp_path / "pid"), "StrictModes": "no", "UsePAM": "no",
        "PermitRootLogin": "yes", "Subsystem": "sftp internal-sftp",
    }  # fmt: skip
    argv += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    with running(argv, port):
        yield f"ssh:127.0.0.1:{port}"


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Note the folders that runners make over there, which is here."""
    found: list[Path] = []

    def named() -> UUID:
        name = uuid4()
        found.append(Path(f"/tmp/atc-{name.hex}"))
        return name

    monkeypatch.setattr(runners, "uuid4", named)
    return found


def are_removed(places: list[Path]) -> bool:
    """Say whether folders were made and are away."""
    return bool(places) and not any(map(Path.exists, places))


def test_a_program_runs_by_ssh_and_leaves_nothing(
    ssh: str, folder: Path, places: list[Path]
) -> None:
    runner = open_runner(ssh)
    words = ["two words", "$(touch x)", "'", "data"]
    done = runner.run(folder, "program", ["data"], words, 60)
    assert (done.status, done.stdout) == (3, b"two words.$(touch x).'.data.some data")
    assert are_removed(places)
    assert "by ssh:" in runner.machine()


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_over_there(
    ssh: str, folder: Path, places: list[Path]
) -> None:
    (folder / "program").write_text("#!/bin/sh\nexec sleep 600\n")
    begin = time.monotonic()
    with pytest.raises(TimedOut):
        open_runner(ssh).run(folder, "program", ["data"], [], 1)
    assert time.monotonic() - begin < 60
    assert are_removed(places)


def test_a_board_that_is_unreachable_gives_no_result(folder: Path) -> None:
    need("ssh")
    with pytest.raises(Unreachable, match="can't run a program"):
        open_runner("ssh:127.0.0.1:1").run(folder, "program", ["data"], [], 5)


@pytest.mark.slow
def test_kernels_are_measured_by_ssh(ssh: str, tmp_path: Path, places: list[Path]) -> None:
    done = atc.compile(
        pooled_net(tmp_path / "net.onnx"), tmp_path / "net", fast_run=True, runner=ssh,
        fast_run_cache_dir=tmp_path / "times",
    )  # fmt: skip
    assert any(c.measurements for c in done.selection.values())
    assert not done.warnings
    assert are_removed(places)


ANDROID = """#!/bin/sh
# Stands for adb: `adb -s SERIAL push FILES FOLDER` and `adb -s SERIAL shell LINE`.
[ "$1 $2" = "-s board7" ] || exit 9
shift 2
case $1 in
push) shift; for last; do :; done; cp "$@" ;;
shell) shift; exec sh -c "$(echo "$*" | sed s,/data/local/tmp,$BOARD,g)" ;;
esac
"""


def test_a_program_runs_by_adb(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adb").write_text(ANDROID)
    (tmp_path / "adb").chmod(0o755)
    (tmp_path / "board").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("BOARD", str(tmp_path / "board"))
    runner = open_runner("adb:board7")
    assert isinstance(runner, Board)
    here = Board(runner.name, runner.copy, runner.shell, str(tmp_path / "board"))
    done = here.run(folder, "program", ["data"], ["x y"], 60)
    assert (done.status, done.stdout) == (3, b"x y.some data")
    assert list((tmp_path / "board").iterdir()) == []
    with pytest.raises(Unreachable):
        open_runner("adb:other").run(folder, "program", ["data"], [], 5)


@pytest.mark.slow
def test_kernels_are_measured_under_qemu(tmp_path: Path) -> None:
    need("qemu-aarch64-static")
    need("aarch64-linux-gnu-gcc")
    done = atc.compile(
        pooled_net(tmp_path / "net.onnx"), tmp_path / "net", fast_run=True,
        target="aarch64-neon", runner="qemu:qemu-aarch64-static -cpu max",
        fast_run_cache_dir=tmp_path / "times",
    )  # fmt: skip
    assert any(c.measurements for c in done.selection.values())
    (times,) = (tmp_path / "times/algo_cache").glob("*.json")
    assert '"ns"' in times.read_text()


@pytest.mark.parametrize(
    ("architecture", "cpu"), [("aarch64", "max"), ("riscv64", "rv64,v=true")]
)
def test_a_program_runs_under_qemu(architecture: str, cpu: str, folder: Path) -> None:
    emulator = need(f"qemu-{architecture}-static")
    compiler = need(f"{architecture}-linux-gnu-gcc")
    (folder / "main.c").write_text(
        '#include <stdio.h>\nint main(int n, char **w)\n{\n  char data[16] = "";\n'
        '  FILE *file = fopen("data", "r");\n'
        "  if (!file || !fgets(data, 16, file)) return 1;\n"
        '  printf("%s: %s", w[n - 1], data);\n  return 3;\n}\n'
    )
    made = [compiler, "-static", "-o", str(folder / "program"), str(folder / "main.c")]
    subprocess.run(made, check=True, timeout=300)
    runner = open_runner(f"qemu:{emulator} -cpu {cpu}")
    done = runner.run(folder, "program", ["data"], ["two words"], 300)
    assert (done.status, done.stdout) == (3, b"two words: some data")
    assert runner.machine().endswith(f"under {emulator} -cpu {cpu}")


def test_a_command_of_the_user_s_runs_programs(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "on board.sh"
    script.write_text(
        '#!/bin/sh\n[ "$1" = machine ] && { echo a board; exit; }\n'
        'echo "limit $1"; shift; p=$1; shift; while [ "$1" != -- ]; do shift; done; shift\n'
        'exec "./$p" "$@"\n'
    )
    script.chmod(0o755)
    runner = open_runner(f"command:'{script}'")
    done = runner.run(folder, "program", ["data"], ["a b"], 7)
    assert (done.status, done.stdout) == (3, b"limit 7\na b.some data")
    assert runner.machine().startswith("a board")
    with pytest.raises(AtcError, match="doesn't identify the machine"):
        open_runner("command:false").machine()


@pytest.mark.parametrize("text", ["ssh", "ssh:", "rsh:x", "ssh:-oProxyCommand=x", "ssh:a b",
                                  "command:'", "qemu:"])  # fmt: skip
def test_what_is_no_runner(text: str) -> None:
    with pytest.raises(OptionError):
        parse_runner(text)


def test_a_missing_program_is_reported_by_name() -> None:
    with pytest.raises(OptionError, match="no-such-emulator is not installed"):
        open_runner("qemu:no-such-emulator")
