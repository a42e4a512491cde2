"""Regular expressions against Python's, where both mean the same, and RE2's own rules."""

from __future__ import annotations

import random
import re

import pytest

from atc.errors import AtcError
from atc.lower.text.regex_automaton import Automaton, automaton

ALPHABET = "abcABC .@é\nßxy_19gmailcom-日"


def accepts(found: Automaton, text: str) -> bool:
    state = 1
    for byte in text.encode():
        state = int(found.steps[state][found.classes[byte]])
    return bool(found.accepting[state])


SAME = [
    r"", r"a*b+c?", r"(ab|a)(bc)?", r"[^a-c]+", r"(?:a|b){2,3}", r"\bab\b.*", r"a\B.b", r"^ab\Z|^c",
    r"(?m:^a$\n^b$)", r"(?i)aBC", r"[à-ü]+", r".é.", r"(?s).*", r".*", r"\d+(\.\d+)?",
    r"\x41\101", r"a{0}", r"(a*)*b", r"((a?){3}){2}", r"[]a]+", r"[a\-c]", r"[^\W\d]+", r"a||b",
    r"(|a)+", r"(?P<n>a)+?b*?", r"[a-c1-9._-]+@\w+", r"\s\S\D", r"(\W|^)[\w.\-]{0,5}@(g|m)(\W|\Z)",
    r"(?i:[a-b])c", r"a.c|.{3,}?", r"[\n.]", r"日|本", r"[^日]é?",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SAME)
def test_means_what_it_means_in_python(pattern: str) -> None:
    """Classes are those of ASCII in RE2, and \\Z is called \\z there."""
    expected = re.compile(pattern, re.ASCII)
    found = automaton(pattern.replace(r"\Z", r"\z"))
    rng = random.Random(pattern)
    texts = ["".join(rng.choices(ALPHABET, k=rng.randrange(7))) for _ in range(1500)]
    letters = [c for c in pattern if c.isalnum()] or ["a"]
    texts += ["".join(rng.choices(letters, k=rng.randrange(6))) for _ in range(500)]
    wrong = [t for t in texts if accepts(found, t) != bool(expected.fullmatch(t))]
    assert not wrong


RE2 = [
    (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb", "a.ba.b"]),
    (r"[[:alpha:]]+", ["aZ"], ["a1", "é", ""]),
    (r"[[:^digit:]x]", ["x", "é"], ["1"]),
    (r"\pL+", ["aé日"], ["a1", ""]),
    (r"\p{Lu}\PN", ["Éa"], ["éa", "A1"]),
    (r"(?i)straße", ["STRAßE", "StraẞE"], ["strasse"]),
    (r"\x{1F600}|\x41", ["😀", "A"], ["B"]),
    (r"a$", ["a"], ["a\n"]),
    (r"(?<name>a)\z", ["a"], ["aa"]),
    (r"\C", ["a"], ["é"]),
    (r"\C\C", ["é", "ab"], ["a"]),
    (r"x{,2}", ["x{,2}"], ["xx"]),
    (r"(?U)a+", ["aa"], [""]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), RE2)
def test_speaks_the_syntax_of_re2(pattern: str, good: list[str], bad: list[str]) -> None:
    found = automaton(pattern)
    assert all(accepts(found, t) for t in good)
    assert not any(accepts(found, t) for t in bad)


def test_bytes_that_are_not_utf_8_match_no_character() -> None:
    found = automaton("(?s).*")
    state = 1
    for byte in b"a\xff":
        state = int(found.steps[state][found.classes[byte]])
    assert not found.accepting[state]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "a '\\)' is missing"), (")", "unexpected"), ("[a", "too early"), ("*a", "nothing to"),
     (r"\8", "not known"), (r"\1", "not known"), ("(?=a)", "not known to RE2"), ("\\", "too early"),
     ("[b-a]", "upside down"), ("a{1001}", "repetitions"), ("(" * 1000, "too deeply"),
     ("((a{1000}){1000})", "1000 repetitions"), ("(?P<9>a)", "name is wrong"),
     ("[[:foo:]]", "not known"), (r"\p{Klingon}", "class of Unicode"), (r"\x{110000}", "hexa"),
     pytest.param("(a|b)*a(a|b){20}", "too many states", marks=pytest.mark.slow),
     (".{1000}", "too many states"), (r"(\pL{100}\pN{100}){5}", "too large"),
     pytest.param("(x{500}){2}(y{9})*|" * 99, "too (large|many)", marks=pytest.mark.slow)],
)  # fmt: skip
def test_what_is_wrong_or_too_large_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        automaton(pattern)
