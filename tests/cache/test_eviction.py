"""Ageing: when, what, in which order, and when not."""

import os
import time
from dataclasses import replace

import pytest

from atc.cache import Session, eviction
from atc.cache.entry import scan
from atc.cache.folder import Folder

KB = 1024
MB = 1024 * KB


@pytest.fixture
def small(site):
    """A cache of at most 1 MB per target, aged to half of it."""
    site.write_ini("max_op_cache_size=1", "remain_cache_size_ratio=50")
    return site


def names(count):
    return [f"k{number}" for number in range(count)]


def test_s26_the_limit_is_per_target(small):
    for target in ("c99", "x86-64-avx2"):
        small.fill({"a": 600 * KB}, idle_s=4000, target=target)
    for target in ("c99", "x86-64-avx2"):
        with small.open(target=target) as cache:
            assert cache.stats.aged == 0
    small.fill({"b": 600 * KB}, idle_s=4000, target="c99")
    with small.open(target="c99") as cache:
        assert cache.stats.aged > 0
    assert small.stored(["a"]) == ["a"]


@pytest.mark.parametrize(
    ("size", "idle", "aged"),
    [(900 * KB, 4000, 0), (1100 * KB, 1700, 0), (1100 * KB, 1900, 1), (900 * KB, 10, 0)],
)
def test_s31_aged_only_if_full_and_idle_for_half_an_hour(small, size, idle, aged):
    small.fill({"a": size}, idle_s=idle)
    with small.open() as cache:
        assert cache.stats.aged == aged
    assert len(small.stored(["a"])) == 1 - aged


@pytest.mark.parametrize(("missing", "aged"), [(0, 1), (1, 0)])
def test_s32_reaching_the_limit_is_enough(small, missing, aged):
    small.fill({"a": 1 * KB})
    path = small.path("a", "o")
    path.write_bytes(b"." * (path.stat().st_size + 1 * MB - missing - small.size()))
    small.set_idle("a", 4000)
    assert small.size() == 1 * MB - missing
    with small.open() as cache:
        assert cache.stats.aged == aged


def test_s32_fresh_entries_stay_however_many(small):
    small.fill(dict.fromkeys(names(5), 1 * MB))
    with small.open() as cache:
        assert cache.stats.aged == 0
        assert cache.get(small.key("k0"), "k0") is not None
    assert small.stored(names(5)) == names(5)
    assert small.warnings == []


def test_s33_the_oldest_go_first_until_the_share_is_left(small):
    small.fill(dict.fromkeys(names(12), 100 * KB))
    for evict, name in enumerate(reversed(names(12))):  # k11 was used last, k0 is the oldest
        small.set_idle(name, 4000 + 100 * evict)
    entry = sum(path.stat().st_size for path in small.paths("k0"))
    with small.open() as cache:
        assert cache.stats.aged == 12 - 512 * KB // entry
    assert small.stored(names(12)) == names(12)[-(512 * KB // entry) :]
    assert 512 * KB - entry < small.size() <= 512 * KB


def test_s33_ageing_stops_at_the_first_young_entry(small):
    small.fill(dict.fromkeys(names(6), 300 * KB), idle_s=10)
    small.set_idle("k4", 4000)
    with small.open() as cache:
        assert cache.stats.aged == 1
    assert small.stored(names(6)) == ["k0", "k1", "k2", "k3", "k5"]


def test_s33_an_entry_goes_and_stays_as_a_whole(small):
    small.fill(dict.fromkeys(names(4), 300 * KB), idle_s=4000)
    with small.open():
        pass
    assert {len(small.paths(name)) for name in names(4)} == {0, 3}


def test_s33_an_aged_entry_explains_its_miss(small):
    small.fill({"a": 2 * MB}, idle_s=4000)
    with small.open() as cache:
        assert cache.get(small.key("a"), "a") is None
    assert "aged" in cache.stats.events[0].reason


def test_s34_an_entry_used_meanwhile_is_kept(small, monkeypatch):
    small.fill(dict.fromkeys(names(4), 300 * KB), idle_s=4000)

    def scan_then_hit(folder):
        contents = scan(folder)
        os.utime(small.path("k1", "json"))
        return contents

    monkeypatch.setattr(eviction, "scan", scan_then_hit)
    with small.open() as cache:
        assert cache.stats.aged == 3
    assert small.stored(names(4)) == ["k1"]


def access_times(site, name):
    return [path.stat().st_atime for path in site.paths(name)]


@pytest.mark.parametrize("where", ["ini", "environment"])
def test_s35_with_minus_one_a_hit_leaves_the_access_times(site, where):
    if where == "ini":
        site.write_ini("max_op_cache_size=-1", "remain_cache_size_ratio=50")
    else:
        site.environ |= {"ASCEND_MAX_OP_CACHE_SIZE": "-1"}
    site.fill({"a": 100}, idle_s=90_000)  # a mount with relatime would touch it when read
    before = access_times(site, "a")
    assert site.compile("enable", ["a"]).stats.hits == 1
    assert access_times(site, "a") == before


def test_s35_with_minus_one_nothing_is_aged(site):
    site.write_ini("max_op_cache_size=-1", "remain_cache_size_ratio=1")
    site.fill({"a": 1 * MB}, idle_s=90_000)
    with site.open() as cache:
        assert cache.stats.aged == 0


def test_s35_s36_a_hit_touches_descriptor_and_object(site):
    site.fill({"a": 100}, idle_s=4000)
    assert site.compile("enable", ["a"]).stats.hits == 1
    for suffix in ("json", "o"):
        assert abs(time.time() - site.path("a", suffix).stat().st_atime) < 60


def test_s36_failing_to_touch_is_a_miss(site, monkeypatch):
    site.compile("enable", ["a"])

    def refuse(self, name):
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(Folder, "touch", refuse)
    run = site.compile("enable", ["a"])
    assert run.compiled == ["a"]
    assert "access time" in run.stats.events[0].reason
    monkeypatch.undo()
    assert site.compile("enable", ["a"]).compiled == []


def test_s37_ageing_is_skipped_while_another_process_holds_the_lock(small, monkeypatch):
    monkeypatch.setattr("atc.cache.store._AGEING_WAIT_S", 0.0)
    small.fill({"a": 2 * MB}, idle_s=4000)
    holder = small.child("lock")
    assert holder.stdout.readline() == "locked\n"
    with small.open() as cache:
        assert cache.stats.aged == 0
        assert cache.get(small.key("a"), "a") is not None
    assert "op_cache_file_del.lock" in small.warnings[0]
    holder.communicate()
    small.set_idle("a", 4000)
    with small.open() as cache:
        assert cache.stats.aged == 1


def test_s38_with_minus_one_the_folder_is_not_walked(site, monkeypatch):
    site.environ |= {"ASCEND_MAX_OP_CACHE_SIZE": "-1"}
    site.compile("enable")

    def walk(self):
        raise AssertionError("walked")

    monkeypatch.setattr(Folder, "files", walk)
    assert site.compile("enable").stats.hits == 3
    del site.environ["ASCEND_MAX_OP_CACHE_SIZE"]
    with pytest.raises(AssertionError, match="walked"):
        site.compile("enable")


def test_leftovers_of_killed_processes_go_after_half_an_hour(site):
    site.compile("enable")
    digest = site.key("add").digest()
    fresh = site.folder / f"{digest}.o.{'0' * 16}.tmp"
    stale = site.folder / f"{digest}.o.{'1' * 16}.tmp"
    foreign = site.folder / "notes.tmp"
    for path in (fresh, stale, foreign):
        path.write_bytes(b"x")
    for path in (stale, foreign):
        os.utime(path, (time.time() - 4000,) * 2)
    with site.open():
        pass
    assert (fresh.exists(), stale.exists(), foreign.exists()) == (True, False, True)


@pytest.fixture
def slow_listings(monkeypatch):
    """Listings that take 50 ms, and what was listed."""
    listed = []

    def listing(folder):
        listed.append(folder.path)
        time.sleep(0.05)
        return scan(folder)

    monkeypatch.setattr("atc.cache.entry.scan", listing)
    return listed


def test_a_folder_of_many_is_not_listed_each_time_while_it_is_small(site, slow_listings):
    site.fill(dict.fromkeys(names(120), 100))
    slow_listings.clear()
    for _ in range(4):
        site.open().close()
    assert len(slow_listings) == 1


def test_what_one_caller_listed_is_nothing_to_another(site, slow_listings):
    site.fill(dict.fromkeys(names(120), 100))
    slow_listings.clear()
    for _ in range(2):
        replace(site, session=Session()).open().close()
    assert len(slow_listings) == 2


def test_what_a_caller_stores_itself_is_aged_though_it_listed_a_moment_ago(small, slow_listings):
    small.fill(dict.fromkeys(names(120), 100))
    small.open().close()
    small.fill({"large": 1 * MB})
    for name in [*names(120), "large"]:
        small.set_idle(name, 4000)
    with small.open() as cache:
        assert cache.stats.aged > 0
