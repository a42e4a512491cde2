"""The key: injective, readable, explaining."""

import hashlib

import pytest

from atc.cache import Key, make_key
from atc.cache.key import differences, parse_key
from atc.errors import InternalError


def test_digest_is_the_sha256_of_label_nul_length_nul_bytes():
    key = Key((("flags", b"-O2"), ("source", b"int x;\0")))
    assert key.encoded() == b"flags\x003\x00-O2source\x007\x00int x;\x00"
    assert key.digest() == hashlib.sha256(key.encoded()).hexdigest()


def test_ingredients_are_sorted_and_carry_the_schema():
    key = make_key(source=b"x", flags="y")
    assert [label for label, _ in key.ingredients] == ["flags", "schema", "source"]
    assert key == make_key(flags=b"y", source="x")


def test_the_schema_label_is_reserved():
    with pytest.raises(InternalError, match="schema"):
        make_key(schema="2")


def test_a_label_cannot_smuggle_a_delimiter():
    with pytest.raises(InternalError, match="NUL"):
        Key((("a\x001\x00b", b""),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "xy", "b": ""}, {"a": "x", "b": "y"}),
        ({"a": "1"}, {"b": "1"}),
        ({"a": "x"}, {"a": "x", "b": ""}),
        ({"a": "x\x001\x00y"}, {"a": "x", "b": "y"}),
        ({"a": "caf\u00e9"}, {"a": "cafe\u0301"}),
        ({"a": "\udc80"}, {"a": b"\x80"}),
        ({"a": "\udc80"}, {"a": "?"}),
    ],
)
def test_different_ingredients_never_share_a_digest(one, other):
    assert make_key(**one).digest() != make_key(**other).digest()


@pytest.mark.parametrize(
    "key",
    [
        make_key(),
        make_key(source="int main(void)\n{\n}\n", blob=bytes(range(256)), empty=""),
        Key((("caf\u00e9", b"\0\0"), ("z", b"9\0"))),
    ],
)
def test_a_stored_key_can_be_read_back(key):
    assert parse_key(key.encoded()) == key


@pytest.mark.parametrize(
    "data",
    [b"a", b"a\0", b"a\x003\x00xy", b"a\0x\0y", b"a\0-1\0y", b"a\x0002\x00xy", b"\xff\x000\x00"],
)
def test_bytes_that_are_no_key_are_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011 - any of int's, index's or decode's
        parse_key(data)


def test_text_shows_each_ingredient_and_escapes_control_characters():
    text = make_key(flags="-O2\x1b[31m", source="a;\nb;\n", blob=b"\0\1").text()
    assert "flags: -O2\\x1b[31m\n" in text
    assert "source: 2 lines\n    a;\n    b;\n" in text
    assert "blob: 2 bytes, sha256 " in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"flags": "-O2"}, {"flags": "-O3"}, "flags differ: -O2 -> -O3"),
        (
            {"source": "a;\nb;\nc;\n"},
            {"source": "a;\nB;\nc;\n"},
            "source differs at line 2: b; -> B;",
        ),
        ({"source": "a;\n"}, {"source": "a;\nb;\n"}, "source differs at line 2: (nothing) -> b;"),
        ({"source": "a;\nb;"}, {"source": "a;\nb;\n"}, "source differs at line 2: b; -> b;\\n"),
        ({"cpu": ""}, {"cpu": "x"}, "cpu differs: (nothing) -> x"),
        ({}, {"tuning": "1"}, "tuning is new"),
        ({"tuning": "1"}, {}, "tuning is gone"),
    ],
)
def test_differences_say_what_changed(old, new, said):
    assert differences(make_key(**old), make_key(**new)) == (said,)


def test_a_long_line_is_cut_to_where_it_differs():
    (said,) = differences(
        make_key(flags="-I" + "x" * 500 + " -O2"), make_key(flags="-I" + "x" * 500 + " -O3")
    )
    assert "-O2 -> " in said
    assert said.endswith("-O3")
    assert len(said) < 200


def test_binary_differences_are_reported_by_size_and_checksum():
    (said,) = differences(make_key(blob=b"\0"), make_key(blob=b"\0\0"))
    assert said.startswith("blob differs: 1 bytes, sha256 ")


def test_equal_keys_have_no_differences():
    assert differences(make_key(a="1"), make_key(a="1")) == ()
