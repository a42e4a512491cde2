"""`--io=arena`: inputs and outputs share memory with what lies between them."""

from __future__ import annotations

from pathlib import Path

import cffi
import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model

import atc
from atc.errors import InternalError, OptionError
from atc.ir.graph import Array
from atc.memory.audit import audit_memory
from atc.program.steps import calls
from atc.runtime.network import Network

ROOT = Path(__file__).parents[2]
SAMPLES = [ROOT / "samples/digits.onnx", ROOT / "samples/keywords.onnx"]


def in_place(net: Network, library: Path, inputs: list[Array]) -> list[Array]:
    """Run a network on the arena's own places for inputs and outputs."""
    ffi = cffi.FFI()
    ffi.cdef(
        "int net_init(void *ctx, void *arena, size_t size);"
        "void *net_input(void *ctx, size_t index); void *net_output(void *ctx, size_t index);"
        "int net_run_tensors(void *ctx, void **inputs, void **outputs);"
        "size_t net_context_size(void); size_t net_arena_size(void);"
    )
    lib = ffi.dlopen(str(library))
    ctx, size = ffi.new("char[]", lib.net_context_size()), lib.net_arena_size()
    memory = np.empty(size + 16, np.uint8)
    arena = memory[-memory.ctypes.data % 16 :]
    assert lib.net_init(ctx, ffi.from_buffer(arena), size) == 0
    rows = [lib.net_input(ctx, k) for k in range(len(net.inputs))]
    results = [lib.net_output(ctx, k) for k in range(len(net.outputs))]
    assert not lib.net_input(ctx, len(rows))
    assert not lib.net_output(ctx, len(results))
    for pointer, array in zip(rows, inputs, strict=True):
        ffi.memmove(pointer, np.ascontiguousarray(array), array.nbytes)
    status = lib.net_run_tensors(ctx, ffi.new("void *[]", rows), ffi.new("void *[]", results))
    assert status == 0
    sizes = [int(np.prod(t.shape)) * t.dtype.itemsize for t in net.outputs]
    return [
        np.frombuffer(ffi.buffer(p, n), t.dtype).reshape(t.shape).copy()
        for p, n, t in zip(results, sizes, net.outputs, strict=True)
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [*SAMPLES, "affine"], ids=["digits", "keywords", "affine"])
def test_runs_in_the_arena_give_the_same_bits(model: Path | str, tmp_path: Path) -> None:
    if model == "affine":
        model = tmp_path / "affine.onnx"
        onnx.save(affine_model(), model)
    plain = atc.compile(model, tmp_path / "plain", target="c99")
    done = atc.compile(model, tmp_path / "net", target="c99", io="arena")
    nets = [atc.load(each.folder) for each in (plain, done)]
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(t.shape).astype(t.dtype) for t in nets[0].inputs]
    expected = [*nets[0].run(dict(zip([t.name for t in nets[0].inputs], inputs, strict=True)))
                .values()]  # fmt: skip
    for _ in range(2):
        for got, right in zip(in_place(nets[1], done.library, inputs), expected, strict=True):
            np.testing.assert_array_equal(got, right)
    elsewhere = nets[1].run(dict(zip([t.name for t in nets[1].inputs], inputs, strict=True)))
    for got, right in zip(elsewhere.values(), expected, strict=True):
        np.testing.assert_array_equal(got, right)
    tensors = sum(each.nbytes for each in (*inputs, *expected))
    assert done.arena.plan.size <= plain.arena.plan.size + tensors + 64
    program, arena = done.program, done.arena
    places = {**arena.offsets, **arena.io}
    audit_memory(program, places, arena.scratch, arena.plan.size)
    reader, read = next(
        (c.node.outputs[0], a) for c in calls(program.steps) for a in c.arguments
        if a in program.inputs and program.base(c.node.outputs[0]) in places
    )  # fmt: skip
    wrong = {**places, read: places[program.base(reader)] + 4}
    with pytest.raises(InternalError, match="memory plan"):
        audit_memory(program, wrong, arena.scratch, arena.plan.size)


@pytest.mark.slow
def test_an_input_gives_its_room_back(tmp_path: Path) -> None:
    """Of a chain of four values of one size two live at any time."""
    nodes = [
        helper.make_node("Softmax", [f"v{k}"], [f"v{k + 1}"], axis=k % 2) for k in range(4)
    ]
    onnx.save(make_model(nodes, [("v0", F32, (64, 64))], [("v4", F32, (64, 64))]), tmp_path / "m")
    sizes = {}
    for io in ("caller", "arena"):
        done = atc.compile(tmp_path / "m", tmp_path / io, target="c99", io=io, max_ram="1M")
        assert done.sizes is not None
        sizes[io] = done.sizes.arena + done.sizes.inputs + done.sizes.outputs
    assert sizes["arena"] <= sizes["caller"] - 64 * 64 * 4


def test_several_shapes_are_refused(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([relu], [("x", F32, ("n", 3))], [("y", F32, ("n", 3))]), tmp_path / "m")
    with pytest.raises(OptionError, match="several shapes"):
        atc.compile(tmp_path / "m", tmp_path / "net", io="arena", input_shape="x:1~4,3")
