"""The formats of dumps, and the comparison of binary ones."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc.errors import ModelError
from atc.load_and_run.binary_dump import compare_dumps, dump_bytes, read_dump
from atc.load_and_run.text_dump import summary


def test_text_dumps_of_two_inputs_differ_in_numbers_only(
    run: Any, library: Path, tmp_path: Path
) -> None:
    """The values of each block can be read back, and are those of the binary dump."""
    texts = []
    for name, value in (("one", 1.0), ("two", -8.5)):
        np.save(tmp_path / "x.npy", np.full((1, 1, 28, 28), value, np.float32))
        run(library, f"--input=data:{tmp_path}/x.npy", f"--io-dump={tmp_path}/{name}", "--iter=1")
        texts.append((tmp_path / name).read_text())
    plain = [re.sub(r"-?\d+(\.\d+)?(e[+-]\d+)?", "#", text) for text in texts]
    assert plain[0] == plain[1]
    assert texts[0] != texts[1]
    (tmp_path / "values").mkdir()
    run(library, f"--input=data:{tmp_path}/x.npy", f"--bin-io-dump={tmp_path}/values", "--iter=1")
    blocks = re.findall(r"^var(\d+) produced:.*?^ val: \[([^\]]*)\]", texts[1], re.M | re.S)
    assert blocks
    for number, values in blocks:
        shown = [float(v) for v in values.split(", ") if v != "..."]
        array = read_dump(tmp_path / "values" / f"{int(number):06x}").array.reshape(-1)
        np.testing.assert_allclose(array[: len(shown)], shown, rtol=1e-3)


def test_summaries() -> None:
    assert summary(np.float32([3, -4])) == "min=-4 max=3 mean=-0.5 l2=3.54 sd=4.95"
    assert summary(np.float32([2])).endswith("sd=N/A")
    assert summary(np.zeros((0, 3))) == "empty"


def test_operands_are_dumped_where_mgb_dump_input_says_so(
    run: Any, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGB_DUMP_INPUT", "1")
    run(library, f"--bin-io-dump={tmp_path}", "--iter=1")
    names = {path.name for path in tmp_path.iterdir()}
    results = {n for n in names if "-inp" not in n}
    assert {n.partition("-inp")[0] for n in names - results} == results
    assert read_dump(tmp_path / f"{min(results)}-inp0").name.startswith("inp0: var=")
    words = (library, f"--bin-io-dump={tmp_path}", "--record-comp-seq")
    assert "recorded sequence" in run(*words, status=1).err


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.float32([[1, 2]]), 0), (np.uint8([1]), 1), (np.int8([-1]), 2), (np.int16([-1]), 3),
        (np.int32([7]), 4), (np.array([True]), 8), (np.float16([0.5]), 9), (np.uint16([9]), 13),
        (np.float64([[0.25]]), 0), (np.int64([[5], [6]]), 4),
    ],
)  # fmt: skip
def test_a_binary_dump_is_read_back(array: Any, code: int, tmp_path: Path) -> None:
    data = dump_bytes("näme", array)
    assert struct.unpack_from("<II", data) == (len("n\\xe4me"), code)
    (tmp_path / "d").write_bytes(data)
    found = read_dump(tmp_path / "d")
    assert found.name == "n\\xe4me"
    np.testing.assert_array_equal(found.array, array)


def test_strings_are_dumped_as_their_cells(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(dump_bytes("s", np.array([b"ab", b"c"], "S4")))
    np.testing.assert_array_equal(read_dump(tmp_path / "d").array, [[97, 98, 0, 0], [99, 0, 0, 0]])


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\xff" * 40, struct.pack("<III7I", 0, 0, 7, *[9] * 7)]
)
def test_what_is_no_dump_is_an_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(ModelError, match="no binary dump"):
        read_dump(tmp_path / "d")


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ([1.0, 2.0], [1.0, 2.001], None), ([1.0, 2.0], [1.0, 2.1], 0.1 / 2.1),
        ([0.0], [0.01], 0.01), ([np.nan], [np.nan], None), ([np.nan], [1.0], np.inf),
        ([np.inf], [np.inf], None), ([np.inf], [1.0], np.inf),
    ],
)  # fmt: skip
def test_comparing(a: list[float], b: list[float], error: float | None, tmp_path: Path) -> None:
    for name, values in (("a", a), ("b", b)):
        (tmp_path / name).write_bytes(dump_bytes("v", np.float32(values)))
    found = compare_dumps(tmp_path / "a", tmp_path / "b", 1e-3, False)
    if error is None:
        assert not found
    else:
        assert found[0].error == pytest.approx(error, rel=1e-3)


def test_other_shapes_differ(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(dump_bytes("v", np.zeros((2, 3), np.float32)))
    (tmp_path / "b").write_bytes(dump_bytes("v", np.zeros((3, 2), np.float32)))
    (found,) = compare_dumps(tmp_path / "a", tmp_path / "b", 1.0, False)
    assert found.text == "float32 [2, 3] and float32 [3, 2]"
