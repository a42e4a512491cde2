"""Prints how the time of compiling grows with the number of nodes, stage by stage.

usage: python tests/benchmarks/compile_time.py [GRAPH...] [--nodes=500,1000,2000,4000]
           [--target=NAME] [--option=NAME=VALUE...] [--no-c] [--stages] [--json]

GRAPH is one of those below; all without one. Each is made with random weights and about as many
nodes as asked for, and compiled in a process of its own, whose seconds of CPU are counted, those
of the C compiler and the linker included. `growth` is the exponent by which a stage's seconds grow
from each size to the next: 1 is linear. Stages that take less than a tenth of a second aren't
listed. Options of the compilation come with --option: num_threads=2 for branches that run at the
same time, input_shape=x:1~4,8,8,8 for dynamic shapes. With --no-c all but the C compiler runs, with
--stages every pass is a line of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.ir.graph import Graph
from atc.options.files import file_digest
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.planning import plan_all
from atc.pipeline.request import resolve_request
from atc.pipeline.timing import Timed
from atc.pipeline.writing import write_project

SHORTEST = 0.1
"""Seconds from which on a stage is reported."""


@dataclass
class Drawing:
    """A model being made: its nodes, its weights, and the outputs besides the last value."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node; return the name of its first result."""
        name = f"n{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name, **attributes))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add a constant of random numbers; return its name."""
        name = f"w{len(self.weights)}"
        random = np.random.default_rng(len(self.weights))
        values = random.standard_normal(shape).astype(np.float32) * np.float32(scale)
        self.weights[name] = numpy_helper.from_array(values, name)
        return name

    def constant(self, name: str, values: np.ndarray) -> str:  # type: ignore[type-arg]
        """Add a constant once; return its name."""
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name


def adds(d: Drawing, nodes: int) -> str:
    """Draw a chain of additions of constants."""
    x = "x"
    for _ in range(nodes):
        x = d.node("Add", x, d.weight(1, 8, 1, 1))
    return x


def same_adds(d: Drawing, nodes: int) -> str:
    """Draw a chain of additions of one constant."""
    x, c = "x", d.weight(1, 8, 1, 1)
    for _ in range(nodes):
        x = d.node("Add", x, c)
    return x


def doublings(d: Drawing, nodes: int) -> str:
    """Draw a chain whose links each read the one before twice."""
    x, c = "x", d.weight(1, 1, 1, 1)
    for _ in range(nodes // 2):
        x = d.node("Mul", d.node("Add", x, x), c)
    return x


def functions(d: Drawing, nodes: int) -> str:
    """Draw a chain of dear elementwise functions behind a convolution."""
    x = d.node("Conv", "x", d.weight(8, 8, 1, 1))
    for k in range(nodes - 1):
        x = d.node(("Sigmoid", "Tanh", "Relu")[k % 3], x)
    return x


def residual(d: Drawing, nodes: int) -> str:
    """Draw residual blocks of convolutions, Conv-BatchNorm-Relu-Conv-Add-Relu."""
    x = "x"
    for _ in range(nodes // 6):
        y = d.node("Conv", x, d.weight(8, 8, 3, 3, scale=0.1), pads=[1, 1, 1, 1])
        mean, var = d.weight(8), d.constant("var", np.ones(8, np.float32))
        y = d.node("BatchNormalization", y, d.weight(8), d.weight(8), mean, var)
        y = d.node("Relu", y)
        y = d.node("Conv", y, d.weight(8, 8, 1, 1, scale=0.1), d.weight(8))
        x = d.node("Relu", d.node("Add", x, y))
    return x


def matmuls(d: Drawing, nodes: int) -> str:
    """Draw a stack of dense layers."""
    x = d.node("Flatten", "x")
    for _ in range(nodes // 3):
        y = d.node("MatMul", x, d.weight(512, 512, scale=0.05))
        x = d.node("Relu", d.node("Add", y, d.weight(512)))
    return x


def attention(d: Drawing, nodes: int) -> str:
    """Draw blocks of attention with all their movements of data."""
    x = d.node("Reshape", "x", d.constant("rows", np.array([1, 8, 64], np.int64)))
    heads = d.constant("heads", np.array([1, 8, 4, 16], np.int64))
    joined = d.constant("joined", np.array([1, 8, 64], np.int64))
    scale = d.constant("scale", np.array(0.25, np.float32))
    for _ in range(nodes // 18):
        y = d.node("LayerNormalization", x, d.weight(64), d.weight(64))
        q, k, v = (
            d.node("Reshape", d.node("MatMul", y, d.weight(64, 64, scale=0.1)), heads)
            for _ in range(3)
        )
        q, k, v = (
            d.node("Transpose", t, perm=perm)
            for t, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
        )
        s = d.node("Softmax", d.node("Mul", d.node("MatMul", q, k), scale), axis=-1)
        y = d.node("Transpose", d.node("MatMul", s, v), perm=[0, 2, 1, 3])
        y = d.node("MatMul", d.node("Reshape", y, joined), d.weight(64, 64, scale=0.1))
        x = d.node("Add", x, d.node("Add", y, d.weight(64)))
    return x


def quantized(d: Drawing, nodes: int) -> str:
    """Draw quantised convolutions, each between DequantizeLinear and QuantizeLinear."""
    scale = d.constant("s", np.array(0.05, np.float32))
    zero = d.constant("z", np.array(3, np.uint8))
    none = d.constant("none", np.array(0, np.int8))
    x = d.node("QuantizeLinear", "x", scale, zero)
    for k in range(nodes // 5):
        values = np.random.default_rng(k).integers(-127, 127, (8, 8, 1, 1)).astype(np.int8)
        w = d.node("DequantizeLinear", d.constant(f"q{k}", values), scale, none)
        y = d.node("Conv", d.node("DequantizeLinear", x, scale, zero), w)
        x = d.node("QuantizeLinear", d.node("Relu", y), scale, zero)
    return d.node("DequantizeLinear", x, scale, zero)


def readers(d: Drawing, nodes: int) -> str:
    """Draw a value that many nodes read, whose results are added one after the other."""
    x, total = d.node("Sigmoid", "x"), "x"
    for _ in range(nodes // 3):
        y = d.node("Conv", x, d.weight(8, 8, 1, 1, scale=0.1))
        total = d.node("Add", total, d.node("Relu", y))
    return total


def outputs(d: Drawing, nodes: int) -> str:
    """Draw a value that many nodes read, each of which makes an output."""
    for _ in range(nodes - 1):
        d.outputs.append(d.node("Mul", "x", d.weight(1, 8, 1, 1)))
    return d.node("Sigmoid", "x")


def concat(d: Drawing, nodes: int) -> str:
    """Draw a Concat of many values, all of which live until then."""
    parts = [d.node("Sigmoid", d.node("Mul", "x", d.weight(1, 8, 1, 1))) for _ in range(nodes // 2)]
    return d.node("Concat", *parts, axis=1)


def channels(d: Drawing, nodes: int) -> str:
    """Draw a Concat of many values along an inner axis."""
    parts = [d.node("Sigmoid", d.node("Mul", "x", d.weight(1, 8, 1, 1))) for _ in range(nodes // 2)]
    return d.node("Concat", *parts, axis=3)


def split(d: Drawing, nodes: int) -> str:
    """Draw a Split into many values, which are added one after the other."""
    parts = nodes // 3
    tall = d.node("Tile", "x", d.constant("times", np.array([parts, 1, 1, 1], np.int64)))
    first = d.node("Split", tall, outputs=parts, axis=0, num_outputs=parts)
    total = first
    for k in range(1, parts):
        total = d.node("Add", total, d.node("Sigmoid", f"{first}_{k}"))
    return total


def nested(d: Drawing, nodes: int) -> str:
    """Draw values that are read in the opposite order, as between an encoder and its decoder."""
    x, kept = "x", []
    for _ in range(nodes // 5):
        x = d.node("Relu", d.node("Conv", x, d.weight(8, 8, 1, 1, scale=0.1)))
        kept.append(x)
    for y in reversed(kept):
        x = d.node("Relu", d.node("Conv", x, d.weight(8, 8, 1, 1, scale=0.1)))
        x = d.node("Add", x, y)
    return x


def dense(d: Drawing, nodes: int) -> str:
    """Draw blocks whose layers each read all results of the block before them."""
    x = "x"
    for _ in range(nodes // 24):
        made = [x]
        for _ in range(8):
            y = d.node("Concat", *made, axis=1) if len(made) > 1 else x
            y = d.node("Conv", y, d.weight(8, 8 * len(made), 1, 1, scale=0.1))
            made.append(d.node("Relu", y))
        x = made[-1]
    return x


def ladder(d: Drawing, nodes: int) -> str:
    """Draw a ladder: two chains whose rungs each read both, with one value that all of them add."""
    x, y, first = "x", "x", d.node("Sigmoid", "x")
    for _ in range(nodes // 6):
        x = d.node("Conv", x, d.weight(8, 8, 1, 1, scale=0.1))
        y = d.node("Conv", y, d.weight(8, 8, 1, 1, scale=0.1))
        both = d.node("Add", x, y)
        x, y = d.node("Add", x, first), d.node("Relu", both)
        y = d.node("Add", y, first)
    return d.node("Concat", x, y, axis=1)


def splits(d: Drawing, nodes: int) -> str:
    """Draw channels split, one half computed, and both joined again, over and over."""
    x = "x"
    for _ in range(nodes // 4):
        half = d.node("Split", x, outputs=2, axis=1, num_outputs=2)
        y = d.node("Conv", half, d.weight(4, 4, 1, 1, scale=0.1))
        x = d.node("Concat", f"{half}_1", d.node("Relu", y), axis=1)
    return x


def towers(d: Drawing, nodes: int) -> str:
    """Draw many small products that don't need each other, added up two by two."""
    x = d.node("Reshape", "x", d.constant("rows", np.array([8, 64], np.int64)))
    made = [
        d.node("Relu", d.node("MatMul", x, d.weight(64, 8, scale=0.1))) for _ in range(nodes // 3)
    ]
    while len(made) > 1:
        pairs = zip(made[::2], made[1::2], strict=False)
        made = [d.node("Add", a, b) for a, b in pairs] + made[len(made) & ~1 :]
    return made[0]


def shapes(d: Drawing, nodes: int) -> str:
    """Draw computations of shapes, Shape-Gather-Concat-Reshape, as exporters write them."""
    x, place = "x", d.constant("zero", np.array([0], np.int64))
    rest = d.constant("rest", np.array([8, 64, 1], np.int64))
    back = d.constant("back", np.array([1, 8, 8, 8], np.int64))
    for _ in range(nodes // 6):
        extent = d.node("Gather", d.node("Shape", x), place)
        y = d.node("Reshape", x, d.node("Concat", extent, rest, axis=0))
        x = d.node("Reshape", d.node("Sigmoid", y), back)
    return x


def mixed(d: Drawing, nodes: int) -> str:
    """Draw blocks of other graphs, one after the other, as exports have many kinds of them."""
    x, image = "x", d.constant("image", np.array([1, 8, 8, 8], np.int64))
    while len(d.nodes) < nodes:
        for kind in (residual, splits, shapes, attention, quantized, readers, nested):
            begin = len(d.nodes)
            last = kind(d, 20)
            for node in d.nodes[begin:]:
                node.input[:] = [x if name == "x" else name for name in node.input]
            x = d.node("Reshape", last, image)
    return x


GRAPHS: Mapping[str, Callable[[Drawing, int], str]] = {
    f.__name__: f
    for f in (
        adds, same_adds, doublings, functions, residual, matmuls, attention, quantized, readers,
        outputs, concat, channels, split, nested, dense, ladder, splits, towers, shapes, mixed,
    )
}  # fmt: skip
"""Each draws about as many nodes as asked for onto x [1,8,8,8]; returns the last value."""


def write_model(graph: str, nodes: int, path: Path, batch: int | str = 1) -> int:
    """Write a graph of about so many nodes; return how many it has."""
    drawing = Drawing()
    last = GRAPHS[graph](drawing, nodes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8, 8, 8])
    results = [onnx.ValueInfoProto(name=n) for n in (*drawing.outputs, last)]
    for result in results:
        result.type.tensor_type.elem_type = TensorProto.FLOAT
    made = helper.make_graph(drawing.nodes, graph, [x], results, [*drawing.weights.values()])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), path)
    return len(drawing.nodes)


@dataclass
class Clock:
    """Adds up the CPU time of what went before each mark."""

    passes: bool
    spent: dict[str, float] = field(default_factory=dict)
    stage: str = "start"
    last: float = 0.0

    def mark(self, done: str, then: str) -> None:
        """Count the time since the last mark as `done`, that from now on as `then`."""
        now = seconds_used()
        self.spent[done] = self.spent.get(done, 0.0) + now - self.last
        self.stage, self.last = then, now

    def begin(self, stage: str) -> None:
        """Hear that a stage begins."""
        self.mark(self.stage, stage)

    def passed(self, name: str, graph: Graph) -> None:
        """Hear that a pass has run."""
        done = "lowering" if name == "lowering" else f"pass {name}" if self.passes else "passes"
        self.mark(done, "passes")


def seconds_used() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def measure(
    graph: str, nodes: int, given: Mapping[str, str], c: bool, passes: bool
) -> dict[str, float]:
    """Compile a graph in this process; return the seconds by stage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_model(graph, nodes, path, "n" if "input_shape" in given else 1)
        places = {"model": str(path), "output": str(Path(folder) / "net")}
        values = resolve({**places, **given}, "compile").values
        clock = Clock(passes, last=seconds_used())
        diagnostics = Diagnostics(stage=clock.begin, graph=clock.passed)
        options = make_options(values)
        if c:
            compile_model(options, diagnostics=diagnostics)
        else:
            write_without_c(options, diagnostics)
        clock.mark(clock.stage, "")
    return {"nodes": nodes, **clock.spent}


def write_without_c(options: Options, diagnostics: Diagnostics) -> None:
    """Do what a compilation does before the C compiler."""
    request = resolve_request(options)
    model = read_model(request, diagnostics)
    timed = Timed((optimise(model, request, diagnostics),), {}, request.limits(model))
    write_project(
        plan_all(timed, request, diagnostics), request, file_digest(options.model), diagnostics
    )


def growth(sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Return the exponent of the seconds' growth from each size to the next, NaN where unknown."""
    pairs = pairwise(zip(sizes, seconds, strict=True))
    return [
        math.log(t / s) / math.log(m / n) if min(s, t) >= SHORTEST / 10 else math.nan
        for (n, s), (m, t) in pairs
    ]


def text(graph: str, runs: Sequence[Mapping[str, float]]) -> str:
    """Return a table of a graph's stages: seconds at each size, growth between them."""
    sizes = [run["nodes"] for run in runs]
    stages = dict.fromkeys(stage for run in runs for stage in run if stage != "nodes")
    rows = {stage: [run.get(stage, 0.0) for run in runs] for stage in stages}
    rows = {s: row for s, row in rows.items() if max(row) >= SHORTEST}
    rows["all"] = [sum(run.values()) - run["nodes"] for run in runs]
    lines = [f"{graph:24}" + "".join(f"{n:>9.0f}" for n in sizes) + "   growth"]
    for stage, row in rows.items():
        shown = " ".join("   -" if math.isnan(g) else f"{g:4.1f}" for g in growth(sizes, row))
        lines.append(f"  {stage:22}" + "".join(f"{s:9.2f}" for s in row) + f"   {shown}")
    return "\n".join(lines)


def main() -> None:
    """Measure the graphs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help=", ".join(GRAPHS))
    parser.add_argument("--nodes", default="500,1000,2000,4000")
    parser.add_argument("--target", default="host")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-c", action="store_true")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [g for g in given.graphs if g not in GRAPHS]
    if unknown:
        parser.error(f"there is no graph {unknown[0]}; there are {', '.join(GRAPHS)}")
    sizes = [int(n) for n in given.nodes.split(",")]
    if given.one:
        options = {"target": given.target, **dict(o.split("=", 1) for o in given.option)}
        spent = measure(given.graphs[0], sizes[0], options, not given.no_c, given.stages)
        print(json.dumps(spent))
        return
    flags = [f for f in ("--no-c", "--stages") if getattr(given, f[2:].replace("-", "_"))]
    for graph in given.graphs or GRAPHS:
        runs = []
        for nodes in sizes:
            command = [sys.executable, __file__, graph, f"--nodes={nodes}", "--one", *flags]
            command += [f"--target={given.target}", *(f"--option={o}" for o in given.option)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
        print(json.dumps({graph: runs}) if given.json else text(graph, runs), flush=True)


if __name__ == "__main__":
    main()
