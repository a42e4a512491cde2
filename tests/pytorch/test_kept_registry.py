"""The exporter's translations are read once, and each export has them to itself."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

from torch._export import utils  # noqa: E402
from torch.onnx._internal.exporter import _registration  # noqa: E402

from atc.pytorch.kept_registry import _registry, kept_registry  # noqa: E402

Registry = _registration.ONNXRegistry
RELU = torch.ops.aten.relu.default


def own_relu(x: Any, **_: Any) -> Any:
    return x


def functions(registry: Any) -> dict[Any, list[Any]]:
    return {name: [d.onnx_function for d in found] for name, found in registry.functions.items()}


def test_an_export_adds_its_own_to_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = functions(Registry.from_torchlib(opset_version=20))
    with kept_registry():
        first = Registry.from_torchlib(opset_version=20)
        first.register_op(RELU, own_relu)
        assert first.get_decomps(RELU)[0].onnx_function is own_relu
    read: list[str] = []
    monkeypatch.setattr(_registration, "_get_overload", lambda name: read.append(name))
    with kept_registry():
        assert functions(Registry.from_torchlib(opset_version=20)) == wanted
    assert not read
    Registry.from_torchlib(opset_version=20)  # beside our exports PyTorch does as it does
    assert read


def test_operators_that_a_package_adds_are_read() -> None:
    with kept_registry():
        Registry.from_torchlib(opset_version=20)
        library = torch.library.Library("atc_tests", "DEF")
        library.define("late(Tensor x) -> Tensor")
        read: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_registration, "_get_overload", lambda name: read.append(name))
            Registry.from_torchlib(opset_version=20)
    assert read
    library._destroy()
    _registry.cache_clear()  # what was read for the operators so far


def test_operators_are_listed_once_in_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    whole = utils._materialize_cpp_cia_ops
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: listed.append("") or whole())
    with kept_registry():
        wanted = utils._collect_all_valid_cia_ops()
        assert utils._collect_all_valid_cia_ops() == wanted
    assert len(listed) == 1
    library = torch.library.Library("atc_tests", "DEF")
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x + 1, "CompositeImplicitAutograd")
    with kept_registry():  # the next export knows what has been added
        added = utils._collect_all_valid_cia_ops() - wanted
    assert "atc_tests::composite" in {op.name() for op in added}
    library._destroy()
