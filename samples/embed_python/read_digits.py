"""Print which digit each image shows, with the module that atc wrote; atc itself isn't needed.

atc --model=samples/digits.onnx --output=out/digits
python samples/embed_python/read_digits.py out/digits samples/images/*.pgm
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def read_image(path: Path) -> np.ndarray:
    """Return a plain PGM file's pixels as [1, 1, height, width] of 0 to 1."""
    kind, width, height, largest, *values = path.read_text().split()
    if kind != "P2":
        raise SystemExit(f"{path}: not a plain PGM file")
    pixels = np.array(values, np.float32) / np.float32(largest)
    return pixels.reshape(1, 1, int(height), int(width))


def main() -> None:
    """Load the network from the folder given first, then read the images."""
    folder, *images = sys.argv[1:]
    sys.path.insert(0, folder)
    import digits  # the folder's own digits.py

    with digits.load() as net:
        for image in images:
            (scores,) = net(read_image(Path(image)))
            print(f"{image}: {scores.argmax()} ({scores.max():.1%})")


if __name__ == "__main__":
    main()
