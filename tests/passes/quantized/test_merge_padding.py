"""Padding with the zero point: first layers in vectors pad what they copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_networks import Net

import atc
from atc.backends.target import host_features
from atc.backends.targets import get_target


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512", "x86-64-avx512-vnni"])
@pytest.mark.parametrize("pads", [(2, 1, 0, 3), (0, 0, 1, 1)])
def test_first_layers_in_vectors_pad_what_they_copy_with_its_zero_point(
    pads: tuple[int, ...], target: str, tmp_path: Path
) -> None:
    if get_target(target).features - host_features():
        pytest.skip(f"this machine has no {target}")
    net = Net(True, uneven=True)
    x = net.conv(net.input(1, 3, 12, 14, zero=-7), 16, stride=2, pads=pads)
    onnx.save(net.model(net.conv(x, 8, (1, 1), relu=False)), tmp_path / "m.onnx")
    given = np.random.default_rng(6).integers(-128, 128, (1, 3, 12, 14)).astype(np.int8)
    found = []
    for name in ("c99", target):
        folder = tmp_path / name.replace("-", "_")
        atc.compile(tmp_path / "m.onnx", folder, target=name, build_config="cc -O0")
        with atc.load(folder) as network:
            found.append(network(given)[0])
    assert len(np.unique(found[0])) > 40
    np.testing.assert_array_equal(found[1], found[0])
    kernels = [path.stem for path in (folder / "src/kernels").glob("*.c")]
    assert any("first" in name for name in kernels), kernels
    assert not any("pad" in name for name in kernels), kernels
