"""Draws networks with states of many kinds, one behind another, and runs them for some steps.

The truth is the same model in onnxruntime, given its states anew at each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz.choices import Random
from fuzz.draw import Array
from fuzz.texts import parsed, session_of, wrong

import atc

STEPS, SAVED = 6, 3
"""Calls of a network, and those after which its states are saved."""
BOUND, ROUGH = 2e-4, 5e-2
"""Largest errors, as parts of the largest magnitude; ROUGH where states are rounded."""


@dataclass(frozen=True)
class Part:
    """Text that makes {y} of {x}, both float[1, 8]; names that end in {n} are its own.

    States {name}{n}_in become {name}{n}_out; `states` says their types, `weights` the shapes of
    normal numbers.
    """

    text: str
    states: Mapping[str, str]
    weights: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bound: float = BOUND


_RING = """
    row{n} = Unsqueeze({x}, one)
    all{n} = Concat<axis = 1>(%s)
    s{n}_out = Slice(all{n}, %s, one)"""
_ATTENTION = """
    q{n} = MatMul(row{n}, w{n})
    k{n} = Transpose<perm = [0, 2, 1]>(s{n}_out)
    scores{n} = MatMul(q{n}, k{n})
    p{n} = Softmax<axis = -1>(scores{n})
    mix{n} = MatMul(p{n}, s{n}_out)
    {y} = Squeeze(mix{n}, one)"""
_CELL = """
    both{n} = Concat<axis = 1>({x}, s{n}_in)
    gate{n} = Gemm(both{n}, w{n}, b{n})
    g{n} = Sigmoid(gate{n})
    new{n} = Gemm(both{n}, v{n}, b{n})
    z{n} = Tanh(new{n})
    kept{n} = Mul(g{n}, s{n}_in)
    f{n} = Sub(unit, g{n})
    taken{n} = Mul(f{n}, z{n})
    s{n}_out = Add(kept{n}, taken{n})
    {y} = Add(s{n}_out, {x})"""
_CONV = """
    column{n} = Unsqueeze({x}, two)
    all{n} = Concat<axis = 2>(s{n}_in, column{n})
    s{n}_out = Slice(all{n}, one, end, two)
    sums{n} = Conv<%s>(all{n}, w{n}, b{n})
    flat{n} = Squeeze(sums{n}, two)
    {y} = Relu(flat{n})"""

PARTS: Mapping[str, Part] = {
    "LSTM": Part("""
        row{n} = Reshape({x}, s118)
        all{n}, h{n}_out, c{n}_out = LSTM<hidden_size = 4>(
            row{n}, w{n}, r{n}, b{n}, , h{n}_in, c{n}_in)
        flat{n} = Reshape(all{n}, s14)
        {y} = MatMul(flat{n}, p{n})""",
        {"h": "float[1, 1, 4]", "c": "float[1, 1, 4]"},
        {"w": (1, 16, 8), "r": (1, 16, 4), "b": (1, 32), "p": (4, 8)},
    ),
    "layers": Part("""
        row{n} = Reshape({x}, s118)
        h0{n}, h1{n} = Split<axis = 0, num_outputs = 2>(h{n}_in)
        c0{n}, c1{n} = Split<axis = 0, num_outputs = 2>(c{n}_in)
        all0{n}, h2{n}, c2{n} = LSTM<hidden_size = 4>(row{n}, w{n}, r{n}, b{n}, , h0{n}, c0{n})
        row1{n} = Squeeze(all0{n}, one)
        all1{n}, h3{n}, c3{n} = LSTM<hidden_size = 4>(row1{n}, v{n}, r{n}, b{n}, , h1{n}, c1{n})
        h{n}_out = Concat<axis = 0>(h2{n}, h3{n})
        c{n}_out = Concat<axis = 0>(c2{n}, c3{n})
        flat{n} = Reshape(all1{n}, s14)
        {y} = MatMul(flat{n}, p{n})""",
        {"h": "float[2, 1, 4]", "c": "float[2, 1, 4]"},
        {"w": (1, 16, 8), "v": (1, 16, 4), "r": (1, 16, 4), "b": (1, 32), "p": (4, 8)},
    ),
    "GRU": Part("""
        row{n} = Reshape({x}, s118)
        all{n}, h{n}_out = GRU<hidden_size = 8, linear_before_reset = 1>(
            row{n}, w{n}, r{n}, b{n}, , h{n}_in)
        {y} = Reshape(h{n}_out, s18)""",
        {"h": "float[1, 1, 8]"}, {"w": (1, 24, 8), "r": (1, 24, 8), "b": (1, 48)},
    ),
    "cell": Part(_CELL, {"s": "float[1, 8]"}, {"w": (16, 8), "v": (16, 8), "b": (8,)}),
    "newest last": Part(
        _RING % ("s{n}_in, row{n}", "one, five") + _ATTENTION, {"s": "float[1, 4, 8]"},
        {"w": (8, 8)},
    ),
    "newest first": Part(
        _RING % ("row{n}, s{n}_in", "zero, four") + _ATTENTION, {"s": "float[1, 4, 8]"},
        {"w": (8, 8)},
    ),
    "oldest leaves first": Part("""
        row{n} = Unsqueeze({x}, one)
        kept{n} = Slice(s{n}_in, one, end, one)
        s{n}_out = Concat<axis = 1>(kept{n}, row{n})""" + _ATTENTION,
        {"s": "float[1, 4, 8]"}, {"w": (8, 8)},
    ),
    "stacked windows": Part("""
        row{n} = Unsqueeze({x}, one)
        first{n} = Slice(s{n}_in, zero, one, zero)
        past{n} = Squeeze(first{n}, zero)
        all{n} = Concat<axis = 1>(past{n}, row{n})
        next{n} = Slice(all{n}, one, end, one)
        mean{n} = ReduceMean(all{n}, one)
        second{n} = Slice(s{n}_in, one, two, zero)
        past2{n} = Squeeze(second{n}, zero)
        all2{n} = Concat<axis = 1>(past2{n}, mean{n})
        next2{n} = Slice(all2{n}, one, end, one)
        one{n} = Unsqueeze(next{n}, zero)
        two{n} = Unsqueeze(next2{n}, zero)
        s{n}_out = Concat<axis = 0>(one{n}, two{n})
        {y} = ReduceSum<keepdims = 0>(all2{n}, one)""", {"s": "float[2, 1, 3, 8]"}),
    "transposed window": Part("""
        row{n} = Unsqueeze({x}, one)
        column{n} = Transpose<perm = [0, 2, 1]>(row{n})
        turned{n} = Transpose<perm = [0, 2, 1]>(s{n}_in)
        all{n} = Concat<axis = 2>(turned{n}, column{n})
        last{n} = Slice(all{n}, one, end, two)
        s{n}_out = Transpose<perm = [0, 2, 1]>(last{n})
        sums{n} = Conv(all{n}, w{n}, b{n})
        {y} = Squeeze(sums{n}, two)""", {"s": "float[1, 2, 8]"}, {"w": (8, 8, 3), "b": (8,)}),
    "convolution": Part(
        _CONV % "dilations = [2]", {"s": "float[1, 8, 4]"}, {"w": (8, 8, 3), "b": (8,)}
    ),
    "depthwise": Part(
        _CONV % "group = 8", {"s": "float[1, 8, 2]"}, {"w": (8, 1, 3), "b": (8,)}
    ),
    "average": Part("""
        old{n} = Mul(s{n}_in, most)
        share{n} = Mul({x}, rest)
        s{n}_out = Add(old{n}, share{n})
        {y} = Sub({x}, s{n}_in)""", {"s": "float[1, 8]"}),
    "count": Part("""
        s{n}_out = Add(s{n}_in, one)
        real{n} = Cast<to = 1>(s{n}_in)
        wave{n} = Sin(real{n})
        {y} = Add({x}, wave{n})""", {"s": "int64[1]"}),
    "bytes": Part("""
        v{n} = DequantizeLinear(s{n}_in, step, origin)
        half{n} = Mul(v{n}, most)
        sum{n} = Add(half{n}, {x})
        s{n}_out = QuantizeLinear(sum{n}, step, origin)
        {y} = Add(v{n}, {x})""", {"s": "int8[1, 8]"}, bound=ROUGH),
    "halves": Part("""
        old{n} = Cast<to = 1>(s{n}_in)
        new{n} = Concat<axis = 0>(old{n}, {x})
        last{n} = Slice(new{n}, one, end, zero)
        s{n}_out = Cast<to = 10>(last{n})
        {y} = ReduceMean(new{n}, zero)""", {"s": "float16[3, 8]"}, bound=ROUGH),
    "exchanged": Part("""
        a{n}_out = Neg(b{n}_in)
        old{n} = Mul(a{n}_in, most)
        b{n}_out = Add(old{n}, {x})
        {y} = Add(a{n}_in, b{n}_in)""", {"a": "float[1, 8]", "b": "float[1, 8]"}),
    "delayed": Part("""
        a{n}_out = Identity({x})
        b{n}_out = Identity(a{n}_in)
        c{n}_out = Identity(b{n}_in)
        {y} = Add(c{n}_in, {x})""", {k: "float[1, 8]" for k in "abc"}),
    "If": Part("""
        peak{n} = ReduceMax<keepdims = 0>({x})
        up{n} = Greater(peak{n}, unit)
        s{n}_out = If(up{n})<
            then_branch = then () => (float[1, 8] t{n}) {{ t{n} = Add(s{n}_in, {x}) }},
            else_branch = other () => (float[1, 8] o{n}) {{ o{n} = Identity(s{n}_in) }}>
        {y} = Tanh(s{n}_out)""", {"s": "float[1, 8]"}),
    "Loop": Part("""
        s{n}_out = Loop(trips, , s{n}_in)<body = body
            (int64 k{n}, bool c{n}, float[1, 8] h{n}) => (bool d{n}, float[1, 8] g{n}) {{
                d{n} = Identity(c{n})
                p{n} = MatMul(h{n}, w{n})
                q{n} = Add(p{n}, {x})
                g{n} = Tanh(q{n}) }}>
        {y} = Identity(s{n}_out)""", {"s": "float[1, 8]"}, {"w": (8, 8)}),
    "scattered": Part("""
        at{n} = Mod(k{n}_in, five)
        place{n} = Reshape(at{n}, s11)
        s{n}_out = ScatterND(s{n}_in, place{n}, {x})
        k{n}_out = Add(k{n}_in, one)
        {y} = ReduceMean(s{n}_out, zero)""", {"s": "float[5, 8]", "k": "int64[1]"}),
    "window": Part("""
        at{n} = Mod(k{n}_in, five)
        place{n} = Reshape(at{n}, s11)
        wide{n} = Concat<axis = 1>({x}, {x})
        s{n}_out = ScatterND(s{n}_in, place{n}, wide{n})
        k{n}_out = Add(k{n}_in, one)
        end{n} = Add(at{n}, one)
        held{n} = Slice(s{n}_out, zero, end{n}, zero)
        keys{n} = Transpose<perm = [1, 0]>(held{n})
        scores{n} = MatMul(wide{n}, keys{n})
        p{n} = Softmax<axis = -1>(scores{n})
        mix{n} = MatMul(p{n}, held{n})
        {y} = Slice(mix{n}, zero, eight, one)""", {"s": "float[5, 16]", "k": "int64[1]"}),
    "overwritten windows": Part("""
        row{n} = Unsqueeze({x}, one)
        past{n} = Slice(s{n}_in, zero, two, one)
        all{n} = Concat<axis = 1>(past{n}, row{n})
        next{n} = Slice(all{n}, one, end, one)
        r{n} = ScatterND(s{n}_in, grid01, next{n})
        mean{n} = ReduceMean(all{n}, one)
        past2{n} = Slice(r{n}, two, end, one)
        all2{n} = Concat<axis = 1>(past2{n}, mean{n})
        next2{n} = Slice(all2{n}, one, end, one)
        s{n}_out = ScatterND(r{n}, grid234, next2{n})
        {y} = ReduceSum<keepdims = 0>(all2{n}, one)""", {"s": "float[1, 5, 8]"}),
    "overwritten rows": Part("""
        row{n} = Unsqueeze({x}, one)
        past{n} = Slice(s{n}_in, zero, two, one)
        sum{n} = ReduceSum(past{n}, one)
        next{n} = Add(sum{n}, row{n})
        next2{n} = Concat<axis = 1>(next{n}, row{n})
        r{n} = ScatterND(s{n}_in, grid01, next2{n})
        whole{n} = ReduceMean(r{n}, one)
        {y} = Squeeze(whole{n}, one)
        s{n}_out = ScatterND(r{n}, grid1, whole{n})""", {"s": "float[1, 3, 8]"}),
    "flags": Part("""
        positive{n} = Greater({x}, nothing)
        s{n}_out = Xor(s{n}_in, positive{n})
        other{n} = Neg({x})
        {y} = Where(s{n}_out, {x}, other{n})""", {"s": "bool[1, 8]"}),
    "turned": Part("""
        column{n} = Transpose<perm = [1, 0]>({x})
        product{n} = MatMul(column{n}, {x})
        turned{n} = Transpose<perm = [1, 0]>(s{n}_in)
        old{n} = Mul(turned{n}, rest)
        s{n}_out = Add(old{n}, product{n})
        z{n} = MatMul({x}, s{n}_in)
        {y} = Tanh(z{n})""", {"s": "float[8, 8]"}),
}  # fmt: skip
_CONSTANTS: Mapping[str, Any] = {
    "zero": [0], "one": [1], "two": [2], "four": [4], "five": [5], "eight": [8], "end": [1 << 40],
    "s11": [1, 1], "s14": [1, 4], "s18": [1, 8], "s118": [1, 1, 8], "trips": 2,
    "unit": np.float32(1), "nothing": np.float32(0), "most": np.float32(0.75),
    "rest": np.float32(0.25), "step": np.float32(0.0625), "origin": np.int8(0),
    "grid01": [[[0, 0], [0, 1]]], "grid1": [[[0, 1]]], "grid234": [[[0, 2], [0, 3], [0, 4]]],
    "low": np.float32(-4), "high": np.float32(4),
}  # fmt: skip
OPTIONS: Sequence[Mapping[str, Any]] = (
    {}, {}, {"num_threads": 2}, {"memory_in_place": 0}, {"disable_reuse_memory": 1},
    {"io": "arena"}, {"kernels": "portable"}, {"deterministic_math": 1}, {"step": 1},
    {"external_weight": 1}, {"parallel_branches": 2}, {"layout_transform": "nchw"},
)  # fmt: skip


@dataclass(frozen=True)
class Stateful:
    """A model of one step, the names of its parts, pairs of states, and a bound of errors."""

    model: onnx.ModelProto
    parts: Sequence[str]
    states: Mapping[str, str]
    bound: float


def draw_stateful(seed: int) -> Stateful:
    """Return a network of two to five parts."""
    r = Random(seed)
    names = [r.pick(*PARTS) for _ in range(r.pick(2, 3, 4, 5))]
    lines, inputs, outputs, x = list[str](), ["float[1, 8] x"], ["float[1, 8] y"], "x"
    weights: dict[str, Array] = {}
    for n, name in enumerate(names):
        part, y = PARTS[name], f"x{n}"
        lines.append(part.text.format(x=x, y=y, n=n))
        inputs += [f"{type_} {state}{n}_in" for state, type_ in part.states.items()]
        outputs += [f"{type_} {state}{n}_out" for state, type_ in part.states.items()]
        for weight, shape in part.weights.items():
            weights[f"{weight}{n}"] = (r.array(*shape) / np.sqrt(shape[-1])).astype(np.float32)
        x = y
        if r.chance():
            lines.append(f"    norm{n} = LayerNormalization({x}, scale)")
            x = f"norm{n}"
    lines.append(f"    y = Clip({x}, low, high)")
    signature = f"net ({', '.join(inputs)}) => ({', '.join(outputs)})"
    known = {**_CONSTANTS, "scale": np.ones(8, np.float32)}
    model = parsed(f"{signature} {{{''.join(lines)}\n}}", known, weights)
    states = {i.name: f"{i.name[:-3]}_out" for i in model.graph.input if i.name.endswith("_in")}
    return Stateful(model, names, states, max(PARTS[name].bound for name in names))


def outcome(seed: int, target: str, folder: Path) -> str:
    """Return what is wrong about the network of a seed, '' if nothing is."""
    case, r = draw_stateful(seed), Random(seed + 10**6)
    options, given = dict(r.pick(*OPTIONS)), r.array(STEPS, 1, 8).astype(np.float32)
    state = r.pick("auto", ";".join(f"{a}:{b}" for a, b in case.states.items()))
    if "window" in case.parts:  # whose extents the data decide
        options = {k: v for k, v in options.items() if k not in ("io", "step")}
    if target.startswith("cuda"):  # which rounds sums in another order
        options.pop("deterministic_math", None)
    path = folder / f"state{seed}.onnx"
    onnx.save(case.model, path)
    output = folder / f"state{seed}"
    atc.compile(str(path), str(output), target=target, state=state, **options)
    expected = [*_truth(case, given)]
    first, second = atc.load(output), atc.load(output)
    saved = b""
    calls = [(first, k, "a call") for k in range(STEPS)]
    calls += [(second, k, "a context of its own") for k in range(STEPS - 1)]
    for network, k, what in calls:
        if network is first and k == SAVED:
            saved = first.save_state()
        if found := wrong(network(given[k]), expected[k], case.bound):
            return f"{case.parts} with {options}: step {k}, {what}: {found}"
    first.reset()
    second.restore_state(saved)
    for network, k, what in ((first, 0, "reset"), (second, SAVED, "restored")):
        if found := wrong(network(given[k]), expected[k], case.bound):
            return f"{case.parts} with {options}: step {k}, {what}: {found}"
    return ""


def _truth(case: Stateful, given: Array) -> Iterator[Array]:
    """Yield the first result of each step."""
    session = session_of(case.model)
    names = [o.name for o in case.model.graph.output]
    states = {
        i.name: np.zeros(
            [d.dim_value for d in i.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type),
        )
        for i in case.model.graph.input
        if i.name in case.states
    }
    for x in given:
        results = dict(zip(names, session.run(None, {"x": x, **states}), strict=True))
        states = {a: np.asarray(results[b]) for a, b in case.states.items()}
        yield np.asarray(results["y"])
