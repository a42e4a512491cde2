"""Options of a generated project: all that it depends on apart from the programs in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from atc.codegen.selftest import Expected
from atc.files.blob import NO_WEIGHTS, Blob
from atc.options.values import Checks


@dataclass(frozen=True)
class Instrumentation:
    """The things that a run does around its calls; without, nothing of that is in the code."""

    timed: bool = False
    """Count the calls of each kernel and their time."""
    observed: bool = False
    """Show the values of each call to an observer."""
    logged: bool = False
    """Log each call on standard error before it runs."""
    checks: Checks | None = None
    """Check what each call reads and writes."""


PLAIN = Instrumentation()
"""No more than the calls."""


@dataclass(frozen=True)
class WeightFiles:
    """The files of the weights, and their order."""

    external: bool = False
    """The caller brings them. A network without weights never has external ones."""
    split: bool = False
    """They are files in a folder `<name>_weights`, whose contents follow each other."""
    before: Blob = NO_WEIGHTS
    """Those of other networks of the library that come first: what they hold isn't added twice."""
    once_from: int | None = None
    """Bytes from which on they lie in the shared library alone, where the other files find them."""


@dataclass(frozen=True)
class GpuOptions:
    """The share of a GPU that a network takes."""

    device_id: int = 0
    """The GPU that `init` takes."""
    pool: str = ""
    """The bytes that are reserved, or "all"."""
    kept_free: int = 0
    """Percent that are left to others."""
    copy_streams: int = 1
    """The most streams that inputs and outputs are copied on."""


@dataclass(frozen=True, kw_only=True)
class ProjectOptions:
    """The name of a project, where it comes from, and what it is to have."""

    name: str
    """The prefix of everything in C."""
    model: str
    """The name of the model's file."""
    model_hash: str = ""
    contract: str = ""
    """What the numbers depend on: options, for the library's information on its build."""
    library_alone: bool = False
    """Whether only the library's sources are wanted, and nothing that a user starts from."""
    weights: WeightFiles = field(default=WeightFiles())
    instrumentation: Instrumentation = PLAIN
    gpu: GpuOptions = field(default=GpuOptions())
    threads: int = 1
    selftest: Expected | None = None
    """Outputs that the library compares its own with; of nodes, too, if it can run in parts."""
    step: bool = False
    """Whether a run can be done in parts."""
    starter: bool = False
    """Whether there is a program for a board beside the library."""
    max_ram: int = 0
    """Bytes that the header holds the network to; 0: any number."""
    max_rom: int = 0
