"""samples/microcontroller: one command, two cores under the emulator, the same words heard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from projects import require

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_sample_hears_the_words_that_were_spoken(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm", "make"):
        require(tool)
    (tmp_path / "bin").mkdir()
    for name, command in (("atc", f"{sys.executable} -P -m atc"), ("python3", sys.executable)):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", ROOT / "samples/microcontroller/run.sh", tmp_path / "out"], capture_output=True,
        text=True, env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout + done.stderr
    assert said.count("selftest: ok\n") == 2
    heard = [line for line in said.splitlines() if line.startswith("heard:")]
    assert len(heard) == 2
    assert heard[0] == heard[1]  # integers: the same bits on both cores
    assert len(set(heard[0].split()[1:])) > 8
    assert not (ROOT / "out/microcontroller").exists()
