"""Compare compiled networks on a GPU with PyTorch, and with what the GPU can do at best.

usage: python tests/benchmarks/gpu.py [NETWORK...] [--precisions=fp32,bf16x3,tf32,bf16,fp16,int8]
           [--rounds=N] [--runs=N] [--json]

NETWORK is a name of NETWORKS, with a batch or length behind a colon where it has several
(resnet50:8); without one all are taken. They have random weights and are exported to ONNX here,
which needs pip install '.[torch,cuda,quantize]' torchvision transformers ultralytics. Each is timed
by CUDA events, tensors staying on the device: ours, in one graph; torch eager, which is cuDNN and
cuBLAS; torch.compile(mode="max-autotune"). They take turns, `rounds` of `runs` runs each, of which
the median counts.

`ratio` is the faster peer's time over ours at the same precision: above 1 ours is faster. Peers
compute fp32 without TF32, with which bf16x3 is compared, too; in tf32 all may round to it. In int8
ours is quantised with random inputs, and peers compute in fp16: PyTorch has no integers there.
`error` is the largest difference from PyTorch in double precision as a part of the largest
magnitude. `peak` is the share of the rate that a product of 4096 cubed in bfloat16 reaches beside
it, in floats for fp32. The last lines are the geometric means; both peaks and the memory's rate
come first.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atc.api import compile as compile_network
from atc.backends.cuda.device import compute_capabilities
from atc.errors import AtcError, UnsupportedError
from atc.runtime.load import load

PRECISIONS = ("fp32", "bf16x3", "tf32", "bf16", "fp16", "int8")

MODES = {
    "fp32": {"precision_mode": "must_keep_origin_dtype"},
    "bf16x3": {},
    "tf32": {"allow_hf32": True},
    "bf16": {"precision_mode": "allow_mix_precision_bf16"},
    "fp16": {}, "int8": {},
}  # fmt: skip
"""Options of our compiler; in fp16 the model itself is converted, in int8 it is quantised."""

PEERS = {"fp16": "float16", "bf16": "bfloat16", "int8": "float16"}
"""What PyTorch computes in, if not in floats."""

SAMPLES = 4
"""Inputs that a network is quantised with."""


@dataclass(frozen=True)
class Built:
    """A network in PyTorch, the inputs that it is timed with, and its multiply-adds twice."""

    module: Any
    inputs: tuple[Any, ...]


def _vision(name: str, batch: int, size: int = 224) -> Built:
    import torch
    import torchvision

    module = getattr(torchvision.models, name)(weights=None)
    return Built(module.eval(), (torch.randn(batch, 3, size, size),))


def _yolo(batch: int) -> Built:
    import torch
    from ultralytics import YOLO

    return Built(_First.of(YOLO("yolov8n.yaml").model.eval()), (torch.randn(batch, 3, 640, 640),))


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
                return self.inner(*inputs)[0]

        return First().eval()


def _text(name: str, batch: int, length: int) -> Built:
    import torch
    import transformers as t

    made = {
        "bert": lambda: t.BertModel(t.BertConfig(attn_implementation="eager")),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)),
    }
    ids = torch.randint(0, 1000, (batch, length))
    return Built(_First.of(made[name]()), (ids,))


NETWORKS: dict[str, Callable[[], Built]] = {
    **{f"resnet50:{n}": lambda n=n: _vision("resnet50", n) for n in (1, 8, 64)},
    "mobilenet_v2": lambda: _vision("mobilenet_v2", 1),
    "efficientnet_b0": lambda: _vision("efficientnet_b0", 1),
    "yolov8n": lambda: _yolo(1),
    **{f"bert:{n}": lambda n=n: _text("bert", n, 128) for n in (1, 32)},
    "vit_b_16": lambda: _vision("vit_b_16", 1),
    **{f"gpt2:{n}": lambda n=n: _text("gpt2", 1, n) for n in (64, 1)},
}  # fmt: skip


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

    @property
    def ratio(self) -> float | None:
        """The faster peer's time over ours."""
        peers = [t for t in (self.eager, self.compiled) if t is not None]
        return min(peers) / self.ours if peers and self.ours else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 where there is nothing to measure on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    chosen = given.networks or [*NETWORKS]
    precisions = given.precisions.split(",")
    unknown = {*chosen} - {*NETWORKS} or {*precisions} - {*PRECISIONS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; networks are {', '.join(NETWORKS)}")
    if not compute_capabilities():
        print("there is no GPU that CUDA's driver knows of", file=sys.stderr)
        return 1
    rows = list(measured(chosen, precisions, given.rounds, given.runs))
    print(json.dumps([asdict(r) for r in rows], indent=1) if given.json else table(rows))
    return 0


def measured(
    networks: Sequence[str], precisions: Sequence[str], rounds: int, runs: int
) -> Iterator[Row]:
    """Yield a row for each network and precision; what fails says why."""
    import torch

    _allow_tf32(torch, False)
    peaks = {p: _peak(torch, p) for p in ("fp32", "bf16")}
    print(
        f"{torch.cuda.get_device_name()}: {peaks['fp32']:.1f} TFLOP/s in fp32, "
        f"{peaks['bf16']:.1f} in bf16, {_bandwidth(torch):.0f} GB/s", file=sys.stderr,
    )  # fmt: skip
    for name in networks:
        try:
            torch.manual_seed(0)
            built = NETWORKS[name]()
        except ImportError as error:
            yield from (Row(name, p, why=str(error)) for p in precisions)
            continue
        for precision in precisions:
            try:
                peak = peaks["fp32" if precision == "fp32" else "bf16"]
                yield _row(torch, name, built, precision, peak, rounds, runs)
            except (AtcError, RuntimeError, TypeError, ValueError) as error:
                yield Row(name, precision, why=_first_line(error))


def _row(
    torch: Any, name: str, built: Built, precision: str, peak: float, rounds: int, runs: int
) -> Row:
    dtype = getattr(torch, PEERS.get(precision, "float32"))
    inputs = tuple(i.cuda() for i in built.inputs)
    _allow_tf32(torch, precision == "tf32")
    with torch.no_grad():
        exact = built.module.double().cuda()(*_as(inputs, torch.float64)).float()
    own_type = torch.float16 if precision == "fp16" else torch.float32
    ours, own_inputs = _ours(torch, built.module, built.inputs, own_type, precision)
    error = float((ours(*own_inputs).float() - exact).abs().max() / exact.abs().max())
    module, given = built.module.to(dtype).cuda(), _as(inputs, dtype)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(*own_inputs), "eager": lambda: module(*given)
    }  # fmt: skip
    fast, why = torch.compile(module, mode="max-autotune"), ""
    with torch.inference_mode():
        try:
            fast(*given)
            calls["compiled"] = lambda: fast(*given)
        except Exception as failed:  # whatever its parts raise: the others are still compared
            why = f"torch.compile: {_first_line(failed)}"
        times = _times(torch, calls, rounds, runs)
    share = _operations(torch, module, given) / (times["ours"] * 1e-3) / (peak * 1e12)
    return Row(name, precision, **times, error=error, peak=share, why=why)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:100]


def _allow_tf32(torch: Any, allowed: bool) -> None:
    """Say whether PyTorch may round floats to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _ours(
    torch: Any, module: Any, inputs: tuple[Any, ...], dtype: Any, precision: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Export and compile a network; returns it, and its inputs on the device."""
    given = _as(inputs, dtype)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        device = "cuda" if dtype is torch.float16 else "cpu"
        _export(torch, module.to(dtype).to(device), tuple(i.to(device) for i in given), file)
        options: dict[str, Any] = {"target": "cuda", "op_compiler_cache_mode": "enable"}
        if precision == "int8":
            options["cal_conf"] = _calibration(torch, Path(folder), given)
        compile_network(file, Path(folder, "net"), **options, **MODES[precision])
        network = load(Path(folder, "net"))
    return network, tuple(i.cuda().contiguous() for i in given)


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
    drawn = [torch.randn_like(own) if own.is_floating_point() else own for _ in range(SAMPLES)]
    np.save(folder / "samples.npy", torch.cat(drawn).cpu().numpy())
    settings = folder / "calibration.cfg"
    settings.write_text(f"calibration={folder / 'samples.npy'}\n")
    return settings


def _as(inputs: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    return tuple(i.to(dtype) if i.is_floating_point() else i for i in inputs)


def _times(
    torch: Any, calls: dict[str, Callable[[], Any]], rounds: int, runs: int
) -> dict[str, float]:
    """Return the median milliseconds of a run of each, which alternate."""
    for call in calls.values():
        for _ in range(5):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(runs):
                call()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) / runs)
    return {name: statistics.median(times) for name, times in found.items()}


def _operations(torch: Any, module: Any, inputs: tuple[Any, ...]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return float(counter.get_total_flops())


def _peak(torch: Any, precision: str) -> float:
    """Return TFLOP/s of a product of 4096 cubed."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
    milliseconds = _times(torch, {"product": lambda: a @ b}, 5, 20)["product"]
    return 2 * 4096**3 / milliseconds * 1e-9


def _bandwidth(torch: Any) -> float:
    """Return GB/s that a copy reads and writes."""
    a, b = (torch.empty(1 << 28, device="cuda", dtype=torch.uint8) for _ in range(2))
    return 2 * (1 << 28) / _times(torch, {"copy": lambda: b.copy_(a)}, 5, 20)["copy"] * 1e-6


def table(rows: Sequence[Row]) -> str:
    """Return the rows for people, with the geometric means of the ratios by precision."""
    lines = [f"{'network':16}{'precision':>10}{'ours ms':>10}{'eager':>10}{'compiled':>10}"
             f"{'ratio':>8}{'peak':>8}{'error':>10}"]  # fmt: skip
    for r in rows:
        shown = [_shown(v, ".3f") for v in (r.ours, r.eager, r.compiled)]
        line = f"{r.network:16}{r.precision:>10}" + "".join(f"{s:>10}" for s in shown)
        line += f"{_shown(r.ratio, '.2f'):>8}{_shown(r.peak, '.0%'):>8}"
        lines.append(f"{line}{_shown(r.error, '.1e'):>10}  {r.why}".rstrip())
    for precision in dict.fromkeys(r.precision for r in rows):
        ratios = [r.ratio for r in rows if r.precision == precision and r.ratio]
        if ratios:
            mean = math.exp(float(np.mean(np.log(ratios))))
            lines.append(f"{precision}: {mean:.2f} in the geometric mean of {len(ratios)}, "
                         f"{min(ratios):.2f} at least")  # fmt: skip
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
