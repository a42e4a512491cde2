"""The arena as a picture: the offset and the live range of each buffer."""

from __future__ import annotations

import html
from collections.abc import Sequence

from atc.memory.planner import Buffer, MemoryPlan

_WIDTH, _HEIGHT = 640, 240  # pixels
_MOST = 2000
"""The most buffers that are drawn: the largest ones."""


def arena_svg(buffers: Sequence[Buffer], plan: MemoryPlan) -> str:
    """Return the buffers of a plan as SVG: steps from left to right, bytes from the bottom up."""
    drawn = sorted((b for b in buffers if b.size), key=lambda b: (-b.size, b.name))[:_MOST]
    steps = max((b.last for b in drawn), default=0) + 1
    size = max(plan.size, 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>arena of {plan.size:,} bytes</title>",
    ]
    for buffer in drawn:
        x, y = buffer.first / steps, 1 - (plan.offsets[buffer.name] + buffer.size) / size
        width, height = (buffer.last + 1 - buffer.first) / steps, buffer.size / size
        colour = "#c9c9c9" if buffer.scratch_of else "#7aa6d8"
        name = "".join(c if c.isprintable() else " " for c in buffer.scratch_of or buffer.name)
        kind = "scratch of " if buffer.scratch_of else ""
        lines.append(
            f'<rect x="{x * _WIDTH:.1f}" y="{y * _HEIGHT:.1f}" width="{width * _WIDTH:.1f}" '
            f'height="{height * _HEIGHT:.1f}" fill="{colour}" stroke="#333" stroke-width="0.5">'
            f"<title>{kind}{html.escape(name[:120])}: {buffer.size:,} bytes, steps "
            f"{buffer.first} to {buffer.last}</title></rect>"
        )
    return "\n".join([*lines, "</svg>"])
