"""Constants packed for kernels: the same in the spool, in parts and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from atc.backends.render.packing import PackInParts
from atc.files.spool import LEAST, Spool
from atc.ir.graph import Array
from atc.program.packed_constants import packed

SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(LEAST, dtype=np.float32).reshape(2, -1) % 1000


class Full(Spool):
    """A spool whose disk is full once a part was written."""

    def _write(self, array: Array, at: int) -> None:
        if at:
            raise OSError(28, "No space left on device")
        super()._write(array, at)


def halves(constant: Array) -> Iterator[tuple[int, Array]]:
    """Return both halves of a constant reversed, the second one first."""
    reverse = constant.reshape(-1)[::-1]
    middle = reverse.size // 2
    yield middle, reverse[middle:]
    yield 0, reverse[:middle]


@pytest.mark.parametrize("spool", [Spool, Full])
@pytest.mark.parametrize("constant", [SMALL, LARGE], ids=["small", "large"])
def test_it_is_the_same_wherever_it_lies(constant: Array, spool: type[Spool]) -> None:
    for pack in (
        lambda x: x.T,
        lambda x: x.astype(np.float16)[:, np.newaxis],
        PackInParts(halves, constant.size),
    ):
        found, wanted = packed(pack, constant, spool()), np.ascontiguousarray(pack(constant))
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, wanted)


def test_a_large_one_may_not_be_written_to() -> None:
    assert not packed(lambda x: x + 1, LARGE, Spool()).flags.writeable
    assert packed(lambda x: x + 1, SMALL, Spool()).flags.writeable
