"""op_cache.ini: place, contents, versions."""

import os

import pytest

from atc.cache import versions
from atc.cache.ini import parse_ini, with_versions
from atc.cache.limits import Limits

BOTH = ("max_op_cache_size=7", "remain_cache_size_ratio=80")


def test_s17_the_ini_is_made_in_the_folder_that_is_named(site):
    site.compile("enable")
    assert site.ini.is_file()
    assert not site.inner_ini.exists()


def test_s17_an_ini_in_kernel_cache_is_accepted_and_stays_in_force(site):
    site.write_ini(*BOTH, path=site.inner_ini)
    for _ in range(2):
        with site.open() as cache:
            assert (cache.limits.megabytes, cache.limits.remain_percent) == (7, 80)
    assert not site.ini.exists()


def test_s17_the_inner_ini_wins(site):
    site.write_ini(*BOTH)
    site.write_ini("max_op_cache_size=9", "remain_cache_size_ratio=10", path=site.inner_ini)
    with site.open() as cache:
        assert cache.limits == Limits(9, 10, True, str(site.inner_ini))


def test_s17_limits_in_the_root_hold_beside_an_inner_ini_without(site):
    site.write_ini(path=site.inner_ini)
    site.write_ini(*BOTH)
    with site.open() as cache:
        assert (cache.limits.megabytes, cache.limits.remain_percent) == (7, 80)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_s17_where_only_kernel_cache_may_be_written_the_ini_is_there(site):
    site.base.mkdir(parents=True)
    site.root.chmod(0o555)
    site.compile("enable")
    site.root.chmod(0o755)
    assert site.inner_ini.is_file()
    assert site.warnings == []


def test_s18_the_made_ini_has_header_versions_and_commented_limits(site):
    site.compile("enable")
    lines = site.ini.read_text().splitlines()
    assert lines[:3] == ["[op_compiler_cache]", "adk_version=atc 0.1.0", "ops_version=kernels 7"]
    assert "# max_op_cache_size=500" in lines
    assert "# remain_cache_size_ratio=50" in lines
    with site.open() as cache:
        assert cache.limits == Limits()


def test_s18_uncommenting_the_limits_puts_them_in_force(site):
    site.compile("enable")
    text = site.ini.read_text().replace("# max_op", "max_op").replace("# remain_c", "remain_c")
    site.ini.write_text(text)
    with site.open() as cache:
        assert cache.limits == Limits(500, 50, True, str(site.ini))


def test_s18_an_ini_made_by_hand_gets_the_versions_and_keeps_its_lines(site):
    site.root.mkdir(parents=True)
    site.ini.write_text(
        "# ours\n[op_compiler_cache]\nmax_op_cache_size=7\nremain_cache_size_ratio=80"
    )
    with site.open() as cache:
        assert cache.limits.megabytes == 7
    assert site.ini.read_text() == (
        "# ours\n[op_compiler_cache]\nadk_version=atc 0.1.0\nops_version=kernels 7\n"
        "cache_format=2\nmax_op_cache_size=7\nremain_cache_size_ratio=80\n"
    )


@pytest.mark.parametrize("place", ["ini", "inner_ini"])
def test_s18_limits_without_header_are_reported_every_time(site, place):
    path = getattr(site, place)
    path.parent.mkdir(parents=True)
    path.write_text("max_op_cache_size=7\nremain_cache_size_ratio=80\n")
    for _ in range(2):  # the second run finds the header that the first one wrote
        site.warnings.clear()
        with site.open() as cache:
            assert cache.limits == Limits()
        assert site.warnings == [
            f"{path}: max_op_cache_size and remain_cache_size_ratio before the line "
            "[op_compiler_cache] are ignored; put them below it"
        ]
    assert path.read_text().startswith("max_op_cache_size=7\nremain_cache_size_ratio=80\n[op_")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[op_compiler_cache]\na=1\n", {"a": "1"}),
        ("\ufeff[op_compiler_cache]\r\n a = 1 \r\n", {"a": "1"}),
        ("[op_compiler_cache]\n#a=1\nb=2 # c=3\n", {"b": "2"}),
        ("[op_compiler_cache]\na=1\na=2\n", {"a": "2"}),
        ("[op_compiler_cache]\nno sign\n\n[other]\na=1\n", {}),
        ("[other]\na=1\n[op_compiler_cache]\nb=2\n", {"b": "2"}),
        ("a=1\n", None),
        ("# [op_compiler_cache]\na=1\n", None),
        ("", None),
        ("\x00\x01\udcff", None),
    ],
)
def test_s22_comments_sections_and_unknown_lines(text, values):
    assert parse_ini(text) == values


def test_s22_unknown_keys_are_ignored(site):
    site.write_ini("colour=blue", "[section", *BOTH, "# max_op_cache_size=1")
    with site.open() as cache:
        assert cache.limits.megabytes == 7
    assert site.warnings == []


def test_s24_only_version_lines_of_the_section_change():
    text = "[a]\nv=0\n[op_compiler_cache]\nx=1\nv = old # c\nw=2\n"
    assert with_versions(text, {"v": "new"}) == "[a]\nv=0\n[op_compiler_cache]\nv=new\nx=1\nw=2\n"


def test_a_version_cannot_break_the_ini():
    text = with_versions(None, {"v": "1\n[x]\nmax_op_cache_size=1 # y"})
    values = parse_ini(text)
    assert values == {"v": "1\\n[x]\\nmax_op_cache_size=1 _ y"}


def test_s24_versions_another_run_recorded_meanwhile_empty_nothing(site, monkeypatch):
    site.compile("enable")
    texts = iter([site.ini.read_text().replace("atc 0.1.0", "atc 0.0.9")])  # as it was before
    real = versions.read_ini_text
    monkeypatch.setattr(versions, "read_ini_text", lambda base: next(texts, None) or real(base))
    assert site.compile("enable").compiled == []


@pytest.mark.parametrize("changed", ["adk_version", "ops_version"])
def test_s24_other_versions_empty_the_folder_and_keep_the_users_lines(site, changed):
    site.write_ini(*BOTH, "# note")
    site.compile("enable")
    site.ini.write_text(
        "\n".join(
            f"{changed}=other" if line.startswith(changed) else line
            for line in site.ini.read_text().splitlines()
        )
    )
    run = site.compile("enable")
    assert run.compiled == ["add", "conv", "pool"]
    assert f"versions differ: {changed} other -> " in run.stats.events[0].reason
    lines = site.ini.read_text().splitlines()
    assert {*BOTH, "# note", "adk_version=atc 0.1.0", "ops_version=kernels 7"} <= set(lines)
    assert "other" not in site.ini.read_text()
    assert site.compile("enable").compiled == []


def test_s24_other_versions_empty_all_targets_that_the_one_ini_speaks_for(site):
    site.compile("enable", target="c99")
    site.compile("enable")
    site.versions = {"adk_version": "atc 0.2.0", "ops_version": "kernels 7"}
    site.compile("enable")
    assert site.compile("enable", target="c99").compiled == ["add", "conv", "pool"]


def test_s23_a_missing_ini_is_made_and_proved_entries_stay(site):
    site.compile("enable")
    site.ini.unlink()
    site.path("conv", "o").write_bytes(b"flipped")
    site.path("pool", "key").write_bytes(site.key("other").encoded())
    run = site.compile("enable")
    assert run.compiled == ["conv", "pool"]
    assert "not proved" in run.stats.events[1].reason
    assert site.ini.is_file()


def test_s23_a_copied_cache_works_at_its_new_place(site, tmp_path):
    site.compile("enable")
    other = type(site)(tmp_path / "copy")
    other.folder.mkdir(parents=True)
    for path in site.folder.iterdir():
        (other.folder / path.name).write_bytes(path.read_bytes())
    assert other.compile("enable").compiled == []


def test_s04_disable_makes_no_ini_and_does_not_age(site):
    site.compile("disable")
    assert not site.root.exists()
    site.write_ini("max_op_cache_size=1", "remain_cache_size_ratio=1")
    site.fill({"a": 2 << 20}, idle_s=4000)
    site.ini.unlink()
    before = site.snapshot()
    site.compile("disable")
    assert site.snapshot() == before
