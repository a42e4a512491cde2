"""States that a node takes and gives back, of its last step or of several last steps."""

from __future__ import annotations

from math import prod

from atc.ir.graph import row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext

MOST = 8
"""Steps that a window of states has at most."""


def state_window(ctx: LoweringContext) -> int:
    """Return the number of last steps whose states a node takes and gives, along a first axis.

    0: it takes and gives one state, without that axis. Raises ModelError for any other number than
    0 to 8.
    """
    window = ctx.int("state_window")
    ctx.require(0 <= window <= MOST, f"state_window is {window}")
    return window


def last_state(ctx: LoweringContext, state: str, one: tuple[int, ...], window: int) -> str:
    """Return the state of shape `one` that a node goes on from: the last one of a window.

    Raises ModelError for states of another shape.
    """
    b = ctx.b
    wanted = (window, *one) if window else one
    ctx.require(b.shape(state) == wanted, f"a state {list(b.shape(state))}, not {list(wanted)}")
    if not window:
        return state
    return b.view(state, one, View(row_major(one), (window - 1) * prod(one)))
