"""A build without times, hooks, log and checks is what one writes that can't do these."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from codegen.test_hooks import looping_model
from codegen.test_profile import branching_model
from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer
from projects import MODELS, emit_model

from atc.options.values import Checks
from atc.templates import environment

FEATURES = frozenset({"profile", "hooks", "log", "sanity"})


def only_features(test: nodes.Node) -> bool:
    """Whether a condition asks for nothing but features."""
    names = {n.name for n in test.find_all(nodes.Name)}
    names |= {test.name} if isinstance(test, nodes.Name) else set()
    return bool(names) and names <= FEATURES


class Remover(NodeTransformer):
    """Takes out of a template what only the features have."""

    def visit_Or(self, node: nodes.Or) -> Any:
        left, right = self.visit(node.left), self.visit(node.right)
        if only_features(left) and only_features(right):
            return nodes.Name("profile", "load")
        return right if only_features(left) else left if only_features(right) else nodes.Or(
            left, right
        )  # fmt: skip

    def visit_If(self, node: nodes.If) -> Any:
        node = self.generic_visit(node)
        node.elif_ = [e for e in node.elif_ if not (isinstance(e, nodes.If) and gone(e))]
        if not gone(node):
            return node
        if node.elif_:
            first, *others = node.elif_
            return nodes.If(first.test, first.body, others, node.else_)
        return node.else_ or None

    def visit_CondExpr(self, node: nodes.CondExpr) -> Any:
        node = self.generic_visit(node)
        return (node.expr2 or nodes.Const("")) if only_features(node.test) else node

    def visit_For(self, node: nodes.For) -> Any:
        node = self.generic_visit(node)
        return None if isinstance(node.iter, nodes.Tuple) and not node.iter.items else node


def gone(node: nodes.If) -> bool:
    """Whether a branch is there for features alone. Its elifs are Ifs as well."""
    return only_features(node.test)


def cut_environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Return the templates as they would be if nobody had thought of these features."""
    cut = environment().overlay(bytecode_cache=None)
    parse = cut._parse

    def parse_less(source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Remover().visit(parse(source, name, filename))
        assert not [n for n in tree.find_all(nodes.Name) if n.name in FEATURES], name
        return tree

    monkeypatch.setattr(cut, "_parse", parse_less)
    return cut


def without_features(cut: Environment, name: str, values: dict[str, object]) -> str:
    """Render a template that knows nothing of the features."""
    return cut.get_template(name).render({k: v for k, v in values.items() if k not in FEATURES})


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*MODELS, "looping", "branching"])
def test_the_code_is_the_same_byte_by_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**MODELS, "looping": looping_model, "branching": branching_model}[name]()
    plain = emit_model(model)
    special = emit_model(model, profile=True, hooks=True, checks=Checks(True, True, True), log=True)
    cut = cut_environment(monkeypatch)
    monkeypatch.setattr("atc.codegen.emit.render", partial(without_features, cut))
    assert emit_model(model).files == plain.files
    assert special.files["src/net.c"] != plain.files["src/net.c"]
