"""Hits, misses, modes, damage and trouble with the disk."""

import errno
import gc
import hashlib
import json
import os
import shutil

import pytest

from atc.cache.folder import Folder

ALL = ["add", "conv", "pool"]


def test_s01_equal_parameters_use_the_stored_entry(site):
    first = site.compile("enable")
    second = site.compile("enable")
    assert second.compiled == []
    assert second.objects == first.objects


@pytest.mark.parametrize("change", [{"flags": "-O3"}, {"source": "x"}, {"compiler": "cc 13"}])
def test_s01_any_other_parameter_is_a_miss(site, change):
    site.compile("enable", ["add"])
    assert site.compile("enable", ["add"], **change).compiled == ["add"]


def test_s02_a_miss_is_compiled_and_stored(site):
    run = site.compile("enable")
    assert run.compiled == ALL
    assert run.stats.stored == 3
    assert site.stored(ALL) == ALL


def test_s03_force_deletes_then_compiles_and_stores_all(site):
    site.compile("enable", [*ALL, "old"])
    for _ in range(2):
        run = site.compile("force")
        assert run.compiled == ALL
        assert run.stats.stored == 3
        assert site.stored([*ALL, "old"]) == ALL


def test_s03_force_uses_no_entry_that_another_run_stores_meanwhile(site):
    key = site.key("conv")
    with site.open("force") as force, site.open("enable") as other:
        other.put(key, "conv", b"other's")
        assert force.get(key, "conv") is None
        force.put(key, "conv", b"forced")
        assert other.get(key, "conv") == b"forced"


def test_s03_force_deletes_for_its_target_only(site):
    site.compile("enable", target="c99")
    site.compile("force")
    assert site.compile("enable", target="c99").compiled == []


def test_s03_force_deletes_only_what_the_cache_wrote(site, tmp_path):
    site.compile("enable")
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / f"{'a' * 64}.o").write_text("keep")
    foreign = [site.folder / "notes.txt", site.folder / f"{'a' * 63}.o", site.folder / "x.json"]
    for path in foreign:
        path.write_text("keep")
    (site.folder / "link").symlink_to(outside)
    (site.folder / f"{'b' * 64}.o").symlink_to(outside / f"{'a' * 64}.o")
    (site.folder / f"{'c' * 64}.json").mkdir()
    site.compile("force", [])
    assert [path.read_text() for path in foreign] == ["keep"] * 3
    assert (outside / f"{'a' * 64}.o").read_text() == "keep"
    assert site.stored(ALL) == []


def test_s04_disable_reads_and_writes_nothing(site):
    site.compile("enable")
    before = site.snapshot()
    run = site.compile("disable")
    assert run.compiled == ALL
    assert (run.stats.hits, run.stats.stored) == (0, 0)
    assert site.snapshot() == before


@pytest.mark.parametrize("first", ["enable", "force"])
def test_s05_then_enable_compiles_nothing_and_gives_the_same_bytes(site, first):
    made = site.compile(first)
    found = site.compile("enable")
    assert found.compiled == []
    assert found.objects == made.objects


def test_s06_another_tuning_choice_misses_by_itself(site):
    site.compile("enable", tuning="bank 1")
    run = site.compile("enable", tuning="bank 2")
    assert run.compiled == ALL
    assert run.stats.events[0].reason == "tuning differs: bank 1 -> bank 2"
    assert site.compile("force", tuning="bank 2").compiled == ALL


def test_s07_an_entry_that_vanishes_midway_is_compiled_again(site):
    site.compile("enable")
    with site.open() as cache:
        assert cache.get(site.key("add"), "add") is not None
        for path in site.folder.glob("*.o"):
            path.unlink()
        assert cache.get(site.key("conv"), "conv") is None
        cache.put(site.key("conv"), "conv", b"again")
        assert cache.get(site.key("conv"), "conv") == b"again"
    assert "object is missing" in cache.stats.events[1].reason


def test_s07_a_whole_folder_that_vanishes_midway_breaks_nothing(site):
    site.compile("enable")
    with site.open() as cache:
        shutil.rmtree(site.root)
        assert cache.get(site.key("add"), "add") is None
        cache.put(site.key("add"), "add", b"x")
        cache.put(site.key("conv"), "conv", b"x")
    assert len(site.warnings) == 1
    assert site.compile("enable").compiled == ALL


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def copy_under_wrong_name(site):
    for suffix in ("json", "o", "key"):
        shutil.copy(site.path("add", suffix), site.path("conv", suffix))


def relink(path):
    target = path.with_name("moved")
    path.rename(target)
    path.symlink_to(target)


def refifo(path):
    path.unlink()
    os.mkfifo(path)


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES = {
    "flipped object": lambda site: flip(site.path("conv", "o")),
    "short object": lambda site: cut(site.path("conv", "o")),
    "empty object": lambda site: site.path("conv", "o").write_bytes(b""),
    "no object": lambda site: site.path("conv", "o").unlink(),
    "object is a link": lambda site: relink(site.path("conv", "o")),
    "object is a fifo": lambda site: refifo(site.path("conv", "o")),
    "cut descriptor": lambda site: cut(site.path("conv", "json")),
    "empty descriptor": lambda site: site.path("conv", "json").write_bytes(b""),
    "deep descriptor": lambda site: site.path("conv", "json").write_bytes(b"[" * 60_000),
    "huge descriptor": lambda site: site.path("conv", "json").write_bytes(b" " * 100_000),
    "binary descriptor": lambda site: site.path("conv", "json").write_bytes(b"\xff\0"),
    "foreign descriptor": lambda site: site.path("conv", "json").write_text('{"a": [1]}'),
    "wrong types": lambda site: edit(site.path("conv", "json"), object={"sha256": 1, "size": "x"}),
    "newer format": lambda site: edit(site.path("conv", "json"), format=3),
    "whole copy of another entry": copy_under_wrong_name,
    "another entry's": lambda site: shutil.copy(
        site.path("add", "json"), site.path("conv", "json")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_s39_a_bad_entry_is_a_miss_counted_and_repaired(site, damage):
    made = site.compile("enable")
    DAMAGES[damage](site)
    run = site.compile("enable")
    assert run.compiled == ["conv"]
    assert run.objects == made.objects
    assert (run.stats.damaged, run.stats.hits) == (1, 2)
    assert run.stats.events[1].reason.startswith("damaged: ")
    again = site.compile("enable")
    assert (again.compiled, again.objects) == ([], made.objects)


def test_s39_the_descriptor_holds_the_sha256_of_the_object(site):
    site.compile("enable")
    descriptor = json.loads(site.path("conv", "json").read_text())
    data = site.path("conv", "o").read_bytes()
    assert descriptor["object"] == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    assert data == b"object of " + site.key("conv").encoded()


def test_s40_the_descriptor_is_written_last(site, monkeypatch):
    order = []
    real = Folder.write
    monkeypatch.setattr(
        Folder, "write", lambda self, name, *a, **k: (order.append(name), real(self, name, *a, **k))
    )
    site.compile("enable", ["conv"])
    assert [name.rpartition(".")[2] for name in order] == ["ini", "key", "o", "json", "json"]
    assert order[-1] == "op_cache_counts.json"


def test_s40_an_entry_another_run_stored_meanwhile_is_kept(site):
    key = site.key("conv")
    with site.open() as one, site.open() as other:
        assert one.get(key, "conv") is None
        other.put(key, "conv", b"other's")
        one.put(key, "conv", b"one's")
        assert one.get(key, "conv") == b"other's"
    assert (one.stats.stored, other.stats.stored) == (0, 1)


def full_disk(monkeypatch, suffix=""):
    """Let the disk be full in the middle of every file, or those with this suffix."""
    write, fdopen = Folder.write, os.fdopen

    def write_half(self, name, data, **keywords):
        with monkeypatch.context() as patch:
            if name.endswith(suffix):
                patch.setattr(os, "fdopen", lambda fd, mode: HalfWriter(fdopen(fd, mode)))
            write(self, name, data, **keywords)

    monkeypatch.setattr(Folder, "write", write_half)


class HalfWriter:
    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("suffix", [".key", ".o", ".json"])
@pytest.mark.parametrize("mode", ["enable", "force"])
def test_s42_a_full_disk_is_one_warning_and_no_further_storing(site, monkeypatch, suffix, mode):
    site.compile("enable", ["pool"])
    full_disk(monkeypatch, suffix)
    run = site.compile(mode, ["add", "conv", "pool"])
    monkeypatch.undo()
    assert run.objects.keys() == {"add", "conv", "pool"}
    assert len(site.warnings) == 1
    assert "no space left" in site.warnings[0]
    assert run.stats.hits == (1 if mode == "enable" else 0)
    assert run.stats.stored == 0
    assert list(site.folder.glob("*.tmp")) == []
    again = site.compile("enable", ["add", "conv", "pool"])
    assert again.objects == run.objects
    assert again.stats.damaged == 0


def test_s42_a_full_disk_at_the_start_is_no_cache(site, monkeypatch):
    full_disk(monkeypatch)
    run = site.compile("enable")
    assert run.compiled == ALL
    assert len(site.warnings) == 1
    assert "off" in site.warnings[0]


def refuse_writing(monkeypatch):
    """Let every creation fail as on a read-only file system; root isn't stopped by modes."""
    real_open, real_mkdir = os.open, os.mkdir

    def open_(path, flags, *arguments, **keywords):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real_open(path, flags, *arguments, **keywords)

    def mkdir(path, *arguments, **keywords):
        if keywords.get("dir_fd") is None and os.path.isdir(path):
            return real_mkdir(path, *arguments, **keywords)
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "mkdir", mkdir)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("mode", ["enable", "force"])
def test_s42_a_read_only_folder_is_one_warning_and_no_cache(site, monkeypatch, filled, mode):
    if filled:
        site.compile("enable")
    refuse_writing(monkeypatch)
    run = site.compile(mode)
    monkeypatch.undo()
    assert run.compiled == ALL
    assert len(site.warnings) == 1
    assert "read-only file system" in site.warnings[0]
    assert run.stats.events[0].reason == "the cache is off"


@pytest.fixture
def unwritable(site):
    """The site, filled, with folders that nobody may write in; skips where root may anyway."""
    site.compile("enable")
    folders = [site.folder, site.base]
    for folder in folders:
        folder.chmod(0o555)
    yield site
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.parametrize(("mode", "compiled"), [("enable", ["new"]), ("force", [*ALL, "new"])])
def test_s42_folders_without_write_permission_end_storing(unwritable, mode, compiled):
    if os.access(unwritable.folder, os.W_OK):
        pytest.skip("this user may write anywhere")
    run = unwritable.compile(mode, [*ALL, "new"])
    assert run.compiled == compiled
    assert run.stats.stored == 0
    assert len(unwritable.warnings) == 1
    assert "Permission denied" in unwritable.warnings[0]


@pytest.mark.parametrize("what", ["root", "base", "folder", "ini", "lock"])
def test_s42_something_else_in_a_files_place_is_no_cache(site, what):
    place = {
        "root": site.root,
        "base": site.base,
        "folder": site.folder,
        "ini": site.ini,
        "lock": site.base / "op_cache_file_del.lock",
    }[what]
    if what in ("root", "base", "folder"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("not a directory")
    else:
        place.mkdir(parents=True)
    run = site.compile("enable")
    assert run.compiled == ALL
    assert len(site.warnings) == 1
    assert site.warnings[0].isprintable()


@pytest.mark.parametrize("what", ["kernel_cache", "kernel_cache/x86-64-avx2"])
@pytest.mark.parametrize("mode", ["enable", "force"])
def test_a_folder_that_is_a_link_is_not_followed(site, tmp_path, what, mode):
    outside = tmp_path / "outside"
    (outside / "x86-64-avx2").mkdir(parents=True)
    precious = [outside / f"{'a' * 64}.o", outside / "x86-64-avx2" / f"{'a' * 64}.o"]
    for path in precious:
        path.write_text("keep")
    link = site.root / what
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    run = site.compile(mode)
    assert run.compiled == ALL
    assert len(site.warnings) == 1
    assert [path.read_text() for path in precious] == ["keep", "keep"]


def test_s42_a_lock_that_is_never_released_ends_storing_with_a_warning(site, monkeypatch):
    monkeypatch.setattr("atc.cache.store._WAIT_S", 0.0)
    site.compile("enable", ["add"])
    holder = site.child("lock")
    assert holder.stdout.readline() == "locked\n"
    run = site.compile("enable")
    holder.communicate()
    assert run.compiled == ["conv", "pool"]
    assert run.stats.stored == 0
    assert len(site.warnings) == 1


def test_s44_the_run_reports_each_look_up(site):
    site.compile("enable", ["add"])
    run = site.compile("enable", ["add", "conv"])
    assert (run.stats.hits, run.stats.misses, run.stats.stored) == (1, 1, 1)
    digests = [site.key(name).digest() for name in ("add", "conv")]
    assert [tuple(event) for event in run.stats.events] == [
        ("add", digests[0], "hit", ""),
        ("conv", digests[1], "miss", "never seen"),
    ]


def test_s44_a_miss_is_explained_by_the_nearest_key_of_the_same_name(site):
    site.compile("enable", ["conv"], flags="-O2")
    site.compile("enable", ["conv"], flags="-O1", compiler="cc 11", cpu="a")
    run = site.compile("enable", ["conv"], flags="-O3")
    assert run.stats.events[0].reason == "flags differ: -O2 -> -O3"


def test_s44_kernels_of_one_name_do_not_explain_each_other_within_a_run(site):
    with site.open() as cache:
        for flags in ("-O1", "-O2"):
            key = site.key("conv", flags=flags)
            assert cache.get(key, "conv") is None
            cache.put(key, "conv", b"x")
    assert [event.reason for event in cache.stats.events] == ["never seen", "never seen"]


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a\x00b", "\x1b[2J", "\udcff", "x" * 10_000, ""]
)
def test_a_hostile_name_is_only_a_label(site, tmp_path, name):
    key = site.key("conv")
    with site.open() as cache:
        assert cache.get(key, name) is None
        cache.put(key, name, b"x")
        assert cache.get(key, name) == b"x"
    assert cache.stats.events[0].name.isprintable()
    assert len(cache.stats.events[0].name) <= 200
    assert sorted(tmp_path.iterdir()) == [site.root]
    assert site.compile("enable", []).stats.damaged == 0


def test_equal_keys_share_an_entry_whatever_their_names(site):
    with site.open() as cache:
        cache.put(site.key("conv"), "first", b"x")
        assert cache.get(site.key("conv"), "second") == b"x"


def test_a_closed_cache_misses_and_stores_nothing(site):
    with site.open() as cache:
        cache.put(site.key("add"), "add", b"x")
    assert not cache.active
    assert cache.get(site.key("add"), "add") is None
    cache.put(site.key("conv"), "conv", b"x")
    assert site.stored(["conv"]) == []
    cache.close()


def test_no_descriptor_leaks(site):
    def count():
        gc.collect()  # closes what earlier tests have left open
        return len(os.listdir("/dev/fd"))

    before = count()
    site.compile("enable")
    site.compile("force")
    site.ini.unlink()
    site.ini.mkdir()
    site.compile("enable")
    assert count() == before


@pytest.mark.parametrize(
    ("umask", "key", "mode"),
    [(0o002, "k" * 16, 0o664), (0, "k" * 16, 0o664), (0o022, "k" * 16, 0o644), (0o077, "", 0o600),
     (0o002, "", 0o644), (0, "", 0o644)],
)  # fmt: skip
def test_an_entry_is_not_pickled_and_shared_with_a_group_by_umask_and_key(site, umask, key, mode):
    site.environ["ATC_CACHE_KEY"] = key
    old = os.umask(umask)
    try:
        site.compile("enable", ["add"])
        assert site.compile("enable", ["add"]).stats.hits == 1
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in site.paths("add")} == {mode}
    assert {path.suffix for path in site.paths("add")} == {".json", ".key", ".o"}
    readable = mode | (mode & 0o444) >> 2
    for folder in (site.root, site.base, site.folder):
        assert folder.stat().st_mode & 0o777 == readable, folder
