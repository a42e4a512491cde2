"""Modes, their help, and debug builds."""

from pathlib import Path

import pytest

from atc.cache import DEFAULT_MODE, MODE_HELP, MODES, mode_under_debug
from atc.errors import OptionError

README = (Path(__file__).parents[2] / "cache" / "README.md").read_text()


def test_s04_disable_is_the_default():
    assert DEFAULT_MODE == "disable"
    assert set(MODES) == {"enable", "force", "disable"}


def test_s08_help_recommends_disable_or_force_for_a_release_build():
    assert "final release build disable or force is recommended" in MODE_HELP


def test_s09_help_recommends_enable_for_everyday():
    assert "enable: " in MODE_HELP
    assert "recommended for everyday work" in MODE_HELP


@pytest.mark.parametrize("text", [MODE_HELP, README], ids=["help", "readme"])
def test_s07_documentation_warns_of_force_beside_other_compilations(text):
    assert "never while other" in text.replace("\n", " ")


@pytest.mark.parametrize(
    "mode", ["Enable", "readonly", "refresh", "", "enable ", "enable\n\x1b[2J"]
)
def test_s10_another_word_is_an_error_and_touches_nothing(site, mode):
    with pytest.raises(OptionError) as caught:
        site.open(mode)
    assert caught.value.code == "E10001"
    assert "enable, force, disable" in str(caught.value)
    assert str(caught.value).isprintable()
    assert not site.root.exists()


@pytest.mark.parametrize("mode", ["enable", "force"])
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_s11_a_debug_level_turns_the_cache_off(mode, level):
    assert mode_under_debug(mode, level=level) == "disable"
    assert mode_under_debug(mode, level=0) == mode


@pytest.mark.parametrize("mode", ["enable", "force"])
def test_s11_a_debug_level_leaves_existing_entries_alone_even_with_force(site, mode):
    site.compile("enable")
    before = site.snapshot()
    run = site.compile(mode_under_debug(mode, level=2))
    assert run.compiled == ["add", "conv", "pool"]
    assert run.stats.stored == 0
    assert site.snapshot() == before


@pytest.mark.parametrize("mode", MODES)
def test_s12_debug_switches_without_a_list_turn_the_cache_off(mode):
    assert mode_under_debug(mode, configured=True) == "disable"


@pytest.mark.parametrize("mode", MODES)
def test_s13_debug_switches_with_a_list_keep_the_mode(mode):
    assert mode_under_debug(mode, configured=True, listed=True) == mode
    assert mode_under_debug(mode, level=1, configured=True, listed=True) == "disable"


def test_s13_listed_operators_are_neither_read_nor_written(site):
    site.compile("enable", ["conv", "pool"])
    before = site.snapshot()
    run = site.compile("enable", ["add", "conv", "pool"], listed=["add", "conv"])
    assert run.compiled == ["add", "conv"]
    assert (run.stats.bypassed, run.stats.hits, run.stats.stored) == (2, 1, 0)
    conv = {str(path) for path in site.paths("conv")}
    after = site.snapshot()
    assert {path: after[path] for path in conv} == {path: before[path] for path in conv}
    assert site.stored(["add"]) == []


def test_s14_a_list_with_force_deletes_and_stores_the_rest(site):
    site.compile("enable", ["add", "conv", "old"])
    mode = mode_under_debug("force", configured=True, listed=True)
    run = site.compile(mode, ["add", "conv"], listed=["conv"])
    assert run.compiled == ["add", "conv"]
    assert site.stored(["add", "conv", "old"]) == ["add"]


def test_s16_documentation_gives_the_reasons_for_debug_builds():
    assert "compile logs" in README
    assert "not worth" in README


def test_s45_documentation_distinguishes_the_default_directory_from_a_given_one():
    assert "$HOME/atc_data" in README
    assert "upgrade" in README
