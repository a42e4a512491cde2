"""Temporary folders: they go with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atc.files.temporary import temporary_folder

HOLD = """
import sys, time
from pathlib import Path
from atc.files.temporary import temporary_folder
with temporary_folder("test", Path(sys.argv[1]), hidden=sys.argv[2] == "1") as folder:
    (folder / "inside").mkdir()
    (folder / "inside/file").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def holder(place: Path, hidden: bool = False) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, str(place), str(int(hidden))],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path, hidden: bool) -> None:
    process, left = holder(tmp_path, hidden)
    with temporary_folder("other", tmp_path, hidden=hidden) as own:
        assert left.is_dir()  # its process lives
        assert sorted(tmp_path.iterdir()) == sorted([left, own])
    process.kill()
    process.communicate()
    assert (left / "inside/file").is_file()
    with temporary_folder("other", tmp_path, hidden=hidden) as own:
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def test_it_goes_with_whatever_happens_in_it(tmp_path: Path) -> None:
    def interrupted() -> None:
        with temporary_folder("x", tmp_path) as folder:
            (folder / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_goes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "place"
    place.mkdir()
    (place / "atc-tmp-link").symlink_to(outside)
    (place / "atc-tmp-file").write_text("x")
    (place / "atc-build-kept").mkdir()
    (place / "atc-tmpnothing").mkdir()
    if os.geteuid() == 0:
        (place / "atc-tmp-foreign").mkdir()
        os.chown(place / "atc-tmp-foreign", 65534, -1)
    before = sorted(place.iterdir())
    with temporary_folder("x", place):
        pass
    assert sorted(place.iterdir()) == before
    assert outside.is_dir()


def test_a_folder_taken_for_left_over_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    make, made = tempfile.mkdtemp, []

    def swept(**keywords: object) -> str:
        path = make(**keywords)  # type: ignore[call-overload]
        made.append(path)
        if len(made) == 1:
            os.rmdir(path)  # by another process
        return str(path)

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with temporary_folder("x", tmp_path) as folder:
        assert folder.is_dir()
    assert len(made) == 2


def test_a_folder_that_another_process_is_about_to_remove_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl
    import tempfile

    make, taken = tempfile.mkdtemp, []

    def taken_at_once(**keywords: object) -> str:
        path = make(**keywords)  # type: ignore[call-overload]
        if not taken:
            taken.append((path, os.open(path, os.O_RDONLY)))
            fcntl.flock(taken[0][1], fcntl.LOCK_EX)
        return str(path)

    monkeypatch.setattr(tempfile, "mkdtemp", taken_at_once)
    with temporary_folder("x", tmp_path) as folder:
        assert folder != Path(taken[0][0])
    os.close(taken[0][1])


def test_many_at_a_time_keep_their_own(tmp_path: Path) -> None:
    def use(number: int) -> bool:
        with temporary_folder("x", tmp_path) as folder:
            (folder / "number").write_text(str(number))
            return (folder / "number").read_text() == str(number)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from atc.build.output_folder import write_tree
count, at, rename = 0, int(sys.argv[2]), Path.rename
def dying(self, target):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = dying
write_tree({"a.c": b"new a", "sub/b.c": b"new b", "sub/new.c": b"new"}, Path(sys.argv[1]))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("at", range(1, 10))
def test_an_output_half_replaced_by_a_killed_process_is_restored(tmp_path: Path, at: int) -> None:
    from atc.build.output_folder import write_tree
    from atc.errors import OptionError

    folder = tmp_path / "net"
    old = {"a.c": b"old a", "sub/b.c": b"old b", "sub/old.c": b"old", "d/gone.c": b"gone"}
    write_tree(old, folder)
    (folder / "mine.txt").write_text("mine")
    command = [sys.executable, "-P", "-c", KILLED, str(folder), str(at)]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(OptionError, match=r"mine\.txt exists"):
        write_tree({"mine.txt": b"x"}, folder)  # which finds what was left and changes nothing else
    kept = {p: (folder / p).read_bytes() for p in old}
    assert kept == old
    assert sorted(p.name for p in folder.iterdir()) == [
        ".atc-manifest.json", "a.c", "d", "mine.txt", "sub"
    ]  # fmt: skip
    assert sorted(p.name for p in (folder / "sub").iterdir()) == ["b.c", "old.c"]


def test_after_the_last_step_the_new_output_stays(tmp_path: Path) -> None:
    from atc.build.output_folder import write_tree

    folder = tmp_path / "net"
    write_tree({"a.c": b"old"}, folder)
    script = KILLED.replace("return rename(self, target)", """rename(self, target)
    if target.name.startswith(".atc-manifest") and "new" in self.parts:
        os.kill(os.getpid(), signal.SIGKILL)""")
    subprocess.run([sys.executable, "-P", "-c", script, str(folder), "0"], capture_output=True)
    write_tree({"a.c": b"new a", "sub/b.c": b"new b", "sub/new.c": b"new"}, folder)
    assert (folder / "a.c").read_bytes() == b"new a"
    assert sorted(p.name for p in folder.iterdir()) == [".atc-manifest.json", "a.c", "sub"]
