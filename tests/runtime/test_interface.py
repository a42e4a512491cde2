"""The tables of the C interface are what cffi makes of the declarations."""

from __future__ import annotations

from runtime.make_interface import INTERFACE, rewritten, tables_text


def test_the_tables_are_those_of_the_declarations() -> None:
    module = INTERFACE.read_text("utf-8")
    assert rewritten(module) == module, "run tests/runtime/make_interface.py"


def test_other_declarations_make_other_tables() -> None:
    one = tables_text("typedef struct { int x; } pair; int NET_count(const pair *first);")
    two = tables_text("typedef struct { int x, y; } pair; int NET_count(const pair *first);")
    assert [text.count('count"') for text in (one, two)] == [1, 1]
    assert [text.count('b"') for text in (one, two)] == [4, 5]
