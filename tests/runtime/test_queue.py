"""Queued calls: `net.submit`, its queue and its errors, as the variables of two systems say."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from call_gate import Gate
from networks import save
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.errors import OptionError
from atc.runtime.network import Network
from atc.runtime.queue import CallQueue

LEVEL, SIZE = "MEGENGINE_INTERP_ASYNC_LEVEL", "MEGENGINE_ASYNC_QUEUE_SIZE"
CATCH, URGENT = "MEGENGINE_CATCH_WORKER_EXEC", "MXNET_CPU_PRIORITY_NTHREADS"
VARIABLES = (LEVEL, SIZE, CATCH, URGENT, "MXNET_ENGINE_TYPE")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def logarithm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile y = log(x), which fails for negative numbers."""
    folder = tmp_path_factory.mktemp("log")
    node = helper.make_node("Log", ["x"], ["y"], "the logarithm")
    model = save([node], {"x": [4]}, {"y": [4]}, folder / "m.onnx")
    atc.compile(model, folder / "net", target="c99", sanity_check="1")
    return folder / "net"


@pytest.fixture
def net(logarithm: Path) -> Iterator[Network]:
    with atc.load(logarithm) as found:
        yield found


def ones(value: float = 1) -> Any:
    return np.full(4, value, np.float32)


# ---- the network's calls -------------------------------------------------------------------------


def test_a_future_has_what_a_call_returns(net: Network) -> None:
    x = np.linspace(1, 4, 4, dtype=np.float32)
    future = net.submit(x)
    assert isinstance(future, Future)
    np.testing.assert_array_equal(future.result(20), net(x))
    assert future.done()
    assert future.exception() is None


def test_inputs_are_captured_when_they_are_given(net: Network) -> None:
    """The caller may fill its array anew while the calls wait."""
    gate = Gate(net._queue)
    x, futures = ones(), []
    for k in range(1, 30):
        x[:] = k
        futures.append(net.submit(x))
    x[:] = -1
    gate.open.set()
    for k, future in enumerate(futures, 1):
        np.testing.assert_array_equal(future.result(20), net(ones(k)))


def test_what_nobody_can_change_is_not_copied(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    assert net._library is not None
    run = net._library.run
    monkeypatch.setattr(net._library, "run", lambda a, out: [seen.append(a[0]), run(a, out)][1])
    fixed, changing, made = ones(), ones(), [1.0, 2.0]
    fixed.flags.writeable = False
    parts = np.ones((2, 4), np.float32)
    for given in (fixed, changing, np.array(made * 2, np.float32)[::-1], parts[1]):
        net.submit(given).result(20)
    assert seen[0] is fixed
    assert seen[1] is not changing
    assert not any(np.shares_memory(a, b) for a in seen[1:] for b in (changing, parts))


def test_results_may_go_to_arrays_of_the_caller(net: Network) -> None:
    mine = np.empty(4, np.float32)
    assert net.submit(ones(3), out=mine).result(20) is mine
    np.testing.assert_array_equal(mine, net(ones(3)))


def test_calls_run_in_the_order_in_which_they_come(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[float] = []
    assert net._library is not None
    run = net._library.run
    monkeypatch.setattr(
        net._library, "run", lambda a, out: [order.append(float(a[0][0])), run(a, out)][1]
    )
    futures = [net.submit(ones(k)) for k in range(1, 50)]
    assert [f.result(20).shape for f in futures] == [(4,)] * 49
    assert order == [*range(1, 50)]


def test_urgent_calls_overtake(net: Network) -> None:
    gate = Gate(net._queue)
    later = net.submit(ones())
    np.testing.assert_array_equal(net.submit(ones(2), urgent=True).result(20), net(ones(2)))
    assert not later.done()
    gate.open.set()
    later.result(20)


def test_errors_are_the_future_s(net: Network) -> None:
    good, bad, after = net.submit(ones()), net.submit(ones(-1)), net.submit(ones(2))
    with pytest.raises(RuntimeError, match="the logarithm"):
        bad.result(20)
    assert isinstance(bad.exception(), RuntimeError)
    for future in (good, after):  # one failed call is no other's
        assert future.exception(20) is None


def test_a_call_that_waits_can_be_cancelled(net: Network) -> None:
    gate = Gate(net._queue)
    later = net.submit(ones())
    assert later.cancel()
    assert later.cancelled()
    gate.open.set()
    assert gate.future.result(20) == "through"
    net.submit(ones()).result(20)


def test_what_is_queued_is_run_after_close(logarithm: Path) -> None:
    net = atc.load(logarithm)
    gate = Gate(net._queue)
    later = net.submit(ones())
    net.close()
    gate.open.set()
    assert later.result(20).shape == (4,)
    with pytest.raises(ValueError, match="is closed"):
        net.submit(ones())


def test_sequences_and_threads(tmp_path: Path) -> None:
    """Two outputs come as a tuple, and several callers share the queue."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Abs", ["y"], ["z"])]
    w = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xyz"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [w])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", parallel_branches=2)
    found: dict[int, Any] = {}
    with atc.load(tmp_path / "net") as net:

        def ask(k: int) -> None:
            found[k] = [net.submit(ones(k + j), urgent=bool(j % 2)) for j in range(20)]

        callers = [threading.Thread(target=ask, args=(100 * k,)) for k in range(4)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        for k, futures in found.items():
            for j, future in enumerate(futures):
                for got, want in zip(future.result(20), net(ones(k + j)), strict=True):
                    np.testing.assert_array_equal(got, want)


# ---- the variables -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "wrong_raises", "fault_raises"),
    [({LEVEL: "0"}, True, True), ({LEVEL: "1"}, True, False), ({LEVEL: "2"}, False, False),
     ({}, False, False), ({"MXNET_ENGINE_TYPE": "NaiveEngine"}, True, True),
     ({"MXNET_ENGINE_TYPE": "ThreadedEngine"}, False, False)],
)  # fmt: skip
def test_levels_say_where_errors_are_raised(
    environ: dict[str, str], wrong_raises: bool, fault_raises: bool, logarithm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with atc.load(logarithm) as net:
        cases: list[tuple[Any, type[Exception], bool]] = [
            (np.ones(3, np.float32), ValueError, wrong_raises),
            (np.ones(4), TypeError, wrong_raises),
            (ones(-1), RuntimeError, fault_raises),
        ]
        for given, error, raises in cases:
            if raises:
                with pytest.raises(error):
                    net.submit(given)
            else:
                assert isinstance(net.submit(given).exception(20), error)
        assert net.submit(ones()).done() or net._queue.level


def test_level_0_starts_no_thread(logarithm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "0")
    with atc.load(logarithm) as net:
        before = {*threading.enumerate()}
        assert net.submit(ones()).done()
        assert {*threading.enumerate()} <= before  # those of other tests may end meanwhile


def test_a_full_queue_lets_its_caller_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIZE, "1")
    queue = CallQueue("net")
    gate = Gate(queue)
    entered = threading.Event()
    second = threading.Thread(target=lambda: [queue.put(str, False), entered.set()])
    second.start()
    assert not entered.wait(0.1)
    assert queue.put(str, True).result(20) == ""  # an urgent call does not wait
    gate.open.set()
    assert entered.wait(20)
    second.join()
    queue.close()


def test_a_cancelled_call_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIZE, "2")
    queue = CallQueue("net")
    gate = Gate(queue)
    assert gate.begun.wait(20)
    for _ in range(5):  # would wait for ever
        assert queue.put(str, False).cancel()
    gate.open.set()
    queue.close()


def test_so_many_urgent_calls_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URGENT, "2")
    queue = CallQueue("net")
    gates = [Gate(queue, urgent=True) for _ in range(3)]
    assert gates[0].begun.wait(20)
    assert gates[1].begun.wait(20)
    assert not gates[2].begun.wait(0.05)
    for gate in gates:
        gate.open.set()
    assert [g.future.result(20) for g in gates] == ["through"] * 3
    queue.close()


@pytest.mark.parametrize("catches", ["0", "1"])
def test_an_error_that_isnt_caught_ends_the_process(catches: str) -> None:
    code = (
        "from atc.runtime.queue import CallQueue\n"
        "future = CallQueue('net').put(lambda: 1 // 0, False)\n"
        "print(type(future.exception(20)).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env={CATCH: catches}
    )
    if catches == "1":
        assert (done.returncode, done.stdout) == (0, "ZeroDivisionError\n")
    else:
        assert done.returncode == -6  # SIGABRT
        assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("name", VARIABLES[:4])
def test_a_wrong_value_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("many", "-1", "1.5"):
        monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=f"{name}='{value}' is not a whole number"):
            CallQueue("net")


def test_a_wrong_value_is_one_line_of_the_loader(
    logarithm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (SIZE, "MXNET_MKLDNN_CACHE_NUM"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x\ny")
            with pytest.raises(OptionError, match=rf"E10001: {name}='x\\ny' is not a whole number"):
                atc.load(logarithm)


def test_the_projects_own_module_has_it(logarithm: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(logarithm)!r}); import net, numpy\n"
        "n = net.load(); x = numpy.ones(4, 'float32')\n"
        "print(n.submit(x).result(20)[0], type(n.submit(-x).exception(20)).__name__)\n"
        "assert not [m for m in sys.modules if m == 'atc' or m.startswith('atc.')]"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "0.0 RuntimeError\n", done.stderr
