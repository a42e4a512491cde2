"""The program that times the candidates of a workload, and its data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.backends.cuda.targets import EMULATED
from atc.backends.flops import operations
from atc.backends.kernel import Candidate, Workload
from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.codegen.gpu import launches
from atc.codegen.gpu_values import listed
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Recurrent
from atc.ir.ops.grouped import GroupedMatMul

TOLERANCE = {
    "float32": 1e-3, "bf16x6": 1e-3, "bf16x3": 1e-3, "tf32": 1e-2, "bf16": 3e-2, "int8": 3e-2,
}  # fmt: skip
"""Largest error against the portable kernel, as a part of the largest result, by precision."""
BUDGET = 0.5
"""Seconds after which a workload's timing rounds end, once every candidate had two."""
HOT, COOLING = 90.0, 10
"""Degrees Celsius of a board too hot to measure on, and the most seconds to let it cool."""
ROOM, REPEATED = 256, 16
"""Bytes of whose multiples a GPU's tensors begin; launches of the graph that is timed."""
COLD_BYTES = 48 << 20
"""Copies of the constant operands take up to this much, more than any L2, to be read cold."""


def harness_of(
    w: Workload, chosen: Sequence[Candidate], sources: Sequence[KernelSource], target: Target,
    warm: bool = False,
) -> tuple[dict[str, object], bytes]:  # fmt: skip
    """Return the values of the harness template and the content of its data file.

    Weights are read cold, as those of a network drive each other out of the caches, unless `warm`.
    """
    parts: list[bytes] = []
    size = 0

    def place(array: Array) -> int:
        nonlocal size
        data = np.ascontiguousarray(array).tobytes()
        padded = -(-max(len(data), 1) // 64) * 64
        parts.append(data + bytes(padded - len(data)))
        size += padded
        return size - padded

    arrays = operands(w)
    plain = {k: place(a) for k, a in enumerate(arrays) if a is not None}
    calls = []
    for candidate, source in zip(chosen, sources, strict=True):
        packs = candidate.kernel.packs(w, candidate.params, target)
        packed = {k: place(p(a)) for k, p in packs.items() if (a := arrays[k]) is not None}
        args = [
            f"(const void *)({'w' if w.constant[k] else 'd'} + {packed.get(k, plain[k])})"
            for k in plain
        ]
        args += [f"(void *)got{k}" for k in range(len(w.outputs))]
        args += ["scratch"] if source.scratch else []
        args += [source.table] if source.dims else []
        tolerance = TOLERANCE[candidate.kernel.precision]
        calls.append({"call": f"{source.symbol}({', '.join(args)});", "tolerance": tolerance})
    constant_bytes = sum(t.nbytes for t, c in zip(w.inputs, w.constant, strict=True) if c and t)
    cold = constant_bytes >= 1 << 16 and not warm
    copies = max(1, min(12, COLD_BYTES // max(size, 1))) if cold else 1
    values: dict[str, object] = {
        "prototypes": [s.prototype for s in sources], "data_size": size, "copies": copies,
        "outputs": [(t.nbytes, t.dtype.label) for t in w.outputs],
        "scratch": max(s.scratch for s in sources) + 64, "candidates": calls,
        "tiles": any(s.tiles for s in sources),
        "hot": HOT, "cooling": COOLING, "min_ns": 2e5, "rounds": 9, "budget_ns": 1e9 * BUDGET,
    }  # fmt: skip
    return values, b"".join(parts)


def device_harness_of(
    w: Workload, chosen: Sequence[Candidate], sources: Sequence[KernelSource], target: Target
) -> tuple[dict[str, object], bytes]:
    """Return the same for the harness of a GPU, whose memory has the data, results and scratch."""
    parts: list[bytes] = []
    size = 0

    def place(array: Array | None) -> int:
        nonlocal size
        data = b"" if array is None else np.ascontiguousarray(array).tobytes()
        padded = _with_room(len(data))
        parts.append(data + bytes(padded - len(data)))
        size += padded
        return size - padded

    arrays = operands(w)
    at = [place(array) for array in arrays]
    packings: dict[str, dict[int, int]] = {}
    packed = []
    for candidate in chosen:
        name = candidate.kernel.packing(w, candidate.params, target)
        if name not in packings:
            packs = candidate.kernel.packs(w, candidate.params, target)
            found = {k: place(p(a)) for k, p in packs.items() if (a := arrays[k]) is not None}
            packings[name] = found
        packed.append(packings[name])
    places: list[int] = []
    end = size
    for t in w.outputs:
        places.append(end)
        end += _with_room(t.nbytes)
    calls = []
    for candidate, source, packed_places in zip(chosen, sources, packed, strict=True):
        launch = source.launch
        assert launch is not None
        begins = [packed_places.get(k, b) for k, b in enumerate(at) if w.inputs[k] is not None]
        pointers = [*begins, *places, *([end] if source.scratch else [])]
        own = [f"gpu->arena + {b}" for b in pointers]
        calls.append({
            "launches": [*launches(launch, "INT64_MAX", own)],
            "tolerance": TOLERANCE[candidate.kernel.precision],
        })
    emulated = target.device == EMULATED
    values: dict[str, object] = {
        "kernels": tuple(map(listed, sources)), "emulated": emulated, "candidates": calls,
        "data_size": size, "places": places, "arena": end + max(s.scratch for s in sources) + ROOM,
        "outputs": [(t.nbytes, t.dtype.label) for t in w.outputs],
        "repeated": 1 if emulated else REPEATED, "min_ns": 2e5, "rounds": 9,
        "budget_ns": 1e9 * BUDGET,
    }  # fmt: skip
    return values, b"".join(parts)


def _with_room(size: int) -> int:
    """Return the bytes from a tensor of so many to where the next one may begin."""
    return -(-max(size, 1) // ROOM) * ROOM


def operands(w: Workload) -> list[Array | None]:
    """Return data for a workload's operands; None for those that it lacks.

    Weights in floats shrink with the length of the sums, so that these are about 1: functions
    behind them take longer where their results are subnormal, and states that grow would part by
    their roundings. Rows of a grouped product are spread over its matrices.
    """
    arrays = [None if t is None else sample(t, k) for k, t in enumerate(w.inputs)]
    type_ = w.inputs[1] if len(arrays) > 1 else None
    if type_ is not None and type_.dtype.is_float and arrays[1] is not None:
        weights = arrays[1] / _length_of_sums(w) ** 0.5
        arrays[1] = weights.astype(arrays[1].dtype)
    if isinstance(w.op, GroupedMatMul) and (t := w.inputs[-1]) is not None:
        arrays[-1] = np.arange(t.size) * w.op.matrices // t.size
    return arrays


def _length_of_sums(w: Workload) -> int:
    """Return how many products are summed for an element; 1 where none are."""
    if isinstance(w.op, Recurrent):
        return w.op.hidden
    return max(operations(w) // (2 * w.outputs[0].size), 1)


def sample(type_: TensorType, seed: int) -> Array:
    """Return seeded data: normal numbers, small integers."""
    rng = np.random.default_rng(seed)
    if type_.dtype.is_float:
        return rng.standard_normal(type_.shape).astype(type_.dtype.numpy)
    high = 2 if type_.dtype is DType.BOOL else 8
    return rng.integers(0, high, type_.shape).astype(type_.dtype.numpy)
