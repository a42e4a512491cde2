"""Recurrent layers of many rows at a time against float64 and onnxruntime, in every precision."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_compiler import CFLAGS
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray
from ort_cases import Case, noise
from simd_program import find

import atc
from atc.backends.cpu.amx.rnn import RecurrentAmx, RecurrentAmxSplit
from atc.backends.cpu.rnn.batch import BatchedRecurrent, GroupParams, RecurrentBatch, RecurrentBf16
from atc.backends.cpu.rnn.batch_bytes import RecurrentBytes
from atc.backends.cpu.rnn.portable import CutParams, RecurrentRows
from atc.backends.cpu.rnn.vectors import RecurrentVectors
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.kernel_source import render_kernel
from atc.backends.targets import get_target
from atc.dims import Symbol, dim
from atc.ir.graph import type_of
from atc.ir.ops import Recurrent
from atc.passes import run_passes
from atc.select.select import Limits, choose
from atc.templates import verbatim
from support import compile_graph

Array = NDArray[Any]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, WIDTH = 5, 6
KERNELS: Sequence[tuple[str, BatchedRecurrent[Any]]] = (
    ("x86-64-sse2", RecurrentBatch()),
    ("x86-64-avx2", RecurrentBatch()),
    ("aarch64-neon", RecurrentBatch()),
    ("x86-64-avx512", RecurrentBatch()),
    ("x86-64-avx512-bf16", RecurrentBf16()),
    ("x86-64-amx", RecurrentAmx()),
    ("x86-64-amx", RecurrentAmxSplit()),
)
USUAL = (("x86-64-avx512", "float32"), ("x86-64-amx", "bf16x3"))
"""What is run by default; rounded operands are a part of what split ones are."""
EVERY = pytest.mark.parametrize(
    ("target", "kernel"),
    [
        pytest.param(t, k, marks=() if (t, k.precision) in USUAL else pytest.mark.slow)
        for t, k in KERNELS
    ],
    ids=lambda v: getattr(v, "name", v),
)
ERRORS = {"float32": 3e-6, "bf16x3": 6e-5, "bf16": 2.5e-2}
"""Largest errors of states, which lie between -1 and 1, by precision."""


@dataclass(frozen=True)
class Layer:
    """A recurrent layer; what isn't said is absent."""

    op: str
    batch: int
    hidden: int
    directions: int = 1
    layout: int = 0
    lengths: bool = False
    initial: bool = False
    peepholes: bool = False
    after: int = 0
    reverse: bool = False
    activations: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        """The model with its inputs, weights constant."""
        rows, d, h, n = GATES[self.op] * self.hidden, self.directions, self.hidden, self.batch
        state = (n, d, h) if self.layout else (d, n, h)
        x = (n, STEPS, WIDTH) if self.layout else (STEPS, n, WIDTH)
        low = int(self.initial)  # rows of no steps, where onnxruntime's result is the standard's
        lengths = (low + np.arange(n) * 2 % (STEPS + 1 - low)).astype(np.int32)
        inputs: list[Any] = [
            noise(*x), noise(d, rows, WIDTH, seed=1) * 0.5,
            noise(d, rows, h, seed=2) * np.float32(1 / h**0.5), noise(d, 2 * rows, seed=3),
            lengths if self.lengths else None, noise(*state, seed=4) if self.initial else None,
        ]  # fmt: skip
        attributes: dict[str, Any] = {"hidden_size": h, "layout": self.layout}
        attributes["direction"] = (
            "bidirectional" if d == 2 else "reverse" if self.reverse else "forward"
        )
        attributes |= {"activations": [*self.activations]} if self.activations else {}
        if self.op == "LSTM":
            inputs.append(noise(*state, seed=5) if self.initial else None)
            inputs.append(noise(d, 3 * h, seed=6) if self.peepholes else None)
        if self.op == "GRU":
            attributes["linear_before_reset"] = self.after
        outputs = (np.float32,) * (3 if self.op == "LSTM" else 2)
        known = (1, 2, 3, *[7] * (self.op == "LSTM"))
        return Case(self.op, inputs, known, attributes, 14, outputs=outputs)


LAYERS: Mapping[str, Layer] = {
    "peepholes": Layer("LSTM", 3, 40, 2, lengths=True, initial=True, peepholes=True),
    "rows": Layer("LSTM", 33, 32, lengths=True),
    "tile": Layer("LSTM", 16, 72, reverse=True, initial=True),
    "batch first": Layer("LSTM", 17, 17, 2, layout=1, initial=True),
    "reset": Layer("GRU", 16, 40, 2, lengths=True, initial=True),
    "reset, batch first": Layer("GRU", 33, 23, layout=1),
    "after": Layer("GRU", 3, 33, 2, initial=True, after=1),
    "after, rows": Layer("GRU", 33, 64, lengths=True, after=1),
    "plain": Layer("RNN", 16, 33, 2, lengths=True),
    "others": Layer("RNN", 35, 70, 2, activations=("Relu", "Softsign")),
    "one": Layer("LSTM", 1, 48, 2, lengths=True, initial=True),
    "one, reset": Layer("GRU", 1, 20),
    "few units": Layer("GRU", 17, 3, 2, lengths=True, initial=True),
    "few units, batch first": Layer("LSTM", 6, 1, layout=1),
}


FEW = ("peepholes", "batch first", "reset", "after, rows")
"""Layers that together meet every branch of the templates."""


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {"Relu": lambda x: np.maximum(x, 0), "Softsign": lambda x: x / (1 + np.abs(x))}


def shares(layer: Layer, inputs: Sequence[Any], d: int) -> Array:
    """Return what the input adds to each gate [steps, rows, gates, units], in float64."""
    x, w, b = (np.asarray(inputs[k], np.float64) for k in (0, 1, 3))
    gates = GATES[layer.op]
    x = np.moveaxis(x, 0, 1) if layer.layout else x
    biases = b[d].reshape(2, gates, layer.hidden).copy()
    if layer.op == "GRU" and layer.after:
        biases[1, 2] = 0  # added before the reset
    return (x @ w[d].T).reshape(*x.shape[:2], gates, layer.hidden) + biases.sum(0)


def step(layer: Layer, inputs: Sequence[Any], d: int, given: Array, h: Array, c: Array) -> Any:
    """Return h and c after one step of all rows, by ONNX's formulas."""
    hidden, gates = layer.hidden, GATES[layer.op]
    r = np.asarray(inputs[2][d], np.float64).reshape(gates, hidden, hidden)
    sums = given + np.einsum("bk,gjk->bgj", h, r)
    if layer.op == "RNN":
        f = FUNCTIONS[layer.activations[d]] if layer.activations else np.tanh
        return f(sums[:, 0]), c
    if layer.op == "GRU":
        z, reset = sigmoid(sums[:, 0]), sigmoid(sums[:, 1])
        if layer.after:
            bias = np.asarray(inputs[3][d], np.float64)[-hidden:]
            new = np.tanh(given[:, 2] + reset * (h @ r[2].T + bias))
        else:
            new = np.tanh(given[:, 2] + (reset * h) @ r[2].T)
        return (1 - z) * new + z * h, c
    p = np.zeros(3 * hidden) if inputs[7] is None else np.asarray(inputs[7][d], np.float64)
    p = p.reshape(3, hidden)
    i, f = sigmoid(sums[:, 0] + p[0] * c), sigmoid(sums[:, 2] + p[2] * c)
    c = f * c + i * np.tanh(sums[:, 3])
    return sigmoid(sums[:, 1] + p[1] * c) * np.tanh(c), c


def truth(layer: Layer) -> list[Array]:
    """Return Y, Y_h and for LSTM Y_c in float64."""
    inputs = layer.case.inputs
    n, hidden, sides = layer.batch, layer.hidden, layer.directions
    y = np.zeros((STEPS, sides, n, hidden))
    first = [np.zeros((sides, n, hidden)) if k >= len(inputs) or inputs[k] is None else
             np.asarray(np.moveaxis(inputs[k], 0, layer.layout), np.float64)
             for k in (5, 6)]  # fmt: skip
    last = [np.zeros((sides, n, hidden)) for _ in range(2)]
    lengths = np.full(n, STEPS) if inputs[4] is None else inputs[4]
    for d in range(sides):
        given = shares(layer, inputs, d)
        for b in range(n):
            h, c = (a[d, b : b + 1] for a in first)
            times = range(lengths[b])
            for t in reversed(times) if d or layer.reverse else times:
                h, c = step(layer, inputs, d, given[t, b : b + 1], h, c)
                y[t, d, b] = h[0]
            last[0][d, b], last[1][d, b] = h[0], c[0]
    if layer.layout:
        y, last = y.transpose(2, 0, 1, 3), [a.transpose(1, 0, 2) for a in last]
    return [y, *last[: 2 if layer.op == "LSTM" else 1]]


@cache
def workload(layer: Layer) -> tuple[Workload, tuple[Any, ...]]:
    """Return what a layer's Recurrent is, and its operands."""
    case = layer.case
    graph = run_passes(compile_graph(case.model))
    (node,) = [n for n in graph.nodes if isinstance(n.op, Recurrent)]
    inputs = case.inputs
    given = np.stack([shares(layer, inputs, d) for d in range(layer.directions)], 2)
    given = given.swapaxes(0, 1) if layer.layout else given
    free = [None, None, None, *inputs[4:7]]
    operands = [given.astype(np.float32)]
    for k, name in enumerate(node.inputs[1:], 1):
        operands.append(graph.constants[name] if name in graph.constants
                        else free[k] if name else None)  # fmt: skip
    return workload_of(graph, node, graph.constants), tuple(operands)


def call(layer: Layer, kernel: BatchedRecurrent[Any], target: str, turn: int = 0) -> Call:
    """Return a call with the parameters that come `turn`-th."""
    w, operands = workload(layer)
    record = get_target(target)
    assert kernel.accepts(w, record), layer
    sets = kernel.parameters(w, record)
    return Call(kernel, sets[turn % len(sets)], w, operands)


def check(layers: Sequence[Layer], calls: Sequence[Call], target: str) -> None:
    results = run_calls(calls, vector_target(target))
    for layer, each, got in zip(layers, calls, results, strict=True):
        *states, every = got
        for a, b in zip([every, *states], truth(layer), strict=True):
            error = np.abs(a - b).max()
            assert error <= ERRORS[each.kernel.precision], f"{each}: {error}"


def suited(kernel: BatchedRecurrent[Any], target: str) -> list[Layer]:
    record = get_target(target)
    return [x for x in LAYERS.values() if kernel.accepts(workload(x)[0], record)]


@pytest.mark.few(1)
@EVERY
def test_equals_float64(target: str, kernel: BatchedRecurrent) -> None:
    layers = [x for x in map(LAYERS.get, FEW) if x and x in suited(kernel, target)]
    check(layers, [call(x, kernel, target, turn) for turn, x in enumerate(layers)], target)


@pytest.mark.slow
@EVERY
def test_all_layers_in_all_ways_equal_float64(target: str, kernel: BatchedRecurrent) -> None:
    layers = [x for x in suited(kernel, target) for _ in range(3)]
    calls = [call(x, kernel, target, turn) for turn, x in enumerate(layers)]
    check(layers, calls, target)


@pytest.mark.slow
@EVERY
def test_weights_beyond_the_cache_equal_float64(target: str, kernel: BatchedRecurrent) -> None:
    """Where tiles ask for what comes next, with one block of rows and with several."""
    layers = [Layer("LSTM", 5, 300, 2), Layer("GRU", 40, 400)]
    check(layers, [call(x, kernel, target) for x in layers], target)


def check_partitions(target: str, kernel: BatchedRecurrent[Any], names: Sequence[str]) -> None:
    record, calls = get_target(target), []
    for name in names:
        w, operands = workload(LAYERS[name])
        params = kernel.parameters(w, record)[0]
        cuts = kernel.shared_params(w, params, record, 4)
        assert len(cuts) >= 2
        calls += [Call(kernel, p, w, operands) for p in (params, *cuts)]
    whole: list[Array] = []
    kinds = set()
    for each, got in zip(calls, run_calls(calls, vector_target(target)), strict=True):
        cut = {*each.params.shown()} & {"sides", "rows", "units"}
        kinds |= cut
        whole = whole if cut else got
        for a, b in zip(got, whole, strict=True):
            np.testing.assert_array_equal(a, b, str(each))
    assert kinds == {"sides", "rows", "units"}


def test_partitions_for_threads_give_the_same_bits() -> None:
    check_partitions("x86-64-amx", RecurrentAmxSplit(), ["reset"])


@pytest.mark.slow
@EVERY
def test_all_partitions_give_the_same_bits(target: str, kernel: BatchedRecurrent) -> None:
    check_partitions(target, kernel, ["peepholes", "reset", "after, rows", "rows"])


def in_bytes(layer: Layer) -> tuple[Workload, tuple[Any, ...]]:
    """Return a layer that rounds its states, of drawn weights, and its operands."""
    w, (given, floats, *others) = workload(layer)
    r = np.random.default_rng(1).integers(-128, 128, floats.shape).astype(np.int8)
    op = replace(w.op, scales=(0.004, 0.003)[: len(w.op.cells)])
    types = (w.inputs[0], type_of(r), *w.inputs[2:])
    return replace(w, op=op, inputs=types), (given, r, *others)


@pytest.mark.parametrize(
    "target",
    ["x86-64-avx512-vnni", *(pytest.param(t, marks=pytest.mark.slow)
                             for t in ("x86-64-sse2", "x86-64-avx2", "aarch64-neon"))],
)  # fmt: skip
def test_rows_of_bytes_have_the_bits_that_each_has_alone(target: str) -> None:
    record = vector_target(target)
    each, every = RecurrentVectors(), RecurrentBytes()
    alone, together = [], []
    for name in FEW:
        w, operands = in_bytes(LAYERS[name])
        assert every.accepts(w, record)
        sets = every.parameters(w, record)
        cuts = every.shared_params(w, sets[0], record, 4)
        for params in (*sets[:2], *cuts):
            together.append(Call(every, params, w, operands))
            alone.append(Call(each, each.parameters(w, record)[0], w, operands))
    pairs = zip(run_calls(alone, record), run_calls(together, record), strict=True)
    for call_, (wanted, got) in zip(together, pairs, strict=True):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b, str(call_))


def check_specials(target: str, kernel: BatchedRecurrent) -> None:
    """As in float: an infinity stays one, NaN stays NaN, other rows keep their bits."""
    layer = Layer("RNN", 17, 40, initial=True, activations=("Relu",))
    plain = call(layer, kernel, target)
    first = np.array(plain.inputs[4])
    first[0, 2, 7], first[0, 4, 9], first[0, 6, 3] = np.inf, np.nan, 3.395e38
    changed = replace(plain, inputs=[*plain.inputs[:4], first, None])
    (_, want), (_, got) = run_calls([plain, changed], vector_target(target))
    odd = [2, 4, 6]
    others = [b for b in range(17) if b not in odd]
    np.testing.assert_array_equal(got[:, 0, others], want[:, 0, others])
    r = plain.inputs[1]
    assert r is not None
    assert plain.inputs[0] is not None
    with np.errstate(invalid="ignore", over="ignore"):
        sums = plain.inputs[0][0].reshape(17, 40) + first[0] @ r.reshape(40, 40)
        one = np.maximum(sums, 0)
    rows = [2, 4, *[6] * (kernel.precision != "bf16")]  # where that number is an infinity
    for b in rows:
        np.testing.assert_array_equal(np.isnan(got[0, 0, b]), np.isnan(one[b]))
        np.testing.assert_array_equal(np.isinf(got[0, 0, b]), np.isinf(one[b]))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_that_only_the_run_counts(threads: int, tmp_path: Path) -> None:
    layer = Layer("GRU", 5, 70, 2, lengths=True)
    case = replace(layer.case, constant=(1, 2, 3, 4))
    model = case.model
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "t"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    shape = f"{model.graph.input[0].name}:1~{STEPS},5,{WIDTH}"
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=shape, num_threads=threads,
                build_config="cc -O1")  # fmt: skip
    assert [*(tmp_path / "net" / "src" / "kernels").glob("atc_recurrent_batch*")]
    with atc.load(tmp_path / "net") as net:
        x = case.feeds[0]
        for got, want in zip(net(x), truth(layer), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=ERRORS["float32"])
        lengths = np.minimum(case.inputs[4], 3).astype(np.int32)
        shorter = replace(case, inputs=[x[:3], *case.inputs[1:4], lengths, None])
        wanted = shorter.onnxruntime()
        for got, want in zip(net(x[:3]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_infinities_and_nan_stay_in_their_rows() -> None:
    check_specials("x86-64-amx", RecurrentAmxSplit())


@pytest.mark.slow
@EVERY
def test_specials_stay_in_their_rows(target: str, kernel: BatchedRecurrent) -> None:
    check_specials(target, kernel)


def test_kernels_are_chosen_by_rows() -> None:
    """Vectors for one row, one tile for many; rounded operands only where that is allowed."""
    record = get_target("x86-64-amx")
    chosen = []
    for batch in (1, 2, 16):
        graph = run_passes(compile_graph(Layer("LSTM", batch, 128).case.model))
        node = next(n for n in graph.nodes if isinstance(n.op, Recurrent))
        w = workload_of(graph, node, graph.constants)
        chosen.append(choose(node, w, record, Limits()).candidate.kernel.name)
    assert chosen == ["recurrent_simd", "recurrent_batch", "recurrent_amx_bf16x3"]
    bf16 = choose(node, w, record, Limits(precisions=frozenset({"float32", "bf16x3", "bf16"})))
    assert bf16.candidate.kernel.name == "recurrent_amx_bf16"


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.slow)])
def test_compiles_with_the_machines_own_tiles(compiler: str, tmp_path: Path) -> None:
    find(compiler)
    target = get_target("x86-64-amx")
    candidate = Candidate(RecurrentAmxSplit(), GroupParams(u=1))
    source = render_kernel(candidate, workload(LAYERS["reset"])[0], target)
    for name, header in (("kernel", "cpu/kernel"), ("simd", "simd/avx512"),
                         ("simd_math", "simd/math"), ("simd_bf16", "simd/bf16"),
                         ("simd_tiles", "simd/tiles")):  # fmt: skip
        (tmp_path / f"{name}.h").write_text(verbatim(f"{header}.h"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "k.c").write_text(source.text)
    command = [compiler, *CFLAGS, *target.cflags, "-c", "src/k.c", "-o", "k.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [n for n, x in LAYERS.items() if not x.layout])
def test_float64_is_what_onnxruntime_computes(name: str) -> None:
    for a, b in zip(LAYERS[name].case.onnxruntime(), truth(LAYERS[name]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_rows_that_are_counted_at_run_time_are_not_shared_out() -> None:
    w, _ = workload(LAYERS["reset"])
    some = replace(w, op=replace(w.op, batch=dim(Symbol(0, "n", 1, 64))))
    assert RecurrentRows().shared_params(w, CutParams(), get_target("c99"), 2)
    assert not RecurrentRows().shared_params(some, CutParams(), get_target("c99"), 2)
