"""NDArray files: every version and type, and what a damaged one says."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from importers.mxnet_files import FLAGS, ndarray, params

from atc.errors import AtcError, ModelError, UnsupportedError
from atc.importers.mxnet.params import parse_params, read_params


def of_type(name: str) -> np.ndarray:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    return np.arange(6).reshape(2, 3).astype(dtype)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_dense_arrays(version: int) -> None:
    for name in FLAGS:
        array = of_type(name)
        found = parse_params(params({"arg:w": array, "aux:m": array[:1]}, version), "f")
        assert set(found) == {"w", "m"}
        assert found["w"].dtype == array.dtype
        np.testing.assert_array_equal(found["w"], array, err_msg=name)
        np.testing.assert_array_equal(found["m"], array[:1], err_msg=name)


def test_bare_names_of_save_parameters() -> None:
    assert set(parse_params(params({"dense0_weight": of_type("float32")}), "f")) == {
        "dense0_weight"
    }


def test_scalar_of_numpy_semantics() -> None:
    assert parse_params(params({"arg:s": np.asarray(2.5, "f4")}, 3), "f")["s"] == 2.5


def test_empty_place_holder_is_left_out() -> None:
    empty = struct.pack("<Iii", 0xF993FAC9, 0, 0)
    data = struct.pack("<QQQ", 0x112, 0, 2) + empty + ndarray(of_type("int8"))
    data += struct.pack("<QQ", 2, 1) + b"a" + struct.pack("<Q", 1) + b"b"
    assert set(parse_params(data, "f")) == {"b"}


@pytest.mark.parametrize(("storage", "name"), [(1, "row_sparse"), (2, "csr")])
def test_sparse_array_is_refused_by_name(storage: int, name: str) -> None:
    data = struct.pack("<QQQ", 0x112, 0, 1) + struct.pack("<Ii", 0xF993FAC9, storage)
    with pytest.raises(UnsupportedError, match=name):
        parse_params(data + bytes(64), "f")


def test_npz() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{"arg:w": of_type("float32")})
    np.testing.assert_array_equal(parse_params(buffer.getvalue(), "f")["w"], of_type("float32"))


@pytest.mark.parametrize("kind", ["compressed", "object"])
def test_npz_that_could_do_harm(kind: str) -> None:
    buffer = io.BytesIO()
    if kind == "object":
        np.savez(buffer, w=np.asarray([{}], object))
    else:
        np.savez_compressed(buffer, w=np.zeros(1 << 20))
    with pytest.raises(AtcError):
        parse_params(buffer.getvalue(), "f")


GOOD = params({"arg:w": of_type("float32")})
HEAD = struct.pack("<QQQ", 0x112, 0, 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "end inside the header"),
        (b"\x11\x01" + GOOD[2:], "wrong magic"),
        (GOOD[:60], "end inside"),
        (GOOD[:-1], "end inside a name"),
        (GOOD[:16] + struct.pack("<Q", 1 << 62) + GOOD[24:], "array 1"),
        (HEAD + struct.pack("<Iii", 0xF993FAC9, 7, 1), "storage type 7"),
        (HEAD + struct.pack("<Iii", 0xF993FAC9, 0, 99), "rank 99"),
        (HEAD + struct.pack("<I", 0xDEADBEEF), "rank"),
        (HEAD + ndarray(of_type("int8"))[:-10] + struct.pack("<i", 77), "element type 77"),
        (HEAD + struct.pack("<Iiiqqiii", 0xF993FAC9, 0, 2, 1 << 40, 9, 1, 0, 0), "end inside"),
        (HEAD + struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, -5, 1, 0, 0), r"\[-5\]"),
        (GOOD[:-21] + struct.pack("<Q", 0), "have 0 names"),
        (GOOD[:-1] + b"\xff", "UTF-8"),
        (b"PK\x03\x04 no archive", "npz"),
    ],
)  # fmt: skip
def test_damaged_file(data: bytes, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        parse_params(data, "net.params")


def test_same_name_twice() -> None:
    two = params({"arg:a": of_type("int8"), "arg:b": of_type("int8")})
    with pytest.raises(ModelError, match="same name"):
        parse_params(two.replace(b"arg:b", b"arg:a"), "f")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_params(tmp_path / "no.params")
    assert caught.value.code == "E10008"


def test_huge_promise_is_refused_at_once() -> None:
    data = HEAD + struct.pack("<Iiiqqiii", 0xF993FAC9, 0, 2, 1 << 20, 1 << 20, 1, 0, 0)
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(ModelError):
        parse_params(data + bytes(1000), "f")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert time.process_time() - begin < 5
