"""Fuzzes the compiler: `python tests/fuzz/run.py --kind=graph --count=2000 --seed=0`.

Kinds: graph (random graphs), place (those whose values depend on where they lie), op (single
operators), rare (what exporters seldom write of them), contrib (those of onnxruntime), converted
(what others train and convert), torch, keras and paddle (modules that their exporters write),
mutant (damaged models), mutant-tflite and mutant-torch (what converters make of damaged files).
What fails is shrunk, printed, and with --keep=DIR written as a model with its inputs. A seed draws
the same again.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "support")]

from fuzz.compare import Case, Failure, check, run_onnxruntime, run_reference, shrink, text
from fuzz.contrib import TEMPLATES as CONTRIB
from fuzz.converted import draw_converted
from fuzz.draw import UNSUITABLE, Draw
from fuzz.elementwise import Template
from fuzz.foreign import converted, foreign_mutant
from fuzz.graphs import TEMPLATES, draw_graph, draw_places
from fuzz.mutants import mutant, outcome
from fuzz.rare import TEMPLATES as RARE
from fuzz.recurrences import GATES, computed
from google.protobuf.message import DecodeError

CHUNK = 40


def draw(kind: str, seed: int) -> Case:
    """Return the case of a seed."""
    return DRAWN[kind](seed)


def _graph(kind: str, drawn: Callable[[int], Draw], seed: int) -> Case:
    d = drawn(seed)
    if not d.nodes:
        return _graph(kind, drawn, seed + 10**6)
    read = {name for node in d.nodes for name in node.input}
    made = [o for node in d.nodes for o in node.output]
    outputs = [o for o in made if o not in read or d.chance(0.1)]
    model = d.model(outputs)
    feeds = {v.name: v.array for v in d.given if not v.constant}
    return Case(f"{kind} {seed}", model, {i.name: feeds[i.name] for i in model.graph.input})


def _operator(seed: int) -> Case:
    return _single("op", TEMPLATES, seed)


def _contrib(seed: int) -> Case:
    return _single("contrib", CONTRIB, seed)


def _single(kind: str, templates: Mapping[str, Template], seed: int) -> Case:
    """Return a model of one node: the operators alternate."""
    names = list(templates)
    for attempt in range(200):
        rng = np.random.default_rng((seed, attempt))
        d = Draw(rng, opset=int(rng.choice([11, 13, 17, 18, 19, 20, 21, 22, 23])))
        try:
            results = d.add(templates[names[(seed + attempt // 20) % len(names)]](d))
        except UNSUITABLE:
            continue
        model = d.model([v.name for v in results])
        feeds = {v.name: v.array for v in d.given if not v.constant}
        expected = tuple(v.array for v in results)
        given = {i.name: feeds[i.name] for i in model.graph.input}
        return Case(f"{kind} {seed}", model, given, expected)
    raise ValueError(f"seed {seed} draws nothing")


def _rare(seed: int) -> Case:
    """Return a model of one node that the standard's reference or onnxruntime computes."""
    names = list(RARE)
    for attempt in range(200):
        rng = np.random.default_rng((seed, attempt))
        d = Draw(rng, opset=int(rng.integers(13, 24)))
        try:
            made = RARE[names[(seed + attempt // 20) % len(names)]](d)
        except UNSUITABLE:
            continue
        results = d.put(made)
        model = d.model(results)
        feeds = {v.name: v.array for v in d.given if not v.constant}
        case = Case(f"rare {seed}", model, {i.name: feeds[i.name] for i in model.graph.input})
        if made.op in GATES:
            expected: Sequence[Any] | None = computed(made)
        else:
            expected = None if made.domain else run_reference(case)
            expected = expected or run_onnxruntime(case)
        if expected is not None and all(a.dtype != object for a in expected):
            return replace(case, expected=tuple(expected))
    raise ValueError(f"seed {seed} draws nothing")


DRAWN: Mapping[str, Callable[[int], Case]] = {
    "graph": partial(_graph, "graph", draw_graph),
    "place": partial(_graph, "place", draw_places),
    "op": _operator, "rare": _rare, "contrib": _contrib,
    "converted": draw_converted,
    "torch": lambda seed: _of_package("torch_models").draw_torch(seed),
    "keras": lambda seed: _of_package("tensorflow_models").draw_keras(seed),
    "paddle": lambda seed: _of_package("paddle_models").draw_paddle(seed),
    "mutant": lambda seed: _damaged("", seed),
    "mutant-tflite": lambda seed: _damaged("tflite", seed),
    "mutant-torch": lambda seed: _damaged("torch", seed),
}  # fmt: skip
"""How the case of a seed is drawn, by kind."""


def _of_package(name: str) -> Any:
    """Return a module of this folder that imports a large package."""
    return importlib.import_module(f"fuzz.{name}")


def run(kind: str, seeds: Sequence[int], target: str) -> list[Failure]:
    """Draw and check models in a process of their own, so that a crash is a failure like others."""
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(_run, kind, seeds, target).result()
    except BrokenProcessPool:
        if len(seeds) == 1:
            return [Failure(draw(kind, seeds[0]), "the process died")]
        return [f for seed in seeds for f in run(kind, [seed], target)]


def _run(kind: str, seeds: Sequence[int], target: str) -> list[Failure]:
    word, _, framework = kind.partition("-")
    if word != "mutant":
        return check([draw(kind, seed) for seed in seeds], target)
    files = {seed: _file(framework, seed) for seed in seeds}
    reasons = {seed: outcome(data, target) if data else "" for seed, data in files.items()}
    return [Failure(draw(kind, seed), reason) for seed, reason in reasons.items() if reason]


def _base(seed: int) -> onnx.ModelProto:
    return draw("graph" if seed % 2 else "op", seed).model


def _file(framework: str, seed: int) -> bytes:
    """Return a damaged model, or what a framework's converter makes of a damaged file of it."""
    if framework:
        return converted(framework, foreign_mutant(framework, seed))
    return mutant(seed, _base)


def _damaged(framework: str, seed: int) -> Case:
    """Return a damaged model; an empty one where its file can't be read at all."""
    try:
        model = onnx.ModelProto.FromString(_file(framework, seed))
    except DecodeError:
        model = onnx.ModelProto()
    return Case(f"mutant{framework and '-'}{framework} {seed}", model, {})


def shrunk(failure: Failure, target: str) -> Failure:
    """Return a small model that fails as well."""

    def fails(case: Case) -> str:
        found = check([case], target)
        return found[0].reason if found else ""

    if "process died" in failure.reason or failure.case.name.startswith("mutant"):
        return failure
    return shrink(failure, fails)


def slices(seeds: range) -> Iterator[Sequence[int]]:
    """Yield the seeds in parts that are compiled together."""
    for k in range(0, len(seeds), CHUNK):
        yield seeds[k : k + CHUNK]


def main() -> int:
    """Run the command line; exit status 1 where something fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=tuple(DRAWN), default="graph")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="c99")
    parser.add_argument("--keep", type=Path, help="folder for the models that fail")
    parser.add_argument("--shrink", type=int, default=1)
    arguments = parser.parse_args()
    failures = 0
    seen: Counter[str] = Counter()
    for part in slices(range(arguments.seed, arguments.seed + arguments.count)):
        for failure in run(arguments.kind, part, arguments.target):
            failures += 1
            small = shrunk(failure, arguments.target) if arguments.shrink else failure
            ops = "+".join(str(n.op_type) for n in small.case.model.graph.node)
            seen[ops] += 1
            if seen[ops] <= 3:
                print(f"{small.case.name}: {small.reason[:600]}\n{text(small.case.model)}")
            if arguments.keep:
                _keep(small.case, arguments.keep)
        sys.stdout.flush()
    print(f"{arguments.count} of kind {arguments.kind} from seed {arguments.seed} on "
          f"{arguments.target}: {failures} fail")  # fmt: skip
    for ops, count in seen.most_common():
        print(f"  {count} {ops}")
    return 1 if failures else 0


def _keep(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = case.name.replace(" ", "-")
    onnx.save(case.model, folder / f"{stem}.onnx")
    with (folder / f"{stem}.npz").open("wb") as file:
        np.savez(file, **dict(case.feeds))


if __name__ == "__main__":
    sys.exit(main())
