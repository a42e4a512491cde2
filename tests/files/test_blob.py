"""Blobs: all bytes in order, in chunks."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest

from atc.files.blob import Blob

DATA = np.arange(1000, dtype=np.uint16)
BLOB = Blob((DATA.view(np.uint8).data, b"", b"123", DATA[:7].view(np.uint8).data))
WHOLE = DATA.tobytes() + b"123" + DATA[:7].tobytes()


@pytest.mark.parametrize("most", [1, 64, 2000, 1 << 20])
def test_chunks_are_all_bytes_in_order(most: int) -> None:
    chunks = [bytes(chunk) for chunk in BLOB.chunks(most)]
    assert b"".join(chunks) == WHOLE
    assert max(map(len, chunks)) <= most


def test_a_blob_is_written_whole() -> None:
    file = io.BytesIO()
    BLOB.write(file)
    assert file.getvalue() == WHOLE
    assert BLOB.checksum == zlib.adler32(WHOLE)
    assert BLOB.size == len(WHOLE)
