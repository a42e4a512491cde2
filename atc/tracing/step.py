"""`TrainingStep`: a compiled step of training with its state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import helper

from atc.build.output_folder import network_name
from atc.errors import ModelError, OptionError
from atc.runtime.load import open_network
from atc.tracing.errors import ArgumentError
from atc.tracing.recording import Array
from atc.tracing.step_files import Slot


class TrainingStep:
    """A training step from its folder, with its state: `loss = step(image, label)`.

    `lr` is the learning rate of the next steps, `seed` the seed of the next one's random numbers,
    which each step counts up.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Load a step in its initial state. Raises AtcError."""
        place = Path(folder)
        name = network_name(place.resolve())
        try:
            manifest = json.loads((place / f"{name}_step.json").read_text("utf-8"))
            data = (place / f"{name}_state.bin").read_bytes()
        except OSError as error:
            raise ModelError(f"no training step: {error.strerror}", where=str(place)) from None
        self.network = open_network(place)
        self._slots = [_slot(entry) for entry in manifest["state"]]
        self._outputs: list[str] = [entry["output"] for entry in manifest["state"]]
        self._saved: int = manifest["saved"]
        self.inputs: list[str] = manifest["inputs"]
        self._rate, self.lr = cast("tuple[str, float]", manifest["rate"])
        self._seed: str = manifest["seed"]
        self.seed = 0
        self._state: dict[str, Array] = {}
        self.load(data)

    def __call__(self, *arrays: Any) -> float:
        """Train on one batch; returns the loss before the update."""
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{len(arrays)} arrays for {', '.join(self.inputs)}")
        given = dict(zip(self.inputs, arrays, strict=True)) | self._state
        if self._rate:
            given[self._rate] = np.float64(self.lr)
        if self._seed:
            given[self._seed] = np.int64(self.seed)
            self.seed += 1
        found = self.network.run(given)
        for slot, output in zip(self._slots, self._outputs, strict=True):
            self._state[slot.name] = found.pop(output)
        (loss,) = found.values()
        return float(loss)

    def names(self) -> list[str]:
        """Return the names of the parameters and of the optimizer's state."""
        return [slot.name for slot in self._slots]

    def get(self, name: str) -> Array:
        """Return a copy of a tensor of the state."""
        return self._state[name].copy()

    def set(self, name: str, value: Any) -> None:
        """Replace a tensor of the state. Raises ArgumentError for one of another type or shape."""
        now, new = self._state[name], np.asarray(value)
        if new.dtype != now.dtype or new.shape != now.shape:
            raise ArgumentError(f"{name} is {now.dtype} {[*now.shape]}, not {new.dtype} "
                                f"{[*new.shape]}")  # fmt: skip
        self._state[name] = new.copy()

    def save(self) -> bytes:
        """Return the state as `NAME_save` in C does."""
        data = bytearray(self._saved)
        for slot in self._slots:
            data[slot.offset : slot.offset + slot.size] = self._state[slot.name].tobytes()
        return bytes(data)

    def load(self, data: bytes) -> None:
        """Restore a saved state. Raises OptionError for one of another size."""
        if len(data) != self._saved:
            raise OptionError(f"a state of {len(data)} bytes, not {self._saved}")
        for slot in self._slots:
            part = data[slot.offset : slot.offset + slot.size]
            kind = helper.tensor_dtype_to_np_dtype(slot.dtype)
            self._state[slot.name] = np.frombuffer(part, kind).reshape(slot.shape).copy()


def _slot(entry: Mapping[str, Any]) -> Slot:
    given = {k: v for k, v in entry.items() if k != "output"}
    return Slot(**{**given, "shape": tuple(entry["shape"])})
