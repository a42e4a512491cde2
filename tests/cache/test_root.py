"""Where a cache lives and what its path may be."""

import os
from pathlib import Path

import pytest

from atc.cache import find_root, open_cache
from atc.errors import OptionError

VERSIONS = {"adk_version": "1", "ops_version": "1"}


def open_with(directory, environ, warnings, target="c99", mode="enable"):
    return open_cache(
        mode,
        directory,
        target,
        versions=VERSIONS,
        environ={"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"], **environ},
        warn=warnings.append,
    )


def test_o08_option_beats_variable_beats_home(tmp_path):
    environ = {"ASCEND_CACHE_PATH": "/var/b", "HOME": "/home/c"}
    assert find_root(Path("/opt/a"), environ) == Path("/opt/a")
    assert find_root(None, environ) == Path("/var/b")
    assert find_root(None, {"HOME": "/home/c"}) == Path("/home/c/atc_data")
    assert find_root(None, {"HOME": "/home/c", "ASCEND_CACHE_PATH": ""}) == Path("/home/c/atc_data")
    assert find_root(None, {}) is None


@pytest.mark.parametrize("place", ["option", "ASCEND_CACHE_PATH", "HOME"])
def test_o02_the_folder_is_made_below_the_root(tmp_path, place):
    root = tmp_path / "deep" / "er"
    warnings = []
    environ = {"HOME": str(tmp_path / "home"), "ASCEND_CACHE_PATH": str(tmp_path / "variable")}
    expected = {"option": root, "ASCEND_CACHE_PATH": tmp_path / "variable"}.get(place)
    if place == "HOME":
        del environ["ASCEND_CACHE_PATH"]
        expected = tmp_path / "home" / "atc_data"
    with open_with(root if place == "option" else None, environ, warnings, "c99") as cache:
        assert cache.active
    assert (expected / "kernel_cache" / "c99").is_dir()
    assert (expected / "op_cache.ini").is_file()
    assert warnings == []


@pytest.mark.parametrize(
    "path", ["a b", "a;b", "$HOME/x", "~/x", "a\x00b", "caf\u00e9", "a\nb", "a*"]
)
@pytest.mark.parametrize("place", ["option", "variable"])
def test_s42_s43_another_character_is_an_error_and_nothing_is_made(
    tmp_path, monkeypatch, path, place
):
    monkeypatch.chdir(tmp_path)
    directory, environ = (
        (Path(path), {}) if place == "option" else (None, {"ASCEND_CACHE_PATH": path})
    )
    with pytest.raises(OptionError) as caught:
        open_with(directory, environ, [])
    assert caught.value.code == "E10001"
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["abc-XYZ_0.9", "\u7f13\u5b58/\u7b97\u5b50", "\u3400\u4e00\u9fff", "./a/../b"]
)
def test_s43_letters_digits_and_chinese_characters_are_allowed(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with open_with(Path(path), {}, []) as cache:
        assert cache.active
    assert Path(os.path.realpath(path), "kernel_cache", "c99").is_dir()


def test_s43_a_home_directory_may_hold_any_character(tmp_path):
    with open_with(None, {"HOME": str(tmp_path / "J\u00f6 Doe")}, []) as cache:
        assert cache.active


def test_s42_no_home_is_a_warning_and_no_cache():
    warnings = []
    with open_with(None, {}, warnings) as cache:
        assert not cache.active
    assert len(warnings) == 1
    assert "HOME" in warnings[0]


@pytest.mark.parametrize("target", ["", ".", "..", "../x", "a/b", "a\x00", ".hidden", "x" * 200])
def test_a_target_cannot_lead_out_of_the_folder(tmp_path, target):
    with pytest.raises(OptionError, match="cache folder"):
        open_with(tmp_path, {}, [], target)
    assert list(tmp_path.iterdir()) == []
