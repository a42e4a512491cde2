"""Compiled networks that run elsewhere: under an emulator, over ssh, or over a serial line.

A program around the folder's static library reads inputs from files and writes outputs to others.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags, machine_flags
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.probe import install_runner
from atc.backends.toolchain.processes import Finished, Log, no_log, run_binary
from atc.codegen.interface import Port
from atc.devices.serial_line import Span, line_of, open_line, run_over
from atc.errors import ModelError, OptionError, ToolchainError, one_line, reason_of
from atc.files.byte_order import in_byte_order
from atc.files.temporary import temporary_folder
from atc.ir.graph import Array, DType, TensorType
from atc.names import c_string
from atc.runtime.layers import Layer
from atc.runtime.values import Tensor, Value
from atc.starter.boards import BOARDS
from atc.starter.texts import run_texts

PATIENCE = 600.0
"""Time limit of a run in seconds: emulators are slow."""


@dataclass(frozen=True)
class Device:
    """A place where programs for a target run: `local`, if needed its emulator, or `ssh:HOST`.

    With `serial:DEVICE` it already runs on a board at the other end of a serial line. The empty
    runner is `local`, but loads the library in this process if it can.
    """

    target: Target
    runner: str = ""

    @property
    def host(self) -> str:
        """The machine of ssh, with its port if one is given; '' if there is none."""
        return self.runner.partition(":")[2] if self.runner.startswith("ssh:") else ""

    @property
    def line(self) -> str:
        """The serial line to a board that runs the network; '' if there is none."""
        return self.runner.partition(":")[2] if self.runner.startswith("serial:") else ""

    @property
    def emulator(self) -> tuple[str, ...]:
        """The command line in front of a program that is run here: the target's, or the user's."""
        if self.runner.startswith("qemu:"):
            words = shlex.split(self.runner.partition(":")[2])
            return (*words, *self.target.runner[1:]) if len(words) == 1 else (*words,)
        return () if self.is_native else self.target.runner

    @property
    def is_native(self) -> bool:
        """Whether this machine can load libraries for the target."""
        return self.target.is_native

    @property
    def loads(self) -> bool:
        """Whether the library is loaded in this process."""
        return not self.runner and self.is_native

    def check(self) -> None:
        """Raise OptionError if nothing here can run a program for the target."""
        name = self.target.name
        if self.line:
            line_of(self.line)
            return
        if not (self.runner in ("", "local") or self.runner.startswith("qemu:") or self.host):
            raise OptionError(f"nothing can be verified by {one_line(self.runner, 60)}",
                              where="--runner", hint="use qemu, local, ssh:HOST or serial:DEVICE"
                              )  # fmt: skip
        if self.host and self.target.bare:
            raise OptionError(f"{name} has no system that ssh reaches", where="--runner",
                              hint="leave --runner out: qemu runs it")  # fmt: skip
        if self.host:
            return
        if self.is_native and not self.emulator:
            return
        program = self.emulator[0] if self.emulator else ""
        if not program or (self.target.is_microcontroller and name not in BOARDS):
            raise OptionError(f"programs for {name} don't run on this machine", where="--target",
                              hint="build without --verify, or for another target")  # fmt: skip
        if shutil.which(program) is None:
            raise OptionError(
                f"programs for {name} need {program} to run on this machine", where="--target",
                hint=f"{install_runner(program)}, or verify where it is for: --runner=ssh:HOST",
            )  # fmt: skip


class DeviceNetwork:
    """A network of a compiled folder, like that of `atc.load`, that runs on a device."""

    def __init__(
        self, folder: Path, device: Device, environ: Mapping[str, str], log: Log = no_log
    ) -> None:
        """Read the report in the folder.

        Raises ModelError if the folder has none, and OptionError for a network that such programs
        don't run: with several shapes, sequences or strings.
        """
        report = read_report(folder)
        self.name, self.build_info = str(report["name"]), str(report["build_info"])
        self._folder, self._device, self._environ, self._log = folder, device, environ, log
        described = report["interface"]
        if described is None:
            raise OptionError("networks of several shapes, sequences or strings run only where "
                              "their library is loaded", where=str(folder))  # fmt: skip
        self._ports = {side: [_port(side, k, each) for k, each in enumerate(described[side])]
                       for side in ("inputs", "outputs")}  # fmt: skip
        self._arena, self._weights = int(described["arena"]), bool(described["external"])
        self._in_library = bool(described.get("weights_in"))
        self.inputs, self.outputs = (
            tuple(Tensor(p.name, p.type.shape, p.dtype.numpy) for p in self._ports[side])
            for side in ("inputs", "outputs")
        )
        self._values = [_step_value(k, v) for k, v in enumerate(described.get("values", ()))]
        self.layers = tuple(Layer(v.node, v.names, v.empty) for v in self._values)
        self.parameters = tuple(Value(t.name, k) for k, t in enumerate(self.inputs))
        self.results = tuple(Value(t.name, k) for k, t in enumerate(self.outputs))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run once on inputs by name; ToolchainError has the output of a program that failed."""
        return self.run_each([inputs])[0]

    def run_each(self, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
        """Run on the inputs of each run, one after another; states are zero before the first.

        Layers are the last run's.
        """
        if self._device.line:
            return self._over_line(inputs)
        with temporary_folder("device") as place:
            for k, tensor in enumerate(self.inputs):
                arrays = (np.asarray(each[tensor.name], tensor.dtype) for each in inputs)
                data = b"".join(self._turned(array).tobytes() for array in arrays)
                (place / f"input_{k}.bin").write_bytes(data)
            program = self._build(place, len(inputs))
            ssh = bool(self._device.host)
            done = self._by_ssh(place, program) if ssh else self._here(place, program)
            if done.status != 0:
                output = (done.stdout + done.stderr).decode(errors="replace")
                raise ToolchainError(
                    f"the program for {self._device.target.name} failed: "
                    f"{one_line(output, 200) or f'status {done.status}'}",
                    where=str(self._folder),
                )  # fmt: skip
            self.layers = tuple(
                Layer(v.node, v.names, self._read(place / v.file, v.tensor, 1)[0])
                for v in self._values
            )
            found = [
                self._read(place / f"output_{k}.bin", t, len(inputs))
                for k, t in enumerate(self.outputs)
            ]
        names = [t.name for t in self.outputs]
        return [dict(zip(names, each, strict=True)) for each in zip(*found, strict=True)]

    def _read(self, path: Path, tensor: Tensor, runs: int) -> Array:
        """Return what the program has written of some runs; an empty tensor has no file."""
        data = np.frombuffer(path.read_bytes() if path.exists() else b"", tensor.dtype)
        return self._turned(data).view(tensor.dtype).reshape(runs, *tensor.shape)

    def _turned(self, array: Array) -> npt.NDArray[np.uint8]:
        """Return the bytes of elements in the device's order, or in this machine's what it has."""
        return in_byte_order(array, self._device.target.big_endian)

    def _over_line(self, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
        """Run on the board at the other end of the serial line."""
        given = [
            [np.ascontiguousarray(each[t.name], t.dtype).tobytes() for t in self.inputs]
            for each in inputs
        ]
        sizes = [p.type.nbytes for p in self._ports["outputs"]]
        spans = [Span(v.step, v.buffer, v.offset, v.nbytes) for v in self._values]
        with open_line(self._device.line) as line:
            found, seen = run_over(line, self._is_of_folder, given, sizes, spans)
        self.layers = tuple(
            Layer(v.node, v.names, np.frombuffer(data, v.tensor.dtype).reshape(v.tensor.shape))
            for v, data in zip(self._values, seen, strict=True)
        )
        return [
            {
                t.name: np.frombuffer(data, t.dtype).reshape(t.shape)
                for t, data in zip(self.outputs, outputs, strict=True)
            }
            for outputs in found
        ]

    def _is_of_folder(self, build_info: str) -> bool:
        """Return whether build information is that of the folder's sources."""
        source = self._folder / "src" / f"{self.name}.c"
        return build_info != "" and c_string(build_info) in source.read_text("utf-8")

    def _build(self, place: Path, runs: int) -> str:
        """Build the program in a folder; returns its name."""
        target = self._device.target
        compiler = find_compiler(target, self._environ, log=self._log)
        values = {
            "name": self.name, "upper": self.name.upper(), "arena_size": self._arena,
            "external": self._weights, "runs": runs, "values": self._values, **self._ports,
        }  # fmt: skip
        texts = run_texts(values, target)
        for path, text in texts.items():
            (place / path).write_text(text)
        if self._weights:
            shutil.copy(self._folder / f"{self.name}_weights.bin", place)
        folder = self._folder.resolve()
        library = folder / f"lib{self.name}.a"
        own = ["-I.", f"-I{folder / 'include'}", f"-I{folder}"]
        flags = (*compile_flags(compiler, target), *own)
        sources = [path for path in texts if path.endswith(".c")]
        if self._in_library:
            shutil.copy(folder / f"{self.name}_weights.S", place)
            sources.append(f"{self.name}_weights.S")
        compile_many([Job(compiler, flags, path, place) for path in sources], 1, log=self._log)
        objects = [*(f"{path}.o" for path in sources), str(library)]
        if target.is_microcontroller:
            bare = [*machine_flags(compiler, target), *target.link_flags, "-T", "board.ld"]
            objects = [*bare, "-Wl,--gc-sections,-z,noexecstack", *objects, *target.libraries]
        objects.append("-pthread") if not target.bare else None
        static = not target.bare and not self._device.is_native
        link_program(compiler, (), objects, "run", place, static=static, log=self._log)
        return "run"

    def _here(self, place: Path, program: str) -> Finished:
        words = (*self._device.emulator, str(place / program))
        return run_binary(words, PATIENCE, cwd=place, log=self._log)

    def _by_ssh(self, place: Path, program: str) -> Finished:
        """Send program and inputs as one archive, and receive the outputs as another."""
        sent = io.BytesIO()
        with tarfile.open(fileobj=sent, mode="w") as archive:
            for path in (place / program, *sorted(place.glob("*.bin"))):
                archive.add(path, path.name)
        script = (
            'd=$(mktemp -d) && cd "$d" && tar xf - && ./run 1>&2; s=$?; '
            '[ $s = 0 ] && tar cf - output_*.bin; cd / && rm -rf "$d"; exit $s'
        )
        host, _, port = self._device.host.partition(":")
        own = ("-p", port) if port else ()
        command = ("ssh", "-o", "BatchMode=yes", *own, "--", host, script)
        done = run_binary(command, PATIENCE, stdin=sent.getvalue(), log=self._log)
        if done.status == 0:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(place, filter="data")
        return replace(done, stdout=b"")


def read_report(folder: Path) -> dict[str, Any]:
    """Return the report of a compiled folder; ModelError if it isn't one."""
    found = sorted(folder.glob("*.report.json")) if folder.is_dir() else []
    if len(found) != 1:
        raise ModelError("not a folder compiled by atc", where=str(folder),
                         hint="name an output folder of atc")  # fmt: skip
    try:
        report: dict[str, Any] = json.loads(found[0].read_text("utf-8"))
        if not {"name", "target", "interface", "build_info"} <= report.keys():
            raise ValueError("it has no interface")
    except (OSError, ValueError) as error:
        raise ModelError(f"can't be read: {reason_of(error, found[0])}", where=str(found[0]),
                         hint="compile the model anew") from None  # fmt: skip
    return report


def target_of(folder: Path) -> Target | None:
    """Return the target of a compiled folder; None for a library's file, or several targets."""
    if not folder.is_dir() or not [*folder.glob("*.report.json")]:
        return None
    name = str(read_report(folder)["target"])
    return get_target(name)


@dataclass(frozen=True)
class _StepValue:
    """A node's result as a report describes it, and the file that the program writes it to."""

    node: str
    names: tuple[str, ...]
    tensor: Tensor
    file: str
    step: int
    buffer: int
    offset: int

    @property
    def nbytes(self) -> int:
        """The result's size in bytes."""
        return self.empty.nbytes

    @property
    def empty(self) -> Array:
        """An array of zeros of the result's type."""
        return np.zeros(self.tensor.shape, self.tensor.dtype)


def _step_value(number: int, described: Mapping[str, Any]) -> _StepValue:
    """Return a node's result as a report describes it."""
    port = _port("values", number, {**described, "name": described["node"]})
    return _StepValue(
        port.name, tuple(described["names"]), Tensor(port.name, port.type.shape, port.dtype.numpy),
        f"output_value_{number}.bin", described["step"], described["buffer"], described["offset"],
    )  # fmt: skip


def _port(side: str, number: int, described: Mapping[str, Any]) -> Port:
    """Return an input or output as a report describes it."""
    dtype = next(d for d in DType if d.code == described["dtype"])
    shape: Sequence[int] = described["shape"]
    type_ = TensorType(dtype, tuple(shape))
    table = f"{side[:-1]}_{number}"
    return Port(str(described["name"]), table, type_, table, extents=type_.shape)
