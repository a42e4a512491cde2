"""stats, verify, clear, why: values and their text."""

import json
import os
import time

import pytest

from atc.cache import (
    cache_stats,
    clear_cache,
    clear_text,
    run_text,
    stats_json,
    stats_text,
    verify_cache,
    verify_text,
    why,
    why_text,
)
from atc.errors import OptionError

COMMANDS = {
    "stats": lambda root: stats_text(cache_stats(root)),
    "verify": lambda root: verify_text(verify_cache(root, environ=os.environ)),
    "clear": lambda root: clear_text(clear_cache(root)),
    "why": lambda root: why_text(why(root, "conv", environ=os.environ)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_root_without_cache_is_an_empty_one_and_stays_so(site, command):
    text = COMMANDS[command](site.root)
    assert text.endswith("\n")
    assert not site.root.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(site, command):
    site.root.mkdir()
    site.base.write_text("a file")
    with pytest.raises(OptionError, match="can't be used") as caught:
        COMMANDS[command](site.root)
    assert str(site.root) in str(caught.value)


def test_stats_count_per_target(site):
    site.write_ini("max_op_cache_size=7", "remain_cache_size_ratio=80")
    site.compile("enable")
    site.fill({"a": 5000}, target="c99", idle_s=100)
    site.path("conv", "json").unlink()
    (site.folder / "notes.txt").write_text("x")
    report = cache_stats(site.root)
    c99, avx2 = report.folders
    assert (c99.target, c99.entries, c99.size) == ("c99", 1, site.size("c99"))
    assert abs(time.time() - 100 - c99.oldest_access) < 60
    assert (avx2.entries, avx2.unfinished, avx2.foreign) == (2, 1, 1)
    assert report.limits.megabytes == 7
    text = stats_text(report)
    assert "at most 7 MB per target, aged to 80 %" in text
    assert "c99: 1 entries, 0.0 MB" in text
    assert "1 unfinished, 1 foreign files" in text
    assert [f.target for f in cache_stats(site.root, "c99").folders] == ["c99"]


def test_stats_as_json_hold_what_the_text_does(site):
    site.write_ini("max_op_cache_size=7", "remain_cache_size_ratio=80")
    site.compile("enable")
    (site.folder / "notes.txt").write_text("x")
    reported = json.loads(stats_json(cache_stats(site.root)))
    (target,) = reported["targets"]
    assert abs(time.time() - target.pop("oldest_access")) < 60
    assert abs(time.time() - target.pop("newest_access")) < 60
    counts = target.pop("counts")
    assert {name: n for name, n in counts.items() if n} == {"misses": 3}
    assert target == {
        "target": "x86-64-avx2", "entries": 3, "size": site.size(), "unfinished": 0, "foreign": 1,
    }  # fmt: skip
    assert reported["limits"] == {"megabytes": 7, "remain_percent": 80, "source": str(site.ini)}
    assert (reported["root"], reported["warnings"]) == (str(site.root), [])
    site.root.chmod(0o777)
    reported = json.loads(stats_json(cache_stats(site.root)))
    assert "the cache is off: others may write" in reported["warnings"][0]


def test_stats_show_the_environments_limits_and_warnings(site):
    environ = {"ASCEND_MAX_OP_CACHE_SIZE": "-1", "ASCEND_REMAIN_CACHE_SIZE_RATIO": "0"}
    text = stats_text(cache_stats(site.root, environ=environ))
    assert "never aged (environment)" in text
    assert "warning: ASCEND_REMAIN_CACHE_SIZE_RATIO is '0'" in text


def test_verify_finds_each_flaw_and_changes_nothing(site):
    site.compile("enable", ["a", "b", "c", "d"])
    site.path("a", "o").write_bytes(b"flipped")
    site.path("b", "key").unlink()
    site.path("c", "json").unlink()
    before = site.snapshot()
    report = verify_cache(site.root, environ=site.environ)
    assert report.checked == 4
    reasons = {flaw.digest: flaw.reason for flaw in report.flaws}
    assert "object has 7 bytes" in reasons[site.key("a").digest()]
    assert reasons[site.key("b").digest()] == "the key is missing"
    assert reasons[site.key("c").digest()] == "the descriptor is missing"
    assert site.key("d").digest() not in reasons
    assert site.snapshot() == before
    assert "4 entries checked, 3 damaged" in verify_text(report)


def test_verifying_is_no_access(site):
    site.fill({"a": 100}, idle_s=90_000)
    before = [path.stat().st_atime for path in site.paths("a")]
    verify_cache(site.root, environ=site.environ)
    why(site.root, "a", environ=site.environ)
    cache_stats(site.root)
    assert [path.stat().st_atime for path in site.paths("a")] == before


def test_s45_clear_keeps_what_the_user_put_there(site):
    site.compile("enable")
    site.compile("enable", ["x"], target="c99")
    (site.folder / "notes.txt").write_text("x")
    (site.root / "mine.txt").write_text("x")
    report = clear_cache(site.root, "x86-64-avx2")
    assert (report.entries, report.kept_foreign, report.in_use) == (3, 1, ())
    assert "3 entries deleted" in clear_text(report)
    assert "1 files that aren't the cache's were kept" in clear_text(report)
    assert (site.folder / "notes.txt").exists()
    assert (site.root / "mine.txt").exists()
    assert site.ini.exists()
    assert cache_stats(site.root).folders[0].entries == 1
    assert clear_cache(site.root).entries == 1


def test_clear_reports_which_targets_are_in_use(site):
    site.compile("enable", target="c99")
    with site.open():
        report = clear_cache(site.root)
    assert report.in_use == ("x86-64-avx2",)
    assert "warning: a compilation is using the cache of x86-64-avx2" in clear_text(report)


def test_why_shows_what_changed_since_the_one_before(site):
    for idle, flags in ((300, "-O1"), (200, "-O2"), (100, "-O3")):
        site.compile("enable", ["conv"], flags=flags)
        digest = site.key("conv", flags=flags).digest()
        for path in site.folder.glob(f"{digest}.*"):
            os.utime(path, (time.time() - idle,) * 2)
    report = why(site.root, "conv", environ=site.environ)
    assert [kernel.differences for kernel in report.kernels] == [
        ("flags differ: -O2 -> -O3",),
        ("flags differ: -O1 -> -O2",),
        (),
    ]
    text = why_text(report)
    assert "since the one before: flags differ: -O2 -> -O3" in text
    assert "    source: void conv(void);" in text
    assert text.count("good\n") == 3


def test_why_finds_an_entry_by_the_beginning_of_its_digest(site):
    site.compile("enable")
    digest = site.key("conv").digest()
    (found,) = why(site.root, digest[:12], environ=site.environ).kernels
    assert found.name == "conv"
    assert why(site.root, digest[:3], environ=site.environ).kernels == ()


def test_why_reports_damage(site):
    site.compile("enable")
    site.path("conv", "o").write_bytes(b"x")
    (kernel,) = why(site.root, "conv", environ=site.environ).kernels
    assert kernel.flaw
    text = why_text(why(site.root, "conv", environ=site.environ))
    assert "damaged: the object has 1 bytes" in text


def test_why_of_an_unknown_name_says_so_on_one_line(site):
    text = why_text(why(site.root, "no\x1b[2Jsuch", environ=site.environ))
    assert text.count("\n") == 1
    assert "\x1b" not in text


@pytest.mark.parametrize("target", ["../x", "", "a/b"])
def test_a_target_must_be_a_plain_name(site, target):
    with pytest.raises(OptionError, match="cache folder"):
        clear_cache(site.root, target)


def test_s44_run_text_lists_counts_and_what_was_compiled(site):
    site.compile("enable", ["add"])
    run = site.compile("enable", ["add", "conv", "pool"], listed=["pool"])
    digest = site.key("conv").digest()[:12]
    text = run_text(run.stats)
    assert text.startswith("op compiler cache (enable): 1 hits, 1 misses, 1 bypassed, 1 stored,")
    assert f"  miss conv [{digest}]: never seen\n" in text
    assert "  bypass pool [" in text
    assert "add" not in text
