"""What a reader of the documents has in front of him: the samples, and the programs on his path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_programs(folder: Path) -> Path:
    """Write the programs that an installation brings, for this Python; return their folder."""
    programs = {
        "atc": "-P -m atc", "load_and_run": "-P -m atc load_and_run",
        "compare_binary_iodump": "-P -m atc compare_binary_iodump", "python": "",
        **{name: f"-P -m {name}" for name in ("pytest", "ruff", "mypy", "mkdocs")},
    }  # fmt: skip
    (folder / "bin").mkdir()
    for name, words in programs.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    return folder / "bin"


def lay_out(folder: Path, programs: Path, cache: Path) -> dict[str, str]:
    """Copy the samples, link the tests; return the environment of the reader's shell."""
    shutil.copytree(ROOT / "samples", folder / "samples")
    (folder / "tests").symlink_to(ROOT / "tests")
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    return {**os.environ, "PATH": paths, "ASCEND_CACHE_PATH": str(cache)}
