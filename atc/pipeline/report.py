"""`<name>.report.json`: what was chosen for each node, the memory plan, the cache's part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import onnx_ir

from atc.backends.flops import operations
from atc.backends.target import Target
from atc.build.library import BuildResult
from atc.cache import CacheStats
from atc.codegen.hooks import output_numbers
from atc.codegen.step_values import step_values
from atc.dims import max_value, plain
from atc.ir.graph import is_own, original
from atc.ir.text import node_text
from atc.lower.context import node_name
from atc.memory.events import step_ranges
from atc.memory.planner import Buffer
from atc.passes.layout import LayoutReport
from atc.pipeline.contract import contract_of
from atc.pipeline.float_fallbacks import float_fallbacks
from atc.pipeline.request import Request
from atc.pipeline.writing import Project
from atc.program.placement import place
from atc.program.states import state_type
from atc.program.steps import Call, Copy, Program, Wait, call_sources, calls
from atc.program.swap import SwapModel
from atc.starter.sizes import Sizes


@dataclass(frozen=True, kw_only=True)
class Reported(Project):
    """The subject of a report: what was asked for, chosen, planned, written and built."""

    name: str
    """The prefix of everything in C."""
    request: Request
    target: Target
    build: BuildResult
    cache: CacheStats
    source: Sequence[Mapping[str, object]] = ()
    """The model's own nodes, as the report has them."""
    layouts: tuple[LayoutReport, ...] = ()
    """What was weighed when the layouts were chosen, graph by graph."""
    sizes: Sizes | None = None
    """What it takes of a device, where that was measured."""


def report_json(done: Reported) -> str:
    """Return the report: no paths, no times but those that kernels were chosen by."""
    steps = zip(
        calls(done.program.steps), done.arena.steps, call_sources(done.program), strict=True
    )
    report = {
        "name": done.name,
        "target": done.target.name,
        "machine": asdict(done.target.machine),
        "inputs": {i: str(done.program.types[i]) for i in done.program.inputs},
        "outputs": {o: str(done.program.types[o]) for o in done.program.outputs},
        "build_info": _build_info(done),
        "interface": _interface(done),
        **({"states": _states(done)} if done.program.states else {}),
        "output_variables": list(output_numbers(done.program)),
        "precision": asdict(contract_of(done.request, done.selection)),
        "memory": _memory(done),
        **({} if done.sizes is None else {"sizes": asdict(done.sizes)}),
        **({"moved": _moved(done.program)} if done.emission.on_gpu else {}),
        **({"swapped": _swapped(done)} if done.program.on_host else {}),
        "layouts": [_layouts(report) for report in done.layouts],
        "model": done.source,
        "in_float": float_fallbacks(done.program, done.source),
        **({} if done.cache.mode == "disable" else {"cache": _cache(done)}),
        "nodes": [_node(done, *step) for step in steps],
    }
    return json.dumps(report, indent=1, ensure_ascii=True, default=plain) + "\n"


def _memory(done: Reported) -> dict[str, object]:
    """Return the plan of the arena, and what lies in the weights."""
    plan = done.arena.plan
    gap = plan.size / plan.lower_bound - 1 if plan.lower_bound else 0.0
    return {
        "arena_bytes": plan.size,
        "lower_bound_bytes": plan.lower_bound,
        "gap_percent": round(100 * gap, 2),
        "method": plan.method,
        "weights_bytes": done.emission.blob.size,
        "constants": [
            {"name": name, "offset": at, "bytes": done.program.constants[name].nbytes}
            for name, at in done.emission.offsets.items()
        ],
        "buffers": [
            {"name": b.scratch_of or b.name, "value": _value_name(done.program, b),
             "scratch": bool(b.scratch_of), "offset": plan.offsets[b.name], "bytes": b.size,
             "first_step": b.first, "last_step": b.last}
            for b in done.arena.buffers
        ],
    }  # fmt: skip


def _node(done: Reported, call: Call, step: int, read: object) -> dict[str, object]:
    """Return what became of a node: its kernel, and the ones that were considered."""
    choice = call.choice
    return {
        "name": node_text(call.node),
        "op": call.node.op.kind,
        "operands": [None if t is None else str(t) for t in choice.workload.inputs],
        "results": [str(t) for t in choice.workload.outputs],
        "origin": list(call.node.origin),
        "step": step,
        "reads": read,
        "writes": list(call.node.outputs),
        "operations": operations(choice.workload) if call.rows == 1 else call.operations,
        "kernel": choice.candidate.label,
        "candidate": call.candidate,
        "cost": call.cost,
        "symbol": call.source.symbol,
        **({"runs_on": runs_on(call)} if done.target.device else {}),
        "tier": "portable" if call.source.portable else "tuned",
        "precision": choice.candidate.kernel.precision,
        "estimates": [{"kernel": k, "cost": c} for k, c in choice.estimates],
        "enlarged": [{"kernel": k, "bytes": n} for k, n in choice.packing_overhead],
        "measurements": [
            {"kernel": m.label, "ns": m.time_ns, "reason": m.reason} for m in choice.measurements
        ],
        "excluded": [{"kernel": k, "reason": r} for k, r in choice.excluded],
    }


def _build_info(done: Reported) -> str:
    """Return what the library says of its arithmetic."""
    return contract_of(done.request, done.selection).text


def _interface(done: Reported) -> dict[str, object] | None:
    """Return what a program must know that calls the library; None for other tensors than plain."""
    values = done.emission.interface
    special = values.dynamic or values.composites
    if special or any(p.is_string for p in values.ports):
        return None
    described = {
        side: [{"name": p.name, "dtype": p.dtype.code, "shape": p.type.shape} for p in own]
        for side, own in (("inputs", values.inputs), ("outputs", values.outputs))
    }
    seen = [
        {"node": v.node, "names": v.names, "dtype": v.type.dtype.code, "shape": v.type.shape,
         "step": v.step, "buffer": v.buffer, "offset": v.offset}
        for v in (step_values(done.program, done.arena) if values.step else ())
    ]  # fmt: skip
    return {**described, "arena": values.arena_size, "external": values.external,
            "weights_in": values.weights_in, "values": seen}


def _moved(program: Program) -> dict[str, int]:
    """Return the bytes that a run on the host's data copies to the device and back, at most."""
    placement = place(program, resident=False)
    moves = [m for each in (*placement.before, placement.after) for m in each]
    sizes = [(m.to_device, max_value(m.end - m.begin)) for m in moves]
    return {
        "to_device": sum(n for to_device, n in sizes if to_device),
        "to_host": sum(n for to_device, n in sizes if not to_device),
    }


def _swapped(done: Reported) -> dict[str, object]:
    """Return the copies to the host's memory and back that spare memory of the device."""
    program, times = done.program, SwapModel(done.target).times(done.program)
    ranges = step_ranges(program)
    waits = {
        step.copy: last for step, (_, last) in zip(program.steps, ranges, strict=True)
        if isinstance(step, Wait)
    }  # fmt: skip
    return {
        "host_bytes": done.arena.host_size,
        "run_ns": round(times.run),
        "copies_ns": round(times.copies),
        "waiting_ns": round(times.waiting),
        "copies": [
            {"value": original(step.source, program.aliases), "to_host": step.to_host,
             "bytes": program.types[step.source].nbytes, "first_step": first,
             "last_step": waits[step]}
            for step, (first, _) in zip(program.steps, ranges, strict=True)
            if isinstance(step, Copy)
        ],
    }  # fmt: skip


def runs_on(call: Call) -> str:
    """Return where a call runs."""
    return "host" if call.source.launch is None else "device"


def _states(done: Reported) -> dict[str, str]:
    """Return what is carried from run to run."""
    return {s.value: str(state_type(done.program, s)) for s in done.program.states}


def _layouts(report: LayoutReport) -> dict[str, object]:
    """Return what the layouts of a graph cost and would have cost, in estimated cycles."""
    return {
        "wanted": report.wanted,
        "exact": report.exact,
        "totals": {name: asdict(total) for name, total in report.totals.items()},
        "regions": [asdict(region) for region in report.regions],
    }


def source_nodes(model: onnx_ir.Model) -> list[dict[str, object]]:
    """Return the model's own nodes: name, operator, and what each reads, as for calls."""
    makers: dict[int, int | str] = {id(v): v.name or "" for v in model.graph.inputs}
    found: list[dict[str, object]] = []
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        reads = [makers[id(v)] for v in node.inputs if id(v) in makers]
        makers.update((id(v), len(found)) for v in node.outputs)
        found.append({
            "name": node_name(node), "op": node.op_type, "reads": list(dict.fromkeys(reads))
        })  # fmt: skip
    return found


def _value_name(program: Program, buffer: Buffer) -> str:
    """Return the model's value that a buffer holds first, '' where it is the compiler's own."""
    name = original(buffer.scratch_of or buffer.name, program.aliases)
    return "" if is_own(name) else name


def _cache(done: Reported) -> dict[str, object]:
    """Return the report's part on the op compiler cache: what it gave; the rest was compiled."""
    stats = done.cache
    return {
        "mode": stats.mode, "hits": stats.hits, "misses": stats.misses,
        "bypassed": stats.bypassed, "damaged": stats.damaged,
        "compiled": done.build.compiled, "cached": done.build.cached,
    }  # fmt: skip
