"""ImageDecoder against Pillow, pixel for pixel, and on damaged files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from projects import make_library, make_model

from atc.errors import UnsupportedError
from atc.ir.graph import Array
from atc.runtime.load import load
from atc.runtime.network import Network
from support import compile_graph

Image = pytest.importorskip("PIL.Image")

BYTES = 6000
"""All files are as long: what lies behind an image doesn't matter."""

SIZE = (19, 23)
"""Odd, so that blocks and units are cut."""


def decoder(height: int, width: int, pixel_format: str) -> Any:
    channels = 1 if pixel_format == "Grayscale" else 3
    node = helper.make_node("ImageDecoder", ["x"], ["y"], pixel_format=pixel_format)
    result = ("y", TensorProto.UINT8, (height, width, channels))
    return make_model([node], [("x", TensorProto.UINT8, (BYTES,))], [result])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def built(size: tuple[int, int], pixel_format: str = "RGB") -> Network:
        folder = tmp_path_factory.mktemp("image")
        return load(make_library(folder, decoder(*size, pixel_format)))

    return built


def pixels(height: int, width: int, channels: int = 3) -> Array:
    """Return a smooth picture with some noise."""
    random = np.random.default_rng(height)
    i, j, k = np.ogrid[:height, :width, :channels]
    wave = 120 + 100 * np.sin(i / 5 + k) * np.cos(j / 4 - k)
    return np.clip(wave + random.normal(0, 12, wave.shape), 0, 255).astype(np.uint8)


def padded(data: bytes) -> Array:
    assert len(data) <= BYTES
    return np.frombuffer(data.ljust(BYTES, b"\0"), np.uint8)


def saved(image: Any, kind: str, **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return file.getvalue()


def png(depth: int, kind: int, interlaced: bool, size: tuple[int, int]) -> bytes:
    """Return a PNG whose lines take all filters in turn (what they hold is made up)."""
    random = np.random.default_rng(depth + kind)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
              (0, 1, 1, 2)] if interlaced else [(0, 0, 1, 1)]  # fmt: skip
    lines = b""
    for x, y, across, down in passes:
        columns, rows = -(-(size[1] - x) // across), -(-(size[0] - y) // down)
        count = (columns * channels * depth + 7) // 8
        for row in range(rows if columns > 0 else 0):
            lines += bytes([row % 5]) + random.integers(0, 256, count, dtype=np.uint8).tobytes()

    def chunk(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    head = struct.pack(">IIBBBBB", size[1], size[0], depth, kind, 0, 0, int(interlaced))
    packed = zlib.compress(lines, 9 if interlaced else depth % 3)
    parts = [chunk(b"IDAT", packed[:37]), chunk(b"IDAT", b""), chunk(b"IDAT", packed[37:])]
    palette = random.integers(0, 256, 3 << min(depth, 8), dtype=np.uint8).tobytes()
    colours = chunk(b"PLTE", palette) if kind == 3 else b""
    chunks = chunk(b"IHDR", head) + chunk(b"tEXt", b"a\0b") + colours + b"".join(parts)
    return b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IEND", b"")


def files() -> Iterator[tuple[str, bytes]]:
    colour, grey = Image.fromarray(pixels(*SIZE)), Image.fromarray(pixels(*SIZE, 1)[..., 0])
    few = colour.quantize(16)
    for name, image in {"colour": colour, "grey": grey, "few": few}.items():
        for kind in ("bmp", "png", *(("tiff", "ppm") if name != "few" else ())):
            yield f"{kind} {name}", saved(image, kind)
    yield "bmp of 32 bits", saved(colour.convert("RGBA"), "bmp")
    yield "bmp of 1 bit", saved(grey.convert("1"), "bmp")
    yield "tiff the other way round", saved(colour, "tiff", big_endian=True)
    for sampling in (0, 1, 2):
        for quality in (30, 90):
            options = {"quality": quality, "subsampling": sampling}
            yield f"jpeg {sampling} {quality}", saved(colour, "jpeg", **options)
    yield "jpeg with restarts", saved(colour, "jpeg", restart_marker_blocks=2, optimize=True)
    yield "jpeg grey", saved(grey, "jpeg", quality=60)
    yield "jpeg of plain colours", saved(colour, "jpeg", keep_rgb=True)
    for kind, depths in {0: (1, 2, 4, 8), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8, 16)}.items():
        for depth in depths:
            for interlaced in (False, True):
                yield f"png {kind} of {depth} {interlaced}", png(depth, kind, interlaced, SIZE)
    text = " ".join(map(str, pixels(*SIZE, 1).ravel() // 3))
    yield "pgm in text", f"P2 # a comment\n{SIZE[1]} {SIZE[0]}\n85\n{text}\n".encode()


FILES = dict(files())


def shown(data: bytes) -> Array:
    """Return what Pillow decodes, in colours; transparency left out."""
    image = Image.open(io.BytesIO(data))
    wide = np.asarray(image)
    if image.mode in ("RGBA", "LA"):
        wide = wide[..., :-1]
        return np.broadcast_to(wide, (*SIZE, 3))
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillows(name: str, network: Any) -> None:
    got = network(SIZE)(padded(FILES[name]))
    np.testing.assert_array_equal(got, shown(FILES[name]))


@pytest.mark.few(1)
@pytest.mark.parametrize("pixel_format", ["BGR", "Grayscale"])
def test_pixel_formats(pixel_format: str, network: Any) -> None:
    for name in ("jpeg 2 90", "png few"):
        image = Image.open(io.BytesIO(FILES[name])).convert("RGB")
        grey = np.asarray(image.convert("L"))[..., np.newaxis]
        wanted = grey if pixel_format == "Grayscale" else np.asarray(image)[..., ::-1]
        np.testing.assert_array_equal(network(SIZE, pixel_format)(padded(FILES[name])), wanted)


def test_narrow_images(network: Any) -> None:
    size = (18, 1)
    image = Image.fromarray(pixels(*size))
    for kind in ("jpeg", "png", "bmp", "ppm", "tiff"):
        data = saved(image, kind)
        wanted = np.asarray(Image.open(io.BytesIO(data)))
        np.testing.assert_array_equal(network(size)(padded(data)), wanted, kind)


# ---- what can't be decoded ----------------------------------------------------------------------


def refused() -> dict[str, bytes]:
    colour = Image.fromarray(pixels(*SIZE))
    return {
        "another size": saved(colour.resize((8, 8)), "png"),
        "progressive": saved(colour, "jpeg", progressive=True),
        "webp": saved(colour, "webp"), "gif": saved(colour.quantize(16), "gif"),
        "a compressed tiff": saved(colour, "tiff", compression="tiff_lzw"),
        "half a png": FILES["png colour"][:200], "nothing": b"",
    }  # fmt: skip


@pytest.mark.parametrize("name", refused())
def test_other_files_are_an_error_and_give_no_pixels(name: str, network: Any) -> None:
    out = np.full((*SIZE, 3), 7, np.uint8)
    unknown = name in ("webp", "gif", "nothing")
    reason = "not an image of a format that is read: BMP" if unknown else "an image is damaged"
    with pytest.raises(RuntimeError, match=reason):
        network(SIZE)(padded(refused()[name]), out=out)
    assert not out.any()


def test_damaged_files_do_no_harm(network: Any) -> None:
    random = np.random.default_rng(8)
    call = network(SIZE)
    for data in FILES.values():
        for _ in range(12):
            file = padded(data).copy()
            for at in random.integers(0, len(data), random.integers(1, 6)):
                file[at] = random.integers(0, 256)
            with suppress(RuntimeError):  # damage need not show
                call(file)
    np.testing.assert_array_equal(call(padded(FILES["png few"])), shown(FILES["png few"]))


def test_an_image_of_unknown_size_is_refused(tmp_path: Path) -> None:
    model = decoder(*SIZE, "RGB")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="size is known at run time only"):
        compile_graph(model)
