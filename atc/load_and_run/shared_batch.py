"""Kernels chosen for one batch size and used for another: `--fast_run_shared_batch_size`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from atc.backends.kernel import workload_of
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.fast_run.policy import Pick, workload_summary, write_policy
from atc.fast_run.task import workload_digest
from atc.files.temporary import temporary_folder
from atc.ir.graph import Graph, Node
from atc.options.options import Options
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.select.select import candidates


def with_shared_batch(
    options: Options, measured: Options, environ: Mapping[str, str], decided: Decisions,
    policy: Path, diagnostics: Diagnostics,
) -> Options:  # fmt: skip
    """Return the options with the choices for another batch size, which are written to `policy`.

    `measured` are the options for that size. Kernels that suit it, but not the batch at hand, are
    left out; where no other was measured, the estimates choose.
    """
    with temporary_folder("load_and_run") as folder:
        own = replace(measured, output=Path(folder, "net"))
        done = compile_model(own, environ, diagnostics, decided)
    request = resolve_request(options, environ, decided)
    write_policy(policy, dict(_picks(request, done)))
    return replace(options, fast_run=False, full_run=False, fast_run_algo_policy=policy)


def _picks(request: Request, done: Compilation) -> Iterator[tuple[str, Pick]]:
    """Yield a policy's lines for the nodes of the graph at hand."""
    model, target = read_model(request, Diagnostics()), request.target
    graph, limits = optimise(model, request, Diagnostics()).graph, request.limits(model)
    for node in _nodes(graph):
        choice = done.selection.get(node.outputs[0])
        if choice is None:
            continue
        workload = workload_of(graph, node, graph.constants)
        usable = {c.label for c in candidates(workload, target, limits)}
        times = {m.label: m.time_ns for m in choice.measurements if m.time_ns is not None}
        times = {k: ns for k, ns in times.items() if k in usable}
        if times:
            label = min(times, key=lambda k: times[k])
            digest = workload_digest(workload, target)[:16]
            yield digest, Pick(label, times[label], workload_summary(workload))


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that need a kernel; those inside control flow are left to the estimates."""
    for node in graph.nodes:
        if node.op.kind != "Reshape" and not node.op.subgraphs():
            yield node
