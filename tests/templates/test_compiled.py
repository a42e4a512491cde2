"""Compiled templates that are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from jinja2 import DictLoader, Environment

from atc.templates.compiled import StoredBytecode, keeping_templates


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
