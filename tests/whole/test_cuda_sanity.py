"""Checked builds for GPUs: they find what those for CPUs find, at the same nodes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen.test_sanity import chain
from cuda_networks import X, compiled, mixed_model
from onnx import TensorProto, helper
from projects import F32, cmake, make_model
from whole.test_cuda import Tensor

from atc.runtime.load import load

ONES = np.ones((3, 5), np.float32)


def fault_of(net: Any, *inputs: Any) -> str:
    """Return the message of a run that fails, less the kernel's name."""
    with pytest.raises(RuntimeError) as found:
        net(*inputs)
    return re.sub(r" \(\w[^()]*(\([^()]*\))?\)", "", str(found.value))


def test_numbers_are_looked_at_on_the_device(tmp_path: Path) -> None:
    compiled(chain("Neg", "Sqrt"), tmp_path, sanity_check="nan,inf")
    net = load(tmp_path / "net")
    made = "the network net: node 'the Sqrt' made a NaN in 'v1', at element 0"
    given = "the network net: an infinity in input 'x', at element 4"
    infinite = np.where(np.arange(15) == 4, np.float32(-np.inf), -ONES.reshape(-1)).reshape(3, 5)
    for wrap in (np.asarray, Tensor):
        assert fault_of(net, wrap(ONES)) == made
        assert fault_of(net, wrap(infinite)) == given
    sums = np.cumsum(ONES, 0)
    np.testing.assert_allclose(net(-ONES), np.cumsum(np.sqrt(sums), 0) + sums, rtol=1e-6)


@pytest.mark.parametrize("target", ["c99", "cuda-emulated"])
def test_values_that_both_sides_use_are_looked_at(target: str, tmp_path: Path) -> None:
    """Texts are made by the host, between launches."""
    compiled(mixed_model(), tmp_path, target=target, sanity_check="1,range:100")
    net = load(tmp_path / "net")
    for _ in range(2):
        found = net.run({"x": X})
        np.testing.assert_allclose(found["b"], np.maximum(X, 0), rtol=1e-6)
    large = np.where(X[1, 1] == X, np.float32(70), X)
    assert fault_of(net, large) == (
        "the network net: node 'c' went beyond the limit 100 in 'c', at element 7"
    )


@pytest.mark.slow
def test_indices_beyond_a_tensor_stay_within_it_as_on_a_cpu(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Gather", ["a", "i"], ["y"])],
        [("x", F32, (4, 6)), ("i", TensorProto.INT64, (3,))], [("y", F32, (3, 6))],
    )  # fmt: skip
    results = []
    for target in ("c99", "cuda-emulated"):
        (tmp_path / target).mkdir()
        compiled(model, tmp_path / target, target=target, sanity_check="1")
        results.append(load(tmp_path / target / "net")(X, np.array([99, -99, 1])))
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0][2], np.abs(X[1]))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("y0[15] = 1;", "wrote outside its results, next to 'v1', at byte"),
        ("y0[-1] = 1;", "wrote outside its results, next to 'v1', at byte"),
        ("((float *)x0)[3] += 1;", "changed a value that is not its own, 's0', at byte"),
    ],
)
def test_memory_is_looked_at_on_the_device(
    statement: str, fault: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    compiled(chain("Abs", "Neg"), tmp_path, sanity_check="memory")
    folder = tmp_path / "net"
    source = (folder / "src/net.c").read_text("utf-8")
    launched = re.search(r'Map "the Neg".*?gpu_launch\(gpu, stream, (\d+)', source, re.DOTALL)
    assert launched is not None
    table = re.findall(r'\{"(atc_\w+)"', source)
    kernel = folder / f"src/kernels/{table[int(launched[1])]}.cu"
    text = kernel.read_text("utf-8")
    end = text.index("\n}\n")
    wrong = f"\n  if (blockIdx.x == 0 && threadIdx.x == 0) {{ {statement} }}"
    kernel.write_text(text[:end] + wrong + text[end:], "utf-8")
    shutil.copy(next(cmake(folder).rglob("libnet.so*")), folder / "libnet.so")
    found = fault_of(load(folder), ONES)
    assert found.startswith(f"the network net: node 'the Neg' {fault}")
