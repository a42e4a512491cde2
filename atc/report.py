"""`<name>.report.json`: what was chosen for each node, the memory plan, the cache's part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from atc.program import calls

if TYPE_CHECKING:
    from atc.driver import Compilation


def report_json(done: Compilation) -> str:
    """Return the report: no paths, no times but those that kernels were chosen by."""
    plan = done.arena.plan
    gap = plan.size / plan.lower_bound - 1 if plan.lower_bound else 0.0
    report = {
        "name": done.name,
        "target": done.target.name,
        "inputs": {i: str(done.program.types[i]) for i in done.program.inputs},
        "outputs": {o: str(done.program.types[o]) for o in done.program.outputs},
        "memory": {
            "arena_bytes": plan.size,
            "lower_bound_bytes": plan.lower_bound,
            "gap_percent": round(100 * gap, 2),
            "method": plan.method,
            "weights_bytes": len(done.emission.weights),
            "buffers": [
                {"name": b.name, "offset": plan.offsets[b.name], "bytes": b.size,
                 "first_step": b.first, "last_step": b.last}
                for b in done.arena.buffers
            ],
        },
        "nodes": [
            {
                "op": call.node.op.kind,
                "operands": [None if t is None else str(t) for t in call.choice.workload.inputs],
                "results": [str(t) for t in call.choice.workload.outputs],
                "origin": list(call.node.origin),
                "kernel": call.choice.candidate.label,
                "symbol": call.source.symbol,
                "tier": "portable" if call.source.portable else "tuned",
                "estimates": [{"kernel": k, "cost": c} for k, c in call.choice.estimates],
                "measurements": [
                    {"kernel": m.label, "ns": m.time_ns, "reason": m.reason}
                    for m in call.choice.measurements
                ],
                "excluded": [{"kernel": k, "reason": r} for k, r in call.choice.excluded],
            }
            for call in calls(done.program.steps)
        ],
    }  # fmt: skip
    return json.dumps(report, indent=1, ensure_ascii=True) + "\n"
