from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from atc.dims import Named, Range, Sum
from atc.errors import OptionError
from atc.options.shapes import shapes
from atc.options.table import SETTINGS
from atc.options.table.setting import Setting
from atc.options.values import choice, integer, names, path, positive, required_path, switch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("x:1,3,224,224", {"x": (1, 3, 224, 224)}),
        ("x:1,2;y:7", {"x": (1, 2), "y": (7,)}),
        ("scalar:", {"scalar": ()}),
        ("a:0:1,2", {"a:0": (1, 2)}),
        (" x : 1 , 2 ; y: ", {"x": (1, 2), "y": ()}),
        ("名前:1", {"名前": (1,)}),
        ("a,b:3", {"a,b": (3,)}),
        ("x:1,0,4", {"x": (1, 0, 4)}),
    ],
)
def test_input_shapes(text: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert shapes(text) == expected


def test_ranges_of_input_shapes() -> None:
    expected = {"x": (Range(1, 8), 3, -1), "y": (4,)}
    assert shapes("x:1~8,3,-1;y:4~4") == expected
    assert shapes({"x": ("1~8", 3, -1), "y": (Range(4, 4),)}) == expected


def test_named_extents_of_input_shapes() -> None:
    ids = (1, Named("s", Range(1, 16)))
    total = Sum((("s", 1), ("p", 1)))
    expected = {"ids": ids, "past": (Named("p", Range(0, 9)), Named("h", 4)), "mask": (1, total)}
    assert shapes("ids:1,s=1~16;past:p=0~9,h=4;mask:1,s+p") == expected
    given = {"ids": (1, "s=1~16"), "past": ("p = 0~9", "h=4"), "mask": (1, " s + p ")}
    assert shapes(given) == expected
    assert shapes("x:2*s-1,s,s+s,3-s")["x"] == (
        Sum((("s", 2),), -1), Sum((("s", 1),)), Sum((("s", 2),)), Sum((("s", -1),), 3)
    )  # fmt: skip


def test_shapes_of_sequences_and_optionals() -> None:
    expected = {"s": [(2, 3), (), (4,)], "t": [(5,)], "e": [], "o": None, "x": (1,)}
    assert shapes("s:[2,3][] [4];t:[5];e:empty;o:none;x:1") == expected
    given = {"s": [(2, 3), [], [4]], "t": "[5]", "e": "empty", "o": None, "x": [1]}
    assert shapes(given) == expected


def test_input_shapes_from_python() -> None:
    given = {"x": (1, np.int64(3)), "scalar": (), "with;and:": [2]}
    assert shapes(given) == {"x": (1, 3), "scalar": (), "with;and:": (2,)}


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("x", "E10002", "'x' is not a valid shape"),
        (":1,2", "E10002", "':1,2' is not a valid shape"),
        ("x:1,2;", "E10002", "'' is not a valid shape"),
        ("x:1;x:2", "E10002", "duplicate name 'x'"),
        ("x:1,b-", "E10002", "dimension 'b-' of input 'x'"),
        ("x:1,s=b", "E10002", "dimension 'b' of input 'x'"),
        ("x:1,2=3", "E10002", "'2' in dimension '2=3' of input 'x' is not a name"),
        ("x:1,s=1~-1", "E10002", "'1~-1' of input 'x' has no upper end"),
        ("x:2*3", "E10002", "dimension '2*3' of input 'x'"),
        ("x:1,,2", "E10002", "dimension '' of input 'x'"),
        ("x:[1,2", "E10002", "'[1,2' is not a sequence"),
        ("x:[1][*]", "E10002", "dimension '*' of input 'x'"),
        ("x:1.5", "E10002", "dimension '1.5'"),
        ("x:٣", "E10002", "is not a number"),
        ("x:-2", "E10011", "dimension -2 of input 'x' is negative"),
        ("x:-3~4", "E10011", "dimension -3~4 of input 'x' is negative"),
        ("x:4~2", "E10011", "the range dimension 4~2 of input 'x' is empty"),
        ("x:1~-1", "E10002", "'1~-1' of input 'x' has no upper end"),
        ("x:1~2~3", "E10002", "'1~2~3' of input 'x' is not a number"),
        ({"x": (1, -3)}, "E10011", "dimension -3"),
        ({"x": (1.5,)}, "E10002", "is not a number"),
        (["x"], "E10002", "is not a valid shape"),
    ],
)
def test_wrong_input_shapes(given: object, code: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        shapes(given)
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize("on", ["1", "true", "True", True, 1])
def test_a_switch_is_on(on: object) -> None:
    assert switch(on) is True


@pytest.mark.parametrize("off", ["0", "false", False, 0])
def test_a_switch_is_off(off: object) -> None:
    assert switch(off) is False


@pytest.mark.parametrize("wrong", ["", "2", "yes", "on", None])
def test_a_switch_takes_nothing_else(wrong: object) -> None:
    with pytest.raises(OptionError, match="E10006"):
        switch(wrong)


def test_a_choice_lists_its_words_and_those_that_come_later() -> None:
    parse = choice(("a", "b"), {"c": "the third"}, code="E10010")
    assert parse("a") == "a"
    with pytest.raises(OptionError, match=r"E10010: invalid value 'A' \(hint: use one of a, b\)"):
        parse("A")
    with pytest.raises(OptionError, match=r"'c' \(the third\) is not supported yet"):
        parse("c")


@pytest.mark.parametrize(
    ("given", "code"),
    [("x", "E10003"), ("", "E10003"), ("1.0", "E10003"), (1.5, "E10003"), ("9" * 5000, "E10003"),
     ("-1", "E10013"), ("5", "E10013"), (7, "E10013"), ("3", "E10001")],
)  # fmt: skip
def test_a_wrong_number(given: object, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        integer(0, 4, {3: "the third"})(given)
    assert caught.value.code == code


def test_numbers() -> None:
    assert [integer(0)(given) for given in ("0", " 12 ", 7, np.int64(3))] == [0, 12, 7, 3]
    assert positive("1e-4") == 1e-4
    for wrong in ("0", "-1", "nan", "inf", "x", ""):
        with pytest.raises(OptionError, match="E10003"):
            positive(wrong)


def test_paths() -> None:
    assert path("") is None
    assert path("a/b") == path(Path("a/b")) == Path("a/b")
    assert required_path("a") == Path("a")


@pytest.mark.parametrize(
    ("given", "code"),
    [("", "E10004"), ("a\0b", "E10001"), ("a" * 256, "E10021"), ("a/" * 3000, "E10021"),
     ("ä" * 200, "E10021")],
)  # fmt: skip
def test_wrong_paths(given: str, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        required_path(given)
    assert caught.value.code == code


@pytest.mark.few(40)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.label)
def test_what_python_may_give_is_taken_or_refused(setting: Setting) -> None:
    """No keyword of `atc.compile` ends in another error of the parser."""
    for given in (None, -1, 2.5, float("nan"), 10**30, True, b"x", object(), [None], [[1]], ["x"],
                  [object()], {1: 2}, {"a": object()}, {"a": ["x", "y"]}):  # fmt: skip
        with suppress(OptionError):
            setting.value(given)


def test_names() -> None:
    assert names("") == names([]) == ()
    assert names("a; b:0 ;c") == names(["a", "b:0", "c"]) == ("a", "b:0", "c")
    assert names(["with;semicolon"]) == ("with;semicolon",)
    for wrong in ("a;;b", "a;", ";", "a;a", ["a", "a"], ["a", ""]):
        with pytest.raises(OptionError, match="E10001"):
            names(wrong)
