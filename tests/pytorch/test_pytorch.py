"""PyTorch modules as libraries and behind `torch.compile`, against eager PyTorch."""

from __future__ import annotations

import re
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
from atc.pytorch import backend, compile_module  # noqa: E402
from atc.pytorch.export import export  # noqa: E402

nn = torch.nn


def block() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)
    ).eval()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def silently(run: Callable[..., Any], *inputs: Any) -> Any:
    """Return what a call gives that must not fall back."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("error", message="atc (runs a graph eagerly|compiles a library)")
        return run(*inputs)


X = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)


def test_a_module_becomes_a_library(tmp_path: Path) -> None:
    module = block()
    atc.compile(module, (torch.tensor(X),), tmp_path / "net", target="c99")
    wanted = module(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(atc.load(tmp_path / "net")(X), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [("net",), (X, "net"), ()])
def test_a_module_needs_example_inputs(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"needs example inputs \[Sequential\]"):
        atc.compile(block(), *wrong)


@pytest.mark.parametrize(
    "options", [None, pytest.param({"freeze": True}, marks=pytest.mark.slow)],
    ids=["plain", "frozen"],
)  # fmt: skip
def test_compiled_calls_are_the_eager_ones(options: Any) -> None:
    module = block()
    run = torch.compile(module, backend=backend, options=options)
    x = torch.tensor(X)
    for batch in (x, x + 1, torch.cat([x, x])):
        found = silently(run, batch)
        torch.testing.assert_close(found, module(batch).detach(), rtol=1e-5, atol=1e-6)


def precision_modes(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return a list that gets what each library's products may be computed in."""
    given: list[str | None] = []

    def compiling(*files: Any, **keywords: Any) -> Any:
        given.append(keywords.get("precision_mode"))
        return atc.compile(*files, **keywords)

    monkeypatch.setattr("atc.pytorch.dynamo.compile_file", compiling)
    return given


@pytest.fixture
def matmul_precision() -> Iterator[Callable[[str], None]]:
    """Yield what sets PyTorch's precision of products, until the test's end."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def test_products_are_rounded_where_pytorch_allows_it(
    monkeypatch: pytest.MonkeyPatch, matmul_precision: Callable[[str], None]
) -> None:
    given = precision_modes(monkeypatch)
    run, x = torch.compile(torch.nn.Linear(8, 3), backend=backend), torch.ones(2, 8)
    for setting in ("highest", "high", "highest"):
        matmul_precision(setting)
        silently(run, x)
    assert given == ["must_keep_origin_dtype", None]  # the first library serves again


@pytest.mark.parametrize(
    ("options", "dtype", "expected"),
    [
        ({"precision_mode": "force_fp16"}, torch.float32, "force_fp16"),
        ({"max_error": 1e-3}, torch.float32, None),
        ({}, torch.bfloat16, None),
    ],
    ids=["a mode", "an error", "halves"],
)
def test_options_and_halves_say_themselves_what_is_rounded(
    options: dict[str, Any], dtype: Any, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = precision_modes(monkeypatch)
    run = torch.compile(torch.nn.Linear(8, 3).to(dtype), backend=backend, options=options)
    silently(run, torch.ones(2, 8, dtype=dtype))
    assert given == [expected]


@pytest.mark.parametrize(
    "change", ["in place", *(pytest.param(c, marks=pytest.mark.slow) for c in ("by data", "anew"))]
)
def test_a_changed_parameter_is_seen(change: str) -> None:
    module = block()
    run = torch.compile(module, backend=backend)
    silently(run, torch.tensor(X))
    with torch.no_grad():
        if change == "in place":
            module[4].weight.mul_(2)
        elif change == "by data":
            module[4].weight.data.mul_(2)
        else:
            module[4].weight = nn.Parameter(module[4].weight * 2)
    wanted = module(torch.tensor(X)).detach()
    torch.testing.assert_close(silently(run, torch.tensor(X)), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("positive", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_graphs_break_where_python_looks(positive: bool) -> None:
    def branching(x: Any) -> Any:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1, {"half": y / 2}

    run = torch.compile(branching, backend=backend)
    if positive:
        torch.testing.assert_close(silently(run, torch.ones(3)), torch.full((3,), 3.0))
        return
    one, two = silently(run, -torch.ones(3))
    torch.testing.assert_close(one, torch.full((3,), -3.0))
    torch.testing.assert_close(two["half"], -torch.ones(3))


def test_a_result_may_be_an_input() -> None:
    def run(x: Any, y: Any) -> Any:
        return x, x * 2 + y, y

    x, y = torch.ones(3), torch.zeros(3)
    found = silently(torch.compile(run, backend=backend), x, y)
    torch.testing.assert_close(found, run(x, y))
    assert found[0] is x
    assert found[2] is y


SLOW_TYPES = [pytest.param(k, marks=pytest.mark.slow) for k in ("float32", "float64", "int64")]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", *SLOW_TYPES])
def test_operands_of_all_types_and_layouts(kind: str) -> None:
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, kind)).T

    def run(x: Any) -> Any:
        return x[1:] * 2 + 1

    torch.testing.assert_close(silently(torch.compile(run, backend=backend), x), run(x))


F = nn.functional
EDGES = torch.tensor([[-200.0, -30, 0.5], [90, 90, 200]])
MASK = torch.tensor([[True, False], [False, False]])
DROPPED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "smoothed labels": (lambda y: F.cross_entropy(
        y, torch.tensor([2, 1]), torch.tensor([1.0, 2, 3]), label_smoothing=0.2), (EDGES / 20,)),
    "shares as labels": (lambda y: F.cross_entropy(y, F.softmax(y.flip(0), 1)), (EDGES / 20,)),
    "divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, divisor_override=2), (torch.tensor(X),)),
    "divisor of volumes": (lambda x: F.avg_pool3d(x, 2, 3, 1, divisor_override=5),
                           (torch.tensor(X),)),
    "negative scale": (lambda q: F.scaled_dot_product_attention(q, q, q, scale=-0.5),
                       (torch.tensor(X),)),
    "attention of three axes": (lambda q: F.scaled_dot_product_attention(q, q, q),
                                (torch.tensor(X[0]),)),
    "a word that sees none": (lambda q: F.scaled_dot_product_attention(q, q, q, MASK),
                              (torch.tensor(X[..., :2, :]),)),
    "none by floats": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m),
                       (torch.tensor(X[..., :2, :]), torch.tensor([[0.5, 0], [-torch.inf] * 2]))),
    "log of sigmoid": (F.logsigmoid, (EDGES,)),
    "logits": (F.binary_cross_entropy_with_logits, (EDGES, torch.tensor([[0.3, 1, 0], [1, 0, 1]]))),
    "logs of sums": (lambda x: torch.logaddexp(x, x.flip(1)), (EDGES,)),
    "products alone": (lambda x, y: torch.addmm(x, y, y, beta=0, alpha=0.5)
                       + torch.baddbmm(x[None], y[None], y[None], beta=0)[0]
                       + torch.addmv(x[0], y, y[0], beta=0) + torch.addr(x, y[0], y[1], beta=0)
                       + torch.addbmm(x, y[None], y[None], beta=0),
                       (torch.full((4, 4), torch.nan), torch.tensor(X[0, 0]))),
    "means": (lambda x: x.scatter_reduce(1, (x > 0).long(), x, "mean", include_self=False),
              (EDGES,)),
    "means of integers": (lambda x: x.scatter_reduce(0, x % 2, x, "mean"),
                          (torch.tensor([7, 4, 8]),)),
    "logs of running sums": (lambda x: torch.logcumsumexp(x, 1), (EDGES,)),
    "running products": (lambda x: torch.cumprod(x, 1), (EDGES / 20,)),
    "nearest pixels": (lambda x: torch.cat([y.flatten() for y in (
        F.interpolate(x, size=(24, 40)), F.interpolate(x, scale_factor=(2.0, 1.2)),
        F.interpolate(x[0], size=24), F.interpolate(x[None], size=(1, 20, 24)),
    )]), (torch.arange(400.0).reshape(1, 1, 20, 20),)),
    "extents by a scale": (lambda x: F.interpolate(x, scale_factor=0.29, mode="linear")
                           + F.interpolate(x, scale_factor=0.29),
                           (torch.arange(200.0).reshape(1, 2, 100),)),
    "copies": (lambda x: torch.ops.aten.copy(x, x[:1] * 3) + torch.ops.aten.copy(x, x.int()),
               (EDGES.clamp(-9, 9) / 2,)),
    "memory of another order": (lambda x: x.mT.as_strided((3, 4), (2, 5), 1), (torch.tensor(X),)),
    "a part of memory of another order": (
        lambda x: x.mT.as_strided_scatter(x[0, 0, :2] * 3, (2, 4), (24, 3), 2) * 2,
        (torch.tensor(X),),
    ),
    "mean slope": (F.rrelu, (EDGES,)),
    "maxima of unequal windows": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (torch.tensor(X),)),
}  # fmt: skip
"""What PyTorch's exporter would make something else of."""


class Function(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


@pytest.mark.parametrize("name", DROPPED)
def test_what_the_exporter_would_change_is_kept(name: str, tmp_path: Path) -> None:
    function, inputs = DROPPED[name]
    export(Function(function), inputs, tmp_path / "net.onnx")
    found = onnx_result(tmp_path / "net.onnx", inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-5)


def onnx_result(path: Path, inputs: Any) -> Any:
    """Return what onnxruntime makes of a model."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes())
    feeds = {v.name: inputs[int(v.name.removeprefix("tensors_"))].numpy()
             for v in session.get_inputs()}  # fmt: skip
    return torch.from_numpy(session.run(None, feeds)[0])


def test_numbers_beside_doubles_are_doubles(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        whole = torch.full((3,), 0.1, dtype=x.dtype) + torch.full_like(x, 0.7)
        return torch.where(x > 0.1, x * 0.3, whole / 0.9).clamp(0.2, 1.1)

    x = torch.tensor([0.05, 0.4, 3], dtype=torch.float64)
    export(Function(function), (x,), tmp_path / "net.onnx")
    found = onnx_result(tmp_path / "net.onnx", (x,))
    torch.testing.assert_close(found, function(x), rtol=1e-15, atol=0)


def with_a_column_set(x: Any) -> Any:
    y = x.reshape(4, 2) * 2
    y[:, 1] = 0.1
    return y


IN_DOUBLE: dict[str, Callable[[Any], Any]] = {
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "elu": lambda x: F.elu(x, 0.3),
    "celu": lambda x: F.celu(x, 0.3), "selu": F.selu, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "hardtanh": lambda x: F.hardtanh(x, -0.1, 0.3),
    "softplus": lambda x: F.softplus(x, 1.3), "gelu": F.gelu,
    "tanh of gelu": lambda x: F.gelu(x, approximate="tanh"),
    "layer_norm": lambda x: F.layer_norm(x * 1e-3, (8,)),
    "group_norm": lambda x: F.group_norm(x.reshape(1, 4, 2) * 1e-3, 2),
    "rms_norm": lambda x: F.rms_norm(x, (8,), eps=0.1),
    "addmm": lambda x: torch.addmm(x, x[:, None], x[None], beta=0.3, alpha=0.7),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "alpha": lambda x: torch.add(x, x, alpha=0.1) - torch.sub(x, x, alpha=0.7),
    "powers": lambda x: 0.3**x + (x * x + 1) ** 0.3 + x**2 + x.norm(1.7),
    "ranges": lambda x: x * torch.linspace(0.1, 0.7, 8, dtype=x.dtype)
    + torch.arange(0, 0.8, 0.1, dtype=x.dtype) + torch.logspace(0.1, 0.7, 8, dtype=x.dtype),
    "logarithms": lambda x: (x * x + 1).log2() + (x * x + 1).log10(),
    "sinc": torch.sinc, "degrees": lambda x: torch.rad2deg(x) - torch.deg2rad(x),
    "resized": lambda x: F.interpolate(x.reshape(1, 2, 4), scale_factor=1.7, mode="linear")
    + F.interpolate(x.reshape(1, 1, 2, 4), scale_factor=1.7, mode="bicubic").sum((0, 1, 2)),
    "filled": lambda x: x.masked_fill(x > 0, 0.1) + x.new_full((8,), 0.3),
    "set": with_a_column_set,
    "hypot": lambda x: torch.hypot(x[:, None] * 1e200, x) + torch.hypot(x, x.round() / 0),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 1, 4, 2)] * 3, scale=0.3),
}  # fmt: skip


@pytest.mark.slow
def test_functions_of_doubles_are_doubles(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return tuple(f(x) for f in IN_DOUBLE.values())

    x = torch.linspace(-2, 2.2, 8, dtype=torch.float64)
    compile_module(Function(function), (x,), tmp_path / "net", target="c99")
    results = atc.load(tmp_path / "net")(x.numpy())
    for name, found, wanted in zip(IN_DOUBLE, results, function(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-15, err_msg=name)


def test_extents_beside_doubles_are_doubles(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return x.sum((0, 2)) / (x.shape[0] * x.shape[2]) + x[0, :, 0] * x.shape[0] - x.shape[2]

    x, dims = torch.ones(3, 4, 7, dtype=torch.float64), {0: torch.export.Dim("batch", min=2)}
    export(Function(function), (x,), tmp_path / "net.onnx", ((dims,),))
    for n in (2, 5):
        x = torch.from_numpy(np.random.default_rng(n).normal(size=(n, 4, 7)))
        found = onnx_result(tmp_path / "net.onnx", (x,))
        torch.testing.assert_close(found, function(x), rtol=1e-14, atol=1e-14)


def test_distances_are_written_out(tmp_path: Path) -> None:
    x = torch.tensor(X.reshape(8, 12))
    export(Function(torch.cdist), (x, x[:3] + 1), tmp_path / "net.onnx")
    found = onnx_result(tmp_path / "net.onnx", (x, x[:3] + 1))
    torch.testing.assert_close(found, torch.cdist(x, x[:3] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smoothed labels", "divisor", "none by floats"])
def test_compiled_graphs_keep_what_the_exporter_would_change(name: str) -> None:
    function, inputs = DROPPED[name]
    found = silently(torch.compile(function, backend=backend), *inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-5)


def test_what_the_exporter_would_change_is_refused_where_it_can_not_be_kept(tmp_path: Path) -> None:
    def resized(x: Any) -> Any:
        return F.interpolate(x, scale_factor=1.3, mode="bilinear", antialias=True)

    with pytest.raises(UnsupportedError, match="antialias=True by a scale_factor"):
        export(Function(resized), (torch.tensor(X),), tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("function", "make", "why"),
    [
        (lambda x: torch.multinomial(x, 2), lambda: (torch.ones(3),), "random"),
        (lambda x: x * 2, lambda: (torch.ones(3, dtype=torch.complex64),), "complex64"),
        (lambda x: torch.fft.rfft(x), lambda: (torch.ones(4),), "complex64"),
        (lambda x: torch.linalg.svdvals(x), lambda: (torch.eye(3),), "export"),
    ],
    ids=["random", "type", "type of a result", "operator"],
)  # fmt: skip
def test_what_can_not_be_taken_runs_eagerly_and_says_why(
    function: Any, make: Any, why: str
) -> None:
    run = torch.compile(function, backend=backend)
    given, wanted_of = make(), make()
    torch.manual_seed(3)
    wanted = function(*wanted_of)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match=f"atc runs a graph eagerly: .*{why}") as reported:
        found = run(*given)
    assert all("\n" not in str(w.message) for w in reported if "eagerly" in str(w.message))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(given, wanted_of)


def test_what_can_not_be_exported_is_refused(tmp_path: Path) -> None:
    class Svd(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x)

    with pytest.raises(UnsupportedError, match=r"torch.onnx can't export it: .*\[Svd\]") as error:
        compile_module(Svd(), (torch.eye(3),), tmp_path / "net")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda: nn.Dropout(0.5), "a dropout in training"),
        (lambda: nn.Dropout2d(0.5), "a dropout in training"),
        (lambda: nn.AlphaDropout(0.5), "a dropout in training"),
        (lambda: nn.FeatureAlphaDropout(0.5), "a dropout in training"),
        (lambda: nn.GRU(4, 4, 2, dropout=0.5), "a dropout in training"),
        (lambda: nn.LSTM(4, 4, 2, dropout=0.5), "it is in training|a dropout in training"),
        (lambda: nn.BatchNorm1d(3), "a batch norm in training"),
        (nn.RReLU, "random slopes in training"),
    ],
    ids=["Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout", "GRU", "LSTM",
         "BatchNorm1d", "RReLU"],
)  # fmt: skip
def test_what_differs_in_training_is_refused(layer: Any, what: str, tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), layer()).train(), torch.ones(2, 3, 4)
    with pytest.raises(UnsupportedError, match=rf"({what}).*call eval\(\) before"):
        compile_module(module, (x,), tmp_path / "net")
    export(module.eval(), (x,), tmp_path / "net.onnx")


@pytest.mark.slow
def test_the_snippet_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "atc/docs/tracing.md").read_text("utf-8")
    section = text.partition("\n## PyTorch")[2].partition("\n## ")[0]
    snippet = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    torch._dynamo.register_backend(backend, "atc")  # as the entry point does
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "tracing.md", "exec"), {"atc": atc})
