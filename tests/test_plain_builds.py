"""A build without times, hooks and checks is what a compiler that can't do these would write."""

from __future__ import annotations

import re

import pytest
from jinja2 import ChoiceLoader, DictLoader
from projects import MODELS, emit_model
from test_observe import looping_model
from test_profile import branching_model

from atc.option_values import Checks
from atc.templates import FOLDER, environment

FEATURES = ("profile", "hooks", "sanity")
_TAG = re.compile(r"{%-? *(if|for|elif|else|endif|endfor)\b(.*?)-?%}[ \t]*\n?", re.DOTALL)


def without(features: tuple[str, ...], text: str) -> str:
    """Return a template less the blocks that only these features have."""
    kept, at, open_blocks = [], 0, list[bool]()
    for tag in _TAG.finditer(text):
        word, condition = tag[1], tag[2]
        if not any(open_blocks):
            kept.append(text[at : tag.start()])
        at = tag.end()
        names = set(re.findall(r"[a-z_]\w*", condition)) - {"or", "and", "if", "for", "in", "else"}
        match word:
            case "if" | "for":
                gone = bool(names & set(features)) and (word == "for" or names <= set(features))
                if not (any(open_blocks) or gone):
                    kept.append(tag[0])
                open_blocks.append(gone)
            case "endif" | "endfor":
                gone = open_blocks.pop()
                if not (any(open_blocks) or gone):
                    kept.append(tag[0])
            case _ if not any(open_blocks):
                kept.append(tag[0])
    return "".join([*kept, text[at:]])


def test_blocks_are_taken_out() -> None:
    rest = "{% if z %}\nd\n{% endif %}\n"
    text = "a\n{% if hooks %}\nb{% for x in y %}c{% endfor %}\n{% endif %}\n" + rest
    assert without(FEATURES, text) == "a\n" + rest


@pytest.mark.parametrize("name", [*MODELS, "looping", "branching"])
def test_the_code_is_the_same_byte_by_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**MODELS, "looping": looping_model, "branching": branching_model}[name]()
    plain = emit_model(model)
    special = emit_model(model, profile=True, hooks=True, checks=Checks(True, True, True))
    names = ("project/net.c.j2", "project/net.h.j2")
    texts = {n: without(FEATURES, (FOLDER / n).read_text("utf-8")) for n in names}
    for text in texts.values():
        assert not re.search(r"sanity|hooks|profile", text.partition("-#}")[2])
    env = environment()
    cut = env.overlay(loader=ChoiceLoader([DictLoader(texts), env.loader or DictLoader({})]))
    monkeypatch.setattr("atc.templates.environment", lambda: cut)
    assert emit_model(model).files == plain.files
    assert special.files["src/net.c"] != plain.files["src/net.c"]
