"""Checks in processes of their own: an error of a GPU spoils what comes later in its process."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any


def in_own_process(seconds: float, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function in a new process; AssertionError says what it raised, or that it is late.

    The process imports the function: a support module's will do, a test module's won't.
    """
    context = multiprocessing.get_context("spawn")  # CUDA's driver doesn't survive a fork
    told, tells = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(tells, function, *arguments), daemon=True)
    process.start()
    tells.close()
    try:
        said = told.recv() if told.poll(seconds) else f"it takes longer than {seconds} s"
    except EOFError:
        process.join()
        said = f"the process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
    assert not said, said


def _call(tells: Any, function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
    except BaseException:
        tells.send(traceback.format_exc())
    else:
        tells.send("")
