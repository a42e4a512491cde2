"""Symbol JSON: spellings of all versions, upgrades, and what a damaged file says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from importers.mxnet_files import node, symbol, variable

from atc.errors import ModelError, UnsupportedError
from atc.importers.mxnet.attributes import (
    parse_bool,
    parse_float,
    parse_int,
    parse_ints,
)
from atc.importers.mxnet.symbol import Entry, Symbol, parse_symbol


def parse(root: object) -> Symbol:
    return parse_symbol(json.dumps(root).encode(), "net-symbol.json")


# ---- attribute values --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("(3, 3)", (3, 3)), ("[1,2]", (1, 2)), ("(3,)", (3,)), ("()", ()), ("7", (7,)),
     ("(1L, 2L)", (1, 2)), ("(None, -1)", (None, -1)), (" ( 4 ) ", (4,)), ("-1", (-1,))],
)  # fmt: skip
def test_tuples(text: str, value: tuple[int | None, ...]) -> None:
    assert parse_ints(text) == value


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("3.0", 3), ("64L", 64), ("True", 1)])
def test_integers(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize(("text", "value"), [("True", 1), ("true", 1), ("1", 1), ("False", 0)])
def test_truths(text: str, value: int) -> None:
    assert parse_bool(text) is bool(value)


def test_numbers() -> None:
    assert parse_float("1e-05") == 1e-5
    assert parse_float("inf") == float("inf")


@pytest.mark.parametrize("text", ["3.5", "a", "1e400", "nan", "9" * 30, "0x10", "(1", "1 2"])
def test_no_integers(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_ints(text)


@pytest.mark.parametrize("text", ["(1,,2)", "(1, 2]", "(" + "0," * 5000 + ")"])
def test_no_tuples(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_ints(text)


# ---- versions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["attrs", "attr", "param"])
def test_attributes_of_all_versions(key: str) -> None:
    raw = {"op": "Activation", "name": "a", key: {"act_type": "relu"}, "inputs": [[0, 0]]}
    assert parse(symbol([variable("x"), raw], [(1, 0)])).nodes[1].attrs == {"act_type": "relu"}


def test_operator_attributes_win_over_user_ones() -> None:
    raw = {"op": "A", "name": "a", "param": {"k": "1"}, "attr": {"k": "2", "u": "3"}, "inputs": []}
    assert parse(symbol([raw], [(0, 0)])).nodes[0].attrs == {"k": "1", "u": "3"}


def test_old_entries_have_two_numbers() -> None:
    root = {"nodes": [variable("x"), node("relu", "y", [(0, 0)])], "arg_nodes": [0],
            "heads": [[1, 0]]}  # fmt: skip
    found = parse(root)
    assert found.version == 800
    assert found.heads == (Entry(1, 0),)


def test_missing_version_is_old() -> None:
    assert parse(symbol([variable("x")], [(0, 0)], 10401)).version == 10401


@pytest.mark.parametrize("version", [0, -5, 30000, 10**12, "x", None])
def test_unknown_version(version: Any) -> None:
    root = symbol([variable("x")], [(0, 0)])
    root["attrs"]["mxnet_version"] = ["int", version]
    with pytest.raises((ModelError, UnsupportedError), match="MXNet|mxnet_version"):
        parse(root)


def test_auxiliary_states_of_old_files_are_appended() -> None:
    nodes = [variable("x"), variable("b_gamma"), variable("b_beta"),
             node("BatchNorm", "b", [(0, 0), (1, 0), (2, 0)]),
             node("relu", "r", [(3, 0)])]  # fmt: skip
    found = parse(symbol(nodes, [(4, 0)], 800))
    names = [found.nodes[i].name for i in found.arguments]
    assert names == ["x", "b_gamma", "b_beta", "b_moving_mean", "b_moving_var"]
    assert found.nodes[-1].inputs == (Entry(len(found.nodes) - 2, 0),)
    assert found.heads == (Entry(len(found.nodes) - 1, 0),)


@pytest.mark.parametrize(("version", "axis"), [(904, None), (905, "-1")])
def test_old_argmax_of_axis_minus_one_is_of_all(version: int, axis: str | None) -> None:
    nodes = [variable("x"), node("argmax", "a", [(0, 0)], axis=-1)]
    assert parse(symbol(nodes, [(1, 0)], version)).nodes[1].attrs.get("axis") == axis


# ---- damage ------------------------------------------------------------------------------------

RELU = [variable("x"), node("relu", "y", [(0, 0)])]


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ([], "no list of nodes"), ({}, "no list of nodes"), ({"nodes": 3}, "no list of nodes"),
        (symbol([], []), "no outputs"), (symbol(RELU, []), "no outputs"),
        ({"nodes": RELU}, "heads is not a list"), (symbol(RELU, [(7, 0)]), "node 7"),
        (symbol(RELU, [(-1, 0)]), "node -1"), (symbol(RELU, [(1, 1 << 40)]), "output"),
        ({"nodes": ["x"], "heads": [[0, 0]]}, "not an object"),
        ({"nodes": [{"op": 3, "name": "x"}], "heads": [[0, 0]]}, "not a string"),
        ({"nodes": [variable("x") | {"inputs": 5}], "heads": [[0, 0]]}, "not a list"),
        ({"nodes": [variable("x") | {"attrs": []}], "heads": [[0, 0]]}, "not an object"),
        ({"nodes": RELU, "heads": [["a", "b"]]}, "not \\[node, output\\]"),
        (symbol([variable("x"), node("relu", "y", [(1, 0)])], [(1, 0)]), "node 1"),
        (symbol([variable("x") | {"subgraphs": 1}], [(0, 0)]), "subgraphs"),
    ],
)  # fmt: skip
def test_damaged_symbol(root: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        parse(root)
    assert "net-symbol.json" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff", b"{", b"[" * 100000, b'{"nodes": [' + b"9" * 5000 + b"]}", b"nul"]
)
def test_no_json(data: bytes) -> None:
    with pytest.raises(ModelError):
        parse_symbol(data, "f")


def test_subgraphs_that_nest_too_deeply() -> None:
    root = symbol([variable("x")], [(0, 0)])
    for _ in range(20):
        root = symbol([variable("x") | {"subgraphs": [root]}], [(0, 0)])
    with pytest.raises(ModelError, match="nest"):
        parse(root)
