"""`--max_rom` chooses among plans: the least RAM whose code has room."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from projects import require
from tiny_networks import NETWORKS

import atc
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.options.options import Options
from atc.pipeline.request import Request, resolve_request
from atc.pipeline.size_contract import LimitError
from atc.pipeline.within_rom import UNLIMITED, within_rom
from atc.starter.sizes import Sizes

PLANS = ((10_000, 9_000), (13_000, 7_000), (14_000, 6_500), (20_000, 5_000))
"""Bytes of RAM and of ROM: the less of one, the more of the other."""


def compiled(
    tmp_path: Path, max_rom: int, max_ram: int = 0, plans: Sequence[tuple[int, int]] = PLANS
) -> tuple[Any, list[int]]:
    """Return what comes of limits, by a compilation that only knows `plans`, and what it tried."""
    model = tmp_path / "m.onnx"
    model.write_bytes(b"")
    given = Options(
        model=model, output=tmp_path / "m", target="cortex-m4f", max_rom=max_rom, max_ram=max_ram
    )
    tries: list[int] = []

    def inner(request: Request, diagnostics: Diagnostics) -> Any:
        enough = request.decisions.enough_memory
        tries.append(enough)
        assert len(tries) < 20
        fitting = [plan for plan in plans if plan[0] <= enough] or [plans[0]]
        ram, rom = fitting[-1]
        sizes = Sizes(rom, 1_000, ram, ram, 0, 0, 0)
        for name, limit in (("rom", max_rom), ("ram", max_ram)):
            if limit and getattr(sizes, name) > limit:
                raise LimitError("more than", limit=name, sizes=sizes, where="", hint="less")
        return SimpleNamespace(sizes=sizes)

    return within_rom(inner)(resolve_request(given), Diagnostics()).sizes, tries


@pytest.mark.parametrize(("max_rom", "ram"), [(9_500, 0), (7_500, 1), (6_600, 2), (5_200, 3)])
def test_the_least_ram_is_taken_whose_code_has_room(max_rom: int, ram: int, tmp_path: Path) -> None:
    sizes, tries = compiled(tmp_path, max_rom)
    assert (sizes.ram, sizes.rom) == PLANS[ram]
    assert len(tries) <= 9
    assert tries[0] == 0


def test_few_bytes_are_searched_to_an_end(tmp_path: Path) -> None:
    sizes, _ = compiled(tmp_path, 6_000, plans=((8, 9_000), (24, 5_000)))
    assert sizes.ram == 24


def test_what_no_plan_keeps_is_said_of_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="more than") as caught:
        compiled(tmp_path, 4_000)
    assert caught.value.sizes.rom == PLANS[-1][1]
    with pytest.raises(LimitError, match="--max_rom=9000: 10,000 bytes of RAM") as caught:
        compiled(tmp_path, 6_600, max_ram=12_000)
    assert (caught.value.limit, caught.value.sizes.ram) == ("ram", PLANS[2][0])


def test_without_a_limit_of_rom_there_is_one_try(tmp_path: Path) -> None:
    sizes, tries = compiled(tmp_path, 0)
    assert tries == [0]
    assert sizes.ram == PLANS[0][0]
    assert sizes.ram < UNLIMITED


@pytest.mark.slow
def test_a_network_takes_more_ram_where_code_has_little_room(tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    onnx.save(NETWORKS["keyword spotting"](True), tmp_path / "m.onnx")

    def sizes(**limits: int) -> Sizes:
        done = atc.compile(tmp_path / "m.onnx", tmp_path / "m", target="cortex-m4f", **limits)
        assert done.sizes is not None
        return done.sizes

    least = sizes()
    less = sizes(max_rom=least.rom - 500)
    assert less.rom <= least.rom - 500
    assert least.ram < less.ram < 20_000
    with pytest.raises(OptionError, match=f"--max_rom={least.rom}"):
        sizes(max_rom=least.rom - 500, max_ram=least.ram)
