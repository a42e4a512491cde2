"""`--max_rom`: the plan that needs the least RAM among those whose code has room.

Layers that run stripe by stripe need less RAM and more code. How much code is known after a build:
where the plan of the least RAM has no room, ones with more RAM and fewer layers in stripes are
built, the RAM between them halved.
"""

from __future__ import annotations

from atc.diagnostics import Diagnostics, remembering
from atc.pipeline.pass_switches import CASCADES
from atc.pipeline.pipeline import Compilation, Compile
from atc.pipeline.request import Request
from atc.pipeline.size_contract import LimitError

UNLIMITED = 1 << 62
CLOSE = 1 / 32
"""The part of the RAM within which the least is looked for."""


def within_rom(inner: Compile) -> Compile:
    """Wrap a compilation: code that `--max_rom` has no room for makes way for RAM.

    Where no plan keeps all limits, it raises OptionError for the one nearest to that.
    """

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        if not _stripes(request):
            return inner(request, diagnostics)
        diagnostics = remembering(diagnostics, [])
        try:
            return inner(request, diagnostics)
        except LimitError as error:
            if error.limit != "rom" or not error.sizes.code:
                raise
            least = error
        diagnostics.stage("planning fewer layers in stripes, whose code is more than --max_rom")
        enough = _least_with_room(inner, request, least)
        try:
            return inner(request.decide(enough_memory=enough), diagnostics)
        except LimitError as error:
            if error.limit == "ram":
                way = f"--max_rom={least.sizes.rom}: {least.sizes.ram:,} bytes of RAM"
                error.hint = f"{way}; {error.hint}"
            raise

    return compile


def _stripes(request: Request) -> bool:
    """Return whether there is a limit, and layers that may run in stripes."""
    target = request.target
    return bool(
        request.options.max_rom and target.scarce_memory and CASCADES not in request.switches.off
    )


def _least_with_room(inner: Compile, request: Request, least: LimitError) -> int:
    """Return the least bytes of an arena for which the code has room; all if it never has."""
    low, enough = least.sizes.arena, UNLIMITED
    high = _arena(inner, request, enough)
    while high - low > max(high * CLOSE, 1):
        middle = (low + high) // 2
        made = _arena(inner, request, middle)
        if made:
            high, enough = min(made, middle), middle
        else:
            low = middle
    return enough


def _arena(inner: Compile, request: Request, enough: int) -> int:
    """Return the bytes of the arena that a plan comes to, 0 where its code has no room."""
    try:
        sizes = inner(request.decide(enough_memory=enough), Diagnostics()).sizes
    except LimitError as error:
        return 0 if error.limit == "rom" else error.sizes.arena
    return sizes.arena if sizes else 0
