"""Writes the features of a sound as Whisper's encoder takes them: logarithms of a mel spectrum.

    python log_mel.py sound.wav features.f32

The sound has one channel, 16 bits and 16 kHz. Its first 30 seconds count; what is missing is
silence.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.floating]

RATE, SECONDS = 16000, 30
WINDOW, HOP = 400, 160
MELS = 80


def read_wav(path: Path) -> Floats:
    """Return a file's samples, numbers from -1 to 1; ValueError for another format."""
    with wave.open(str(path), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise ValueError(f"{path}: not one channel, 16 bits and 16 kHz")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples / np.float64(32768)


def log_mel(samples: Floats) -> NDArray[np.float32]:
    """Return the features of a sound, [80, 3000]: a column every 10 ms."""
    whole = np.zeros(RATE * SECONDS)
    kept = samples[: len(whole)]
    whole[: len(kept)] = kept
    around = np.pad(whole, WINDOW // 2, "reflect")  # the first column is that of the first sample
    windows = sliding_window_view(around, WINDOW)[::HOP][:-1]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW + 1)[:-1])) ** 2
    found = np.log10(np.maximum(filters() @ power.T, 1e-10))
    found = np.maximum(found, found.max() - 8)
    return ((found + 4) / 4).astype(np.float32)


def filters() -> Floats:
    """Return the weights of all frequencies in each band, [80, 201].

    Bands are triangles of the same area, as wide as Slaney's mel scale says.
    """
    corners = _hertz(np.linspace(0, _mel(RATE / 2), MELS + 2))
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, middle, high = (corners[k : k + MELS, None] for k in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(np.minimum(rising, falling), 0) * 2 / (high - low)


def _mel(hertz: float) -> float:
    """Return where a frequency above 1000 Hz stands on the scale: linear below, then in octaves."""
    return 15 + 27 * float(np.log(hertz / 1000)) / float(np.log(6.4))


def _hertz(mel: Floats) -> Floats:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


def main() -> None:
    """Write the features of the file that the command line names."""
    if len(sys.argv) != 3:
        sys.exit("usage: log_mel.py SOUND.wav FEATURES.f32")
    try:
        log_mel(read_wav(Path(sys.argv[1]))).astype("<f4").tofile(sys.argv[2])
    except (OSError, ValueError, EOFError, wave.Error) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
