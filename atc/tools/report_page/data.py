"""Data of the page, read from an output folder and a profile; no drawing yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atc.backends.toolchain.compiler import library_in
from atc.errors import OptionError, one_line
from atc.tools.explain import Report, read_report
from atc.tools.profile import Profile
from atc.tools.report_page.code_sizes import CodeSizes, code_sizes


@dataclass(frozen=True)
class Step:
    """A kernel call with its part of a run's time (None where nothing is known of times)."""

    number: int
    title: str
    record: Mapping[str, Any]
    ns: float | None
    share: float | None
    calls: int = 1
    of_peak: float | None = None
    operations: int = 0
    """Of all its calls in a run; 0 where they depend on shapes that nobody knows."""

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second."""
        return self.operations / self.ns if self.ns and self.operations else None


@dataclass(frozen=True)
class Page:
    """All facts of a compiled network. `measured` says where times come from, '' for nowhere."""

    report: Report
    steps: tuple[Step, ...]
    measured: str
    profile: Profile | None
    library_bytes: int
    sizes: CodeSizes | None

    @property
    def memory(self) -> Mapping[str, Any]:
        """The arena's plan."""
        memory: Mapping[str, Any] = self.report["memory"]
        return memory

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """The model's own nodes."""
        nodes: Sequence[Mapping[str, Any]] = self.report["model"]
        return nodes


def read_page(folder: Path, profile: Profile | None) -> Page:
    """Return what is known of an output folder.

    Raises OptionError where it holds no report, one of an older version, or the profile is of
    another library.
    """
    report = read_report(folder)
    try:
        steps, measured = _steps(report, profile)
        _ = [(n["name"], n["op"], n["reads"]) for n in report["model"]], report["memory"]["buffers"]
        library = library_in(folder, report["name"])
    except (LookupError, TypeError) as error:
        raise OptionError(
            f"the report in {folder} lacks {one_line(str(error), 60)}",
            hint="compile the model again with this version of atc",
        ) from None
    data = library.read_bytes() if library else b""
    return Page(report, steps, measured, profile, len(data), code_sizes(data))


def _steps(report: Report, profile: Profile | None) -> tuple[tuple[Step, ...], str]:
    nodes = report["nodes"]
    if profile is not None:
        known = [(c.kernel, c.nodes[:200]) for c in profile.calls]
        own = [(n["kernel"], n["name"][:200]) for n in nodes]
        if known != own:
            raise OptionError(
                f"the profile is of another library than {report['name']}", where="--profile",
                hint="measure this one with atc profile",
            )  # fmt: skip
        times, text = [c.ns for c in profile.calls], "measured"
    else:
        times, text = _without_profile(nodes)
    total = sum(times) or 1.0
    made = []
    for k, node in enumerate(nodes):
        call = profile.calls[k] if profile else None
        made.append(Step(
            k, node["name"], node,
            times[k] if text == "measured" else None, times[k] / total if text else None,
            call.calls if call else 1,
            profile.share_of_peak(call) if profile and call else None,
            call.operations * call.calls if call else 0,
        ))  # fmt: skip
    return tuple(made), text


def _without_profile(nodes: Sequence[Mapping[str, Any]]) -> tuple[list[float], str]:
    """Return the estimated costs of the chosen kernels, as a stand-in for times."""
    costs = [float(node["cost"]) for node in nodes]
    return costs, "estimated" if any(costs) else ""
