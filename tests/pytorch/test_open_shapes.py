"""Libraries for ranges of extents: behind `torch.compile`, and of modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch isn't installed")
pytest.importorskip("onnxscript", reason="onnxscript isn't installed")

import atc  # noqa: E402
from atc.errors import OptionError, UnsupportedError  # noqa: E402
from atc.pytorch import backend, compile_module, dynamo  # noqa: E402
from atc.pytorch.open_shapes import OpenShapes, limits_of  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the shapes of each compilation."""
    found: list[Any] = []
    compile_file = dynamo.compile_file

    def noting(model: Path, output: Path, **options: Any) -> Any:
        found.append(options.get("input_shape"))
        return compile_file(model, output, **options)

    monkeypatch.setattr(dynamo, "compile_file", noting)
    return found


def layer() -> Any:
    torch.manual_seed(0)
    return nn.Linear(4, 3).eval()


def batch(count: int) -> Any:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(count))


def check(run: Callable[..., Any], function: Callable[..., Any], *inputs: Any) -> None:
    """Check a compiled call that neither falls back nor gives up ranges."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("error", message="atc (runs a graph eagerly|compiles a library)")
        torch.testing.assert_close(run(*inputs), function(*inputs), rtol=1e-5, atol=1e-6)


def test_a_marked_batch_is_a_range_of_one_library(compiled: list[Any]) -> None:
    module, first = layer(), batch(3)
    torch._dynamo.mark_dynamic(first, 0, min=2, max=16)
    run = torch.compile(module, backend=backend)
    for x in (first, batch(5), batch(16), batch(2)):
        check(run, module, x)
    (shapes,) = compiled
    assert [d.partition("=")[2] for s in shapes.values() for d in s if isinstance(d, str)] == [
        "2~16"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "dynamic", "batches", "libraries"),
    [
        (None, None, (3, 5, 7, 64), 2),  # Dynamo opens the batch when it changes
        (None, True, (5, 100, 7, 128), 2),  # the second one ends at 128
        ({"dynamic": (1, 8)}, True, (3, 8, 9, 10), 3),
        ({"dynamic": False}, True, (3, 5, 3), 2),
    ],
    ids=["automatic", "growing", "limited", "single"],
)
def test_libraries_are_compiled_for_as_few_ranges_as_can_be(
    compiled: list[Any], options: Any, dynamic: Any, batches: Any, libraries: int
) -> None:
    module = layer()
    run = torch.compile(module, backend=backend, options=options, dynamic=dynamic)
    for count in batches:
        check(run, module, batch(count))
    assert len(compiled) == libraries


def test_numbers_that_follow_from_extents_are_those_of_the_call(compiled: list[Any]) -> None:
    def function(x: Any) -> Any:
        doubled, number = x * 2, x.shape[0] * 3 + 1
        torch._dynamo.graph_break()
        return doubled, number

    run = torch.compile(function, backend=backend, dynamic=True)
    for count in (3, 5):
        with torch.no_grad():
            doubled, number = run(batch(count))
        torch.testing.assert_close(doubled, batch(count) * 2)
        assert number == 3 * count + 1
    assert len(compiled) == 1


def test_numbers_of_python_are_constants() -> None:
    module = nn.BatchNorm1d(4).eval()  # with dynamic=True its eps comes as a tensor's item
    check(torch.compile(module, backend=backend, dynamic=True), module, batch(3))


@pytest.mark.slow
def test_numbers_that_change_all_the_time_are_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dynamo, "LARGEST", 1)
    run = torch.compile(lambda x, k: x * k, backend=backend, dynamic=True)
    check(run, lambda x, k: x * k, batch(3), 0.5)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="atc runs a graph eagerly: .*numbers have changed"),
    ):
        torch.testing.assert_close(run(batch(3), 0.25), batch(3) * 0.25)


def test_what_takes_no_range_is_compiled_for_each_shape(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noting = dynamo.compile_file

    def refusing(model: Path, output: Path, **options: Any) -> Any:
        if "input_shape" in options:
            raise UnsupportedError("no ranges")
        return noting(model, output, **options)

    monkeypatch.setattr(dynamo, "compile_file", refusing)
    module = layer()
    run = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for count in (3, 5):
            torch.testing.assert_close(run(batch(count)), module(batch(count)))
    assert compiled == [None, None]
    (said,) = [text for w in reported if (text := str(w.message)).startswith("atc ")]
    assert said.startswith("atc compiles a library for each shape: ")
    assert "no ranges" in said


SHAPES = OpenShapes({(0, 0): "s", (1, 1): "t"}, {}, {"s": (2, None), "t": (2, 16)})


@pytest.mark.parametrize(
    ("extent", "within", "wanted"),
    [
        (2, (0, None), (2, 64)),
        (64, (0, None), (2, 64)),
        (65, (0, None), (2, 128)),
        (100, (4, 100), (4, 100)),
        (3, (4, 100), None),
        (101, (4, 100), None),
    ],
)
def test_ranges_that_nothing_bounds_end_at_powers_of_two(
    extent: int, within: Any, wanted: Any
) -> None:
    inputs = (torch.zeros(extent, 3), torch.zeros(3, 16))
    ranges = SHAPES.ranges(inputs, within)
    assert (ranges and ranges["s"]) == wanted
    assert ranges is None or ranges["t"] == (max(2, within[0]), 16)


@pytest.mark.parametrize("option", [(8, 1), (-1, 4), (1,), "1~8", 3, (1, 2.5)])
def test_limits_are_two_numbers(option: Any) -> None:
    with pytest.raises(OptionError, match="is not a range"):
        limits_of(option)


class Branching(nn.Module):  # type: ignore[misc]
    """Does something else for more than 16 rows, which an exported graph doesn't know."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.shape[0] <= 16 else x * 3


def test_a_module_takes_the_ranges_that_it_is_exported_for(tmp_path: Path) -> None:
    dims = ({0: torch.export.Dim("rows", min=1, max=8)},)
    compile_module(layer(), (batch(3),), tmp_path / "net", dynamic_shapes=dims, target="c99")
    net = atc.load(tmp_path / "net")
    for count in (1, 8):
        wanted = layer()(batch(count)).detach().numpy()
        np.testing.assert_allclose(net(batch(count).numpy()), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_a_range(mode: str, tmp_path: Path) -> None:
    module = nn.EmbeddingBag(20, 4, mode=mode).eval()
    dims, bags = ({0: torch.export.Dim("bags", min=1, max=8)},), torch.randint(0, 20, (3, 5))
    compile_module(module, (bags,), tmp_path / "net", dynamic_shapes=dims, target="c99")
    net = atc.load(tmp_path / "net")
    for count in (1, 8):
        bags = torch.randint(0, 20, (count, 5), generator=torch.Generator().manual_seed(count))
        np.testing.assert_allclose(net(bags.numpy()), module(bags).detach().numpy(), 1e-5, 1e-6)


class Joined(nn.Module):  # type: ignore[misc]
    """What is made smaller and larger again only fits where the size is even."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(2, 3, 3, stride=2, padding=1)

    def forward(self, x: Any) -> Any:
        small = self.down(x).relu()
        return torch.cat([x, nn.functional.interpolate(small, scale_factor=2.0)], 1)


def test_sizes_that_must_be_multiples(tmp_path: Path) -> None:
    module, sizes = Joined().eval(), 4 * torch.export.Dim("size", min=1, max=10)
    dims, example = ({2: sizes},), torch.randn(1, 2, 12)
    compile_module(module, (example,), tmp_path / "net", dynamic_shapes=dims, target="c99")
    net = atc.load(tmp_path / "net")
    for size in (4, 20, 40):
        x = torch.randn(1, 2, size)
        np.testing.assert_allclose(net(x.numpy()), module(x).detach().numpy(), 1e-5, 1e-6)
    with pytest.raises(ValueError, match="out of its range"):
        net(np.zeros((1, 2, 6), np.float32))


@pytest.mark.parametrize("shape", [{"x": ("1~64", 4)}, "x:1~64,4", {"x": (17, 4)}])
def test_a_range_beyond_what_a_module_is_exported_for_is_refused(
    shape: Any, tmp_path: Path
) -> None:
    dims = ({0: torch.export.Dim("rows", min=1, max=64)},)
    with pytest.raises(OptionError, match="axis 0 of 'x' .* exported for . to 16"):
        compile_module(Branching(), (batch(3),), tmp_path / "net", dynamic_shapes=dims,
                       input_shape=shape)  # fmt: skip
    assert not (tmp_path / "net").exists()
