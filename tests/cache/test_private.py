"""Which directories a cache trusts: those that nobody but its user and root can change."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from atc.cache import TEMPLATES

OTHER = 65534
KEY = {"ATC_CACHE_KEY": "a key of the whole group"}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give directories away")


def only_warning(site) -> str:
    (text,) = site.warnings
    assert text.startswith("the op compiler cache is off: ")
    assert "\n" not in text
    site.warnings.clear()
    return text


def places(site) -> dict[str, Path]:
    return {
        "parent": site.root.parent, "root": site.root, "base": site.base, "target": site.folder,
        "templates": site.root / TEMPLATES,
    }  # fmt: skip


@pytest.fixture
def filled(site):
    site.compile("enable")
    (site.root / TEMPLATES).mkdir()
    return site


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
@pytest.mark.parametrize("place", ["parent", "root", "base", "target", "templates"])
def test_a_directory_that_others_may_write_to_is_no_cache(filled, place, mode):
    where = places(filled)[place]
    where.chmod(mode)
    run = filled.compile("enable")
    if place == "parent" and mode & 0o1000:  # as /tmp is: others can't replace what is in it
        assert (run.compiled, filled.warnings) == ([], [])
        return
    assert run.compiled == ["add", "conv", "pool"]
    assert (run.stats.hits, run.stats.stored) == (0, 0)
    text = only_warning(filled)
    assert f"others may write to '{where}' (mode {mode:04o})" in text
    mending = re.search(r"run: (chmod .*)$", text)
    assert mending
    subprocess.run(["sh", "-c", mending[1]], check=True)
    assert filled.compile("enable").compiled == []
    assert filled.warnings == []


@as_root
@pytest.mark.parametrize("place", ["parent", "root", "base", "target", "templates"])
def test_a_directory_of_another_user_is_no_cache(filled, place):
    where = places(filled)[place]
    os.chown(where, OTHER, -1)
    assert filled.compile("enable").stats.hits == 0
    assert f"'{where}' belongs to the user" in only_warning(filled)


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_nothing_is_made_where_others_may_write(site, tmp_path, mode):
    tmp_path.chmod(mode)
    site.compile("enable")
    assert "others may write" in only_warning(site)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_directory_that_others_may_write_to_is_no_way_round(site, tmp_path):
    loose = tmp_path / "loose"
    (loose / "cache").mkdir(parents=True)
    loose.chmod(0o777)
    site.root.symlink_to(loose / "cache")
    site.compile("enable")
    assert f"others may write to '{loose}'" in only_warning(site)


def test_a_name_for_the_shell_is_quoted(site, tmp_path):
    site.root = tmp_path / "a b;c"
    site.root.mkdir()
    site.root.chmod(0o777)
    site.environ["HOME"] = str(site.root)  # whose characters nobody checks
    from atc.cache import open_cache

    open_cache(
        "enable", None, "c99", versions={}, environ=site.environ, warn=site.warnings.append
    )
    assert f"run: chmod go-w '{site.root}'" in only_warning(site)


@pytest.mark.parametrize(("mode", "on"), [(0o770, True), (0o775, True), (0o777, False)])
def test_a_shared_key_lets_the_group_write_but_not_everybody(site, mode, on):
    site.environ |= KEY
    site.root.mkdir()
    site.root.chmod(mode)
    assert site.compile("enable").stats.stored == (3 if on else 0)
    if not on:
        assert f"run: chmod o-w {site.root}" in only_warning(site)


@as_root
def test_a_shared_key_allows_directories_of_others(site):
    site.environ |= KEY
    site.compile("enable")
    for place in (site.root, site.base, site.folder):
        os.chown(place, OTHER, -1)
    assert site.compile("enable").stats.hits == 3


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_what_the_cache_makes_it_trusts(site, umask, key):
    site.environ |= key or {}
    site.root = site.root / "deep" / "er"
    old = os.umask(umask)
    try:
        for stored, hits in ((3, 0), (0, 3)):
            run = site.compile("enable")
            assert (run.stats.stored, run.stats.hits, site.warnings) == (stored, hits, [])
    finally:
        os.umask(old)
