"""The grammar of --input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc.errors import OptionError
from atc.load_and_run.inputs import Filled, fit_inputs, parse_literal, read_inputs

FLOATS, INTS = np.dtype(np.float32), np.dtype(np.int32)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("[[1,2],[3,4]]", (1, 2, 2), INTS), ("[1,2,3]", (1, 3), INTS), ("7", (1, 1), INTS),
        ("[1.5]", (1, 1), FLOATS), ("[[[1,2,3],[4,5,6]]]", (1, 1, 2, 3), INTS),
        (" [ 1 , -2.0 ] ", (1, 2), FLOATS), ("[1e3]", (1, 1), INTS),
        ("[5e-1,2]", (1, 2), FLOATS), ("[nan,inf]", (1, 2), FLOATS), ("[1e3,-inf]", (1, 2), FLOATS),
    ],
)  # fmt: skip
def test_a_literal_has_a_dimension_for_each_bracket_and_a_leading_one(
    text: str, shape: tuple[int, ...], dtype: Any
) -> None:
    array = parse_literal(text)
    assert (array.shape, array.dtype) == (shape, dtype)
    numbers = [float(v) for v in re.split(r"[\[\], ]+", text) if v]
    np.testing.assert_array_equal(array.reshape(-1), np.array(numbers, dtype))


@pytest.mark.parametrize(
    "text", ["[[1,2]", "1]", "[]", "[a]", "[[1,2],[3]]", "", "[99999999999]", "nothere.txt"]
)
def test_a_wrong_literal_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match="--input"):
        read_inputs(f"x:{text}" if text else "x:")


def test_items_names_and_the_first_colon() -> None:
    found = read_inputs("a:[1.0];b:{2,3};[2]")
    assert [g.name for g in found] == ["a", "b", "data"]
    assert found[1].value == Filled((2, 3))
    with pytest.raises(OptionError, match="duplicate name"):
        read_inputs("a:1;a:2")


def test_arrays_of_files(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    np.save(tmp_path / "a.npy", np.asfortranarray(array))
    np.savez(tmp_path / "b.npz", one=array, two=array[0])
    (found,) = read_inputs(f"x:{tmp_path}/a.npy")
    np.testing.assert_array_equal(found.value, array)
    assert found.value.flags.c_contiguous  # type: ignore[union-attr]
    assert [g.name for g in read_inputs(f"{tmp_path}/b.npz")] == ["one", "two"]
    (tmp_path / "c.npy").write_bytes(b"no array")
    with pytest.raises(OptionError, match="can't be read"):
        read_inputs(f"x:{tmp_path}/c.npy")
    np.save(tmp_path / "d.npy", np.array(["text"]))
    with pytest.raises(OptionError, match=r"e\.npy' can't be read: no such file or directory \["):
        read_inputs(f"x:{tmp_path}/e.npy")
    with pytest.raises(OptionError, match="are not read"):
        read_inputs(f"x:{tmp_path}/d.npy")


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"

    def given(**changes: Any) -> str:
        entry = {"shape": [2, 2], "type": "int32", "raw": [1.6, 2, 3, -4], **changes}
        path.write_text(json.dumps({"x": entry, "y": {"shape": [1], "type": "float", "raw": [2]}}))
        return f"ignored:{path}"

    x, y = read_inputs(given())
    assert (x.name, y.name) == ("x", "y")
    np.testing.assert_array_equal(x.value, np.array([[2, 2], [3, -4]], np.int32))
    assert y.value.dtype == np.float32  # type: ignore[union-attr]
    strings = read_inputs(given(raw=["1.6", "2", " 3", "-4e0"]))[0]
    np.testing.assert_array_equal(strings.value, x.value)
    wrong: list[dict[str, Any]] = [
        {"raw": [1]}, {"raw": "1234"}, {"type": "complex"}, {"shape": [-4]}, {"shape": 4},
        {"raw": ["1", "2", "3", "four"]}, {"raw": [1, 2, 3, True]}, {"raw": [1, 2, 3, 1e10]},
        {"raw": ["nan", 1, 2, 3]}, {"raw": [10**400, 1, 2, 3]}, {"raw": [1, 2, 3, None]},
    ]  # fmt: skip
    for changes in wrong:
        with pytest.raises(OptionError, match="'x'"):
            read_inputs(given(**changes))
    path.write_text("[1, 2]")
    with pytest.raises(OptionError, match="no JSON object"):
        read_inputs(f"x:{path}")


@pytest.mark.parametrize(
    "header", [b"P6\n3 2\n255\n", b"P6 3 2 255\n", b"P6\n# a comment\n3 2 255 "]
)
def test_images(header: bytes, tmp_path: Path) -> None:
    pixels = np.arange(18, dtype=np.uint8)
    (tmp_path / "i.ppm").write_bytes(header + pixels.tobytes())
    (found,) = read_inputs(f"x:{tmp_path}/i.ppm")
    np.testing.assert_array_equal(found.value, pixels.reshape(1, 2, 3, 3))


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b"P3\n3 2\n255\n", (1, 2, 3, 3)), (b"P2 6 # wide\n3 17\n", (1, 3, 6, 1)),
        (b"P2\n9 2 255", (1, 2, 9, 1)),
    ],
)  # fmt: skip
def test_images_of_text(data: bytes, shape: tuple[int, ...], tmp_path: Path) -> None:
    pixels = np.arange(18, dtype=np.uint8)
    samples = b"\n".join(b"%d" % p for p in pixels).replace(b"\n9", b" # the tenth\n9")
    (tmp_path / "i.pgm").write_bytes(data + b"\n" + samples + b"\n")
    (found,) = read_inputs(f"x:{tmp_path}/i.pgm")
    np.testing.assert_array_equal(found.value, pixels.reshape(shape))


@pytest.mark.parametrize(
    "data",
    [b"P3\n1 1\n255\n1 2", b"P2\n2 1\n255\n1 256", b"P2\n2 1\n9\n1 x", b"P2\n2 1\n9\n1 -1",
     b"P2 1 1 9\n1000000000000", b"P2 1 1 9\n0000000000999",
     b"P7\n1 1\n255\n1 2 3", b"P5\n2 2\n255\nabc",
     b"P5\n2 2\n65535\nabcdabcd", b"P5", b"P5 #"],
)  # fmt: skip
def test_wrong_images(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "i.pgm").write_bytes(data)
    with pytest.raises(OptionError, match="can't be read"):
        read_inputs(f"x:{tmp_path}/i.pgm")


def test_inputs_fit_the_network() -> None:
    signature = {"a": ((2, 2), FLOATS), "b": ((3,), INTS)}
    found = fit_inputs(read_inputs("a:[[1.0,2],[3,4]]"), signature)
    np.testing.assert_array_equal(found["a"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found["b"], [0, 0, 0])
    ones = fit_inputs(read_inputs("b:{3}"), signature)["b"]
    np.testing.assert_array_equal(ones.view(np.uint8), 1)
    np.testing.assert_array_equal(fit_inputs(read_inputs("b:[1,2]"), signature, 3)["b"], [1, 2, 1])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("b:[1.0,2.0,3.0]", "must be int32, not float32"),
        ("a:[[1,2],[3,16777217]]", "must be float32, which doesn't hold all of its numbers"),
        ("a:[[1.0,2,3]]", "must have the shape [2, 2], not [1, 3]"),
        ("c:[1]", "no input 'c'"), ("[1]", "no input 'data'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(text: str, part: str) -> None:
    signature = {"a": ((2, 2), FLOATS), "b": ((3,), INTS)}
    with pytest.raises(OptionError) as caught:
        fit_inputs(read_inputs(text), signature)
    assert part in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8", "bool"])
def test_whole_numbers_fit_every_type_that_holds_them(dtype: str) -> None:
    signature = {"a": ((2, 2), np.dtype(dtype))}
    found = fit_inputs(read_inputs("a:[[1,0],[0,1]]"), signature)["a"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.eye(2))


def test_a_literal_of_floats_has_the_width_of_the_input() -> None:
    found = fit_inputs(read_inputs("[0.1]"), {"a": ((1,), np.dtype(np.float64))})["a"]
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 3, 2, 3), "float32"), ((1, 2, 3, 3), "uint8"), ((1, 3, 2, 3), "u1")]
)
def test_images_fit_floats_and_channels_first(
    shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    pixels = np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)
    (tmp_path / "i.ppm").write_bytes(b"P6 3 2 255 " + pixels.tobytes())
    given = read_inputs(f"{tmp_path}/i.ppm")
    found = fit_inputs(given, {"a": (shape, np.dtype(dtype))})["a"]
    expected = pixels if shape == pixels.shape else pixels.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == dtype
    with pytest.raises(OptionError, match="must have the shape"):
        fit_inputs(given, {"a": ((1, 3, 3, 2), FLOATS)})


def test_an_only_input_needs_no_name() -> None:
    found = fit_inputs(read_inputs("[1,2]"), {"pixels": ((2,), INTS)})
    np.testing.assert_array_equal(found["pixels"], [1, 2])
