"""Writing large files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atc.build.output_folder import write_files
from atc.files.blob import Blob

CALLS = Path("/proc/self/io")


@pytest.mark.skipif(not CALLS.exists(), reason="Linux alone counts calls that write")
def test_parts_of_a_file_are_written_together(tmp_path: Path) -> None:
    """A system keeps a file in large pages if it is written in large pieces."""

    def written() -> int:
        return int(re.findall(r"syscw: (\d+)", CALLS.read_text())[0])

    parts = tuple(bytes([k]) * 30000 for k in range(200))
    before = written()
    write_files(tmp_path, {"weights.bin": Blob(parts)})
    assert written() - before < 10
    assert (tmp_path / "weights.bin").read_bytes() == b"".join(parts)
