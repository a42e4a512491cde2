"""A cluster of dask's that compiles: `--scheduler=tcp://host:8786`, or `local:4`.

What comes back is believed only so far: the first object of each worker, and some of the later
ones, are compiled here as well and must be the same bytes. A worker that fails that, dies or hangs
costs a warning; its work goes to the others, and what nobody did is left to the caller.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from atc.backends.toolchain.processes import Finished
from atc.build.objects import RemoteJob
from atc.errors import AtcError, OptionError, one_line
from atc.farm.runners import RemoteRun, Unreachable, perform
from atc.farm.worker import Order, compile_order, order_of

STALL = 60.0
"""Seconds without any object after which the rest is compiled here."""
AT_ONCE = 1.0
"""Seconds that a finished object may take to arrive, once one has exceeded the limit."""
CONNECTING = 10.0
"""Seconds that a scheduler may take to answer."""
SAMPLE = 50
"""A worker's first object and every so many are compiled here, too, as a check."""
LOCAL = "local:"


class Scheduler:
    """A connection to a cluster, made when it is first needed; a context manager."""

    def __init__(
        self, address: str, warn: Callable[[str], None], *, stall: float = STALL
    ) -> None:
        self._address, self._warn, self._stall = address, warn, stall
        self._client: Any = None
        self._cluster: Any = None
        self._mutex = threading.Lock()
        self._over = False

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the cluster; one that was made for this process ends."""
        with self._mutex:
            self._over = True
            for each in (self._client, self._cluster):
                if each is not None:
                    with suppress(Exception):
                        each.close(timeout=5)
            self._client = self._cluster = None

    def compile(
        self, jobs: Sequence[RemoteJob], progress: Callable[[int], None]
    ) -> list[bytes | None]:
        """Return the objects of the jobs; None for those that are left to the caller."""
        client = self._connected()
        if client is None:
            return [None] * len(jobs)
        work = _Work(client, [order_of(job) for job in jobs], self._stall, progress)
        try:
            work.round(range(len(jobs)), None)
            lost = [k for k in range(len(jobs)) if k not in work.objects]
            others = [w for w in self._workers() if w not in work.bad]
            if lost and others and not work.stalled:
                work.round(lost, others)
        except Exception as error:
            work.report(f"doesn't go on: {one_line(str(error) or type(error).__name__, 200)}")
        finally:
            work.cancel()
        if work.trouble:
            self._warn(f"the cluster {self._address} {work.trouble}")
        return [work.objects.get(k) for k in range(len(jobs))]

    def measures(self, resource: str) -> bool:
        """Return whether a worker has a resource, such as the target's name."""
        client = self._connected()
        if client is None:
            return False
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return any(worker.get("resources", {}).get(resource, 0) >= 1 for worker in workers)

    def run(self, task: RemoteRun, resource: str) -> Any:
        """Run a program on a worker that has a resource; raises what its runner does."""
        client = self._connected()
        if client is None:
            raise Unreachable(f"the cluster {self._address} can't be reached")
        future = client.submit(
            perform, task, key=f"measure-{uuid4().hex}", resources={resource: 1}, retries=1
        )
        try:
            return future.result(timeout=2 * task.timeout + self._stall)
        except AtcError:  # the runner's own
            raise
        except Exception as error:
            reason = one_line(str(error) or type(error).__name__, 200)
            message = f"the cluster {self._address} didn't run a program: {reason}"
            raise Unreachable(message) from None
        finally:
            with suppress(Exception):
                client.cancel([future], force=True)

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return self._address

    @property
    def is_local(self) -> bool:
        """Whether the workers are processes of this machine."""
        return self._address.startswith(LOCAL)

    def _workers(self) -> list[str]:
        return list(self._client.scheduler_info(n_workers=-1)["workers"])

    def _connected(self) -> Any:
        with self._mutex:
            if self._client is None and not self._over:
                try:
                    self._connect()
                except Exception as error:
                    self._over = True
                    reason = one_line(str(error) or type(error).__name__, 200)
                    self._warn(f"the cluster {self._address} is not used: {reason}")
            return self._client

    def _connect(self) -> None:
        distributed = import_module("distributed")
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        place: Any = self._address
        if self.is_local:
            place = self._cluster = distributed.LocalCluster(
                n_workers=int(self._address.removeprefix(LOCAL)), threads_per_worker=1,
                dashboard_address=None, silence_logs=logging.CRITICAL,
            )  # fmt: skip
        client = distributed.Client(place, timeout=CONNECTING, set_as_default=False)
        try:
            client.wait_for_workers(1, timeout=CONNECTING)
        except TimeoutError:
            client.close()
            raise AtcError("it has no workers") from None
        self._client = client


@dataclass(frozen=True)
class ByCluster:
    """A runner: the workers that have a resource, one program at a time on each."""

    scheduler: Scheduler
    resource: str
    emulator: tuple[str, ...] = ()

    def machine(self) -> str:
        """Return what a worker reports about the machine that it measures on."""
        answer = self.scheduler.run(RemoteRun("", {}, (), CONNECTING, self.emulator), self.resource)
        return str(answer)

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Have a worker run a program."""
        sent = {name: (folder / name).read_bytes() for name in (program, *files)}
        task = RemoteRun(program, sent, tuple(arguments), timeout, self.emulator)
        done = self.scheduler.run(task, self.resource)
        if not isinstance(done, Finished):
            raise Unreachable(f"the cluster {self.scheduler.address} returned no result")
        return done


@dataclass
class _Work:
    """The orders of one call, the objects received, and the workers they came from."""

    client: Any
    orders: Sequence[Order]
    stall: float
    progress: Callable[[int], None]
    objects: dict[int, bytes] = field(default_factory=dict)
    makers: dict[int, str] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    trouble: str = ""
    stalled: bool = False
    futures: list[Any] = field(default_factory=list)
    patience: float = field(init=False)
    """Seconds that a finished result may take to arrive."""

    def __post_init__(self) -> None:
        self.patience = self.stall

    def report(self, text: str) -> None:
        self.trouble = self.trouble or text

    def round(self, which: Sequence[int], workers: Sequence[str] | None) -> None:
        """Have some orders compiled, and keep the objects that are right."""
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        waiting = {}
        for k in which:
            future = self.client.submit(
                compile_here, self.orders[k], key=f"compile-{uuid4().hex}", workers=workers,
                allow_other_workers=False, pure=False,
            )  # fmt: skip
            future.add_done_callback(lambda done, k=k: arrived.put((k, done)))
            waiting[k] = future
        self.futures += waiting.values()
        while waiting:
            try:
                k, future = arrived.get(timeout=self.stall)
            except queue.Empty:
                self.stalled = True
                self.report(
                    f"made nothing for {self.stall:g} s: {len(waiting)} kernels are compiled here"
                )
                return
            del waiting[k]
            self._take(k, future)

    def _take(self, k: int, future: Any) -> None:
        try:
            maker, data = future.result(timeout=self.patience)
            if not (isinstance(maker, str) and isinstance(data, bytes)):
                raise AtcError("a worker returned no object")
        except TimeoutError:  # it lies on a worker that has stopped; others' come at once
            self.report(f"didn't return {self.orders[k].source} within {self.patience:g} s")
            self.patience = min(self.patience, AT_ONCE)
            return
        except Exception as error:
            reason = getattr(error, "message", "") or str(error) or type(error).__name__
            self.report(f"didn't compile {self.orders[k].source}: {one_line(reason, 200)}")
            return
        if maker in self.bad:
            return
        count = sum(m == maker for m in self.makers.values())
        if count % SAMPLE == 0 and compile_order(self.orders[k]) != data:
            self.bad.add(maker)
            for wrong in [j for j, m in self.makers.items() if m == maker]:
                del self.objects[wrong], self.makers[wrong]
            self.report(f"has a worker whose objects are wrong, {maker}: nothing of it is used")
            return
        self.objects[k], self.makers[k] = data, maker
        self.progress(len(self.objects))

    def cancel(self) -> None:
        """Cancel what isn't done."""
        left = [future for future in self.futures if not future.done()]
        with suppress(Exception):
            if left:
                self.client.cancel(left, force=True)


def compile_here(order: Order) -> tuple[str, bytes]:
    """Compile an order on the worker that runs this; returns the worker's address, too."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return worker.address, compile_order(order, wanted)


def open_scheduler(address: str, warn: Callable[[str], None]) -> Scheduler | None:
    """Return the cluster at an address, without connecting yet; None without an address."""
    if not address:
        return None
    if find_spec("distributed") is None:
        raise OptionError(
            "a scheduler needs the package distributed", where="--scheduler",
            hint="pip install distributed, or atc with [farm]",
        )  # fmt: skip
    return Scheduler(address, warn)
