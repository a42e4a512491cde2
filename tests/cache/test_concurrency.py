"""Several processes on one cache, and processes that die."""

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atc.cache import verify_cache

NAMES = [f"k{number}" for number in range(20)]


def finish(process: subprocess.Popen) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


def test_s41_parallel_enable_runs_all_succeed_and_leave_one_valid_entry_each(site):
    outputs = [finish(p) for p in [site.child("compile", *NAMES) for _ in range(4)]]
    checksums = [[line.split()[::2] for line in output.splitlines()] for output in outputs]
    assert checksums == [checksums[0]] * 4
    assert [name for name, _ in checksums[0]] == NAMES
    report = verify_cache(site.root, environ=site.environ)
    assert (report.checked, report.flaws) == (len(NAMES), ())
    assert site.compile("enable", NAMES).compiled == []


def test_s07_force_warns_of_a_live_user_and_only_then(site):
    site.compile("force")
    assert site.warnings == []
    holder = site.child("hold")
    assert holder.stdout.readline() == "open\n"
    run = site.compile("force")
    assert run.compiled == ["add", "conv", "pool"]
    assert len(site.warnings) == 1
    assert "another compilation is using" in site.warnings[0]
    finish(holder)
    site.compile("force")
    assert len(site.warnings) == 1


def test_s07_force_beside_an_enable_run_only_costs_recompilation(site):
    site.compile("enable", NAMES)
    process = site.child("compile", *NAMES)
    site.compile("force", NAMES)
    output = finish(process)
    assert len(output.splitlines()) == len(NAMES)
    assert verify_cache(site.root, environ=site.environ).flaws == ()
    assert site.compile("enable", NAMES).compiled == []


def test_s07_the_lock_of_a_killed_process_is_not_alive(site):
    holder = site.child("hold")
    assert holder.stdout.readline() == "open\n"
    holder.kill()
    holder.communicate()
    site.compile("force")
    assert site.warnings == []


def test_s25_processes_with_other_environments_share_the_inis_limit(site, monkeypatch):
    site.write_ini("max_op_cache_size=7", "remain_cache_size_ratio=80")
    seen = []
    for size in ("9", "11"):
        monkeypatch.setenv("ASCEND_MAX_OP_CACHE_SIZE", size)
        seen.append(finish(site.child("limits")))
    assert "megabytes=7" in seen[0]
    assert seen[0] == seen[1]


def test_s25_environment_variables_affect_their_user_only(site, monkeypatch):
    monkeypatch.setenv("ASCEND_MAX_OP_CACHE_SIZE", "9")
    assert "megabytes=9" in finish(site.child("limits"))
    with site.open() as cache:
        assert cache.limits.megabytes == 500


@pytest.mark.few(3)
@pytest.mark.parametrize("rename", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 0])
def test_s40_kill_9_at_each_step_of_storing_leaves_nothing_false(site, rename, before):
    site.compile("enable")
    process = site.child("kill", str(rename), str(before))
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    finished = rename == 3 and not before
    run = site.compile("enable", ["victim", "add", "conv", "pool"])
    assert run.compiled == ([] if finished else ["victim"])
    assert run.stats.damaged == 0
    assert run.stats.events[0].reason == ("" if finished else "never seen")
    assert verify_cache(site.root, environ=site.environ).flaws == ()


def test_s40_kill_9_at_any_moment_leaves_no_damaged_entry(site):
    for attempt in range(4):
        process = site.child("endless")
        assert process.stdout.readline() == "open\n"
        time.sleep(0.01 + 0.007 * attempt)
        process.kill()
        process.communicate()
    flaws = {flaw.reason for flaw in verify_cache(site.root, environ=site.environ).flaws}
    assert flaws <= {"the descriptor is missing"}
    with site.open() as cache:
        data = cache.get(site.key("kernel0"), "kernel0")
    assert data in (None, b"kernel0" * 200_000)
    assert cache.stats.damaged == 0


def test_a_process_killed_while_it_holds_the_lock_blocks_nobody(site):
    site.compile("enable", ["add"])
    holder = site.child("lock")
    assert holder.stdout.readline() == "locked\n"
    holder.kill()
    holder.communicate()
    assert site.compile("enable", ["conv"]).stats.stored == 1
    assert site.warnings == []


def test_threads_of_one_process_share_a_cache(site):
    def one(name):
        data = cache.get(site.key(name), name)
        if data is None:
            cache.put(site.key(name), name, name.encode())
        return data

    with site.open() as cache, ThreadPoolExecutor(8) as pool:
        list(pool.map(one, NAMES * 3))
        found = list(pool.map(one, NAMES))
    assert found == [name.encode() for name in NAMES]
    assert cache.stats.stored == len(NAMES)
    assert cache.stats.hits + cache.stats.misses == 4 * len(NAMES)
