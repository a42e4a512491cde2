"""Fifteen public modules trained behind torch.compile, against eager PyTorch."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

from pytorch.test_models import NAMES, drawn, shortened, small  # noqa: E402

from atc.pytorch import backend  # noqa: E402

LIKE_OTHERS = (
    "BERT, 4 layers of 256", "RoBERTa, 4 layers of 256", "DistilBERT, 3 layers of 256",
    "ResNet-18", "RepVGG-A0",
)  # fmt: skip
"""Whose layers have others' gradients: their steps call the same operators with arguments of the
same kinds, but for the size of two first layers' filters and RoBERTa's numbers of places.
test_models.py shows that their results are right.
"""

TWICE = ("Swin-T",)
"""Whose windows every second layer of a kind shifts: of others' kinds of layers one is trained."""

BATCH = 2

CLOSE = 1e-6
"""Of the largest number. In float64, as few images of few pixels are ill-conditioned: in float32
eager PyTorch itself is up to a tenth off.
"""


def trained(made: Any, run: Any, x: Any) -> dict[str, Any]:
    """Return a step's result, gradients, and the buffers that it leaves."""
    torch.manual_seed(7)
    result = run(x)
    towards = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * towards).sum().backward()
    found = {f"gradient of {name}": p.grad for name, p in made.named_parameters()}
    return {"result": result.detach(), **found, **dict(made.named_buffers())}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in LIKE_OTHERS])
def test_a_step_computes_what_eager_pytorch_does(name: str) -> None:
    """Dropouts drop: all draw the same masks from one seed."""
    a = small(name)
    made = shortened(a, 2 if name in TWICE else 1).double().train()
    other = copy.deepcopy(made)
    torch.manual_seed(1)
    x = drawn(a, (BATCH, *a.shape[1:]))
    x = x.double() if x.is_floating_point() else x
    wanted = trained(made, made, x)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="atc ")
        found = trained(other, torch.compile(other, backend=backend), x)
    assert found.keys() == wanted.keys()
    gradients = [g for key, g in wanted.items() if key.startswith("gradient") and g is not None]
    least = 1e-3 * max(map(largest, gradients))  # what cancels out is noise
    for key, one in wanted.items():
        if one is None:
            assert found[key] is None, key
            continue
        bound = CLOSE * max(largest(one), least)
        assert largest(found[key] - one) <= bound, f"{key}, whose largest is {largest(one)}"


def largest(x: Any) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
