"""Compiling by a cluster: the same bytes, whatever its workers do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from networks import pooled_net
from small_libraries import are_gone
from stores import free_port, running
from waiting import PATIENCE, happens

import atc
from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.build.objects import RemoteJob
from atc.errors import AtcError
from atc.farm import scheduler as module
from atc.farm.runners import RemoteRun
from atc.farm.scheduler import Scheduler
from atc.farm.worker import compile_order, order_of

TARGET = get_target("c99")
pytestmark = pytest.mark.skipif(
    find_spec("distributed") is None, reason="distributed isn't installed"
)  # which isn't imported until a test is run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clusters begin as slowly as they do where others work."""
    monkeypatch.setattr(module, "CONNECTING", PATIENCE)


@pytest.fixture
def jobs() -> list[RemoteJob]:
    compiler = find_compiler(TARGET, os.environ)
    return [
        RemoteJob(compiler, ("-O1",), "src/f.c", {
            "src/f.c": f'#include "h.h"\nint f{k}(void) {{ return {k} + H; }}\n'.encode(),
            "src/h.h": b"#define H 1\n",
        })
        for k in range(8)
    ]  # fmt: skip


@pytest.fixture
def cluster() -> Iterator[str]:
    """Run two workers in this process."""
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None,
        protocol="tcp", resources={"board": 1},
    ) as made:  # fmt: skip
        yield made.scheduler_address


class Reported(list[str]):
    """The warnings, and the progress."""

    done = 0

    def progress(self, done: int) -> None:
        self.done = done


def compiled(
    address: str, jobs: list[RemoteJob], stall: float = PATIENCE
) -> tuple[list[bytes | None], Reported]:
    reported = Reported()
    with Scheduler(address, reported.append, stall=stall) as farm:
        return farm.compile(jobs, reported.progress), reported


def here(jobs: list[RemoteJob]) -> list[bytes]:
    return [compile_order(order_of(job)) for job in jobs]


@pytest.mark.slow
def test_the_objects_are_the_same_bytes(cluster: str, jobs: list[RemoteJob]) -> None:
    objects, reported = compiled(cluster, jobs)
    assert objects == here(jobs)
    assert (reported, reported.done) == ([], len(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, True])
def test_wrong_objects_are_noticed(
    every: bool, cluster: str, jobs: list[RemoteJob], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    chosen = tmp_path / "liar"

    def lie(order: object) -> tuple[str, bytes]:
        from distributed import get_worker

        address = get_worker().address
        with suppress(FileExistsError), chosen.open("x") as file:
            file.write(address)
        time.sleep(0.1)
        data = compile_order(order)  # type: ignore[arg-type]
        return address, data[:-1] + b"!" if every or chosen.read_text() == address else data

    monkeypatch.setattr(module, "compile_here", lie)
    objects, reported = compiled(cluster, jobs)
    good = here(jobs)
    if every:
        assert objects == [None] * len(jobs)
    else:
        assert objects == good
    (warning,) = reported
    assert "objects are wrong" in warning


@pytest.mark.few(1)
@pytest.mark.parametrize("answer", [None, 7, ("w", 7), (b"w", b"x")])
def test_what_is_no_object_is_not_taken(
    answer: object, cluster: str, jobs: list[RemoteJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compile_here", lambda order: answer)
    objects, reported = compiled(cluster, jobs[:2])
    assert objects == [None, None]
    assert len(reported) == 1


@pytest.mark.slow
def test_workers_that_hang_are_not_waited_for(
    cluster: str, jobs: list[RemoteJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = tmp_path / "over"

    def hang(order: object) -> None:
        happens(over.exists, 600)

    monkeypatch.setattr(module, "compile_here", hang)
    begin = time.monotonic()
    objects, reported = compiled(cluster, jobs, stall=0.5)
    over.touch()
    assert time.monotonic() - begin < 60
    assert objects == [None] * len(jobs)
    assert "made nothing for 0.5 s" in reported[0]


def test_another_compiler_is_refused(cluster: str, jobs: list[RemoteJob]) -> None:
    order = order_of(jobs[0])
    with pytest.raises(AtcError, match="has another"):
        compile_order(replace(order, identity=b"another"))
    with pytest.raises(AtcError, match="instead of"):
        compile_order(replace(order, version="0.0.1"))


def test_what_is_not_wanted_any_more_is_ended(jobs: list[RemoteJob], tmp_path: Path) -> None:
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nsleep 600\n")
    slow.chmod(0o755)
    job = replace(jobs[0], compiler=replace(jobs[0].compiler, argv=(str(slow),)))
    begin = time.monotonic()
    with pytest.raises(AtcError):
        compile_order(order_of(job), lambda: False)
    assert time.monotonic() - begin < 60


@pytest.mark.slow
def test_what_is_given_up_is_ended_on_the_workers(
    cluster: str, jobs: list[RemoteJob], tmp_path: Path
) -> None:
    slow = tmp_path / "cc"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    job = replace(jobs[0], compiler=replace(jobs[0].compiler, argv=(str(slow),)))
    for stall in (2.0, 20.0, PATIENCE):  # where others work, the compiler begins later
        reported = Reported()
        with Scheduler(cluster, reported.append, stall=stall) as farm:
            assert farm.compile([job], reported.progress) == [None]
            if (tmp_path / "pid").exists():
                assert are_gone(tmp_path / "pid")
                break
    assert f"made nothing for {stall:g} s" in reported[0]


@pytest.mark.few(1)
@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://no.such.host.invalid:8786"])
def test_a_cluster_that_is_away_costs_one_warning(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTING", 0.5)
    done = atc.compile(
        pooled_net(tmp_path / "net.onnx"), tmp_path / "net", target="c99",
        build_config="cc -O0", scheduler=address,
    )  # fmt: skip
    assert done.library.exists()
    (warning,) = done.warnings
    assert f"the cluster {address} is not used" in warning


def test_a_network_is_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    model = pooled_net(tmp_path / "net.onnx")

    def library(name: str, scheduler: str) -> bytes:
        done = atc.compile(
            model, tmp_path / name / "net", target="c99", build_config="cc -O0",
            scheduler=scheduler,
        )  # fmt: skip
        return done.library.read_bytes()

    assert library("a", cluster) == library("b", "")


def test_programs_run_where_the_resource_is(cluster: str) -> None:
    script = b"#!/bin/sh\necho $1; cat data\n"
    task = RemoteRun("run", {"run": script, "data": b"some data"}, ("word",), 10)
    with Scheduler(cluster, pytest.fail) as farm:
        assert farm.measures("board")
        assert not farm.measures("gpu")
        done = farm.run(task, "board")
    assert (done.status, done.stdout) == (0, b"word\nsome data")


@pytest.mark.slow
def test_one_measurement_at_a_time_for_each_device(cluster: str, tmp_path: Path) -> None:
    """Both workers have one device: of four programs two run at a time, never more."""
    lines = f"mkdir {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.2; rmdir {tmp_path}/$$"
    script = f"#!/bin/sh\n{lines}\n"
    task = RemoteRun("run", {"run": script.encode()}, (), 10)
    with Scheduler(cluster, pytest.fail) as farm:
        farm.measures("board")
        with ThreadPoolExecutor(4) as pool:
            counts = list(pool.map(lambda _: farm.run(task, "board"), range(4)))
    assert max(int(done.stdout) for done in counts) <= 2


class Kept:
    """A future whose result lies on a worker that has stopped since; `waits` are for results."""

    waits: ClassVar[list[float]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def result(self, timeout: float | None = None) -> object:
        assert timeout is not None
        self.waits.append(timeout)
        raise TimeoutError

    def done(self) -> bool:
        return True


def test_a_result_that_never_arrives_is_not_waited_for_without_end(
    cluster: str, jobs: list[RemoteJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = Reported()
    monkeypatch.setattr("distributed.Client.submit", lambda *_, **__: Kept())
    with Scheduler(cluster, reported.append, stall=20) as farm:
        assert farm.compile(jobs, reported.progress) == [None] * len(jobs)
    assert Kept.waits[0] == 20
    assert max(Kept.waits[1:]) <= 1
    (warning,) = reported
    assert "didn't return src/f.c within 20 s" in warning


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_that_die_or_stop_in_the_middle(
    sent: signal.Signals, jobs: list[RemoteJob], tmp_path: Path
) -> None:
    """One of two worker processes goes while it works; all objects are there nevertheless."""
    port = free_port()
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(port),
                 "--host", "127.0.0.1", "--no-dashboard"]  # fmt: skip
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}",
              "--nthreads", "1", "--no-nanny", "--no-dashboard"]  # fmt: skip
    many = jobs * 10
    stall = 6 if sent is signal.SIGSTOP else PATIENCE  # what is killed is known to be away
    with running(scheduler, port, cwd=tmp_path):
        workers = [
            subprocess.Popen(worker, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)
        ]
        try:
            reported = Reported()
            with Scheduler(f"tcp://127.0.0.1:{port}", reported.append, stall=stall) as farm:
                assert happens(lambda: farm._connected() and len(farm._workers()) == 2)
                timer = threading.Timer(0.5, lambda: os.kill(workers[0].pid, sent))
                timer.start()
                objects = farm.compile(many, reported.progress)
        finally:
            for each in workers:
                each.kill()
                each.wait()
    good = here(jobs) * 10
    assert all(o in (None, g) for o, g in zip(objects, good, strict=True))
    assert sum(o is not None for o in objects) > 8
    if sent is signal.SIGKILL:
        assert objects == good
