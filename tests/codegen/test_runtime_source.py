"""The generated Python module: it needs nothing of ours, and has all that its parts define."""

from __future__ import annotations

import ast
import inspect
from collections import Counter

import pytest

from atc.codegen.runtime_source import runtime_source
from atc.runtime import network, profile, values


def _defined(text: str) -> list[str]:
    return [
        node.name for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]  # fmt: skip


@pytest.mark.parametrize("profiled", [False, True])
def test_the_parts_are_one_module(profiled: bool) -> None:
    text = runtime_source(profiled)
    tree = ast.parse(text)
    every = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert not [module for module in every if module.startswith(("atc", "__future__"))]
    head = Counter(n.module for n in tree.body if isinstance(n, ast.ImportFrom))
    assert set(head.values()) == {1}
    for part, there in ((values, True), (network, True), (profile, profiled)):
        own = _defined(inspect.getsource(part))
        assert own
        assert (set(own) <= set(_defined(text))) is there
