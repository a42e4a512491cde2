"""States on a GPU: they last in its memory, and a run moves no more of them than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from passes.canonical import test_slide_states as windows

import atc
from atc.pipeline.pipeline import Compilation
from atc.program.placement import place
from atc.program.steps import calls

GPU = "cuda-emulated"


def moving(done: Compilation) -> list[str]:
    """Return the kinds of the calls that move states, and of nothing else of theirs."""
    program = done.program
    held = {s.value for s in program.states}
    found = []
    for call in calls(program.steps):
        inputs = [i for i in call.node.inputs if i and program.base(i) in held]
        copies = call.node.op.kind in ("Concat", "MoveRows") or not call.node.origin
        found += [call.node.op.kind] * bool(inputs and copies)
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", windows.BODY)
def test_windows_are_moved_back_by_one_launch(
    name: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    path, shape, held = windows.write(name, tmp_path)
    done = windows.compiled(path, tmp_path, GPU)
    (state,) = done.program.states
    assert state.anchored
    assert moving(done) == ["MoveRows"]
    for resident in (False, True):
        moves = place(done.program, resident=resident)
        bases = {m.base for step in (*moves.before, moves.after) for m in step}
        assert state.value not in bases
    xs = windows.inputs(shape)[:8]
    ys, kept = windows.expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net, atc.load(done.folder) as other:
        assert net.state_size == 4 * np.prod(held)
        for k, (x, y, after) in enumerate(zip(xs, ys, kept, strict=True)):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5, err_msg=f"run {k}")
            found = np.frombuffer(net.save_state(), np.float32).reshape(held)
            np.testing.assert_allclose(found, after, rtol=1e-5, atol=1e-5)
            if k == 3:
                other.restore_state(net.save_state())
        for x, y in zip(xs[4:], ys[4:], strict=True):
            np.testing.assert_allclose(other(x), y, rtol=1e-5, atol=1e-5)
        net.reset()
        assert not any(net.save_state())
        np.testing.assert_allclose(net(xs[0]), ys[0], rtol=1e-5, atol=1e-5)
