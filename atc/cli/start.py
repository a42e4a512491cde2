"""Entry points of the programs: signals end them without a traceback, whenever they come.

While modules are imported, and once all is done, Ctrl-C ends the process as it ends a program in C:
there is nothing yet, or nothing any more, that would have to go. In between the command line and
the temporary folders hear of it, and of the terminal's end (SIGHUP).
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
from types import FrameType

_GARBAGE = 50_000
"""Objects until the next look for cycles: the usual 700 make short commands a quarter slower."""
_SPINNING = "4"
"""The logarithm of the cycles for which numpy's threads spin before they sleep: the usual 26 let
each of them waste some 50 ms of a core once numpy is imported."""
_AFTER = 0.01
"""Seconds until a signal that got lost comes again."""


def main() -> int:
    """Run the program `atc` and return its exit status."""
    return _run([])


def load_and_run() -> int:
    """Run the program `load_and_run`: `atc load_and_run` by MegEngine's name."""
    return _run(["load_and_run"])


def compare_binary_iodump() -> int:
    """Run the program `compare_binary_iodump`, MegEngine's too."""
    return _run(["compare_binary_iodump"])


def _run(command: list[str]) -> int:
    _open_closed_streams()
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored
    if interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(_GARBAGE)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _SPINNING)
    from atc.cli.main import main as run  # deferred: it imports much

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, _ended)
    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _unraisable
    try:
        return run([*command, *sys.argv[1:]])
    finally:
        if interrupts:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _open_closed_streams() -> None:
    """Let standard streams that are closed (`atc ... 2>&-`) lead nowhere.

    Else files that are opened later would take their numbers, and compilers write into these.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # lets temporary folders go on the way out


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Let a signal that came in a finalizer, where exceptions get lost, come again soon after."""
    error = what.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        number = signal.Signals(error.code - 128)
    else:
        sys.__unraisablehook__(what)
        return
    again = threading.Timer(_AFTER, _signal_main, (number,))  # this is still the finalizer
    again.daemon = True
    again.start()


def _signal_main(number: signal.Signals) -> None:
    """Send a signal to the main thread, also one that waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        _thread.interrupt_main(number)
