"""Training steps of PyTorch modules, against eager PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

import atc  # noqa: E402
from atc.errors import OptionError, UnsupportedError  # noqa: E402

nn = torch.nn


def test_a_module_trains_as_eager_pytorch_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                           nn.Linear(64, 3))  # fmt: skip
    image, label = torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))
    step = atc.training_step(module, (image,), tmp_path / "step", lr=0.1, clip_norm=0.5,
                             optimizer_options={"momentum": 0.9})  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(image), label)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        assert step(image.numpy(), label.numpy()) == pytest.approx(loss.item(), rel=1e-5)
    for name, weight in module.named_parameters():
        np.testing.assert_allclose(step.get(name), weight.detach(), rtol=1e-4, atol=1e-6)
    mean = module[1].running_mean.numpy()
    np.testing.assert_allclose(step.get("1.running_mean"), mean, rtol=1e-5)


class Stopped(nn.Module):  # type: ignore[misc]
    """What no gradient goes to: `detach`, `no_grad`, buffers, frozen parameters, constants.

    One goes to a number without axes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(4))
        self.frozen = nn.Parameter(torch.rand(4), requires_grad=False)
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        straight = h + (h.round() - h).detach()
        with torch.no_grad():
            held = self.second(straight) * 2
        held = held * self.scale * self.frozen * torch.tensor([1.0, 2, 3, 4])
        return straight * held + h * self.gain


class Tied(nn.Module):  # type: ignore[misc]
    """An embedding whose padding learns from the last layer alone, which has the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(7, 4, padding_idx=1), nn.Linear(4, 7)
        self.words.weight = self.scores.weight

    def forward(self, x: Any) -> Any:
        return self.scores(self.words(x))


class Cells(nn.Module):  # type: ignore[misc]
    """Layers that PyTorch exports as sequences of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.long, self.gated = nn.LSTMCell(3, 4), nn.GRUCell(3, 4)

    def forward(self, x: Any) -> Any:
        h, c = self.long(x)
        return self.gated(x, h) + c


class Smoothed(nn.Linear):  # type: ignore[misc]
    """Losses that PyTorch's exporter makes others of: smoothed labels, and shares as labels."""

    def forward(self, x: Any) -> Any:
        y, rows = super().forward(x), torch.arange(8)
        smooth = nn.functional.cross_entropy(y, rows % 4, label_smoothing=0.2, ignore_index=2)
        return smooth + nn.functional.cross_entropy(y, torch.softmax(rows[:, None] * y, 1).detach())


class Projected(nn.Module):  # type: ignore[misc]
    """Recurrent layers whose state is a projection of their output, and a mask of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(3, 5, 2, proj_size=4, bidirectional=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.layers(x.reshape(4, 2, 3))
        y, mask = y[None], torch.tensor([[True, False]])
        return nn.functional.scaled_dot_product_attention(y, y, y, mask)


def last_norm_alone() -> Any:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[1].eval()
    return module


WORDS = torch.tensor([[1, 2, 1], [0, 6, 5]])
ROWS = torch.arange(24.0).sin().reshape(8, 3)
MODULES: dict[str, tuple[Callable[[], Any], Any]] = {
    "stopped": (Stopped, ROWS),
    "tied": (Tied, WORDS),
    "words of 32 bits": (lambda: nn.Embedding(7, 4, padding_idx=-1), WORDS.int()),
    "norms": (last_norm_alone, ROWS),
    "norm": (lambda: nn.BatchNorm1d(3), ROWS),
    "no statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), ROWS),
    "frozen": (lambda: nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 3)), ROWS),
    "cells": (Cells, ROWS),
    "smoothed": (lambda: Smoothed(3, 4), ROWS),
    "projected": (Projected, ROWS),
    "attention": (lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0), (
        torch.arange(24.0).cos().reshape(3, 2, 4), torch.arange(16.0).sin().reshape(2, 2, 4))),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n in ("stopped", "tied", "norm") else pytest.param(n, marks=pytest.mark.slow)
     for n in MODULES],
)  # fmt: skip
def test_weights_get_the_gradients_of_eager_pytorch(name: str, tmp_path: Path) -> None:
    make, inputs = MODULES[name]
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    torch.manual_seed(0)
    module = make()
    result = copy.deepcopy(module)(*inputs).detach()
    label = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    step = atc.training_step(module, inputs, tmp_path / "step", loss="square_loss", lr=0.1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(*inputs), label)
        loss.backward()
        optimizer.step()
        found = step(*[x.numpy() for x in inputs], label.numpy())
        assert found == pytest.approx(loss.item(), rel=1e-4)
    names = [*module.named_parameters(remove_duplicate=False)]
    for weight in module.parameters():
        known = {key for key, p in names if p is weight} & {*step.names()}
        assert len(known) == weight.requires_grad  # weights of several names are one
        for key in known:
            np.testing.assert_allclose(step.get(key), weight.detach(), rtol=1e-3, atol=1e-5)


class Straight(torch.autograd.Function):  # type: ignore[misc]
    """A rounding whose derivative is 1."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Rounded(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return Straight.apply(super().forward(x))


def hooked() -> Any:
    module = nn.Linear(3, 3)
    module.register_full_backward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("make", "inputs", "why"),
    [
        (lambda: Rounded(3, 3), ROWS, r"a derivative in Python \[Straight\]"),
        (hooked, ROWS, r"a hook that changes gradients \[Linear\]"),
        (lambda: nn.InstanceNorm1d(3, track_running_stats=True), ROWS.reshape(2, 3, 4),
         "track_running_stats=False"),
        (lambda: nn.Embedding(7, 4, scale_grad_by_freq=True), WORDS, "by frequency"),
    ],
    ids=["function", "hook", "statistics", "frequency"],
)  # fmt: skip
def test_what_would_be_trained_as_something_else_is_refused(
    make: Any, inputs: Any, why: str, tmp_path: Path
) -> None:
    apply = torch.autograd.Function.apply
    with pytest.raises(UnsupportedError, match=f"can't be trained: .*{why}"):
        atc.training_step(make(), (inputs,), tmp_path / "step", loss="square_loss")
    assert torch.autograd.Function.apply == apply


class DroppingAttention(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        y = super().forward(x).reshape(1, 2, 4, 3)
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5)


class First(nn.Sequential):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shape"),
    [(lambda: DroppingAttention(3, 3), (1, 2, 4, 3)),
     (lambda: First(nn.GRU(3, 3, 2, dropout=0.5)), (8, 3)),
     (lambda: First(nn.LSTM(3, 3, 2, dropout=0.5)), (8, 3))],
    ids=["attention", "GRU", "LSTM"],
)  # fmt: skip
def test_layers_drop_in_training(module: Any, shape: Any, tmp_path: Path) -> None:
    step = atc.training_step(module(), (ROWS,), tmp_path / "step", loss="square_loss", lr=0.0)
    label = np.zeros(shape, np.float32)
    assert len({step(ROWS.numpy(), label) for _ in range(4)}) > 1


class Distinct(nn.Linear):  # type: ignore[misc]
    """A layer that adds the distinct results."""

    def forward(self, x: Any) -> Any:
        return torch.unique(super().forward(x)).sum().reshape(1)


def test_the_module_of_an_operator_without_a_derivative_is_named(tmp_path: Path) -> None:
    """At whatever depth."""
    module = nn.Sequential(nn.Tanh(), nn.Sequential(Distinct(4, 4)))
    with pytest.raises(UnsupportedError, match="gradient of Unique.*node '1.0/.*Unique"):
        atc.training_step(module, (torch.randn(2, 4),), tmp_path / "step", loss="square_loss")


def test_a_step_of_a_module_needs_examples(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"atc.training_step\(module, \(tensor"):
        atc.training_step(nn.Linear(2, 2), tmp_path / "step")
