"""The values that the templates of a project are given: their contract, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc import __version__
from atc.codegen.gpu_values import Gpu
from atc.codegen.hooks import Observed
from atc.codegen.interface import Port
from atc.codegen.prefault import MOST, PAGE
from atc.codegen.profile import ProfiledCall
from atc.codegen.sanity import Checked
from atc.codegen.schedule import Schedule
from atc.codegen.selftest import Golden, NodeSum
from atc.codegen.shape_tables import Dynamic, ShapeProfiles
from atc.ir.graph import STRING_BYTES
from atc.names import module_name
from atc.runtime.library import ABI_VERSION


@dataclass(frozen=True, kw_only=True)
class TemplateValues:
    """A library as the templates of its project know it.

    Texts are C or for comments. What a build doesn't have is empty, 0 or None.
    """

    name: str
    """The prefix of everything in C."""
    model: str
    build_info: str
    target: str
    bare: bool
    """Whether there is no operating system."""
    order: str
    """Of the bytes of a number: `little` or `big`."""
    cflags: tuple[str, ...]
    checks: tuple[str, ...]
    """What the processor is asked for before anything runs."""
    tiles: bool
    """Whether kernels use AMX's tiles."""
    as_text: bool
    """Whether weights are C text for the compiler, since assemblers include no files."""
    own_math: bool
    deterministic: bool
    sources: Sequence[str]
    kernels: Sequence[Mapping[str, object]]
    """Declarations, and the model's nodes that call each."""
    net: Schedule
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    composites: Sequence[Mapping[str, object]]
    """The model's sequences and optionals."""
    failures: Sequence[tuple[str, int, str]]
    """Name, number and meaning of statuses that kernels may end a run with."""
    shape_profiles: ShapeProfiles | None
    ranges: Dynamic | None
    states: Sequence[Mapping[str, object]]
    io: Mapping[str, Sequence[int]]
    """Room for inputs and outputs in the arena, by side."""
    bounded_loops: bool
    """Whether a loop ends the run that exceeds its declared bound."""
    arena_size: int
    alignment: int
    touches_arena: bool
    touched: Sequence[tuple[int, int]]
    """Ranges of the weights that `init` reads ahead."""
    weights_size: int
    weights_hash: int
    weights_in: str
    """The library that alone has the weights."""
    external: bool
    """Whether the caller brings the weights."""
    split: bool
    """Whether they are several files."""
    threads: int
    step: bool
    """Whether a run can be done in parts."""
    profile: Sequence[ProfiledCall]
    hooks: Observed | None
    log: bool
    sanity: Checked | None
    selftest: Sequence[Golden]
    nodes: Sequence[NodeSum]
    formulas: Sequence[str]
    """The inputs of a self-test, in C."""
    starter: bool
    max_ram: int
    max_rom: int
    gpu: Gpu | None
    device_id: int
    gpu_pool: str
    gpu_kept_free: int
    parts: Sequence[object] = ()
    """The networks of a library for several targets."""
    chosen_state: int = 0
    """The bytes that hold the context of any of these."""

    @property
    def dynamic(self) -> Dynamic | ShapeProfiles | None:
        """The tables for more than one shape."""
        return self.ranges or self.shape_profiles

    @property
    def ports(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)

    def values(self) -> dict[str, object]:
        """Return what the templates are given: the fields, and what follows from them."""
        return {
            **vars(self), "upper": self.name.upper(), "module": module_name(self.name),
            "version": __version__, "dynamic": self.dynamic, "ports": self.ports,
            "half": any(p.dtype.is_half for p in self.ports), "string_bytes": STRING_BYTES,
            "page": PAGE, "most": MOST,
            "abi": ABI_VERSION,  # bumped when a struct or prototype of the header changes
        }  # fmt: skip
