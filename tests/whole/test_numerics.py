"""What atc/docs/numerics.md says of functions, special values and compiler flags."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from simd_program import ulp_error

from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.find_compiler import find_compiler
from atc.entry import compile as compile_network
from atc.errors import ToolchainError
from atc.runtime.load import load
from atc.templates import verbatim
from support import compile_models

PAGE = Path(__file__).parents[2] / "atc/docs/numerics.md"

FUNCTIONS = {
    "Exp": np.exp, "Tanh": np.tanh, "Log": np.log, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt, "Softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
}  # fmt: skip
EXACT = ("Abs", "Neg", "Relu", "Floor", "Ceil", "Identity")
SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1e-40, np.inf, -np.inf, np.nan, 1.5, -2.5, 3.4e38],
    np.float32,
)


def model(op: str, size: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info("x", 1, (size,))
    node = helper.make_node(op, ["x"], ["y"])
    graph = helper.make_graph([node], op, [info], [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def samples() -> np.ndarray:
    """Return floats of all magnitudes, and those around zero and where functions end."""
    bits = np.arange(0, 1 << 32, 1 << 15, dtype=np.uint64).astype(np.uint32)
    wide = bits.view(np.float32)
    return np.concatenate([wide[np.isfinite(wide)], np.linspace(-100, 100, 20001)]).astype("f4")


def test_portable_functions_err_at_most_4_ulp() -> None:
    x = samples()
    runs = compile_models([model(op, x.size) for op in FUNCTIONS])
    for (op, function), run in zip(FUNCTIONS.items(), runs, strict=True):
        assert not isinstance(run, Exception), run
        with np.errstate(all="ignore"):
            truth = function(x.astype(np.float64))
        error = ulp_error(run([x])[0], truth)
        worst = int(error.argmax())
        assert error[worst] <= 4, f"{op}({x[worst]!r}) errs by {error[worst]} ulp"


def test_the_portable_tier_keeps_signs_denormals_and_nan() -> None:
    x = SPECIAL
    truths = {
        "Abs": np.abs(x), "Neg": -x, "Relu": np.where(x < 0, np.float32(0), x),
        "Floor": np.floor(x), "Ceil": np.ceil(x), "Identity": x,
    }  # fmt: skip
    for op, run in zip(EXACT, compile_models([model(op, x.size) for op in EXACT]), strict=True):
        assert not isinstance(run, Exception), run
        (y,) = run([x])
        kept = ~np.isnan(x)
        assert np.isnan(y[~kept]).all(), op
        np.testing.assert_array_equal(y[kept].view(np.uint32), truths[op][kept].view(np.uint32), op)


def test_the_page_names_the_bounds_that_the_functions_have() -> None:
    if not PAGE.exists():
        pytest.skip("the checkout's documentation isn't here")
    reported = dict(re.findall(r"\| `(v_\w+)` \| ([\d.]+)(?: \||, )", PAGE.read_text("utf-8")))
    text = verbatim("simd/math.h")
    found = re.findall(r"Max ([\d.]+) ulp[^*]*\*/\nstatic inline vf32 (v_\w+)\(", text)
    assert reported == {name: bound for bound, name in found}
    assert all(float(bound) <= 4 for bound in reported.values())


@pytest.mark.parametrize("target", ["c99", "host"])
def test_the_compiler_fuses_nothing_on_its_own(target: str) -> None:
    record = get_target(target)
    flags = compile_flags(find_compiler(record, {}), record, "O2")
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(flags)


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_sources_refuse_a_compiler_that_rounds_as_it_likes(flag: str, tmp_path: Path) -> None:
    """Round by a sum and its difference would be the identity, and NaN an ordinary number."""
    path, output = tmp_path / "round.onnx", tmp_path / "round"
    onnx.save(model("Round", 40), path)
    given = {"target": "x86-64-sse2" if platform.machine() == "x86_64" else "c99"}
    with pytest.raises(ToolchainError, match="compile without -ffast-math"):
        compile_network(path, output, **given, build_config=f"cc {flag}")
    compile_network(path, output, **given, build_config=f"cc {flag} -fno-fast-math")
    x = np.linspace(-9, 9, 40, dtype=np.float32)
    np.testing.assert_array_equal(load(output)(x), np.round(x))
