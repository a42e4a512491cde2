"""The model's graph and the compiled one as drawings: boxes, edges, who became part of whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from atc.tools.report_page.data import Page, Step
from atc.tools.report_page.layout import Drawing, Point, draw
from atc.tools.report_page.text import percent, short, time_text

MOST_NODES = 3000
"""A graph of more nodes isn't drawn: nobody could read it."""

_LETTER = 6.6
_WIDEST = 28
_MARGIN = 26.0


@dataclass(frozen=True)
class Box:
    """A node as it is drawn; `x` and `y` are its left upper corner.

    `kind` is a class of the style sheet. `heat` is the root of the node's part of the hottest one's
    time, so that small parts differ, too. `group` are the steps that it stands for or became part
    of.
    """

    key: str
    kind: str
    lines: tuple[str, ...]
    tip: str
    x: float
    y: float
    width: float
    height: float
    heat: float
    group: tuple[int, ...]


@dataclass(frozen=True)
class Picture:
    """A drawn graph; `edges` are paths of SVG with the keys of their ends."""

    name: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class _Vertex:
    kind: str
    lines: tuple[str, ...]
    tip: str
    share: float | None = None
    group: tuple[int, ...] = ()

    @property
    def size(self) -> Point:
        letters = max(map(len, self.lines))
        return max(64.0, letters * _LETTER + 22), 22.0 + 15 * (len(self.lines) - 1)


def model_picture(page: Page) -> Picture | None:
    """Return the model's own graph; nodes have the heat of the kernel that they went into."""
    members: dict[str, list[Step]] = {}
    for step in page.steps:
        for name in step.record["origin"]:
            members.setdefault(name, []).append(step)
    vertices = []
    for node in page.nodes:
        steps = members.get(node["name"], [])
        share = sum(s.share for s in steps if s.share is not None) if steps else None
        lines = (short(node["op"], _WIDEST), short(node["name"], _WIDEST))
        vertices.append(
            _Vertex(
                "node" if steps else "node gone", lines, _model_tip(node, steps), share,
                tuple(s.number for s in steps),
            )
        )  # fmt: skip
    return _picture("before", vertices, [n["reads"] for n in page.nodes])


def _model_tip(node: Mapping[str, str], steps: Sequence[Step]) -> str:
    text = f"{node['name']}\n{node['op']}"
    if not steps:
        return f"{text}\nno kernel: folded, a view, or never needed"
    return text + "".join(f"\nin kernel call {s.number}: {s.record['kernel']}" for s in steps[:4])


def kernel_picture(page: Page) -> Picture | None:
    """Return the graph of kernel calls."""
    vertices = []
    for step in page.steps:
        origin = step.record["origin"]
        more = f" +{len(origin) - 1}" if len(origin) > 1 else ""
        name = short(origin[0], _WIDEST - len(more)) + more if origin else step.record["name"]
        tier = "" if step.record["tier"] == "tuned" else " portable"
        lines = (short(step.record["op"], _WIDEST), name)
        vertices.append(_Vertex("node" + tier, lines, step_tip(step), step.share, (step.number,)))
    return _picture("after", vertices, [s.record["reads"] for s in page.steps])


def step_tip(step: Step) -> str:
    """Return the text for a kernel call under the mouse."""
    lines = [step.title, f"{step.record['op']}, call {step.number}", step.record["kernel"]]
    lines.append(f"{', '.join(t or '-' for t in step.record['operands'])} → "
                 f"{', '.join(step.record['results'])}")  # fmt: skip
    if step.ns is not None:
        lines.append(f"{time_text(step.ns)}, {percent(step.share)} of the run")
    elif step.share is not None:
        lines.append(f"{percent(step.share)} of the estimated cost")
    return "\n".join(short(line, 160) for line in lines)


def _picture(
    name: str, vertices: Sequence[_Vertex], reads: Sequence[Sequence[int | str]]
) -> Picture | None:
    """Lay out nodes that read others (by number) and inputs (by name)."""
    if len(vertices) > MOST_NODES:
        return None
    inputs = list(dict.fromkeys(r for read in reads for r in read if isinstance(r, str)))
    first = {text: k for k, text in enumerate(inputs)}
    everything = [
        *(_Vertex("port", (short(text, _WIDEST),), f"input {text}") for text in inputs), *vertices
    ]
    edges = [
        (first[r] if isinstance(r, str) else len(inputs) + r, len(inputs) + k)
        for k, read in enumerate(reads)
        for r in read
        if isinstance(r, str) or r < k
    ]
    drawing = draw([v.size for v in everything], edges)
    hottest = max((v.share for v in vertices if v.share is not None), default=0.0) or 1.0
    boxes = tuple(_boxes(name, everything, drawing, hottest))
    paths = tuple(_paths(boxes, edges, drawing))
    return Picture(
        name, drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN, boxes, paths
    )


def _boxes(
    name: str, vertices: Sequence[_Vertex], drawing: Drawing, hottest: float
) -> Iterator[Box]:
    for k, (vertex, (x, y)) in enumerate(zip(vertices, drawing.centres, strict=True)):
        width, height = vertex.size
        yield Box(
            f"{name}{k}", vertex.kind, vertex.lines, vertex.tip,
            round(x - width / 2 + _MARGIN, 1), round(y - height / 2 + _MARGIN, 1),
            round(width, 1), height, round(sqrt((vertex.share or 0.0) / hottest), 4), vertex.group,
        )  # fmt: skip


def _paths(
    boxes: Sequence[Box], edges: Sequence[tuple[int, int]], drawing: Drawing
) -> Iterator[tuple[str, str, str]]:
    for (a, b), bends in zip(edges, drawing.bends, strict=True):
        begin, end = boxes[a], boxes[b]
        points = [
            (begin.x + begin.width / 2, begin.y + begin.height),
            *((x + _MARGIN, y + _MARGIN) for x, y in bends),
            (end.x + end.width / 2, end.y),
        ]
        yield begin.key, end.key, curve(points)


def curve(points: Sequence[Point]) -> str:
    """Return a path through points that leaves and meets each of them vertically."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if abs(x1 - x0) < 0.5:
            parts.append(f"L{x1:.1f} {y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)
