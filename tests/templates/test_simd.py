"""The vector vocabulary, table by table, against numpy."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from simd_program import (
    CASES,
    FOLDER,
    TABLES,
    Array,
    Inputs,
    Op,
    Program,
    Table,
    build,
    compile_table,
    defined_names,
    find,
    least_ulp_error,
    program_text,
    right,
    truths,
)

# --- Inputs ---

COUNT = 4096
SPECIALS = [
    *(0.0, 1e-45, 1e-40, 1.17549435e-38, 0.1, 0.5, 1.0, 1.5, 2.5, 3.7, 127.5, 254.5, 300.0),
    *(4194303.5, 8388607.5, 8388609.0, 2147483520.0, 2147483648.0, 1e10, 3.4028235e38, math.inf),
]


@cache
def pairs() -> Inputs:
    """Every special value with every other, and ordinary ones."""
    specials = np.array([*SPECIALS, *(-v for v in SPECIALS), math.nan], np.float32)
    rng = np.random.default_rng(1)
    ordinary = (rng.standard_normal(COUNT - len(specials) ** 2) * 100).astype(np.float32)
    a = np.r_[np.repeat(specials, len(specials)), ordinary]
    b = np.r_[np.tile(specials, len(specials)), rng.permutation(ordinary)]
    return a, b, rng.permutation(b)


@cache
def in_int32() -> Inputs:
    """The same less what no int32 holds."""
    a, b, c = (np.where(np.abs(v) < 2147483648.0, v, np.float32(0.5)) for v in pairs())
    return a, b, c


@cache
def halves() -> Inputs:
    """Any float16, and such as are near each other."""
    bits = np.random.default_rng(3).integers(0, 65536, (3, COUNT)).astype(np.uint16)
    bits[1, : COUNT // 2] = bits[0, : COUNT // 2] ^ (bits[2, : COUNT // 2] & 0x83FF)
    a, b, c = bits.view(np.float16).astype(np.float32)
    return a, b, c


@cache
def numbers() -> Inputs:
    """Float16 less those that are no numbers."""
    a, b, c = (np.where(np.isnan(v), 1, v).astype(np.float32) for v in halves())
    return a, b, c


@cache
def words() -> Inputs:
    """Whole numbers of 16 bits, those near 0 and near the limits as often as others, and floats."""
    rng = np.random.default_rng(4)
    near = rng.choice([-32768, 0, 32768, 65536], (3, COUNT)) + rng.integers(-200, 200, (3, COUNT))
    values = np.where(rng.random((3, COUNT)) < 0.5, near, rng.integers(-33000, 66000, (3, COUNT)))
    a, b, c = np.where(rng.random((3, COUNT)) < 0.3, pairs(), values).astype(np.float32)
    return a, b, c


@cache
def integers() -> Inputs:
    """Any int32."""
    rng = np.random.default_rng(2)
    values = rng.integers(-(2**31), 2**31, (3, COUNT)).astype(np.int32)
    values[:, :3] = -(2**31), 2**31 - 1, -1
    return values[0], rng.permutation(values[1]), values[2]


def dot4(i: Array, j: Array) -> Array:
    """j + the products of the bytes of i, unsigned, and those of j, signed; wrapping."""
    products = i.view(np.uint8).astype(np.int64) * j.view(np.int8)
    return (j + products.reshape(-1, 4).sum(1)).astype(np.int32)


def nibbles(i: Array, k: int) -> Array:
    """The signed numbers of four bits number k of i."""
    return (((i >> 4 * k & 15) ^ 8) - 8).astype(np.float32)


def dot2(i: Array, j: Array) -> Array:
    """j + the products of the 16-bit halves of i and j; wrapping."""
    products = i.view(np.int16).astype(np.int64) * j.view(np.int16)
    return (j + products.reshape(-1, 2).sum(1)).astype(np.int32)


@cache
def exponents() -> Inputs:
    """The int32 n of v_pow2i, whole float n, values near one."""
    small = np.resize(np.arange(-127, 129), COUNT).astype(np.int32)
    large = np.resize(np.arange(-252, 253), COUNT).astype(np.float32)
    return small, large, np.linspace(-1.9, 1.9, COUNT, dtype=np.float32)


# --- The vocabulary, each name with its truth ---


def call(
    name: str,
    arguments: str,
    truth: Callable[..., Any],
    result: str = "f32",
    inputs: Callable[[], Inputs] = pairs,
) -> Op:
    """Return the call, with the defaults that most of them take."""
    return Op(name, arguments, truth, result, inputs)


def saturate(a: Array, dtype: type) -> Array:
    """Return a to the nearest integer of the type, NaN as 0, as bytes."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    held: Array = np.rint(np.clip(np.where(np.isnan(a), 0, a), low, high)).astype(dtype)
    return held.view(np.uint8)


def narrow(a: Array, b: Array) -> Array:
    """2^-30 + a * b in double, less 2^-30."""
    result: Array = (a * b + 2.0**-30) - 2.0**-30
    return result


def in_halves(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the function of float16, computed in double and rounded once."""

    def rounded(*operands: Array) -> Array:
        wide = [v.astype(np.float16).astype(np.float64) for v in operands]
        result: Array = function(*wide).astype(np.float16).astype(np.float32)
        return result

    return rounded


def by_rows(function: Callable[..., Array]) -> Callable[[Array], Array]:
    """Return the function of each row."""
    return lambda rows: function(rows, axis=1)


def gathered(i: Array) -> Array:
    """Return the floats whose bits are the first 1024 integers, at i."""
    found: Array = integers()[0].view(np.float32)[i & 1023]
    return found


FOUR = "(at - at % (4 * V_LANES))"
AT_FOUR = ", ".join(f"v_without_nan(v_load(a + {FOUR} + {k} * V_LANES))" for k in range(4))
"""Where four vectors in a row begin, and the four."""

OPS = (
    call("v_zero", "", lambda: np.zeros(COUNT)),
    call("v_set1", "-2.5f", lambda: np.full(COUNT, -2.5)),
    call("v_broadcast", "a + 3", lambda: np.full(COUNT, pairs()[0][3])),
    call("v_load", "a + at", lambda: pairs()[0]),
    call("v_load_u8", "(const uint8_t *)(const void *)a + at",
       lambda: pairs()[0].view(np.uint8)[:COUNT].astype(np.float32)),
    call("v_load_f16", "(const uint16_t *)(const void *)a + at",
       lambda: pairs()[0].view(np.float16)[:COUNT].astype(np.float32)),
    call("v_load_bf16", "(const uint16_t *)(const void *)a + at",
       lambda: (pairs()[0].view(np.uint16)[:COUNT].astype(np.uint32) << 16).view(np.float32)),
    call("v_load_i8", "(const int8_t *)(const void *)a + at",
       lambda: pairs()[0].view(np.int8)[:COUNT].astype(np.float32)),
    call("v_load_u16", "(const uint16_t *)(const void *)a + at",
       lambda: pairs()[0].view(np.uint16)[:COUNT].astype(np.float32)),
    call("v_load_i16", "(const int16_t *)(const void *)a + at",
       lambda: pairs()[0].view(np.int16)[:COUNT].astype(np.float32)),
    call("v_store_u16", "(uint16_t *)(void *)bytes + at, v_without_nan({a})",
       lambda a: saturate(a, np.uint16), "bytes", words),
    call("v_store_i16", "(int16_t *)(void *)bytes + at, v_without_nan({a})",
       lambda a: saturate(a, np.int16), "bytes", words),
    call("v_store_bf16", "(uint16_t *)(void *)bytes + at, {a}",
         lambda a: a.astype(bfloat16).view(np.uint8), "bytes", numbers),
    call("v_store_halves", "(uint16_t *)(void *)bytes + at, {a}",
       lambda a: (a.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), "bytes"),
    call("v_round_f16", "{a}", lambda a: a.astype(np.float16).astype(np.float32)),
    call("v_f16_set1", "-2.5f", lambda: np.full(COUNT, -2.5), "f16"),
    call("v_f16_round", "{a}", in_halves(lambda a: a), "f16"),
    call("v_f16_widen", "v_f16_round({a})", in_halves(lambda a: a)),
    call("v_f16_erf", "v_f16_widen(v_f16_round({a}))", in_halves(np.vectorize(math.erf)), "f16",
         halves),
    call("v_f16_div_const", "v_f16_round({a}), 1.4140625f", in_halves(lambda a: a / 1.4140625),
         "f16", halves),
    *(call(f"v_f16_{name}", "v_f16_round({a}), v_f16_round({b})", in_halves(truth), "f16", halves)
      for name, truth in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply),
                          ("div", np.divide))),
    call("v_store_u8", "bytes + at, {a}", lambda a: saturate(a, np.uint8), "bytes"),
    call("v_store_i8", "(int8_t *)bytes + at, v_without_nan({a})",
       lambda a: saturate(a, np.int8), "bytes"),
    call("v_store4_u8", f"bytes + {FOUR}, {AT_FOUR}",
       lambda: saturate(pairs()[0], np.uint8), "bytes"),
    call("v_store4_i8", f"(int8_t *)bytes + {FOUR}, {AT_FOUR}",
       lambda: saturate(pairs()[0], np.int8), "bytes"),
    call("v_add", "{a}, {b}", np.add),
    call("v_sub", "{a}, {b}", np.subtract),
    call("v_mul", "{a}, {b}", np.multiply),
    call("v_div", "{a}, {b}", np.divide),
    call("v_sqrt", "{a}", np.sqrt),
    call("v_abs", "{a}", np.abs),
    call("v_neg", "{a}", np.negative),
    call("v_copysign", "{a}, {b}", np.copysign),
    call("v_floor", "{a}", np.floor),
    call("v_ceil", "{a}", np.ceil),
    call("v_trunc", "{a}", np.trunc),
    call("v_round", "{a}", np.rint),
    call("v_select", "v_isnan({b}), {c}, {a}", lambda a, b, c: np.where(np.isnan(b), c, a)),
    call("v_lt", "{a}, {b}", np.less, "mask"),
    call("v_le", "{a}, {b}", np.less_equal, "mask"),
    call("v_gt", "{a}, {b}", np.greater, "mask"),
    call("v_ge", "{a}, {b}", np.greater_equal, "mask"),
    call("v_eq", "{a}, {b}", np.equal, "mask"),
    call("v_isnan", "{a}", np.isnan, "mask"),
    call("v_mask_and", "v_lt({a}, {b}), v_lt({b}, {c})", lambda a, b, c: (a < b) & (b < c), "mask"),
    call("v_mask_or", "v_lt({a}, {b}), v_lt({b}, {c})", lambda a, b, c: (a < b) | (b < c), "mask"),
    call("v_mask_not", "v_lt({a}, {b})", lambda a, b: ~(a < b), "mask"),
    call("v_mask_any", "v_isnan({a})", lambda a: np.isnan(a).any(axis=1), "float"),
    call("v_reduce_max", "{a}", by_rows(np.max), "float"),
    call("v_reduce_min", "{a}", by_rows(np.min), "float"),
    call("v_i32_set1", "-7", lambda: np.full(COUNT, -7), "i32"),
    call("v_i32_load", "(const int32_t *)(const void *)a + at", lambda: integers()[0], "i32",
       integers),
    call("v_i32_add", "{i}, {j}", np.add, "i32", integers),
    call("v_i32_sub", "{i}, {j}", np.subtract, "i32", integers),
    call("v_i32_mul", "{i}, {j}", np.multiply, "i32", integers),
    call("v_i32_load_u8", "(const uint8_t *)(const void *)a + at",
       lambda: integers()[0].view(np.uint8)[:COUNT].astype(np.int32), "i32", integers),
    call("v_gather", "a, v_i32_and({i}, v_i32_set1(1023))", gathered, "f32",
       integers),
    call("v_entry", "a, v_i32_and({i}, v_i32_set1(7))", lambda i: gathered(i & 7), "f32",
       integers),
    call("v_i32_gather", "(const int32_t *)(const void *)a, v_i32_and({i}, v_i32_set1(1023))",
       lambda i: integers()[0][i & 1023], "i32", integers),
    call("v_i32_and", "{i}, {j}", np.bitwise_and, "i32", integers),
    call("v_i32_or", "{i}, {j}", np.bitwise_or, "i32", integers),
    call("v_i32_xor", "{i}, {j}", np.bitwise_xor, "i32", integers),
    call("v_i32_broadcast", "a", lambda: np.full(COUNT, integers()[0][0]), "i32", integers),
    call("v_dot4", "{j}, {i}, {j}", dot4, "i32", integers),
    call("v_dot2", "{j}, {i}, {j}", dot2, "i32", integers),
    call("v_even_bytes", "{i}", lambda i: i & 0xFF00FF, "i32", integers),
    call("v_odd_bytes", "{i}", lambda i: i >> 8 & 0xFF00FF, "i32", integers),
    call("v_dot4_small", "{j}, v_i32_and({i}, v_i32_set1(0x7f7f7f7f)), {j}",
       lambda i, j: dot4(i & 0x7F7F7F7F, j), "i32", integers),
    call("v_i32_shl", "{i}, 5", lambda i: i << 5, "i32", integers),
    call("v_i32_shr", "{i}, 7", lambda i: i >> 7, "i32", integers),
    call("v_cast_i32", "{a}", lambda a: a.view(np.int32), "i32"),
    call("v_cast_f32", "{i}", lambda a: a),
    call("v_cvt_i32", "{a}", lambda a: a.astype(np.int32), "i32", in_int32),
    call("v_round_i32", "{a}", lambda a: np.rint(a).astype(np.int32), "i32", in_int32),
    call("v_cvt_f32", "{i}", lambda i: i.astype(np.float32), "f32", integers),
    call("v_cvt_nibble", "{i}, 3", lambda i: nibbles(i, 3), "f32", integers),
    call("v_pow2i", "{i}", lambda n: np.where(n > -127, np.exp2(n.astype(float)), 0), "f32",
       exponents),
    call("v_ldexp", "{c}, {b}", lambda n, x: np.ldexp(x.astype(float), n.astype(int)), "f32",
       exponents),
    call("f64_narrow", "{a}, {b}", lambda a, b: narrow(a.astype(float), b.astype(float))),
    call("f64_twice", "{a}, {b}, {c}",
         lambda a, b, c: 2 * (c.astype(float) - a.astype(float) * b.astype(float))),
    call("f64_quotient", "{a}, {b}", lambda a, b: a.astype(float) / b.astype(float)),
    call("f64_product", "{a}, {b}", lambda a, b: a.astype(float) * b.astype(float)),
    call("f64_scaled", "{c}, {b}", lambda n, x: np.ldexp(x.astype(float), n.astype(int)), "f32",
         exponents),
)  # fmt: skip

# Where zeros of either sign are right.
UNSIGNED = (
    call("v_max", "{a}, {b}", np.maximum),
    call("v_min", "{a}, {b}", np.minimum),
    call("v_max_const", "v_set1(-2.5f), {a}", lambda a: np.maximum(np.float32(-2.5), a)),
    call("v_min_const", "v_set1(-2.5f), {a}", lambda a: np.minimum(np.float32(-2.5), a)),
    call("v_relu", "{a}", lambda a: np.maximum(np.float32(0), a)),
)

# Once with the product rounded, once exact up to float64.
FUSED = (
    call("v_fma", "{a}, {b}, {c}", lambda a, b, c: a * b + c),
    call("v_fnma", "{a}, {b}, {c}", lambda a, b, c: c - a * b),
    call("v_fmadd_acc", "{c}, {a}, {b}", lambda a, b, c: a * b + c),
    call("v_fmadd_factor", "{c}, v_factor(c + 300), {b}", lambda b, c: c[300] * b + c),
    call("v_fmadd_read", "{c}, c + 300, {b}", lambda b, c: c[300] * b + c),
)

SUM = call("v_reduce_add", "{a}", by_rows(np.sum), "float")


ALL = (*OPS, *UNSIGNED, *FUSED, SUM)


# --- The tests ---


@pytest.fixture(scope="module", params=CASES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return build(request.param, ALL, tmp_path_factory.mktemp("simd"))


VOCABULARY = {name for table in TABLES for name in defined_names(f"{table.name}.h")}


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_every_table_defines_the_same_names_but_those_made_of_the_rest(table: Table) -> None:
    missing = VOCABULARY - defined_names(f"{table.name}.h")
    assert missing <= defined_names("math.h")
    assert not any(name.isupper() for name in missing)


def test_every_table_is_tested() -> None:
    others = {"math", "exact", "bf16", "tiles", "small", "scalar_math"}
    tables = {path.stem for path in FOLDER.glob("*.h")} - others
    assert tables == {table.name for table in TABLES}


def test_every_name_is_tested() -> None:
    assert VOCABULARY
    assert {*re.findall(r"\w+", program_text(ALL))} >= VOCABULARY


@pytest.mark.few(1)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_table_compiles_without_warnings(table: Table, compiler: str, tmp_path: Path) -> None:
    if table.machine in ("", platform.machine()):
        command = [find("gcc") if compiler == "gcc" else find("clang", "clang-19")]
    elif table.target:
        command = table.cross()  # needed for its headers in any case
        if compiler == "clang" and "clang" not in command[0]:
            gnu = command[0].removesuffix("-gcc")
            command = [find("clang", "clang-19"), f"--target={gnu}", *command[1:]]
    else:
        pytest.skip(f"needs a compiler for {table.machine}")
    compile_table(table, tmp_path, program_text(ALL), *command, "-c", "-o", "program.o")


@pytest.mark.few(1)
def test_constants(program: Program) -> None:
    found = program.run("constants", pairs())
    lanes, registers, rounds = found[:3]
    assert lanes == program.table.lanes
    assert registers in (16, 32)
    assert bool(rounds) is (str(program.table) == "avx512-bf16")
    assert found[10] < np.log(2.0**-150)  # e^x is 0 there


@pytest.mark.few(40)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_op(program: Program, op: Op) -> None:
    dtype = {"i32": np.int32, "bytes": np.uint8}.get(op.result, np.float32)
    y = program.run(op.name, op.inputs(), dtype)
    operands = op.operands()
    if op.result == "float":
        y = y[:: program.table.lanes]
        operands = [v.reshape(-1, program.table.lanes) for v in operands]
    with np.errstate(all="ignore"):
        truth = right(y, [t.astype(dtype) for t in truths(program.table, op.truth, operands)])
    np.testing.assert_array_equal(y[: len(truth)], truth)
    if op.result == "f32":
        numbers = ~np.isnan(truth)
        np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(truth[numbers]))


@pytest.mark.parametrize("op", UNSIGNED, ids=str)
def test_extremum_propagates_nan(program: Program, op: Op) -> None:
    y = program.run(op.name, op.inputs())
    truth = right(y, truths(program.table, op.truth, op.operands()))
    np.testing.assert_array_equal(y, truth)


@pytest.mark.parametrize("op", FUSED, ids=str)
def test_multiply_add_rounds_as_the_table_says(program: Program, op: Op) -> None:
    y = program.run(op.name, op.inputs())
    with np.errstate(all="ignore"):
        if program.table.fused:
            operands = op.operands()
            exact = truths(
                program.table, lambda *v: op.truth(*(x.astype(np.float64) for x in v)), operands
            )
            assert least_ulp_error(y, exact).max() <= 0.50001
        else:
            np.testing.assert_array_equal(y, op.truth(*op.operands()))


def test_sums_of_each_vector(program: Program) -> None:
    lanes = program.table.lanes
    a = np.random.default_rng(4).standard_normal(COUNT).astype(np.float32)
    y = program.run("v_reduce_add_each", (a, a, a))[:lanes]
    rows = a[: lanes * lanes].reshape(lanes, lanes).astype(np.float64)
    np.testing.assert_allclose(y, rows.sum(1), rtol=0, atol=1e-6 * np.abs(rows).sum(1).max())


def test_sum_of_lanes(program: Program) -> None:
    lanes = program.table.lanes
    a = np.random.default_rng(3).standard_normal(COUNT).astype(np.float32)
    rows = a.reshape(-1, lanes).astype(np.float64)
    error = program.run(SUM.name, (a, a, a))[::lanes] - rows.sum(1)
    assert np.all(np.abs(error) <= 2.0**-24 * math.log2(2 * lanes) * np.abs(rows).sum(1))


def test_tails_touch_nothing_else(program: Program) -> None:
    lanes = program.table.lanes
    a = np.arange(1, COUNT + 1, dtype=np.float32)
    y = program.run("tails", (a, a, a))[: (lanes + 1) * 4 * lanes].reshape(-1, 4, lanes)
    for n, (loaded, stored, mask, known) in enumerate(y):
        assert loaded.tolist() == [*a[:n], *[0.0] * (lanes - n)]
        assert stored.tolist() == [*[-1.0] * (lanes - n), *a[lanes : lanes + n]]
        assert known.tolist() == stored.tolist()
        assert mask.tolist() == [*[1.0] * n, *[0.0] * (lanes - n)]


def test_tails_of_bytes_and_integers_touch_nothing_else(program: Program) -> None:
    lanes = program.table.lanes
    a = np.arange(1, COUNT + 1, dtype=np.float32)
    y = program.run("typed_tails", (a, a, a))[: (lanes + 1) * 8 * lanes].reshape(-1, 8, lanes)
    upper = (a.view(np.uint32) >> 16).tolist()
    for n, rows in enumerate(y.tolist()):
        rest, values = [0] * (lanes - n), np.arange(n)
        assert rows[0] == [*(200 + values), *rest]
        assert rows[1] == [*(200 + values - 256), *rest]
        assert rows[2] == [*(values - 5), *rest]
        assert rows[3] == [*[7] * (lanes - n), *(values + 1)]
        assert rows[4] == [*[7] * (lanes - n), *(-values - 1)]
        assert rows[5] == [*rest, *(values + 1)]
        assert rows[6] == [*(2.0 ** (values % 8 - 4)), *rest]
        assert rows[7] == [*[7] * (lanes - n), *upper[:n]]


def test_lookup(program: Program) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, 4 * COUNT).astype(np.uint8)
    table = np.resize(rng.permutation(256).astype(np.uint8), 4 * COUNT)
    words = x.view(np.float32), table.view(np.float32), x.view(np.float32)
    y = program.run("v_lookup", words, np.uint8)
    np.testing.assert_array_equal(y[:-1], table[x[:-1]])
    assert y[-1] == x[-1]  # beyond the last


def test_permute(program: Program) -> None:
    lanes = program.table.lanes
    a = np.arange(1, COUNT + 1, dtype=np.float32)
    places = np.random.default_rng(5).integers(0, 1 << 30, COUNT).astype(np.int32)
    y = program.run("v_permute", (a, places.view(np.float32), a))
    rows = np.take_along_axis(a.reshape(-1, lanes), places.reshape(-1, lanes) % lanes, 1)
    np.testing.assert_array_equal(y.reshape(-1, lanes), rows)


def test_load_pairs(program: Program) -> None:
    lanes = program.table.lanes
    a = np.arange(1, COUNT + 1, dtype=np.float32)
    y = program.run("v_load_pairs", (a, a, a))
    whole = COUNT // (2 * lanes) * 2 * lanes
    parted = a[:whole].reshape(-1, lanes, 2).swapaxes(1, 2)
    np.testing.assert_array_equal(y[:whole], parted.reshape(-1))


@pytest.mark.parametrize(
    ("name", "gap", "left"),
    [("v_transpose", 3, 1), ("transpose_dense", 0, 1), ("transpose_to_dense", 3, 0)],
)
def test_transpose(program: Program, name: str, gap: int, left: int) -> None:
    lanes = program.table.lanes
    a = np.arange(1, COUNT + 1, dtype=np.float32)
    y = program.run(name, (a, a, a))
    source = a[: lanes * (lanes + gap)].reshape(lanes, lanes + gap)[:, :lanes]
    target = y[: lanes * (lanes + left)].reshape(lanes, lanes + left)
    np.testing.assert_array_equal(target[:, :lanes], source.T)
    assert not target[:, lanes:].any()
