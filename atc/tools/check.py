"""`atc check`: a dry run of the compilation that reports every bad node, not only the first.

It runs the compilation's own stages up to the C text. Results of a node that is refused
are placeholders of their types, so that the nodes after it are looked at too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atc.backends.kernel import workload_of
from atc.backends.target import Target
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, ModelError, UnsupportedError, one_line
from atc.ir.graph import Array, Graph, Node
from atc.ir.ops import Reshape, SubView
from atc.lower.trace import NodeDiagnostic
from atc.options.files import file_digest
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.planning import plan_all
from atc.pipeline.request import Request
from atc.pipeline.timing import Timed
from atc.pipeline.writing import write_project
from atc.select.select import Limits, choose

FAILED = "fails"
UNKNOWN = "unknown"
TIERS = ("tuned", "portable", "none")
"""What a node that compiles may have; `none` needs no kernel: it is computed when compiling, or
only says where others read."""


@dataclass(frozen=True)
class Finding:
    """The finding of a dry run on one node of the model.

    `status` is a tier, `fails`, or `unknown` for one that reads what a failing node would compute.
    `kernels` are the labels of those that compute it, often together with its neighbours.
    """

    node: str
    op_type: str
    domain: str
    status: str
    kernels: tuple[str, ...] = ()
    error: AtcError | None = None


@dataclass(frozen=True)
class Check:
    """The result of a dry run. `errors` are all refusals, in the order of the model.

    They hold those of single nodes and those of the model as a whole. There are none exactly if the
    model compiles; else compiling fails with the first.
    """

    model: str
    target: str
    findings: tuple[Finding, ...]
    errors: tuple[AtcError, ...]

    @property
    def exit_status(self) -> int:
        """The exit status of compiling."""
        return self.errors[0].exit_status if self.errors else 0


def check_model(request: Request, diagnostics: Diagnostics | None = None) -> Check:
    """Do all of a compilation that can refuse the model, without starting a compiler.

    Nothing is written but the dumps that are asked for. The model's errors are in the result. Of
    several targets the result is the first one's that refuses, or the best one's.
    """
    diagnostics = diagnostics or Diagnostics()
    every = [_checked(request.for_target(target), diagnostics) for target in request.targets]
    return next((check for check in every if check.exit_status), every[0])


def _checked(request: Request, diagnostics: Diagnostics) -> Check:
    """Check a model for one target."""
    nodes: dict[int, NodeDiagnostic] = {}

    def report(seen: NodeDiagnostic) -> None:
        known = nodes.get(seen.node)
        if known is None or known.error is None:
            nodes[seen.node] = seen

    try:
        kernels, errors = _dry_run(request, diagnostics, report, nodes)
    except (ModelError, UnsupportedError) as error:
        kernels, errors = None, [error]
    refused = [n.error for n in nodes.values() if n.error is not None and n.certain]
    findings = tuple(_finding(n, kernels, errors) for n in nodes.values())
    name = request.options.model.name
    return Check(name, request.target.name, findings, (*refused, *errors))


def check_text(check: Check) -> str:
    """Return the result as text: what fails with a way out, then the tier of every other node."""
    return "".join(f"{line}\n" for line in _lines(check))


def check_json(check: Check) -> str:
    """Return the result as JSON, with the text's content."""
    content = {
        "model": check.model,
        "target": check.target,
        "compiles": not check.errors,
        "errors": [_error_json(e) for e in check.errors],
        "nodes": [
            {
                "name": f.node, "op_type": f.op_type, "domain": f.domain, "status": f.status,
                "kernels": list(f.kernels), "error": _error_json(f.error) if f.error else None,
            }
            for f in check.findings
        ],
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def suggestion(error: AtcError) -> str:
    """Return what to do about an error: its own hint, or what helps in general."""
    if error.hint:
        return error.hint
    if isinstance(error, ModelError):
        return "the model breaks the standard's rules: export it again, see onnx.checker"
    return "end the model before the node with --out_nodes, or express it by covered operators"


# ---- the dry run --------------------------------------------------------------------------------


Kernels = Mapping[str, Sequence[tuple[str, str]]]
"""Tier and label of the kernels that compute a node, by its name."""


def _dry_run(
    request: Request,
    diagnostics: Diagnostics,
    report: Callable[[NodeDiagnostic], None],
    nodes: Mapping[int, NodeDiagnostic],
) -> tuple[Kernels | None, list[AtcError]]:
    """Return each node's kernels and what failed after the lowering."""
    first, *others = request.profiles
    model = read_model(first, diagnostics)
    limits = request.limits(model)
    try:
        network = optimise(model, request, diagnostics, report=report)
    except AtcError:
        if all(n.error is None for n in nodes.values()):
            raise
        return None, []  # only because of the placeholders of failing nodes' results
    kernels, errors = _kernels(network.graph, request.target, limits)
    if not errors and all(n.error is None for n in nodes.values()):
        if network.graph.dims:  # once more: the range is compared with single shapes
            optimise(read_model(first, diagnostics), request, diagnostics)
        more = [optimise(read_model(each, diagnostics), request, diagnostics) for each in others]
        plans = plan_all(Timed((network, *more), {}, limits), request, diagnostics)
        write_project(plans, request, file_digest(request.options.model), diagnostics)
    return kernels, errors


def _kernels(graph: Graph, target: Target, limits: Limits) -> tuple[Kernels, list[AtcError]]:
    found: dict[str, list[tuple[str, str]]] = {}
    errors: list[AtcError] = []
    for node, scope, constants in _nodes(graph, {}):
        try:
            candidate = choose(node, workload_of(scope, node, constants), target, limits).candidate
        except UnsupportedError as error:
            errors.append(error)
            continue
        tier = "portable" if candidate.kernel.portable else "tuned"
        for name in node.origin:
            found.setdefault(name, []).append((tier, candidate.label))
    return found, errors


def _nodes(
    graph: Graph, outer: Mapping[str, Array]
) -> Iterator[tuple[Node, Graph, Mapping[str, Array]]]:
    """Yield what needs a kernel, with its graph and all constants that it sees."""
    constants = {**outer, **graph.constants}
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            yield from _nodes(inner, constants)
        if not node.op.subgraphs() and not isinstance(node.op, Reshape | SubView):
            yield node, graph, constants


def _finding(node: NodeDiagnostic, kernels: Kernels | None, errors: Sequence[AtcError]) -> Finding:
    if node.error is not None:
        status = FAILED if node.certain else UNKNOWN
        return Finding(node.name, node.op_type, node.domain, status, (), node.error)
    for error in errors:
        if error.where == f"node '{node.name}'":
            return Finding(node.name, node.op_type, node.domain, FAILED, (), error)
    if kernels is None:
        return Finding(node.name, node.op_type, node.domain, UNKNOWN)
    own = kernels.get(node.name, ())
    tier = "none" if not own else "tuned" if any(t == "tuned" for t, _ in own) else "portable"
    labels = tuple(dict.fromkeys(label for _, label in own))
    return Finding(node.name, node.op_type, node.domain, tier, labels)


# ---- how it is reported -------------------------------------------------------------------------


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _lines(check: Check) -> Iterator[str]:
    nodes = _counted(len(check.findings), "node")
    subject = f"{one_line(check.model)} for {check.target}"
    if check.errors:
        reasons = _counted(len(check.errors), "reason")
        yield f"{subject}: can't be compiled, {reasons} in {nodes}:"
    else:
        yield f"{subject}: can be compiled, {nodes}:"
    for error in check.errors:
        plain = type(error)(error.message, where=error.where, code=error.code)
        yield f"  {plain}"
        yield f"    fix: {one_line(suggestion(error))}"
    tiers = [f.status for f in check.findings]
    yield ", ".join(f"{tiers.count(s)} {s}" for s in (*TIERS, FAILED, UNKNOWN) if s in tiers)
    for f in check.findings:
        operator = f"{f.domain}.{f.op_type}" if f.domain else f.op_type
        kernels = f"  {', '.join(f.kernels)}" if f.kernels else ""
        yield one_line(f"  {f.status:8} {f.node} ({operator}){kernels}")


def _error_json(error: AtcError) -> dict[str, str]:
    return {
        "code": error.code, "reason": one_line(error.message), "where": one_line(error.where),
        "fix": one_line(suggestion(error)),
    }  # fmt: skip
