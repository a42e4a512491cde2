"""Compare compiled networks on a GPU with PyTorch, and with what the GPU can do at best.

usage: python tests/benchmarks/gpu.py [NETWORK...] [--precisions=fp32,bf16x3,tf32,bf16,fp16,int8]
           [--peers=eager,compiled] [--rounds=N] [--runs=N] [--minutes=N] [--row_seconds=N] [--json]
           [--build] [--target=TARGET] [--dry]

NETWORK is a name of NETWORKS, with a batch or length behind a colon where it has several
(resnet50:8); without one all are taken. They have random weights and are exported to ONNX here,
which needs pip install '.[torch,cuda,quantize]' torchvision transformers ultralytics. Each is timed
by CUDA events, tensors staying on the device: ours, in one graph; torch eager, which is cuDNN and
cuBLAS; torch.compile(mode="max-autotune"), which takes minutes to compile (--peers=eager leaves it
out). They take turns, `rounds` of `runs` runs each, of which the median counts.

A row is printed as soon as it is measured. Each network has a process of its own, and another one
after a row that failed: an error of the device spoils all that comes later in its process. One that
takes longer than `row_seconds` is ended, and after `minutes` no other row is begun. `--build` only
exports and compiles, for TARGET, which needs no GPU: a later run finds the kernels in the cache.
`--dry` does all of it without a GPU, with small networks on the imitated one and PyTorch on the
CPU: whether it works, the times say nothing.

`ratio` is the faster peer's time over ours at the same precision: above 1 ours is faster. Peers
compute fp32 without TF32, with which bf16x3 is compared, too; in tf32 all may round to it. In int8
ours is quantised with random inputs, and peers compute in fp16: PyTorch has no integers there.
`error` is the largest difference from PyTorch in double precision as a part of the largest
magnitude. `peak` is the share of the rate that a product of 4096 cubed in bfloat16 reaches beside
it, in floats for fp32. `built` are the seconds to export and compile. The last lines are the
geometric means; both peaks and the memory's rate come first.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atc.api import compile as compile_network
from atc.backends.cuda.device import compute_capabilities
from atc.errors import UnsupportedError
from atc.runtime.load import load

PRECISIONS = ("fp32", "bf16x3", "tf32", "bf16", "fp16", "int8")
PEERS = ("eager", "compiled")

MODES = {
    "fp32": {"precision_mode": "must_keep_origin_dtype"},
    "bf16x3": {},
    "tf32": {"allow_hf32": True},
    "bf16": {"precision_mode": "allow_mix_precision_bf16"},
    "fp16": {}, "int8": {},
}  # fmt: skip
"""Options of our compiler; in fp16 the model itself is converted, in int8 it is quantised."""

PEER_TYPES = {"fp16": "float16", "bf16": "bfloat16", "int8": "float16"}
"""What PyTorch computes in, if not in floats."""

SAMPLES = 4
"""Inputs that a network is quantised with beside its own."""


@dataclass(frozen=True)
class Built:
    """A network in PyTorch, and the inputs that it is timed with."""

    module: Any
    inputs: tuple[Any, ...]


def _vision(name: str, batch: int, size: int = 224) -> Built:
    import torchvision

    return _pictures(getattr(torchvision.models, name)(weights=None), batch, size)


def _yolo(batch: int) -> Built:
    from ultralytics import YOLO

    return _pictures(_First.of(YOLO("yolov8n.yaml").model), batch, 640)


def _pictures(module: Any, batch: int, size: int) -> Built:
    """Return a network of images whose normalisations know its values, as a trained one's do.

    With those that it begins with, values grow from layer to layer, beyond float16 at last.
    """
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # the mean of all that it sees
    with torch.no_grad():
        module.train()(torch.randn(8, 3, size, size))
    return Built(module.eval(), (torch.randn(batch, 3, size, size),))


class _First:
    """Makes of a transformer what it returns first, which is a tensor."""

    @staticmethod
    def of(module: Any) -> Any:
        import torch

        class First(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, *inputs: Any) -> Any:
                found = self.inner(*inputs)
                return found if isinstance(found, torch.Tensor) else found[0]

        return First().eval()


def _text(name: str, batch: int, length: int, **sizes: int) -> Built:
    import torch
    import transformers as t

    made = {
        "bert": lambda: t.BertModel(t.BertConfig(attn_implementation="eager", **sizes)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(
            use_cache=False, attn_implementation="eager", **sizes)),
    }
    ids = torch.randint(0, 100, (batch, length))
    return Built(_First.of(made[name]()), (ids,))


def _product(size: int) -> Built:
    """Return the product of a matrix with a constant one."""
    import torch

    return Built(torch.nn.Linear(size, size, bias=False).eval(), (torch.randn(size, size),))


def _gram(size: int) -> Built:
    """Return the product of two matrices of which none is constant."""
    import torch

    class Gram(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x @ x.mT

    return Built(Gram().eval(), (torch.randn(size, size) / math.sqrt(size),))


def _small_convolutions() -> Built:
    from torch import nn

    return _pictures(nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    ), 1, 16)  # fmt: skip


NETWORKS: dict[str, Callable[[], Built]] = {
    "product": lambda: _product(4096),
    "gram": lambda: _gram(4096),
    **{f"resnet50:{n}": lambda n=n: _vision("resnet50", n) for n in (1, 8, 64)},
    "mobilenet_v2": lambda: _vision("mobilenet_v2", 1),
    "efficientnet_b0": lambda: _vision("efficientnet_b0", 1),
    "yolov8n": lambda: _yolo(1),
    **{f"bert:{n}": lambda n=n: _text("bert", n, 128) for n in (1, 32)},
    "vit_b_16": lambda: _vision("vit_b_16", 1),
    **{f"gpt2:{n}": lambda n=n: _text("gpt2", 1, n) for n in (64, 1)},
}  # fmt: skip

SMALL: dict[str, Callable[[], Built]] = {
    "product": lambda: _product(32),
    "gram": lambda: _gram(32),
    "convolutions": _small_convolutions,
    "bert": lambda: _text("bert", 1, 8, hidden_size=32, num_hidden_layers=1, vocab_size=100,
                          num_attention_heads=2, intermediate_size=64),
    "gpt2": lambda: _text("gpt2", 1, 8, n_embd=32, n_layer=1, n_head=2, vocab_size=100),
}  # fmt: skip
"""Those of a dry run."""


@dataclass(frozen=True)
class Row:
    """A network at a precision: milliseconds of each engine, None where it failed."""

    network: str
    precision: str
    ours: float | None = None
    eager: float | None = None
    compiled: float | None = None
    error: float | None = None
    peak: float | None = None
    why: str = ""
    built: float | None = None

    @property
    def ratio(self) -> float | None:
        """The faster peer's time over ours."""
        peers = [t for t in (self.eager, self.compiled) if t is not None]
        return min(peers) / self.ours if peers and self.ours else None

    @property
    def line(self) -> str:
        """The row for people."""
        shown = [_shown(v, ".3f") for v in (self.ours, self.eager, self.compiled)]
        line = f"{self.network:16}{self.precision:>10}" + "".join(f"{s:>10}" for s in shown)
        line += f"{_shown(self.ratio, '.2f'):>8}{_shown(self.peak, '.0%'):>8}"
        line += f"{_shown(self.error, '.1e'):>10}{_shown(self.built, '.0f'):>7}"
        return f"{line}  {self.why}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 where there is nothing to measure on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--row_seconds", type=float, default=600)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    networks = SMALL if given.dry else NETWORKS
    given.networks = given.networks or [*networks]
    given.precisions, given.peers = given.precisions.split(","), _listed(given.peers)
    for chosen, known in ((given.networks, networks), (given.precisions, PRECISIONS),
                          (given.peers, PEERS)):  # fmt: skip
        if unknown := {*chosen} - {*known}:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if not given.dry and not given.build and not compute_capabilities():
        print("there is no GPU that CUDA's driver knows of", file=sys.stderr)
        return 1
    if given.worker:
        return _work(given)
    if not given.json:
        print(HEADER, flush=True)
    rows = []
    for row in measured(given):
        rows.append(row)
        print(json.dumps(asdict(row)) if given.json else row.line, flush=True)
    for line in () if given.json else means(rows):
        print(line)
    return 0


def _listed(words: str) -> list[str]:
    return [w for w in words.split(",") if w]


def measured(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network and precision; what fails says why."""
    end = time.monotonic() + 60 * given.minutes
    for network in given.networks:
        left = list(given.precisions)
        while left:
            if time.monotonic() > end:
                yield from (Row(network, p, why="not begun: no time was left") for p in left)
                break
            for row in _rows_of_a_process(given, network, tuple(left)):
                left.remove(row.precision)
                yield row


def _rows_of_a_process(
    given: argparse.Namespace, network: str, precisions: Sequence[str]
) -> Iterator[Row]:
    """Yield what a process of its own measures, at least one row."""
    options = [f"--{name}={getattr(given, name)}" for name in ("rounds", "runs", "target")]
    options += [f"--precisions={','.join(precisions)}", f"--peers={','.join(given.peers)}"]
    options += [f"--{name}" for name in ("dry", "build") if getattr(given, name)]
    command = [sys.executable, __file__, network, *options, "--worker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = 0
        while True:
            watch = threading.Timer(given.row_seconds, process.kill)
            watch.start()
            line = process.stdout.readline()
            late = not watch.is_alive()
            watch.cancel()
            if not line:
                break
            found += 1
            yield Row(**json.loads(line))
    if not found or (process.returncode != 0 and found < len(precisions)):
        why = f"it took longer than {given.row_seconds:.0f} s" if late else (
            f"its process ended with status {process.returncode}")  # fmt: skip
        yield Row(network, precisions[found], why=why)


def _work(given: argparse.Namespace) -> int:
    """Measure the rows of a network, up to the first one that fails; print each as JSON."""
    import torch

    machine = Machine(torch, "cpu" if given.dry else "cuda",
                      "cuda-emulated" if given.dry else given.target)  # fmt: skip
    (name,) = given.networks
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no row
    try:
        torch.manual_seed(0)
        built = (SMALL if given.dry else NETWORKS)[name]()
    except ImportError as error:
        for precision in given.precisions:
            print(json.dumps(asdict(Row(name, precision, why=str(error)))), file=out, flush=True)
        return 0
    peaks = {"fp32": math.inf, "bf16": math.inf}
    if not given.build:
        machine.allow_tf32(False)
        peaks = machine.peaks()
    for precision in given.precisions:
        peak = peaks["fp32" if precision == "fp32" else "bf16"]
        try:
            row = _row(machine, name, built, precision, peak, given)
        except Exception as error:  # whatever its parts raise: the others are still measured
            traceback.print_exc()
            row = Row(name, precision, why=_first_line(error))
        print(json.dumps(asdict(row)), file=out, flush=True)
        if row.why:
            break
    return 0


@dataclass(frozen=True)
class Machine:
    """Where all is measured: PyTorch, its device, and our target for that."""

    torch: Any
    device: str
    target: str

    def put(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return inputs on the device."""
        return tuple(i.to(self.device).contiguous() for i in inputs)

    def allow_tf32(self, allowed: bool) -> None:
        """Say whether PyTorch may round floats to TF32."""
        self.torch.backends.cuda.matmul.allow_tf32 = allowed
        self.torch.backends.cudnn.allow_tf32 = allowed

    def times(
        self, calls: dict[str, Callable[[], Any]], rounds: int, runs: int
    ) -> dict[str, float]:
        """Return the median milliseconds of a run of each, which alternate."""
        for call in calls.values():
            for _ in range(min(5, runs)):
                call()
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                found[name].append(self._milliseconds(call, runs) / runs)
        return {name: statistics.median(times) for name, times in found.items()}

    def _milliseconds(self, call: Callable[[], Any], runs: int) -> float:
        if self.device == "cpu":
            start = time.perf_counter()
            for _ in range(runs):
                call()
            return 1e3 * (time.perf_counter() - start)
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(runs):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def peaks(self) -> dict[str, float]:
        """Return TFLOP/s of a product of 4096 cubed in floats and in bfloat16; tell them."""
        dry = self.device == "cpu"
        size, room, rounds, runs = (64, 1 << 16, 1, 1) if dry else (4096, 1 << 28, 5, 20)
        found = {}
        for name, dtype in (("fp32", self.torch.float32), ("bf16", self.torch.bfloat16)):
            a, b = (self.torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
            took = self.times({"product": lambda a=a, b=b: a @ b}, rounds, runs)["product"]
            found[name] = 2 * size**3 / took * 1e-9
        a, b = (self.torch.empty(room, device=self.device, dtype=self.torch.uint8)
                for _ in range(2))  # fmt: skip
        rate = 2 * room / self.times({"copy": lambda: b.copy_(a)}, rounds, runs)["copy"] * 1e-6
        name = "no GPU" if dry else self.torch.cuda.get_device_name()
        print(f"{name}: {found['fp32']:.1f} TFLOP/s in fp32, {found['bf16']:.1f} in bf16, "
              f"{rate:.0f} GB/s", file=sys.stderr)  # fmt: skip
        return found


def _row(
    machine: Machine, name: str, built: Built, precision: str, peak: float,
    given: argparse.Namespace,
) -> Row:  # fmt: skip
    """Return what is measured; the network itself is left as it was."""
    torch = machine.torch
    dtype = getattr(torch, PEER_TYPES.get(precision, "float32"))
    own_type = torch.float16 if precision == "fp16" else torch.float32
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _build(machine, built, own_type, precision, Path(folder))
        seconds = time.monotonic() - start
        if given.build:
            return Row(name, precision, built=seconds)
        ours = load(Path(folder, "net"))
    inputs, own_inputs = machine.put(built.inputs), machine.put(_as(built.inputs, own_type))
    with torch.no_grad():
        exact = _copy(built, torch.float64, machine.device)(*_as(inputs, torch.float64))
    found = torch.as_tensor(ours(*own_inputs), device=machine.device).double()
    error = float((found - exact).abs().max() / exact.abs().max())
    machine.allow_tf32(precision == "tf32")
    module, own = _copy(built, dtype, machine.device), _as(inputs, dtype)
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: ours(*own_inputs)}
    why = "" if math.isfinite(error) else "results that aren't finite"
    with torch.inference_mode():
        if "eager" in given.peers:
            calls["eager"] = lambda: module(*own)
        if "compiled" in given.peers:
            torch._dynamo.reset()  # else it would compile for all shapes and types seen so far
            fast = torch.compile(module, mode="max-autotune")
            try:
                fast(*own)
                calls["compiled"] = lambda: fast(*own)
            except Exception as failed:  # whatever its parts raise: the others are still compared
                why = f"torch.compile: {_first_line(failed)}"
        times = machine.times(calls, given.rounds, given.runs)
    share = _operations(module, own) / (times["ours"] * 1e-3) / (peak * 1e12)
    return Row(name, precision, **times, error=error, peak=share, why=why, built=seconds)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:100]


def _copy(built: Built, dtype: Any, device: str) -> Any:
    return copy.deepcopy(built.module).to(dtype).to(device)


def _build(machine: Machine, built: Built, dtype: Any, precision: str, folder: Path) -> None:
    """Export and compile a network to `net` in a folder."""
    given, file = _as(built.inputs, dtype), folder / "model.onnx"
    _export(machine.torch, _copy(built, dtype, "cpu"), given, file)
    options: dict[str, Any] = {"target": machine.target, "op_compiler_cache_mode": "enable"}
    if precision == "int8":
        options["cal_conf"] = _calibration(machine.torch, folder, given)
    compile_network(file, folder / "net", **options, **MODES[precision])


def _export(torch: Any, module: Any, inputs: tuple[Any, ...], file: Path) -> None:
    """Write a network as ONNX by PyTorch's exporter, or by the older one where that can't."""
    from atc.pytorch.export import export

    try:
        export(module, inputs, file)
    except UnsupportedError:
        torch.onnx.export(module, inputs, str(file), dynamo=False)


def _calibration(torch: Any, folder: Path, inputs: tuple[Any, ...]) -> Path:
    """Write inputs to quantise with, and the file that names them."""
    (own,) = inputs  # each network has one
    drawn = [own]
    if own.is_floating_point():
        drawn += [own.std() * torch.randn_like(own) for _ in range(SAMPLES)]
    np.save(folder / "samples.npy", torch.cat(drawn).numpy())
    settings = folder / "calibration.cfg"
    settings.write_text(f"calibration={folder / 'samples.npy'}\n")
    return settings


def _as(inputs: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    return tuple(i.to(dtype) if i.is_floating_point() else i for i in inputs)


def _operations(module: Any, inputs: tuple[Any, ...]) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return float(counter.get_total_flops())


HEADER = (f"{'network':16}{'precision':>10}{'ours ms':>10}{'eager':>10}{'compiled':>10}"
          f"{'ratio':>8}{'peak':>8}{'error':>10}{'built':>7}")  # fmt: skip


def means(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the geometric means of the ratios by precision."""
    for precision in dict.fromkeys(r.precision for r in rows):
        ratios = [r.ratio for r in rows if r.precision == precision and r.ratio]
        if ratios:
            mean = math.exp(float(np.mean(np.log(ratios))))
            yield (f"{precision}: {mean:.2f} in the geometric mean of {len(ratios)}, "
                   f"{min(ratios):.2f} at least")  # fmt: skip


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
