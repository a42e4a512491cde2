"""Compiled templates that are kept."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment, FileSystemLoader

from atc.templates.compiled import Beside, StoredBytecode, keeping_templates


@dataclass(frozen=True)
class Memory:
    """A store in memory that counts what is taken from it."""

    kept: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)

    def get(self, name: str, key: bytes) -> bytes | None:
        found = self.kept.get((name, key))
        if found is not None:
            self.taken.append(name)
        return found

    def put(self, name: str, key: bytes, data: bytes) -> None:
        self.kept[name, key] = data


def rendered(text: str) -> str:
    loader = DictLoader({"a/b.j2": text})
    environment = Environment(loader=loader, bytecode_cache=StoredBytecode())
    return environment.get_template("a/b.j2").render({"x": 3})


def test_a_template_is_compiled_once() -> None:
    store = Memory()
    with keeping_templates(store):
        assert rendered("x is {{ x }}") == "x is 3"
        assert not store.taken
        assert rendered("x is {{ x }}") == "x is 3"
    ((name, _),) = store.kept
    assert store.taken == [name]
    assert name.startswith("a-b.j2.")


def test_a_changed_template_is_compiled_again() -> None:
    store = Memory()
    with keeping_templates(store):
        rendered("x is {{ x }}")
        assert rendered("x was {{ x }}") == "x was 3"
    assert not store.taken
    assert len(store.kept) == 2


def test_without_a_store_nothing_is_kept() -> None:
    store = Memory()
    with keeping_templates(store), keeping_templates(None):
        assert rendered("{{ x }}") == "3"
    assert not store.kept
    assert rendered("{{ x }}") == "3"


def beside(folder: Path, text: str) -> str:
    """Render a template that lies in a folder of its own."""
    (folder / "b.j2").write_text(text)
    cache = StoredBytecode(Beside(folder))
    environment = Environment(loader=FileSystemLoader(folder), bytecode_cache=cache)
    return environment.get_template("b.j2").render({"x": 3})


def test_what_lies_beside_the_sources_is_taken_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    store = Memory()
    with keeping_templates(store):
        assert beside(tmp_path, "x is {{ x }}") == "x is 3"
        (kept,) = (tmp_path / "__pycache__").iterdir()
        monkeypatch.setattr(Environment, "compile", None)  # nobody compiles
        assert beside(tmp_path, "x is {{ x }}") == "x is 3"
        monkeypatch.undo()
        assert beside(tmp_path, "x was {{ x }}") == "x was 3"
        kept.write_bytes(kept.read_bytes()[:20])  # cut off
        assert beside(tmp_path, "x was {{ x }}") == "x was 3"
    assert not store.kept


@pytest.mark.parametrize("trouble", ["no bytecode", "no folder"])
def test_the_store_has_what_cannot_lie_beside_the_sources(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", trouble == "no bytecode")
    if trouble == "no folder":
        (tmp_path / "__pycache__").write_text("in the way")
    store = Memory()
    with keeping_templates(store):
        for _ in range(2):
            assert beside(tmp_path, "x is {{ x }}") == "x is 3"
    assert len(store.taken) == 1


def test_bytecode_lies_where_python_puts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    assert Beside(tmp_path / "sources").folder.is_relative_to(tmp_path / "elsewhere")
