"""The key that entries are signed with: where it lies, how it is made, when it counts."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from atc.cache.folder import Folder
from atc.cache.secret import find_secret
from atc.options.environment import config_path


def key_file(home: Path) -> Path:
    return home / ".config/atc/cache.key"


def test_the_users_own_is_made_once_beside_the_configuration_file(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    secret = find_secret(environ)
    path = key_file(tmp_path)
    assert config_path(environ) == path.with_name("atc.cfg")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["cache.key"]
    assert len(secret.key) == 32
    assert not secret.shared
    assert find_secret(environ) == secret
    assert secret.key.hex() not in repr(secret)
    other = find_secret({**environ, "XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert other.key != secret.key
    assert (tmp_path / "xdg/atc/cache.key").is_file()


def test_a_signature_is_of_these_parts_by_this_key(tmp_path: Path) -> None:
    secret, other = (find_secret({"HOME": str(tmp_path / name)}) for name in "ab")
    signature = secret.sign(b"ab", b"c")
    assert secret.signed(signature, b"ab", b"c")
    for parts in ((b"a", b"bc"), (b"abc",), (b"ab", b"c", b""), (b"c", b"ab")):
        assert not secret.signed(signature, *parts)
    assert not other.signed(signature, b"ab", b"c")
    assert not secret.signed(b"", b"ab", b"c")


def test_a_shared_key_comes_first(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "ATC_CACHE_KEY": "x" * 16}
    assert find_secret(environ).shared
    assert find_secret(environ) == find_secret({**environ, "HOME": "/nowhere"})
    assert not key_file(tmp_path).exists()


def test_looking_makes_no_key(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert find_secret(environ, create=False) != find_secret(environ, create=False)
    assert list(tmp_path.iterdir()) == []
    made = find_secret(environ)
    assert find_secret(environ, create=False) == made


@pytest.mark.parametrize("length", [1, 15])
def test_a_short_shared_key_is_refused(length: int) -> None:
    with pytest.raises(OSError, match=f"ATC_CACHE_KEY has {length} characters; set it to 16"):
        find_secret({"ATC_CACHE_KEY": "x" * length})


def test_without_a_place_the_variables_are_named() -> None:
    with pytest.raises(OSError, match="set HOME, XDG_CONFIG_HOME or ATC_CACHE_KEY"):
        find_secret({})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_know_is_refused(tmp_path: Path, mode: int) -> None:
    environ = {"HOME": str(tmp_path)}
    first = find_secret(environ)
    key_file(tmp_path).chmod(mode)
    with pytest.raises(OSError, match=f"others may know the key .*rm {key_file(tmp_path)}"):
        find_secret(environ)
    key_file(tmp_path).unlink()
    assert find_secret(environ) != first


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    find_secret({"HOME": str(tmp_path)})
    os.chown(key_file(tmp_path), 65534, -1)
    with pytest.raises(OSError, match="others may know the key"):
        find_secret({"HOME": str(tmp_path)})


@pytest.mark.parametrize("folder", [".", ".config", ".config/atc"])
def test_a_key_that_others_may_replace_is_refused(tmp_path: Path, folder: str) -> None:
    find_secret({"HOME": str(tmp_path)})
    (tmp_path / folder).chmod(0o777)
    with pytest.raises(OSError, match="run: chmod go-w"):
        find_secret({"HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "zz" * 32, "\x00\xff", "0" * 100_000])
def test_a_damaged_key_is_reported(tmp_path: Path, text: str) -> None:
    find_secret({"HOME": str(tmp_path)})
    key_file(tmp_path).write_text(text)
    with pytest.raises(OSError, match=f"holds no key; a new one is made after: rm {tmp_path}"):
        find_secret({"HOME": str(tmp_path)})


def test_a_link_in_the_keys_place_is_refused(tmp_path: Path) -> None:
    find_secret({"HOME": str(tmp_path)})
    path = key_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="cache.key"):
        find_secret({"HOME": str(tmp_path)})


def test_who_makes_a_key_at_the_same_time_gets_the_same(tmp_path: Path) -> None:
    workers = 8
    with ThreadPoolExecutor(workers) as pool:
        for number in range(10):
            home, start = tmp_path / str(number), Barrier(workers)

            def find(home: Path = home, start: Barrier = start) -> bytes:
                start.wait()
                return find_secret({"HOME": str(home)}).key

            keys = {f.result() for f in [pool.submit(find) for _ in range(workers)]}
            assert len(keys) == 1
            assert [p.name for p in key_file(home).parent.iterdir()] == ["cache.key"]


def test_a_key_made_meanwhile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Folder.create

    def late(self: Folder, name: str, data: bytes, mode: int) -> None:
        create(self, name, b"11" * 32 + b"\n", mode)  # by another process
        create(self, name, data, mode)

    monkeypatch.setattr(Folder, "create", late)
    assert find_secret({"HOME": str(tmp_path)}).key == b"\x11" * 32
    assert [p.name for p in key_file(tmp_path).parent.iterdir()] == ["cache.key"]
