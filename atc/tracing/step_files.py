"""Files of a training step beside its library: a C header, the initial state, a manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from onnx import helper

from atc import __version__
from atc.build.output_folder import write_files
from atc.names import c_string, comment
from atc.pipeline.held import Held, held_in_place
from atc.pipeline.pipeline import Compilation
from atc.templates import render
from atc.tracing.tape import Tracked

ALIGNMENT = 64
"""The alignment of each tensor in the state, in bytes."""


@dataclass(frozen=True)
class Slot:
    """A tensor of the state: its offset, and that of its new value."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size: int
    new: int

    @property
    def text(self) -> str:
        """The name as a C string."""
        return c_string(self.name)


@dataclass(frozen=True)
class Recorded:
    """The interface of a step of training: inputs in order, and the state.

    `state` has each tensor's input, the output of its new value, and the tensor. `rate` and `seed`
    name inputs of the network, '' where it has none.
    """

    model: str
    inputs: tuple[str, ...]
    state: tuple[tuple[str, str, Tracked], ...]
    rate: str
    lr: float
    seed: str

    def held(self, in_place: bool) -> Held:
        """Return what the caller keeps; `in_place` allows new values to overwrite the old ones."""
        return Held(tuple((source, out) for source, out, _ in self.state), ALIGNMENT, in_place)


def write_step(done: Compilation, recorded: Recorded, held: Held) -> None:
    """Write the files of a step into the folder of its library."""
    slots, first, size = _slots(done, recorded, held)
    saved = len(first)
    text = render("project/step.h.j2", _header_values(done, recorded, slots, saved, size))
    manifest = {
        "inputs": [*recorded.inputs], "rate": (recorded.rate, recorded.lr), "seed": recorded.seed,
        "saved": saved, "size": size,
        "state": [asdict(slot) | {"output": out}
                  for slot, (_, out, _) in zip(slots, recorded.state, strict=True)],
    }  # fmt: skip
    write_files(done.folder, {
        f"include/{done.name}_step.h": text.encode(), f"{done.name}_state.bin": first,
        f"{done.name}_step.json": json.dumps(manifest, indent=1).encode(),
    })  # fmt: skip


def _slots(done: Compilation, recorded: Recorded, held: Held) -> tuple[list[Slot], bytes, int]:
    """Return the state's tensors, their initial values, and the bytes of the caller's memory."""
    spots = held_in_place(done.program, held)
    slots, first = list[Slot](), bytearray()
    for source, _, tensor in recorded.state:
        assert tensor.array is not None
        kind = helper.np_dtype_to_tensor_dtype(tensor.array.dtype)
        at, size = len(first), tensor.array.nbytes
        slots.append(Slot(source, kind, tensor.array.shape, at, size, at))
        first += tensor.array.tobytes() + bytes(-size % ALIGNMENT)
    end = len(first)
    for k, slot in enumerate(slots):
        if slot.name not in spots:
            slots[k] = replace(slot, new=end)
            end += -(-slot.size // ALIGNMENT) * ALIGNMENT
    return slots, bytes(first), end


def _header_values(
    done: Compilation, recorded: Recorded, slots: Sequence[Slot], saved: int, size: int
) -> dict[str, Any]:
    interface = done.emission.interface
    reads = {slot.name: slot.offset for slot in slots}
    writes = {out: s.new for s, (_, out, _) in zip(slots, recorded.state, strict=True)}
    scalars = {recorded.rate: "double", recorded.seed: "int64_t"}
    call = [
        f"(const {p.dtype.c} *)(const void *)(atc_bytes + {reads[p.name]})" if p.name in reads
        else f"&{p.c_name}" if p.name in scalars else p.c_name
        for p in interface.inputs
    ] + [
        f"({p.dtype.c} *)(void *)(atc_bytes + {writes[p.name]})" if p.name in writes else p.c_name
        for p in interface.outputs
    ]  # fmt: skip
    own = [p for p in interface.inputs if p.name not in reads]
    inputs = sorted(own, key=lambda p: [*scalars].index(p.name) if p.name in scalars else -1)
    outputs = [p for p in interface.outputs if p.name not in writes]
    return {
        "name": done.name, "NAME": done.name.upper(), "model": comment(recorded.model),
        "version": __version__, "inputs": inputs, "outputs": outputs, "slots": slots,
        "scalars": scalars, "saved": saved, "size": size, "arguments": ",\n    ".join(call),
        "in_place": sum(s.new == s.offset for s in slots),
        "call": ", ".join(p.c_name for p in (*inputs, *outputs)),
    }  # fmt: skip
