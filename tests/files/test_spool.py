"""Arrays that lie in a file while nobody reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from atc.files import spool
from atc.files.mapped import release
from atc.files.spool import LEAST, Spool

PART = np.arange(LEAST // 4, dtype=np.uint32)


def stored(kept: Spool, count: int, seed: int = 0) -> np.ndarray:
    """Return `count` parts in a spool."""
    parts = ((k * PART.size, PART * np.uint32(seed + k)) for k in reversed(range(count)))
    array = kept.stored(parts, count * PART.size, np.uint32)
    assert array is not None
    return array


def test_parts_are_put_together_and_arrays_do_not_meet() -> None:
    kept = Spool()
    arrays = [stored(kept, count, seed) for seed, count in ((1, 3), (5, 1), (9, 4))]
    del kept
    for array, (seed, count) in zip(arrays, ((1, 3), (5, 1), (9, 4)), strict=True):
        expected = np.concatenate([PART * np.uint32(seed + k) for k in range(count)])
        assert array.dtype == np.uint32
        assert (array == expected).all()
        release(array)
        assert (array == expected).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_stored_is_not_in_memory() -> None:
    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return sum(int(s.split()[1]) << 10 for s in lines if s.startswith(("RssAnon", "RssShm")))

    kept = Spool()
    before = anonymous()
    array = stored(kept, 64)
    assert anonymous() - before < array.nbytes // 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_arrays_take_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "STRETCH", 8 * PART.nbytes)
    kept, before = Spool(), len(os.listdir("/proc/self/fd"))
    arrays = [stored(kept, 1, k) for k in range(32)]
    assert len(os.listdir("/proc/self/fd")) - before <= 5
    assert all((a == PART * np.uint32(k)).all() for k, a in enumerate(arrays))


def test_little_stays_in_memory() -> None:
    def unread() -> Iterator[tuple[int, np.ndarray]]:
        raise AssertionError("parts were asked for")
        yield 0, PART

    assert Spool().stored(unread(), PART.size - 1, np.uint32) is None


def test_a_full_disk_leaves_arrays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    kept = Spool()
    first = stored(kept, 1, 3)
    monkeypatch.setattr(os, "pwrite", full)
    assert kept.stored([(0, PART)], PART.size, np.uint32) is None
    assert (first == PART * np.uint32(3)).all()


def test_parts_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes, not"):
        Spool().stored([(0, PART)], 2 * PART.size, np.uint32)
