"""Costs of layouts: those of the nodes' kernels in each, measured or else estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from atc.backends.catalogue import kernels_for
from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import seconds
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.errors import OptionError
from atc.ir.graph import Node
from atc.ir.ops import Attention
from atc.passes.layout import LayoutReport, Layouts, Task, layout_names
from atc.passes.layout.store_bf16 import KernelCost, Storing
from atc.select.cost import MODELLED
from atc.select.select import Limits, Measurement, Timings, consider

GPU_BLOCKS = {"nchw4c": 4, "nchw32c": 32, "chwn4": 4}
"""Layouts of bytes on a GPU, and the channels of a block."""
NEAR = 3 / 4
"""Part of the second-level cache up to which values stay there."""


@dataclass(frozen=True)
class LayoutCosts:
    """Costs of the layouts of a compilation's graphs, cached."""

    target: Target
    limits: Limits
    timings: Timings = field(default_factory=dict)
    estimates: dict[Workload, float | None] = field(default_factory=dict)
    kernel_costs: dict[tuple[Workload, Limits], KernelCost | None] = field(default_factory=dict)

    def layouts(
        self, wanted: str, report: Callable[[LayoutReport], None] = lambda found: None,
        measured: bool = False,
    ) -> Layouts:  # fmt: skip
        """Return how the passes are to choose layouts; OptionError for one that doesn't exist.

        On a GPU auto is nchw unless times are `measured`: there are no estimates of what blocks
        gain.
        """
        width = self.target.vector_bytes // 4
        last = self.target.bytes_last and self.limits.tier != "portable"
        names = ("auto", *layout_names(width, last).values())
        if self.target.device:
            names = ("auto", "nchw", *GPU_BLOCKS)
        if wanted not in names:
            raise OptionError(
                f"target {self.target.name} has no layout {wanted}", where="--layout_transform",
                hint=f"it has {', '.join(names)}",
            )  # fmt: skip
        if self.target.device:
            block = max(GPU_BLOCKS.values()) if wanted == "auto" and measured else 0
            return Layouts(
                wanted, self.price, report, block=GPU_BLOCKS.get(wanted, block),
                batch_last=wanted.startswith("chwn"),
            )  # fmt: skip
        integers = last and not self.target.deterministic  # whose bits are the floats' on all
        return Layouts(
            wanted, self.price, report, bytes_last=last, integers=integers,
            least_memory=self.target.scarce_memory,
        )  # fmt: skip

    def storing(self) -> Storing:
        """Return how passes are to choose the values that are stored in 16 bits."""
        bf16 = "bf16" in self.limits.precisions
        near = int(NEAR * self.target.machine.l2.size)
        return Storing(self.kernel_cost, self.limits.may_round, self.limits.keeps, bf16, near)

    def kernel_cost(self, node: Node, task: Task) -> KernelCost | None:
        """Return the cost of the best kernel that a node may have; None if there is none."""
        key = workload(task), self.limits.of(node)
        if key not in self.kernel_costs:
            self.kernel_costs[key] = kernel_cost(key[0], self.target, key[1])
        return self.kernel_costs[key]

    def price(self, task: Task) -> float | None:
        """Return the cycles of a task, infinite if no kernel can do it."""
        w = workload(task)
        if w not in self.estimates:
            self.estimates[w] = estimate(w, self.target, self.limits)
        known = self.estimates[w]
        times = self.costs(self.timings.get(w, ()))
        return round(min(times), 1) / self.nanoseconds() if times else known

    def costs(self, measured: Sequence[Measurement]) -> list[float]:
        """Return the times of the candidates that ran, including the price of their memory."""
        costs = (m.cost(self.limits.weight_price) for m in measured)
        return [cost for cost in costs if cost is not None]

    def nanoseconds(self) -> float:
        """Return the time of an estimated cycle: the median over all measurements."""
        ratios = []
        for w, measured in self.timings.items():
            times = self.costs(measured)
            cycles = self.estimates.get(w)
            if times and cycles:
                ratios.append(round(min(times), 1) / cycles)
        return median(ratios) or 1.0 if ratios else 1.0  # a policy's times may all be 0


def near_optimal(reports: Sequence[LayoutReport], conversions: bool = False) -> list[Workload]:
    """Return the workloads of layouts that measuring might prefer, reorders too if asked."""
    tasks = [task for report in reports for task in report.near_optimal]
    if conversions and tasks:
        tasks += (task for report in reports for task in report.conversions)
    return list(dict.fromkeys(map(workload, tasks)))


def workload(task: Task) -> Workload:
    """Return the workload of a task."""
    return Workload(task.op, task.inputs, task.outputs, task.constant)


def estimate(w: Workload, target: Target, limits: Limits) -> float | None:
    """Return the estimated cycles of the best kernel; None if there is no useful estimate.

    On a GPU they are nanoseconds: of kernels without an estimate, those of their memory traffic.
    """
    if target.device:
        costs = consider(w, target, limits).costs(limits.weight_price)
        largest = concrete(w)
        return 1e9 * max(min(costs, default=inf), seconds(largest, 0, gpu_of(target.device)))
    if not isinstance(w.op, MODELLED):
        return inf if is_dynamic(w) and _lacks_kernel(w, target, limits) else None
    return min(consider(w, target, limits).costs(limits.weight_price), default=inf)


def _lacks_kernel(w: Workload, target: Target, limits: Limits) -> bool:
    """Return whether there are kernels of a workload's operator, but none for its extents."""
    known = any(isinstance(w.op, kernel.op) for kernel in kernels_for(target))
    return known and not consider(w, target, limits).found


def kernel_cost(w: Workload, target: Target, limits: Limits) -> KernelCost | None:
    """Return the cost of the best kernel by estimates; None if there is none."""
    considered = consider(w, target, limits)
    if not considered.found:
        return None
    costs = considered.costs(limits.weight_price)
    best = considered.found[costs.index(min(costs))]
    kernel = best.kernel
    modelled = isinstance(w.op, (*MODELLED, Attention))  # costs of one op are compared
    return KernelCost(
        min(costs) if modelled else None, not kernel.portable, kernel.precision == "bf16",
        0 if is_dynamic(w) else kernel.scratch(w, best.params, target),
    )  # fmt: skip
