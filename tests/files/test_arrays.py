from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from atc.files.arrays import load_arrays
from atc.files.regular import NotRegularError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_both_of_numpys_formats_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    np.testing.assert_array_equal(load_arrays(tmp_path / "x.npy"), X)
    with load_arrays(tmp_path / "x.npz") as arrays:
        np.testing.assert_array_equal(arrays["x"], X)


@pytest.mark.parametrize("data", [b"", b"text", pickle.dumps([1]), b"\x93NUMP"])
def test_other_files_are_refused_without_advice_to_trust_them(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(ValueError, match=r"^it is neither an \.npy nor an \.npz file$"):
        load_arrays(tmp_path / "x.npy")


def test_objects_are_never_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="Object arrays"):
        load_arrays(tmp_path / "x.npy")


def test_what_is_no_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_arrays(tmp_path / "x.npy")
    with pytest.raises(IsADirectoryError):
        load_arrays(tmp_path)
    with pytest.raises(NotRegularError):
        load_arrays(Path("/dev/zero"))
