"""The samples for continuous integration: their files are well-formed, and the job works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stores import redis_server

ROOT = Path(__file__).parents[2]
CI = ROOT / "samples/ci"


def test_the_files_say_what_they_must() -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((CI / "compose.yaml").read_text())
    assert "samples/ci/build.sh" in compose["services"]["build"]["command"]
    steps = yaml.safe_load((CI / "github.yaml").read_text())["jobs"]["build"]["steps"]
    assert any("samples/ci/build.sh" in step.get("run", "") for step in steps)


@pytest.mark.slow
def test_the_job_takes_from_the_store_what_another_made(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/atc").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m atc "$@"\n')
    (tmp_path / "bin/atc").chmod(0o755)
    with redis_server(tmp_path) as (url, _):
        reported = []
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "samples").symlink_to(ROOT / "samples")
            env = {
                **os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
                "ATC_CACHE_KEY": "0123456789abcdef", "ATC_OP_COMPILER_CACHE_REMOTE": url,
            }  # fmt: skip
            done = subprocess.run(
                ["sh", str(CI / "build.sh")], cwd=folder, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            reported.append(done.stdout + done.stderr)
    assert "remote: 0 hits" in reported[0]
    assert "[INFO] 0 objects compiled" in reported[1]
