"""Twenty public modules behind torch.compile, against eager PyTorch.

They have fewer layers: what two of a stage show, others of the same kind show again, and each takes
a second, or several to train.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

from benchmarks.architectures import Architecture, module, named  # noqa: E402

from atc.pytorch import backend  # noqa: E402

SMALLER = {"images": 64, "text": 16}
"""Pixels of a side or words, where a module takes them: less to compute for the same code."""

FIXED = ["MobileViT-XS", "DeiT-Tiny", "EdgeNeXt-XXS", "MLP-Mixer-S/32", "SegFormer-B0"]
"""Those whose code or weights depend on the size of what they see."""

NAMES = [
    "ResNet-18", "MobileNetV2", "MobileNetV3-Small", "ShuffleNetV2 x1.0", "SqueezeNet 1.1",
    "RegNetY-400MF", "Swin-T", "GhostNet 1.0", "MobileViT-XS", "DeiT-Tiny", "RepVGG-A0",
    "PoolFormer-S12", "MLP-Mixer-S/32", "DLA-34", "BERT, 4 layers of 256",
    "RoBERTa, 4 layers of 256", "DistilBERT, 3 layers of 256", "GPT-2, 4 layers of 256",
    "ALBERT, 4 layers of 256", "SegFormer-B0",
]  # fmt: skip


def small(name: str) -> Architecture:
    """Return an architecture as small as it may be; skips where its package isn't installed."""
    found = named(name)
    if find_spec(found.package) is None:
        pytest.skip(f"{found.package} isn't installed")
    size = SMALLER[found.kind]
    if name in FIXED:
        return found
    return replace(found, shape=(1, size) if found.kind == "text" else (1, 3, size, size))


_SIZES = re.compile(r"\d*\.\d+|\d\d+")
"""Of channels and rates: those of windows and strides have one digit."""


def shortened(a: Architecture, most: int = 2) -> Any:
    """Return a module with few layers: `most` of a stage, where they differ in sizes alone.

    Only what gives a tensor of its input's shape is left out.
    """
    made = module(a)
    keeping = set()

    def note(layer: Any, given: Any, result: Any) -> None:
        stage = isinstance(layer, torch.nn.Sequential) or not [*layer.children()]
        taken, given_back = (x[0] if isinstance(x, tuple) and x else x for x in (given, result))
        if not stage and torch.is_tensor(taken) and torch.is_tensor(given_back):
            keeping.update([layer] if taken.shape == given_back.shape else [])

    hooks = [layer.register_forward_hook(note) for layer in made.modules()]
    with torch.no_grad():
        made(drawn(a, a.shape))
    for hook in hooks:
        hook.remove()
    for stage in [*made.modules()]:
        if isinstance(stage, torch.nn.Sequential | torch.nn.ModuleList):
            kinds = [_SIZES.sub("", repr(x)) if x in keeping else k for k, x in enumerate(stage)]
            for k in reversed(range(len(kinds))):
                if kinds[:k].count(kinds[k]) >= most:
                    del stage[k]
    return made


def drawn(a: Architecture, shape: tuple[int, ...]) -> Any:
    """Return an input of a shape: words of the vocabulary, or normal numbers."""
    return torch.randint(0, a.vocabulary, shape) if a.vocabulary else torch.randn(shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_eager_ones(name: str) -> None:
    a = small(name)
    made = shortened(a)
    torch._dynamo.reset()
    run = torch.compile(made, backend=backend, options={"freeze": True})
    for seed in range(2):
        torch.manual_seed(seed)
        x = drawn(a, a.shape)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="atc runs a graph eagerly")
            wanted, found = made(x), run(x)
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * scale)
