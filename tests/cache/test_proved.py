"""Small files that prove themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc.cache import ContentStore
from atc.cache.secret import Secret

SECRET = Secret(b"the user's own")


def files_in(root: Path, folder: str = "notes", *, fresh: bool = False) -> ContentStore:
    return ContentStore(root, folder, SECRET, fresh)


def test_what_was_stored_comes_back_under_its_key_only(tmp_path: Path) -> None:
    files = files_in(tmp_path / "root")
    assert files.get("a", b"key") is None
    files.put("a", b"key", b"data")
    assert files.get("a", b"key") == b"data"
    assert files.get("a", b"keyd") is None
    assert files.get("b", b"key") is None
    files.put("a", b"other", b"")
    assert files.get("a", b"key") is None
    assert files.get("a", b"other") == b""
    assert [f.name for f in (tmp_path / "root/notes").iterdir()] == ["a"]


def test_what_another_signed_or_stored_elsewhere_is_not_there(tmp_path: Path) -> None:
    ContentStore(tmp_path, "notes", Secret(b"another's")).put("a", b"key", b"data")
    files = files_in(tmp_path)
    assert files.get("a", b"key") is None
    files.put("a", b"key", b"data")
    (tmp_path / "notes/a").rename(tmp_path / "notes/b")
    assert files.get("b", b"key") is None
    (tmp_path / "letters").mkdir()
    (tmp_path / "notes/b").rename(tmp_path / "letters/a")
    assert files_in(tmp_path, "letters").get("a", b"key") is None


def test_fresh_takes_nothing_and_stores(tmp_path: Path) -> None:
    files_in(tmp_path).put("a", b"key", b"old")
    fresh = files_in(tmp_path, fresh=True)
    assert fresh.get("a", b"key") is None
    fresh.put("a", b"key", b"new")
    assert files_in(tmp_path).get("a", b"key") == b"new"


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 40])
def test_a_damaged_file_is_not_there(tmp_path: Path, damage: bytes) -> None:
    files = files_in(tmp_path)
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
    files = files_in(tmp_path / "root")
    files.put(name, b"key", b"data")
    assert files.get(name, b"key") is None
    assert not (tmp_path / "root").exists()


def test_no_link_is_followed_and_trouble_is_silent(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "notes").symlink_to(outside)
    files_in(tmp_path).put("a", b"key", b"data")
    assert not list(outside.iterdir())
    (tmp_path / "file").write_text("in the way")
    blocked = files_in(tmp_path / "file")
    blocked.put("a", b"key", b"data")
    assert blocked.get("a", b"key") is None
