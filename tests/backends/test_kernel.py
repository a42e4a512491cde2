"""What kernels have in common: typed workloads, parameters and their text, protocols."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from atc.backends.cpu import catalogue as cpu
from atc.backends.cpu.amx.conv import ConvTilesBytes, TilesParams
from atc.backends.cpu.conv.blocked import ConvDirect, DirectParams
from atc.backends.cpu.conv.winograd import ConvWinograd, WinogradParams
from atc.backends.cpu.map.portable import MapLoops
from atc.backends.cpu.matmul.tile import MatMulTile, TiledParams
from atc.backends.cpu.rnn.portable import CutParams, RecurrentRows
from atc.backends.cuda import catalogue as cuda
from atc.backends.kernel import (
    AnyKernel,
    Candidate,
    Kernel,
    KernelParams,
    PacksActivations,
    Splittable,
    Stripable,
    Workload,
    stripe_names,
)
from atc.errors import InternalError
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Softmax, identity_epilogue

DIRECT = DirectParams(p=14, nv=2, u=4, rb=0, pf=True)
WINOGRAD = WinogradParams(m=4, rows=3, p=8, nv=2, u=4, pf=False)
TILES = TilesParams(rb=1, tall=False)
TILED = TiledParams(mr=7, nv=2, phases=1)


@pytest.mark.parametrize(
    ("kernel", "params", "label"),
    [
        (MapLoops(), {}, "map"),
        (ConvDirect(), DIRECT, "conv_direct(nv=2, p=14, pf=True, rb=0, u=4)"),
        (ConvDirect(), replace(DIRECT, exact=True),
         "conv_direct(exact=True, nv=2, p=14, pf=True, rb=0, u=4)"),
        (ConvDirect(), replace(DIRECT, x_rows=0, y_rows=3),
         "conv_direct(nv=2, p=14, pf=True, rb=0, u=4, x_rows=0, y_rows=3)"),
        (ConvWinograd(), WINOGRAD, "conv_winograd(m=4, nv=2, p=8, pf=False, rows=3, u=4)"),
        (ConvWinograd(), replace(WINOGRAD, raw=True),
         "conv_winograd(m=4, nv=2, p=8, pf=False, raw=True, rows=3, u=4)"),
        (ConvTilesBytes(), TILES, "conv_amx_bytes(rb=1, tall=False)"),
        (ConvTilesBytes(),
         replace(TILES, partitions=3, borders=((0, 1), (2, 0)), planes_y=1, fill_y=0),
         "conv_amx_bytes(fill_y=0, partitions=3, planes0=1, planes2=0, planes_y=1, rb=1, "
         "tall=False)"),
        (MatMulTile(), TILED, "matmul_tile(mr=7, nv=2, phases=1)"),
        (MatMulTile(), replace(TILED, copy=True, kb=75),
         "matmul_tile(copy=True, kb=75, mr=7, nv=2, phases=1)"),
        (RecurrentRows(), CutParams(), "recurrent"),
        (RecurrentRows(), CutParams(sides=2, rows=3), "recurrent(rows=3, sides=2)"),
    ],
)  # fmt: skip
def test_the_text_of_parameters_is_what_caches_and_policies_hold(
    kernel: AnyKernel, params: object, label: str
) -> None:
    assert Candidate(kernel, params).label == label


def parameter_classes(kernel: type) -> Iterator[type]:
    """Yield the dataclasses of parameters that a kernel's class and its bases are declared with."""
    for base in kernel.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            arguments = (a for a in get_args(generic) if isinstance(a, type))
            yield from (a for a in arguments if issubclass(a, KernelParams))


def test_kernels_with_parameters_say_which_to_try() -> None:
    """The base class offers a mapping without entries, which would be no value of the class."""
    declared = [k for k in (*cpu.KERNELS, *cuda.KERNELS) if any(parameter_classes(type(k)))]
    assert len(declared) > 50
    assert not [k.name for k in declared if type(k).parameters is Kernel.parameters]


@pytest.mark.parametrize("protocol", [Stripable, Splittable, PacksActivations])
def test_few_kernels_have_a_protocol_and_all_of_its_methods_are_their_own(protocol: type) -> None:
    able = [k for k in cpu.KERNELS if isinstance(k, protocol)]
    assert 0 < len(able) < len(cpu.KERNELS) / 4
    needed = {"striped_params", "cuts", "work_split", "accepted_layouts", "produces_layout",
              "packed_params"} & set(dir(protocol))  # fmt: skip
    for kernel in able:
        assert all(getattr(type(kernel), n) is not getattr(protocol, n) for n in needed)


def test_functions_of_stripes_take_the_rows_that_they_compute() -> None:
    assert stripe_names({}) == stripe_names(DIRECT) == ()
    assert stripe_names(replace(DIRECT, x_rows=0, y_rows=0)) == ("begin", "end")
    some = replace(DIRECT, x_rows=0, y_rows=2)
    assert stripe_names(some) == ("begin", "end", "y_first")


def test_a_missing_operand_is_named() -> None:
    x, op = TensorType(DType.FLOAT, (2,)), Softmax(1, 2, 1, False, identity_epilogue(DType.FLOAT))
    w = Workload(op, (x, None), (x,), (False, False))
    assert w.input(0) is x
    with pytest.raises(InternalError, match="Softmax without input 1"):
        w.input(1)
