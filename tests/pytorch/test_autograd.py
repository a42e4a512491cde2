"""Training through `torch.compile(backend="atc")`: losses, gradients and buffers as eager ones."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

from atc.pytorch import backend  # noqa: E402
from atc.pytorch.dynamo import _Graph  # noqa: E402

checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Function(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *tensors: Any) -> Any:
        return self.function(*self.parts, *tensors)


DRAWN = torch.Generator().manual_seed(1)
"""Draws inputs: of some, float32's own rounding would be magnified beyond what is allowed."""


def image(*shape: int) -> Any:
    return torch.randn(*(shape or (2, 4, 8, 8)), dtype=torch.float64, generator=DRAWN)


def words(*shape: int) -> Any:
    return torch.randint(0, 9, shape, generator=DRAWN)


def tied(embedding: Any, norm: Any, x: Any) -> Any:
    return norm(embedding(x)) @ embedding.weight.T


def masked(linear: Any, x: Any) -> Any:
    """Average rows whose channels lie last, with a part of a mask set by a number."""
    mask = x.new_zeros(6, 6)
    mask[1:, :-2] = 3
    return F.adaptive_avg_pool2d(linear(x).permute(0, 3, 1, 2), 1).flatten(1) @ mask


def words_as_image(linear: Any, conv: Any, x: Any) -> Any:
    """Convolve an image whose channels lie last, and take its pixels as words."""
    return conv(linear(x).mT.reshape(2, 6, 4, 5)).flatten(2).mT.relu()


def frozen_begin() -> Any:
    made = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 1))
    made[0].requires_grad_(False)
    return made


NEW = {"use_reentrant": False}
"""How checkpoints are taken that torch.compile takes."""

NETWORKS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "convolutions": (lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(24, 3)), (image(),)),
    "dropout": (lambda: nn.Sequential(
        nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.4)), (image(),)),
    "an encoder's layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                           (image(2, 5, 8),)),
    "causal attention": (lambda: Function(
        lambda q, k, x: F.scaled_dot_product_attention(q(x), k(x), x, is_causal=True),
        nn.Linear(8, 8), nn.Linear(8, 8)), (image(2, 2, 5, 8),)),
    "grouped and dilated": (lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=4, padding=2, dilation=2), nn.PReLU(8), nn.GroupNorm(2, 8),
        nn.AvgPool2d(3, 2, 1), nn.SiLU()), (image(),)),
    "transposed": (lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.ELU(), nn.ConvTranspose2d(6, 2, 2)),
        (image(),)),
    "one axis": (lambda: nn.Sequential(
        nn.Conv1d(8, 6, 4, 3, padding=2), nn.AvgPool1d(2), nn.InstanceNorm1d(6, affine=True)),
        (image(2, 8, 20),)),
    "three axes": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.AvgPool3d(2)),
                   (image(2, 2, 5, 6, 5),)),
    "shared weights": (lambda: Function(
        tied, nn.Embedding(9, 8, padding_idx=0), nn.LayerNorm(8)), (words(2, 5),)),
    "frozen layers": (frozen_begin, (image(),)),
    "cells": (lambda: Function(
        lambda cell, x: sum(cell(step) for step in x.unbind(1)), nn.GRUCell(8, 4)),
        (image(2, 3, 8),)),
    "axes in another order": (lambda: Function(
        lambda conv, x: conv(x).relu().permute(0, 2, 3, 1), nn.Conv2d(4, 3, 3)), (image(),)),
    "resized": (lambda: Function(
        lambda conv, x: conv(F.interpolate(x, scale_factor=2, mode="bilinear")),
        nn.Conv2d(4, 2, 3)), (image(2, 4, 4, 4),)),
    "windows of unequal sizes": (lambda: nn.Sequential(
        nn.AdaptiveAvgPool2d((5, 3)), nn.Conv2d(4, 4, 1), nn.AdaptiveMaxPool2d((3, 2))),
        (image(2, 4, 8, 7),)),
    "words as an image": (lambda: Function(
        words_as_image, nn.Linear(8, 6), nn.Conv2d(6, 6, 3, padding=1)), (image(2, 20, 8),)),
    "computed again": (lambda: Function(
        lambda begin, end, x: end(checkpoint(begin, checkpoint(begin, x, **NEW), **NEW)),
        nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.4)), nn.Linear(8, 3)), (image(),)),
    "masked": (lambda: Function(masked, nn.Linear(8, 6)), (image(2, 3, 4, 8),)),
    "sampled": (lambda: Function(
        lambda to, x: F.grid_sample(
            x, to(x.mean((2, 3))).tanh().view(2, 3, 2, 2), align_corners=False),
        nn.Linear(4, 12)), (image(),)),
    "sorted": (lambda: Function(
        lambda lin, x: lin(x.cumsum(1)).sort(-1).values.topk(3).values.std(-1), nn.Linear(8, 5)),
        (image(),)),
}  # fmt: skip
DEFAULT = (("convolutions", "float64"), ("dropout", "float64"))
ALIKE = (
    "three axes", "shared weights", "frozen layers", "axes in another order",
    "windows of unequal sizes", "words as an image", "computed again", "masked", "sampled",
    "sorted",
)  # fmt: skip
"""Whose operators are exported for float32 as they are for float64, or others' here are as well."""
STEPS = [(n, "float64") for n in NETWORKS] + [(n, "float32") for n in NETWORKS if n not in ALIKE]


def trained(module: Any, run: Any, inputs: Any) -> list[Any]:
    """Return what three steps compute: results, gradients, and the module's state at the end."""
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1, 0.9)
    torch.manual_seed(5)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        y = run(*inputs)
        y.square().mean().backward()
        found += [y.detach(), *(x.grad.clone() for x in inputs if x.requires_grad)]
        found += [p.grad.clone() for p in module.parameters() if p.grad is not None]
        optimizer.step()
    return [*found, *(t.detach().clone() for t in module.state_dict().values())]


def given(inputs: Any, kind: Any) -> tuple[Any, ...]:
    own = [x.clone().to(kind) if x.is_floating_point() else x for x in inputs]
    return tuple(x.requires_grad_(x.is_floating_point()) for x in own)


@pytest.mark.parametrize(
    ("name", "kind"),
    [x if x in DEFAULT else pytest.param(*x, marks=pytest.mark.slow) for x in STEPS],
)
def test_steps_of_training_are_the_eager_ones(name: str, kind: str) -> None:
    make, inputs = NETWORKS[name]
    torch.manual_seed(1)
    module = make().to(getattr(torch, kind)).train()
    other = copy.deepcopy(module)
    wanted = trained(module, module, given(inputs, getattr(torch, kind)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="atc ")
        run = torch.compile(other, backend=backend)
        found = trained(other, run, given(inputs, getattr(torch, kind)))
    # The exporter itself rounds some layers' numbers (sqrt(2) of GELU, an epsilon) to float32.
    close = {"float64": (1e-6, 1e-7), "float32": (2e-3, 2e-5)}[kind]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=close[0], atol=close[1], check_stride=True)


def moved(x: Any) -> Any:
    x[0] = 1
    return x * 2


def in_bfloat16(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ (x + 0.1)
    return y.float() + x


IMPURE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "masks": (lambda x: F.dropout(x.transpose(0, 1), 0.5), (torch.ones(5, 6),)),
    "noise": (lambda x: x + torch.randn_like(x) + torch.rand(6), (torch.ones(5, 6),)),
    "statistics": (lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
                   (torch.arange(12.0).reshape(4, 3), torch.zeros(3), torch.ones(3))),
    "elements": (moved, (torch.zeros(3),)),
    "autocast": (in_bfloat16, (torch.eye(4),)),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["masks", *(pytest.param(n, marks=pytest.mark.slow) for n in [*IMPURE][1:])]
)
def test_what_a_graph_does_beside_computing_is_done(name: str) -> None:
    function, inputs = IMPURE[name]
    mine, theirs = ([*map(torch.clone, inputs)] for _ in range(2))
    torch.manual_seed(3)
    with torch.no_grad():
        wanted = [function(*theirs) for _ in range(3)]
    torch.manual_seed(3)
    run = torch.compile(function, backend=backend)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("error", message="atc ")
        found = [run(*mine) for _ in range(3)]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [False, True])
def test_a_graph_that_is_called_under_autocast_gives_its_types(recorded: bool) -> None:
    """And those of its own once it is called outside."""
    x = torch.linspace(-1, 1, 16, requires_grad=recorded).reshape(4, 4)
    run = torch.compile(lambda x: x @ (x + 0.1), backend=backend)
    for casts in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts):
            torch.testing.assert_close(run(x), x @ (x + 0.1))


@pytest.mark.slow
def test_random_numbers_keep_their_order_beside_those_of_values() -> None:
    def function(x: Any) -> Any:
        return torch.bernoulli(x).sum() + torch.randn_like(x) + torch.multinomial(x, 2).sum()

    x = torch.rand(3, 4, dtype=torch.float64)
    torch.manual_seed(3)
    wanted = function(x)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="atc runs a graph eagerly: .*draws random numbers"):
        found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_a_backward_graph_that_can_not_be_compiled_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    compiled = _Graph._found
    monkeypatch.setattr(_Graph, "_found", lambda *given: tried.append("") or compiled(*given))

    def function(x: Any) -> Any:
        return torch.cdist(x, x[:2] * 2)

    x = torch.randn(4, 3, requires_grad=True)
    (wanted,) = torch.autograd.grad(function(x).sum(), x)
    run = torch.compile(function, backend=backend)
    with pytest.warns(UserWarning, match="atc runs a graph eagerly: .*_cdist_backward"):
        (found,) = torch.autograd.grad(run(x).sum(), x)
    torch.testing.assert_close(found, wanted)
    before = len(tried)
    torch.autograd.grad(run(x).sum(), x)
    assert len(tried) == before  # it isn't tried again


@pytest.mark.slow
def test_frozen_parameters_are_not_trained() -> None:
    module = nn.Linear(3, 2)
    run = torch.compile(module, backend=backend, options={"freeze": True})
    with pytest.warns(UserWarning, match="gradients are recorded, and parameters are constants"):
        run(torch.ones(1, 3)).sum().backward()
    torch.testing.assert_close(module.weight.grad, torch.ones(2, 3))


@pytest.mark.slow
def test_what_runs_eagerly_draws_the_same_masks_again() -> None:
    """PyTorch's checkpoints don't, behind its own backend `eager`."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 3), nn.Tanh())
    run = torch.compile(lambda x: checkpoint(module, x, **NEW), backend=backend,
                        options={"freeze": True})  # fmt: skip
    found, x = [], image().float()
    for way in (module, run):
        torch.manual_seed(5)
        module.zero_grad()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="atc runs a graph eagerly")
            way(x).square().sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.slow
def test_batches_of_all_sizes_are_trained_in_one_library() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    run = torch.compile(module, backend=backend)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="atc ")
        for batch in (4, 2, 16):
            x = torch.randn(batch, 5)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
            module.zero_grad()
            run(x).square().sum().backward()
            found = [p.grad.clone() for p in module.parameters()]
            module.zero_grad()
            module(x).square().sum().backward()
            torch.testing.assert_close(found, [p.grad for p in module.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
def test_masks_are_drawn_for_open_batches(transposed: bool) -> None:
    def drop(begin: Any, end: Any, x: Any) -> Any:
        y = begin(x)
        return end(F.dropout(y.T, 0.5).T if transposed else F.dropout(y, 0.5))

    module = Function(drop, nn.Linear(5, 4), nn.Linear(4, 2))
    run = torch.compile(module, backend=backend, dynamic=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="atc runs a graph eagerly")
        for batch in (4, 7):
            found = []
            for way in (run, module):
                torch.manual_seed(batch)
                module.zero_grad()
                way(torch.ones(batch, 5)).square().sum().backward()
                found.append([p.grad.clone() for p in module.parameters()])
            torch.testing.assert_close(*found)
