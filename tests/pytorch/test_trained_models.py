"""Twenty public modules trained behind torch.compile, against eager PyTorch."""

from __future__ import annotations

import copy
import warnings
from importlib.util import find_spec
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

from benchmarks.architectures import module  # noqa: E402
from pytorch.test_models import NAMES, small  # noqa: E402

from atc.pytorch import backend  # noqa: E402

BATCH = 2

NOISE = 10
"""Times as far from float64's numbers as eager PyTorch's may ours be: sums have other orders."""


def trained(made: Any, run: Any, x: Any) -> dict[str, Any]:
    """Return a step's result, gradients, and the buffers that it leaves."""
    torch.manual_seed(7)
    result = run(x)
    towards = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * towards).sum().backward()
    found = {f"gradient of {name}": p.grad for name, p in made.named_parameters()}
    return {"result": result.detach(), **found, **dict(made.named_buffers())}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_step_computes_what_eager_pytorch_does(name: str) -> None:
    """Dropouts drop: all draw the same masks from one seed."""
    a = small(name)
    if find_spec(a.package) is None:
        pytest.skip(f"{a.package} isn't installed")
    made = module(a).train()
    shape = (BATCH, *a.shape[1:])
    torch.manual_seed(1)
    x = torch.randint(0, a.vocabulary, shape) if a.vocabulary else torch.randn(shape)
    exact, other = copy.deepcopy(made).double(), copy.deepcopy(made)
    truth = trained(exact, exact, x if a.vocabulary else x.double())
    eager = trained(made, made, x)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="atc ")
        found = trained(other, torch.compile(other, backend=backend), x)
    assert found.keys() == truth.keys()
    for key, wanted in truth.items():
        if wanted is None:
            assert found[key] is None, key
            continue
        scale = float(wanted.abs().max()) if wanted.numel() else 0.0
        noise = far(eager[key], wanted)
        assert noise <= 0.05 * scale + 1e-4, f"{key}: eager PyTorch itself is {noise} off"
        assert far(found[key], wanted) <= NOISE * noise + 1e-5 * scale + 1e-7, key


def far(found: Any, wanted: Any) -> float:
    """Return the greatest difference from what is wanted."""
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
