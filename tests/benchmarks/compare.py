"""Compares compiled networks with other engines, interleaved in one run on pinned cores.

usage: python tests/benchmarks/compare.py MODEL... [--models=DIR] [--peers=onnxruntime,openvino]
           [--variant="ATC'S OPTIONS"]... [--rounds=N] [--clock=wall|cpu] [--under=COMMAND]
           [--layers] [--json] [atc's options as --name=value]

MODEL is an ONNX file, or with --models a name in that folder; without MODEL all of the folder.
Peers are onnxruntime, openvino, openvino_bf16, mnn and ncnn (`pip install '.[peers]'`); for the
last two the model is converted first. One that computes something else is named, not timed.
Inputs are those in MODEL.in.npz or case0_in.npz beside the model, else random ones of its shapes.

A variant is the network built once more, with further options: `--variant=--fast_run=1` shows what
measuring kernels gains over estimating them, `--variant=--layout_transform=nhwc` what a forced
layout costs. It alternates with the network as the peers do and doesn't count among them.

All is built before anything is timed, and what is timed is a program of its own: --under=COMMAND
lets a command start it, such as one that keeps other work away meanwhile (`chrt -f 1`).

Each engine has a process of its own on the same core, or on N cores with N threads with
--num_threads=N, and they alternate. `ratio` is an engine's median over ours: above 1 ours is
faster. `precision` is what our library states of its arithmetic; the others are set to compute in
float32, openvino_bf16 in bfloat16. `error` is the largest difference from the reference
(onnxruntime without optimisations, else onnx.reference) as a part of the output's largest
magnitude, `peak` the share of the cores' measured peak by the operator's definitions (Winograd
does fewer operations). With --layers, the large direct convolutions and matrix products are added
up, too; then the peak is that of a program that alternates with the network. --workspace_limit=0
keeps Winograd out. RSS is the most memory of the whole process, Python with numpy included; own
what that is above a process with numpy and the inputs alone. The cold build has an empty cache; the
warm one the cache that it filled; with --clock=cpu these are seconds of all processors together.
"""

from __future__ import annotations

import argparse
import json
import os
import py_compile
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from conversion import ConversionError, converted
from peers import BARE, described, installed, precision_of
from pinning import peak_of, pinned, pinned_cores
from shares import Share, shares

from atc.accuracy.compare import run_reference
from atc.accuracy.differences import compare
from atc.accuracy.inputs import random_inputs
from atc.backends.flops import operations
from atc.backends.machines import host_machine
from atc.backends.targets import get_target
from atc.compile import compile_model
from atc.errors import AtcError, OptionError
from atc.fast_run.peak_flops import peak_program
from atc.importers import load_model
from atc.options.machine import processor
from atc.options.options import Options, make_options
from atc.options.parse import parse_arguments
from atc.options.table import read_values
from atc.pipeline.contract import contract_of
from atc.pipeline.pipeline import Compilation
from atc.program.steps import calls

HERE = Path(__file__).parent
LAYER_SECONDS = 2.0
TEXTS = ("model", "engine", "precision", "nodes", "op", "kernel", "large calls of")
"""Columns of text."""
ATC = "atc"
"""The engine that all others are compared with."""

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Engine:
    """What was measured of an engine with a model; times in seconds, sizes in bytes."""

    name: str
    median: float = 0.0
    minimum: float = 0.0
    error: float = 0.0
    peak_rss: int = 0
    precision: str = ""
    failure: str = ""
    peer: bool = True


@dataclass(frozen=True)
class Result:
    """All that was measured with a model; `gflops_peak` is a core's, by the target's vectors.

    `layers` are as in layers.py, which measured `layers_peak` alternately with them.
    """

    model: str
    threads: int
    engines: tuple[Engine, ...]
    gflops_peak: float
    operations: int
    library_bytes: int
    cold_build: float
    warm_build: float
    layers: list[dict[str, Any]] = field(default_factory=list)
    layers_peak: float = 0.0
    shares: list[Share] = field(default_factory=list)
    bare_rss: int = 0
    """Peak memory of a process that has the inputs and numpy, but no engine."""

    def ratio(self, engine: Engine) -> float:
        """Return how often ours ran in the time of an engine's run."""
        return engine.median / self.engines[0].median

    def share(self, operations: float, seconds: float) -> float:
        """Return the share of the peak that so many operations in that time are."""
        return operations / max(seconds, 1e-9) / (1e9 * (self.gflops_peak or float("inf")))


# ------------------------------------------------------------------------------------ measuring


def measure(model: Path, given: argparse.Namespace, options: Sequence[str]) -> Result:
    """Build a network and run it against the peers."""
    with tempfile.TemporaryDirectory(prefix="atc-compare-") as name:
        folder = Path(name)
        inputs = stored_inputs(model)
        chosen = build_options(model, folder, options, inputs)
        cold_build, done = timed_build(chosen, given.clock)
        warm_build, done = timed_build(chosen, given.clock)
        types = {i: (done.program.types[i].shape, done.program.types[i].dtype.numpy)
                 for i in done.program.inputs}  # fmt: skip
        ours = {ATC: done, **variants(given.variant, model, folder, options, inputs)}
        arrays = inputs or random_inputs(types, 0)
        np.savez(folder / "inputs.npz", **arrays)
        shapes = {name: a.shape for name, a in arrays.items()}
        loaded = load_model(model, "onnx", shapes, None)
        _, expected = run_reference(loaded, [v.name or "" for v in loaded.graph.outputs], arrays)
        engines, bare = raced(given, ours, model, folder, arrays, expected)
        seconds = engines[0].median
        layers, peak = (
            layer_table(chosen, folder, seconds, given) if given.layers else ([], 0.0)
        )
        work = sum(operations(c.choice.workload) for c in calls(done.program.steps))
        return Result(
            model.stem if model.stem != "model" else model.parent.name, chosen.num_threads,
            engines, peak_of(chosen.target), work, done.library.stat().st_size, cold_build,
            warm_build, layers, peak, shares(layers, peak), bare,
        )  # fmt: skip


def stated(done: Compilation) -> str:
    """Return a library's precision and the bound of its error."""
    contract = contract_of(done.request, done.selection)
    return f"{contract.precision} ({'+'.join(contract.products)}) <{contract.error_bound:.1g}"


def build_options(model: Path, folder: Path, words: Sequence[str], inputs: Arrays) -> Options:
    """Return atc's options: those given, the input shapes of stored inputs, a cache of its own."""
    known: dict[str, object] = {
        "model": model, "output": folder / "net", "op_compiler_cache_mode": "enable",
        "op_compiler_cache_dir": folder / "cache",
    }  # fmt: skip
    if inputs:
        known["input_shape"] = {name: a.shape for name, a in inputs.items()}
    values = read_values({**known, **parse_arguments(words, "compile").given}, "compile")
    return make_options(values)


def variants(
    texts: Sequence[str], model: Path, folder: Path, words: Sequence[str], inputs: Arrays
) -> dict[str, Compilation]:
    """Build the network once more for each text of further options, into a folder of its own."""
    done = {}
    for number, text in enumerate(texts):
        further = [*words, *shlex.split(text)]
        options = build_options(model, folder, further, inputs)
        done[text] = compile_model(replace(options, output=folder / f"variant{number}" / "net"))
    return done


def timed_build(options: Options, clock: str) -> tuple[float, Compilation]:
    """Compile; return the seconds that it took, too: on the wall, or of all processors."""
    begin = time.perf_counter() if clock == "wall" else processor_seconds()
    done = compile_model(options)
    end = time.perf_counter() if clock == "wall" else processor_seconds()
    return end - begin, done


def processor_seconds() -> float:
    """Return the CPU time of this process and of the compilers that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def stored_inputs(model: Path) -> Arrays:
    """Return the inputs beside a model, by name or in its order; none where there are none."""
    graph = onnx.load(model, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in constants]
    for path in (model.with_suffix(".in.npz"), model.with_name("case0_in.npz")):
        if path.exists():
            with np.load(path) as file:
                arrays = dict(file)
            if set(names) <= set(arrays):
                return {name: arrays[name] for name in names}
            return dict(zip(names, arrays.values(), strict=True))
    return {}


def raced(
    given: argparse.Namespace, ours: Mapping[str, Compilation], model: Path, folder: Path,
    arrays: Arrays, expected: Sequence[np.ndarray[Any, Any]],
) -> tuple[tuple[Engine, ...], int]:  # fmt: skip
    """Run all engines alternately, in a program of its own; return the bare memory, too."""
    inputs = dict(zip(arrays, saved(folder, "input", arrays.values()), strict=True))
    right = saved(folder, "expected", expected)
    models, failures = models_of(given.peers, model, arrays, folder)
    models |= {name: module_of(done.folder) for name, done in ours.items()}
    names, threads = [*ours, *given.peers], ours[ATC].options.num_threads
    cores = pinned_cores(threads)
    common = {"cores": cores and sorted(cores), "threads": threads, "clock": given.clock,
              "inputs": inputs}  # fmt: skip
    jobs = {
        name: {
            **common, "engine": ATC if name in ours else name,
            "model": models[name], "outputs": str(folder / f"output{place}_"),
            "expected": [] if name == BARE else right,
        }
        for place, name in enumerate([*names, BARE]) if name not in failures
    }  # fmt: skip
    file = folder / "race.json"
    file.write_text(json.dumps({"engines": jobs, "rounds": given.rounds}), "utf-8")
    command = [*shlex.split(given.under), sys.executable, str(HERE / "race.py"), str(file)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(text.splitlines()[-1])
    engines = []
    for place, name in enumerate(names):
        engine = introduced(name, ours.get(name))
        said = found.get(name) or {"error": failures[name]}
        if "error" in said:
            engine = replace(engine, failure=said["error"])
        else:
            times = said["times"]
            engine = replace(
                engine, median=statistics.median(times), minimum=min(times),
                error=largest_error(folder, place, expected), peak_rss=1024 * said["peak_kib"],
            )  # fmt: skip
        engines.append(engine)
    return tuple(engines), 1024 * found[BARE]["peak_kib"]


def saved(folder: Path, name: str, arrays: Iterable[np.ndarray[Any, Any]]) -> list[str]:
    """Write arrays into numbered files; return their paths."""
    paths = []
    for number, array in enumerate(arrays):
        paths.append(str(folder / f"{name}{number}.npy"))
        np.save(paths[-1], np.ascontiguousarray(array))
    return paths


def models_of(
    peers: Sequence[str], model: Path, arrays: Arrays, folder: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files that the peers read, and why there are none by the names of the others."""
    files, failures = {BARE: str(model)}, {}
    for name in peers:
        try:
            files[name] = str(converted(name, model, arrays, folder))
        except ConversionError as error:
            failures[name] = str(error)
    return files, failures


def introduced(name: str, ours: Compilation | None) -> Engine:
    """Return what is known of an engine before it runs, of ours by its compilation."""
    if ours is None:
        return Engine(described(name), precision=precision_of(name))
    shown = name if name == ATC else f"{ATC} {name}"
    return Engine(shown, precision=stated(ours), peer=False)


def module_of(folder: Path) -> str:
    """Return the path of a library's Python module, compiled as those of installed packages are."""
    (path,) = folder.glob("*.py")
    py_compile.compile(str(path))
    return str(path)


def largest_error(folder: Path, place: int, expected: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return the largest relative difference of all outputs of the engine at that place."""
    got = [np.load(folder / f"output{place}_{k}.npy") for k in range(len(expected))]
    return max(
        (compare("", a, b, 0.0).max_rel for a, b in zip(got, expected, strict=True)), default=0.0
    )


def layer_table(
    options: Options, folder: Path, seconds: float, given: argparse.Namespace
) -> tuple[list[dict[str, Any]], float]:
    """Return the times of all kernel calls, in a build with hooks, and the peak meanwhile."""
    if options.external_weight:
        raise OptionError("--layers needs the weights in the library", where="--external_weight")
    hooks = replace(options, output=folder / "profiled" / "net", profile=True)
    if given.clock == "cpu":
        command = options.build_config or os.environ.get("CC", "cc")
        hooks = replace(hooks, build_config=f"{command} -DPROFILE_CLOCK=CLOCK_PROCESS_CPUTIME_ID")
    done = compile_model(hooks)
    runs = max(12, min(2000, int(LAYER_SECONDS / seconds)))
    peak = peak_program(get_target(options.target), os.environ, folder)
    command = [*shlex.split(given.under), sys.executable, str(HERE / "layers.py"), str(done.folder),
               str(folder / "inputs.npz"), str(runs), str(peak)]  # fmt: skip
    with pinned(pinned_cores(1)):
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    reported = json.loads(text)
    return reported["calls"], reported["gflops_peak"]


# ------------------------------------------------------------------------------------- showing


def show(results: Sequence[Result]) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)

    def print_table(title: str, headings: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
        table = Table(title=title, title_justify="left")
        for heading in headings:
            text = heading in TEXTS
            table.add_column(heading, justify="left" if text else "right", no_wrap=not text)
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False)

    engines = ("model", "engine", "precision", "median ms", "min ms", "ratio", "error", "peak",
               "RSS MB", "own MB")  # fmt: skip
    title = processor()
    if (machine := host_machine()) is not None:
        title += f", as machine {machine.name}"
    if results:
        title += f", measured peak {results[0].gflops_peak:.0f} GFLOP/s"
    print_table(title, engines, (row for r in results for row in engine_rows(r)))
    builds = ("model", "GFLOP", "library MB", "cold build s", "warm build s")
    print_table("", builds, (build_row(r) for r in results))
    for r in results:
        if r.layers:
            layers = ("nodes", "op", "kernel", "us", "of run", "GFLOP/s", "peak")
            print_table(r.model, layers, layer_rows(r))
            kinds = ("large calls of", "calls", "ms", "peak", "least")
            title = f"{r.model}, meanwhile measured peak {r.layers_peak:.0f} GFLOP/s"
            print_table(title, kinds, (share_row(s) for s in r.shares))
    for line in conclusion(results):
        console.print(line, markup=False, highlight=False)


def engine_rows(r: Result) -> Iterator[tuple[str, ...]]:
    """Return a row of texts per engine."""
    for e in r.engines:
        if e.failure:
            yield (r.model, e.name, "", e.failure)
        else:
            share = f"{r.share(r.operations, r.threads * e.median):.0%}" if r.operations else ""
            yield (r.model, e.name, e.precision, f"{1e3 * e.median:.3f}",
                   f"{1e3 * e.minimum:.3f}", f"{r.ratio(e):.2f}", f"{e.error:.1e}", share,
                   f"{e.peak_rss / 2**20:.1f}", f"{(e.peak_rss - r.bare_rss) / 2**20:.1f}",
                   )  # fmt: skip


def build_row(r: Result) -> tuple[str, ...]:
    """Return sizes and build times as texts."""
    return (r.model, f"{r.operations / 1e9:.3f}", f"{r.library_bytes / 2**20:.2f}",
            f"{r.cold_build:.2f}", f"{r.warm_build:.2f}")  # fmt: skip


def layer_rows(r: Result) -> Iterator[tuple[str, ...]]:
    """Return a row of texts per kernel call."""
    total = sum(layer["ns"] for layer in r.layers) or 1.0
    for layer in r.layers:
        rate = layer["operations"] / max(layer["ns"], 1e-3)
        counts = bool(layer["operations"])
        yield (layer["nodes"][:40], layer["op"], layer["kernel"], f"{layer['ns'] / 1e3:.1f}",
               f"{layer['ns'] / total:.1%}", f"{rate:.1f}" if counts else "",
               f"{rate / r.layers_peak:.0%}" if counts and r.layers_peak else "")  # fmt: skip


def share_row(s: Share) -> tuple[str, ...]:
    """Return what calls of a kind reach, as texts."""
    return s.kind, str(s.calls), f"{1e3 * s.seconds:.3f}", f"{s.share:.1%}", f"{s.least:.1%}"


def conclusion(results: Sequence[Result]) -> Iterator[str]:
    """Return a line about the fastest peer of each model, over all models."""
    best = [min((r.ratio(e) for e in r.engines if e.peer and not e.failure), default=0.0)
            for r in results]  # fmt: skip
    found = [ratio for ratio in best if ratio]
    if found:
        mean = statistics.geometric_mean(found)
        yield (
            f"fastest peer / ours: geometric mean {mean:.2f}, least {min(found):.2f}, "
            f"{len(found)} models"
        )


# -------------------------------------------------------------------------------- command line


def main(argv: Sequence[str] | None = None) -> int:
    """Compare on all models named; the exit status says whether ours ran them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="compare.py MODEL... [options] [atc's options]", allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("model", nargs="*")
    parser.add_argument("--models", type=Path, help="a folder of models")
    parser.add_argument("--peers", default="onnxruntime,openvino", help="engines; missing: skipped")
    parser.add_argument("--variant", action="append", default=[], metavar="OPTIONS",
                        help="ours once more, with further options")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each engine")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the process's time, for a busy machine",
    )
    parser.add_argument("--under", default="", help="a command that starts what is timed")
    parser.add_argument("--layers", action="store_true", help="show every kernel call")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given, options = parser.parse_known_args(argv)
    peers = [p for p in given.peers.split(",") if p]
    given.peers = [p for p in peers if installed(p)]
    for name in sorted(set(peers) - set(given.peers)):
        print(f"compare: {name} isn't installed", file=sys.stderr)
    results, failed = [], False
    for path in model_files(given.model, given.models):
        print(f"compare: {path}", file=sys.stderr)
        try:
            results.append(measure(path, given, options))
        except AtcError as error:
            failed = True
            print(f"compare: {path}: {error}", file=sys.stderr)
    if given.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
    else:
        show(results)
    return 1 if failed or any(r.engines[0].failure for r in results) else 0


def model_files(names: Sequence[str], folder: Path | None) -> list[Path]:
    """Return the model files; SystemExit names one that isn't there."""
    if folder is not None and not names:
        return sorted([*folder.glob("*.onnx"), *folder.glob("*/model.onnx")])
    found = []
    for name in names:
        tried = [Path(name)]
        if folder is not None:
            tried = [folder / f"{name}.onnx", folder / name / "model.onnx", *tried]
        path = next((p for p in tried if p.is_file()), None)
        if path is None:
            raise SystemExit(f"compare: there is no model {name}")
        found.append(path)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
