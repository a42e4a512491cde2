"""Fourier transforms, windows, mel filters and LRN against the standard's tests and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.backends.parallel_for.signal import stages
from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import Array, DType, TensorType
from support import Batch, assert_close, node_cases, node_model, random_array, run_model

OPERATORS = ["DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"]
STANDARD = {name: (model, runs) for name, model, runs in node_cases(OPERATORS)}


@pytest.fixture(scope="module", params=[True, False], ids=["folded", "computed"])
def standard(request: pytest.FixtureRequest) -> Batch:
    return Batch({n: model for n, (model, _) in STANDARD.items()}, fold=request.param)


@pytest.mark.parametrize("name", STANDARD)
def test_standard(name: str, standard: Batch) -> None:
    for inputs, outputs in STANDARD[name][1]:
        assert_close(standard[name](inputs), outputs)


# ---- DFT ----------------------------------------------------------------------------------------


def pairs(z: Array) -> Array:
    """Complex numbers as the standard stores them."""
    z = np.asarray(z)
    return np.stack([z.real, z.imag], -1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 12, 30, 64, 77, 127, 360, 1000, 1024])
def test_stages_are_the_length(length: int) -> None:
    passes = stages(length)
    assert np.prod([s.radix for s in passes], dtype=int) == length
    for k, s in enumerate(passes):
        assert s.stride == np.prod([p.radix for p in passes[:k]], dtype=int)
        assert s.radix * s.count * s.stride == length


LENGTHS = [1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 15, 16, 20, 25, 30, 32, 49, 60, 64, 77, 128, 210, 256]


@pytest.fixture(scope="module")
def transforms() -> Batch:
    return Batch({
        f"{n} {parts} {inverse}": node_model(
            "DFT", [np.zeros((2, n, parts), np.float32), None, np.array(1)], inverse=inverse
        )
        for n in LENGTHS
        for parts in (1, 2)
        for inverse in (0, 1)
    })  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n: int, parts: int, inverse: int, transforms: Batch) -> None:
    x = random_array(DType.FLOAT, (2, n, parts), n)
    z = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    expected = pairs(np.fft.ifft(z, axis=1) if inverse else np.fft.fft(z, axis=1))
    (got,) = transforms[f"{n} {parts} {inverse}"]([x])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6 * n**0.5)


@pytest.mark.few(3)
@pytest.mark.parametrize(("size", "length"), [(8, 12), (12, 8), (5, 16), (9, 9)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_padded_and_cut(size: int, length: int, onesided: int) -> None:
    x = random_array(DType.DOUBLE, (3, size, 2, 1))
    model = node_model("DFT", [x, np.array(length), np.array(1)], onesided=onesided)
    transform = np.fft.rfft if onesided else np.fft.fft
    expected = pairs(transform(x[..., 0], length, axis=1))
    assert_close(run_model(model, [x]), [expected], rtol=1e-9, atol=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize(("size", "length"), [(5, 8), (5, 9), (5, 12), (9, 8), (5, None)])
def test_real_inverse(size: int, length: int | None) -> None:
    x = random_array(DType.DOUBLE, (2, size, 2))
    given = [x, None if length is None else np.array(length), np.array(-2)]
    model = node_model("DFT", given, inverse=1, onesided=1)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)[..., None]
    assert_close(run_model(model, [x]), [expected], rtol=1e-9, atol=1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
def test_every_axis(axis: int) -> None:
    x = random_array(DType.DOUBLE, (3, 4, 5, 2))
    expected = pairs(np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=axis if axis >= 0 else axis + 1))
    new = node_model("DFT", [x, None, np.array(axis)])
    assert_close(run_model(new, [x]), [expected], rtol=1e-9, atol=1e-12)
    if axis >= 0:
        old = node_model("DFT", [x], opset=17, axis=axis)
        assert_close(run_model(old, [x]), [expected], rtol=1e-9, atol=1e-12)


def test_the_ends_of_a_real_signal_s_spectrum_are_real() -> None:
    x = random_array(DType.FLOAT, (1, 10, 1))
    (got,) = run_model(node_model("DFT", [x, None, np.array(1)]), [x])
    assert got[0, 0, 1] == 0
    assert got[0, 5, 1] == 0


def test_halves() -> None:
    x = random_array(DType.FLOAT16, (2, 8, 1))
    expected = pairs(np.fft.fft(x[..., 0].astype(float), axis=1)).astype(np.float16)
    assert_close(run_model(node_model("DFT", [x]), [x]), [expected], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("shape", "length", "axis"),
    [
        ((2, 8, 3), None, 1),
        ((2, 8, 1), 0, 1),
        ((2, 8, 1), 2**40, 1),
        ((2, 8, 1), None, 2),
        ((8,), None, 0),
    ],
)
def test_nonsense_is_refused(shape: tuple[int, ...], length: int | None, axis: int) -> None:
    x = np.zeros(shape, np.float32)
    given = [x, None if length is None else np.array(length), np.array(axis)]
    with pytest.raises(ModelError, match="DFT"):
        run_model(node_model("DFT", given), [x])


# ---- STFT ---------------------------------------------------------------------------------------


def framed(x: Array, step: int, length: int) -> Array:
    count = (x.shape[1] - length) // step + 1
    return np.stack([x[:, k * step : k * step + length] for k in range(count)], 1)


@pytest.mark.few(4)
@pytest.mark.parametrize("weighted", ["none", "constant", "run time"])
@pytest.mark.parametrize(("step", "length"), [(4, 16), (5, 12), (16, 16), (3, 1)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(step: int, length: int, onesided: int, weighted: str) -> None:
    x = random_array(DType.FLOAT, (2, 50, 1))
    window = np.hanning(length + 2)[1:-1].astype(np.float32)
    given = [x, np.array(step), None if weighted == "none" else window, np.array(length)]
    fixed = [1, 2, 3] if weighted == "constant" else [1, 3]
    model = node_model("STFT", given, constant=fixed, onesided=onesided)
    frames = framed(x[..., 0].astype(float), step, length) * (1 if weighted == "none" else window)
    expected = pairs((np.fft.rfft if onesided else np.fft.fft)(frames, axis=-1))
    (got,) = run_model(model, [x, window] if weighted == "run time" else [x])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_stft_of_a_complex_signal() -> None:
    x = random_array(DType.FLOAT, (1, 20, 2))
    model = node_model("STFT", [x, np.array(4), None, np.array(8)], onesided=0)
    frames = framed(x[..., 0] + 1j * x[..., 1], 4, 8)
    (got,) = run_model(model, [x])
    np.testing.assert_allclose(got, pairs(np.fft.fft(frames, axis=-1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("step", "length", "window"), [(0, 8, None), (4, 30, None), (4, 8, 7), (-1, 8, None)]
)
def test_stft_refuses_nonsense(step: int, length: int, window: int | None) -> None:
    x = np.zeros((1, 20, 1), np.float32)
    weights = None if window is None else np.zeros(window, np.float32)
    model = node_model("STFT", [x, np.array(step), weights, np.array(length)], constant=[1, 2, 3])
    with pytest.raises(ModelError, match="STFT"):
        run_model(model, [x])


# ---- tables -------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 2, 9])
def test_windows(size: int, periodic: int) -> None:
    period = max(size if periodic else size - 1, 1)
    cosine = np.cos(2 * np.pi * np.arange(size) / period)
    double = np.cos(4 * np.pi * np.arange(size) / period)
    expected = {
        "HannWindow": 0.5 - 0.5 * cosine,
        "HammingWindow": 25 / 46 - 21 / 46 * cosine,
        "BlackmanWindow": 0.42 - 0.5 * cosine + 0.08 * double,
    }
    for op, values in expected.items():
        model = node_model(op, [np.array(size)], opset=17, periodic=periodic)
        (got,) = run_model(model, [], fold=False)
        np.testing.assert_allclose(got, values, atol=1e-6)


def test_a_window_s_type() -> None:
    model = node_model("HannWindow", [np.array(4)], output_datatype=DType.DOUBLE.code)
    assert run_model(model, [], fold=False)[0].dtype == np.float64


def test_a_window_of_run_time_length_is_refused() -> None:
    size = np.array(4)
    with pytest.raises(UnsupportedError, match="length"):
        run_model(node_model("HannWindow", [size], constant=[]), [size])


@pytest.mark.parametrize(("bins", "filters"), [(2**30, 8), (2**40, 1), (2**20, 2**20)])
def test_an_absurd_table_is_refused_at_once(bins: int, filters: int) -> None:
    given = [np.array(v) for v in (filters, bins, 16000)] + [np.float32(v) for v in (0, 8000)]
    with pytest.raises(ModelError, match="filters of"):
        run_model(node_model("MelWeightMatrix", given, opset=17), [], fold=False)
    with pytest.raises(ModelError, match="length"):
        run_model(node_model("HannWindow", [np.array(bins * filters)], opset=17), [], fold=False)


# ---- LRN ----------------------------------------------------------------------------------------


def normalized(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """The standard's formula; its reference sums wrongly where batch and channels differ."""
    channels = x.shape[1]
    total = np.zeros(x.shape)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels, c + -(-(size - 1) // 2) + 1)
        total[:, c] = (x[:, low:high].astype(float) ** 2).sum(1)
    return np.asarray(x / (bias + alpha / size * total) ** beta)


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 4, 6), (3, 7)])
def test_lrn(shape: tuple[int, ...], size: int) -> None:
    x = random_array(DType.FLOAT, shape)
    model = node_model("LRN", [x], size=size, alpha=0.5, beta=0.6, bias=2.0)
    expected = normalized(x, size, 0.5, 0.6, 2.0).astype(np.float32)
    assert_close(run_model(model, [x]), [expected], rtol=1e-5, atol=1e-6)


def test_lrn_is_onnxruntime_s() -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = random_array(DType.FLOAT, (2, 6, 4, 4))
    model = node_model("LRN", [x], [TensorType(DType.FLOAT, x.shape)], opset=13, size=5)
    model.ir_version = 8
    session = runtime.InferenceSession(model.SerializeToString())
    assert_close(run_model(model, [x]), session.run(None, {"x0": x}), rtol=1e-5)
