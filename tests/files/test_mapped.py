"""Arrays in mapped files: what is released is read again from the file."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from atc.files.mapped import release

SIZE = 1 << 22


def mapped(folder: Path, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Return a mapped file of bytes that differ from page to page."""
    path = folder / "data.bin"
    (np.arange(SIZE // 4, dtype=np.uint32) // 7).tofile(path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def resident() -> int:
    """Return the bytes of files in this process's memory."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    kinds = ("RssFile", "RssShmem")  # of a disk, or of a file system in memory
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("view", ["array", "part", "memoryview"])
def test_what_is_released_leaves_memory_and_stays_valid(tmp_path: Path, view: str) -> None:
    array = np.frombuffer(mapped(tmp_path), np.uint32, offset=4).reshape(3, -1)
    given = {
        "array": array,
        "part": array[:, 1:],
        "memoryview": np.frombuffer(array.data, np.uint8),
    }[view]
    expected = array.tobytes()
    before = resident()
    release(given)
    assert before - resident() > SIZE * 3 // 4
    assert array.tobytes() == expected


def test_what_was_written_to_a_private_mapping_is_kept(tmp_path: Path) -> None:
    array = np.frombuffer(mapped(tmp_path, mmap.ACCESS_COPY), np.uint8)
    array[:] = 5
    release(array)
    assert (array == 5).all()


def test_an_array_of_its_own_is_left_alone() -> None:
    array = np.arange(10)
    release(array)
    assert array.tolist() == [*range(10)]
