"""The arena over time: a rectangle for each buffer, offset against the steps that it lives for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

from atc.tools.report_page.data import Page
from atc.tools.report_page.text import bytes_text, short

WIDTH, HEIGHT = 1100.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 12.0, 26.0, 40.0
COLOURS = 8
_LETTER = 6.2


@dataclass(frozen=True)
class Block:
    """A buffer's rectangle; `label` is '' where none fits."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    scratch: bool
    label: str
    tip: str


@dataclass(frozen=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class MemoryMap:
    """The drawing in SVG's coordinates; `load` is the path of the bytes that live at each step."""

    blocks: tuple[Block, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    bound: float
    top: float
    load: str
    steps: int


def memory_map(page: Page) -> MemoryMap | None:
    """Return the map of a plan, None where there is no arena."""
    buffers = [b for b in page.memory["buffers"] if b["bytes"]]
    if not buffers:
        return None
    steps = max(b["last_step"] for b in buffers) + 1
    steps = max(steps, max((s.record["step"] for s in page.steps), default=0) + 1)
    size = max(page.memory["arena_bytes"], page.memory["lower_bound_bytes"], 1)
    scale = _Scale(steps, size * 1.06)
    return MemoryMap(
        tuple(_blocks(buffers, scale, _makers(page))),
        tuple(_step_ticks(scale)), tuple(_byte_ticks(scale, size)),
        scale.y(page.memory["lower_bound_bytes"]), scale.y(page.memory["arena_bytes"]),
        _load(buffers, scale), steps,
    )  # fmt: skip


@dataclass(frozen=True)
class _Scale:
    steps: int
    size: float

    def x(self, step: float) -> float:
        return round(LEFT + step / self.steps * (WIDTH - LEFT - RIGHT), 2)

    def y(self, offset: float) -> float:
        return round(HEIGHT - BOTTOM - offset / self.size * (HEIGHT - TOP - BOTTOM), 2)


def _makers(page: Page) -> dict[str, str]:
    """Return what the compiler's own values are called here: after the nodes that make them."""
    return {
        value: f"({step.title})"
        for step in page.steps
        for value in step.record["writes"]
        if "#" in value.removesuffix("#output")
    }


def _blocks(
    buffers: Sequence[Mapping[str, Any]], scale: _Scale, makers: Mapping[str, str]
) -> Iterator[Block]:
    for k, b in enumerate(sorted(buffers, key=lambda b: (b["first_step"], b["offset"]))):
        left, right = scale.x(b["first_step"]), scale.x(b["last_step"] + 1)
        low, high = scale.y(b["offset"]), scale.y(b["offset"] + b["bytes"])
        scratch = b["scratch"]
        name = makers.get(b["name"], b["name"].removesuffix(".blocked"))
        room = int((right - left - 10) / _LETTER)
        tip = (
            f"{short(name, 120)}{' (scratch)' if scratch else ''}\n{bytes_text(b['bytes'])} at "
            f"{b['offset']}, steps {b['first_step']}-{b['last_step']}"
        )
        name = f"{name} (scratch)" if scratch else name
        label = short(name, room) if room >= 6 and low - high >= 15 else ""
        yield Block(left, high, max(right - left, 1.0), max(low - high, 0.6), k % COLOURS,
                    scratch, label, tip)  # fmt: skip


def _load(buffers: Sequence[Mapping[str, Any]], scale: _Scale) -> str:
    """Return the outline of the bytes that live at each step: no plan can be below it."""
    change = [0] * (scale.steps + 1)
    for b in buffers:
        change[b["first_step"]] += b["bytes"]
        change[min(b["last_step"] + 1, scale.steps)] -= b["bytes"]
    live = 0
    parts: list[str] = []
    for step in range(scale.steps):
        live += change[step]
        begin = "M" if not parts else "L"
        parts.append(f"{begin}{scale.x(step)} {scale.y(live)}L{scale.x(step + 1)} {scale.y(live)}")
    return "".join(parts)


def _step_ticks(scale: _Scale) -> Iterator[Tick]:
    every = nice(scale.steps / 12)
    for step in range(0, scale.steps, every):
        yield Tick(scale.x(step + 0.5), str(step))


def _byte_ticks(scale: _Scale, size: int) -> Iterator[Tick]:
    unit = next((u for u in (2**30, 2**20, 2**10) if size >= 2 * u), 1)
    every = nice(size / unit / 5)
    name = {1: "B", 2**10: "KiB", 2**20: "MiB", 2**30: "GiB"}[unit]
    for k in range(0, int(size / unit) + 1, every):
        yield Tick(scale.y(k * unit), f"{k} {name}")


def nice(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50 ... that isn't less."""
    power = int("1" + "0" * max(int(log10(max(least, 1.0))), 0))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= ceil(least))
