"""Cascades for the least memory: the same bits, no byte beside a buffer, and the sizes stated."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from projects import joined_sources, require, sources, write_project
from stages import plans_of, project_of
from tiny_networks import NETWORKS, Net

from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.diagnostics import Diagnostics
from atc.errors import InternalError
from atc.memory.audit import audit_memory
from atc.options.options import Options
from atc.pipeline.request import resolve_request
from atc.program.cascade import find_paths, make_cascade
from atc.program.steps import CascadeLoop

Array = NDArray[Any]


@dataclass
class Chain:
    """A network's layers, and the shape of its input."""

    shape: tuple[int, ...]
    layers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def model(self, quantized: bool = True) -> onnx.ModelProto:
        """Return it quantized or in floats."""
        net = Net(quantized, uneven=True)
        x = net.input(1, *self.shape)
        for kind, options in self.layers:
            x = getattr(net, kind)(x, **options)
        return net.model(x)


CHAINS: Mapping[str, Chain] = {
    "first layers": Chain((3, 23, 18), [
        ("conv", {"filters": 8, "stride": 2}), ("conv", {"filters": 8, "depthwise": True}),
        ("conv", {"filters": 13, "kernel": (1, 1)}),
        ("conv", {"filters": 13, "depthwise": True, "stride": 2}),
    ]),
    "inverted residuals": Chain((6, 13, 11), [
        ("inverted_residual", {"filters": 6}),
        ("inverted_residual", {"filters": 9, "kernel": 5, "stride": 2}),
        ("inverted_residual", {"filters": 9, "kernel": 7}),
    ]),
    "wide windows": Chain((4, 17, 9), [
        ("conv", {"filters": 8, "kernel": (5, 3)}), ("conv", {"filters": 5, "kernel": (2, 4)}),
        ("conv", {"filters": 8, "kernel": (3, 1), "stride": 3}),
    ]),
    "uneven padding": Chain((4, 14, 10), [
        ("conv", {"filters": 8, "kernel": (3, 3), "pads": (2, 0, 0, 1)}),
        ("conv", {"filters": 8, "kernel": (3, 3), "depthwise": True, "pads": (0, 2, 2, 0)}),
        ("conv", {"filters": 4, "kernel": (1, 1), "stride": 2}),
    ]),
    "dilated": Chain((8, 19, 9), [
        ("conv", {"filters": 8, "kernel": (3, 3), "depthwise": True, "dilation": 2}),
        ("conv", {"filters": 12, "kernel": (3, 3), "dilation": 3}),
        ("conv", {"filters": 8, "kernel": (1, 1)}),
    ]),
    "pooled": Chain((3, 26, 21), [
        ("conv", {"filters": 20}), ("pool", {"kernel": 3, "stride": 2}),
        ("conv", {"filters": 17, "kernel": (1, 1)}), ("pool", {"kernel": 2, "stride": 1}),
    ]),
}  # fmt: skip

MAIN = """#include "net.h"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{{
  static net_context context;
  static {type} x[{x}], y[{y}];
  void *const arena = aligned_alloc(64, NET_ARENA_SIZE + 63 & ~63);
  const void *const given[] = {{x}};
  void *const results[] = {{y}};
  if (fread(x, 1, sizeof x, stdin) != sizeof x) return 1;
  if (net_init(&context, arena, NET_ARENA_SIZE) != 0) return 2;
  for (int k = 0; k < 2; k++) {{
    if (net_run_tensors(&context, given, results) != 0) return 3;
  }}
  free(arena);
  return fwrite(y, 1, sizeof y, stdout) == sizeof y ? 0 : 4;
}}
"""


def run(
    folder: Path, model: onnx.ModelProto, target: str, x: Array, *flags: str,
    compiler: str = "cc", **limits: int,
) -> Array:  # fmt: skip
    """Return what a network computes, compiled by the host's compiler."""
    folder.mkdir()
    onnx.save(model, folder / "m.onnx")
    options = Options(model=folder / "m.onnx", output=folder / "net", target=target, **limits)
    write_project(folder / "net", project_of(options).emission)
    (size,) = model.graph.output
    shape = [d.dim_value for d in size.type.tensor_type.shape.dim]
    c = "float" if x.dtype == np.float32 else "signed char"
    main = MAIN.format(type=c, x=x.size, y=int(np.prod(shape)))
    (folder / "net/main.c").write_text(main)
    command = [compiler, "-std=c11", "-O0", "-ffp-contract=off", *flags, "-Iinclude", "-I."]
    joins = compiler == "cc"  # others, which optimise, see each kernel alone
    files = (joined_sources if joins else sources)(folder / "net")
    command += ["-Isrc/kernels", "main.c", *files, "-lm", "-o", "program"]
    subprocess.run(command, cwd=folder / "net", check=True)
    done = subprocess.run(
        [folder / "net/program"], input=x.tobytes(), capture_output=True, check=True
    )
    return np.frombuffer(done.stdout, x.dtype).reshape(shape)


def eager(patch: pytest.MonkeyPatch, height: int) -> None:
    """Let every path of stages be one cascade, with stripes of so many rows."""

    def whole(graph: Any, selection: Any, target: Any, **limits: Any) -> list[Any]:
        return [make_cascade(p, height, 1) for p in find_paths(graph, selection, target)]

    patch.setattr("atc.program.least_memory.least_memory_cascades", whole)


def in_place(patch: pytest.MonkeyPatch, height: int, count: int = 1) -> None:
    """Let every stage run by itself, or so many together, their result over the rows read."""

    def each(graph: Any, selection: Any, target: Any, **limits: Any) -> list[Any]:
        paths = find_paths(graph, selection, target, least=1)
        parts = (path[k : k + count] for path in paths for k in range(0, len(path), count))
        return [make_cascade(part, height, 1) for part in parts]

    patch.setattr("atc.program.least_memory.least_memory_cascades", each)


SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def check(
    name: str, target: str, height: int, folder: Path, *flags: str, quantized: bool = True
) -> None:
    model = CHAINS[name].model(quantized)
    x = np.random.default_rng(8).integers(-128, 128, (1, *CHAINS[name].shape)).astype(
        np.int8 if quantized else np.float32
    )
    want = run(folder / "c99", model, "c99", x)
    with pytest.MonkeyPatch.context() as patch:
        eager(patch, height)
        got = run(folder / "small", model, target, x, *flags)
    text = (folder / "small/net/src/net.c").read_text()
    assert "shift_rolling_buffer" in text
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(got, want)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "quantized"), [("first layers", True), ("pooled", False)])
def test_rows_handed_on_have_the_bits_of_whole_results(
    name: str, quantized: bool, tmp_path: Path
) -> None:
    check(name, "cortex-m4f", 1, tmp_path, quantized=quantized)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "height"),
    [(name, *(("cortex-m3", 2), ("cortex-m4f", 1), ("cortex-m55", 3))[k % 3])
     for k, name in enumerate(CHAINS)],
)  # fmt: skip
def test_so_have_rows_of_any_windows_and_nothing_beside_them_is_touched(
    name: str, target: str, height: int, tmp_path: Path
) -> None:
    check(name, target, height, tmp_path, *SANITIZED)


@pytest.mark.few(1)
@pytest.mark.parametrize("quantized", [True, False])
def test_a_row_of_padding_alone_needs_no_row_of_what_is_read(
    quantized: bool, tmp_path: Path
) -> None:
    chain = Chain((5, 3, 6), [
        ("conv", {"filters": 4, "kernel": (1, 1)}),
        ("conv", {"filters": 4, "kernel": (1, 1), "stride": 5, "pads": (1, 0, 0, 0)}),
        ("conv", {"filters": 7, "kernel": (3, 1), "depthwise": False, "pads": (2, 0, 2, 0)}),
    ])  # fmt: skip
    x = np.random.default_rng(8).integers(-128, 128, (1, *chain.shape)).astype(
        np.int8 if quantized else np.float32
    )
    want = run(tmp_path / "c99", chain.model(quantized), "c99", x)
    with pytest.MonkeyPatch.context() as patch:
        eager(patch, 1)
        got = run(tmp_path / "small", chain.model(quantized), "cortex-m4f", x, *SANITIZED)
    np.testing.assert_array_equal(got, want)


IN_PLACE = Chain((8, 13, 9), [
    ("conv", {"filters": 8, "depthwise": True}),
    ("conv", {"filters": 12, "kernel": (1, 1)}), ("conv", {"filters": 7, "kernel": (1, 1)}),
    ("conv", {"filters": 7, "kernel": (5, 3), "depthwise": True, "pads": (0, 2, 4, 0)}),
    ("pool", {"kernel": 3, "stride": 2}), ("conv", {"filters": 16, "kernel": (3, 3)}),
    ("conv", {"filters": 16, "kernel": (3, 3), "depthwise": True, "dilation": 2}),
])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "height"), [("cortex-m4f", 1), ("cortex-m3", 2), ("cortex-m55", 3)]
)
def test_results_written_over_the_rows_that_were_read_have_the_same_bits(
    target: str, height: int, tmp_path: Path
) -> None:
    model = IN_PLACE.model()
    x = np.random.default_rng(5).integers(-128, 128, (1, *IN_PLACE.shape)).astype(np.int8)
    want = run(tmp_path / "c99", model, "c99", x)
    with pytest.MonkeyPatch.context() as patch:
        in_place(patch, height)
        got = run(tmp_path / "small", model, target, x)
        options = Options(model=tmp_path / "small/m.onnx", output=tmp_path, target=target)
        arena = plans_of(resolve_request(options), Diagnostics()).shown.arena
    sizes = {b.name: b.size for b in arena.buffers}
    over = [b for b in arena.buffers if b.over]
    assert len(over) >= 5
    begins = arena.plan.offsets
    assert any(begins[b.name] < begins[b.over] + sizes[b.over] and
               begins[b.over] < begins[b.name] + b.size for b in over)  # fmt: skip
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("gcc", ["-O3", "-flto"]), ("clang", ["-O3"]), ("gcc", ["-O2", *SANITIZED])],
)
def test_so_have_they_for_compilers_that_make_use_of_restrict(
    compiler: str, flags: list[str], quantized: bool, tmp_path: Path
) -> None:
    """Where a result lies over its operand, no call reads what it writes."""
    model = IN_PLACE.model(quantized)
    x = np.random.default_rng(5).integers(-128, 128, (1, *IN_PLACE.shape)).astype(
        np.int8 if quantized else np.float32
    )
    want = run(tmp_path / "c99", model, "c99", x)
    for count in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            in_place(patch, 1, count)
            got = run(
                tmp_path / str(count), model, "cortex-m4f", x, *flags, compiler=require(compiler)
            )
        np.testing.assert_array_equal(got, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("count", [1, 2])
def test_the_audit_refuses_results_that_begin_a_byte_later(count: int, tmp_path: Path) -> None:
    """Each cascade's operand and result in a place of their own, as far apart as its lead says."""
    onnx.save(IN_PLACE.model(), tmp_path / "m.onnx")
    options = Options(model=tmp_path / "m.onnx", output=tmp_path, target="cortex-m4f")
    with pytest.MonkeyPatch.context() as patch:
        in_place(patch, 2, count)
        done = plans_of(resolve_request(options), Diagnostics()).shown
    loops = [s for s in done.program.steps if isinstance(s, CascadeLoop) and s.lead]
    found = 0
    for loop in loops:
        x, y = loop.calls[0].arguments[0], loop.node.outputs[0]
        if not {x, y} <= done.arena.offsets.keys():
            continue
        begin, lead = done.arena.plan.size, loop.lead or 0
        size = begin + lead + sum(done.program.types[v].nbytes for v in (x, y))
        for more in (0, 1):
            offsets = {**done.arena.offsets, x: begin + lead, y: begin + more}
            if not more:
                audit_memory(done.program, offsets, done.arena.scratch, size)
                continue
            with pytest.raises(InternalError, match="memory plan: the chain"):
                audit_memory(done.program, offsets, done.arena.scratch, size)
        found += 1
    assert found >= (4 if count == 1 else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "height"), [(name, 1 + k % 3) for k, name in enumerate(CHAINS)])
def test_so_have_rows_of_floats(name: str, height: int, tmp_path: Path) -> None:
    check(name, "cortex-m3", height, tmp_path, *SANITIZED, quantized=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "height"),
    [("inverted residuals", "x86-64-avx512-vnni", 1), ("wide windows", "x86-64-sse2", 2),
     ("uneven padding", "x86-64-sse2", 3), ("dilated", "x86-64-avx512-vnni", 2),
     ("first layers", "x86-64-sse2", 1)],
)  # fmt: skip
def test_so_have_rows_of_bytes_in_vectors(
    name: str, target: str, height: int, tmp_path: Path
) -> None:
    record = get_target(target)
    if record.features - host_features():
        pytest.skip(f"this machine has no {target}")
    model = CHAINS[name].model()
    x = np.random.default_rng(8).integers(-128, 128, (1, *CHAINS[name].shape)).astype(np.int8)
    want = run(tmp_path / "c99", model, "c99", x)
    with pytest.MonkeyPatch.context() as patch:
        eager(patch, height)
        flags = (*record.cflags, *SANITIZED)
        got = run(tmp_path / "vectors", model, target, x, *flags, max_ram=1 << 20)
    texts = [p.read_text() for p in (tmp_path / "vectors/net/src/kernels").glob("*conv_bytes*.c")]
    assert any("x_rows" in text for text in texts)
    np.testing.assert_array_equal(got, want)


POOLED = Chain((1, 49, 40), [
    ("conv", {"filters": 16, "kernel": (8, 8)}), ("pool", {"kernel": 2, "stride": 2}),
    ("conv", {"filters": 12, "kernel": (9, 4)}),
])  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3", "cortex-m4f", "riscv32"])
def test_rows_pass_through_a_pool_on_every_small_core(target: str, tmp_path: Path) -> None:
    onnx.save(POOLED.model(), tmp_path / "m.onnx")
    options = Options(model=tmp_path / "m.onnx", output=tmp_path / "net", target=target)
    plan = plans_of(resolve_request(options), Diagnostics()).shown.arena.plan
    assert plan.size < 49 * 40 * 16 / 2


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [True, False])
def test_a_limit_of_ram_brings_them_to_any_processor(quantized: bool, tmp_path: Path) -> None:
    model = CHAINS["first layers"].model(quantized)
    dtype = np.int8 if quantized else np.float32
    x = np.random.default_rng(8).integers(-128, 128, (1, 3, 23, 18)).astype(dtype)
    got, sizes = [], []
    for k, limits in enumerate(({}, {"max_ram": 1 << 20})):
        got.append(run(tmp_path / str(k), model, "c99", x, **limits))
        options = Options(
            model=tmp_path / str(k) / "m.onnx", output=tmp_path, target="c99", **limits
        )
        sizes.append(plans_of(resolve_request(options), Diagnostics()).shown.arena.plan.size)
    np.testing.assert_array_equal(*got)
    assert len(np.unique(got[0])) > 20
    assert sizes[1] < 0.8 * sizes[0]


SIZES = {
    ("visual wake words", "arena"): 35_328, ("mcunet-vww0", "arena"): 19_264,
    ("MobileNetV2-0.35", "caller"): 138_368 // 4, ("keyword spotting", "arena"): 9_920,
}  # fmt: skip
"""The most RAM of a network, with its image or without; TinyEngine's mcunet-vww0 takes 59 kB."""


FLOAT_SIZES = {
    ("visual wake words", "caller"): 114 * 1024, ("mcunet-vww0", "caller"): 72 * 1024,
    ("MobileNetV2-0.35", "caller"): 78 * 1024,
}  # fmt: skip
"""Likewise of floats: layer by layer they take two to seven times as much."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "io", "quantized"),
    [(*key, True) for key in SIZES] + [(*key, False) for key in FLOAT_SIZES],
)
def test_networks_fit_into_the_memory_stated(
    name: str, io: str, quantized: bool, tmp_path: Path
) -> None:
    onnx.save(NETWORKS[name](quantized), tmp_path / "m.onnx")
    common: dict[str, Any] = {"target": "cortex-m4f"} | ({"io": io} if io == "arena" else {})
    options = Options(model=tmp_path / "m.onnx", output=tmp_path / "net", **common)
    plan = plans_of(resolve_request(options), Diagnostics()).shown.arena.plan
    assert plan.size <= (SIZES if quantized else FLOAT_SIZES)[name, io]
    assert plan.size <= plan.lower_bound * 1.02
