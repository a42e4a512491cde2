"""Small files that prove themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc.cache import ProvedFiles


def test_what_was_stored_comes_back_under_its_key_only(tmp_path: Path) -> None:
    files = ProvedFiles(tmp_path / "root", "notes")
    assert files.get("a", b"key") is None
    files.put("a", b"key", b"data")
    assert files.get("a", b"key") == b"data"
    assert files.get("a", b"keyd") is None
    assert files.get("b", b"key") is None
    files.put("a", b"other", b"")
    assert files.get("a", b"key") is None
    assert files.get("a", b"other") == b""
    assert [f.name for f in (tmp_path / "root/notes").iterdir()] == ["a"]


def test_fresh_takes_nothing_and_stores(tmp_path: Path) -> None:
    ProvedFiles(tmp_path, "notes").put("a", b"key", b"old")
    fresh = ProvedFiles(tmp_path, "notes", fresh=True)
    assert fresh.get("a", b"key") is None
    fresh.put("a", b"key", b"new")
    assert ProvedFiles(tmp_path, "notes").get("a", b"key") == b"new"


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 40])
def test_a_damaged_file_is_not_there(tmp_path: Path, damage: bytes) -> None:
    files = ProvedFiles(tmp_path, "notes")
    files.put("a", b"key", b"data")
    path = tmp_path / "notes/a"
    whole = path.read_bytes()
    for wrong in (damage, whole[:-1], whole + b"x", b"\0" + whole[1:]):
        path.write_bytes(wrong)
        assert files.get("a", b"key") is None
    path.write_bytes(whole)
    assert files.get("a", b"key") == b"data"


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", ".hidden", "a\0b"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    files = ProvedFiles(tmp_path / "root", "notes")
    files.put(name, b"key", b"data")
    assert files.get(name, b"key") is None
    assert not (tmp_path / "root").exists()


def test_no_link_is_followed_and_trouble_is_silent(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "notes").symlink_to(outside)
    ProvedFiles(tmp_path, "notes").put("a", b"key", b"data")
    assert not list(outside.iterdir())
    (tmp_path / "file").write_text("in the way")
    blocked = ProvedFiles(tmp_path / "file", "notes")
    blocked.put("a", b"key", b"data")
    assert blocked.get("a", b"key") is None
