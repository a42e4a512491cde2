"""The sample that finds speech: frame by frame what onnxruntime computes, and spans in C."""

from __future__ import annotations

import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from default_run import level
from numpy.typing import NDArray
from projects import compile_c

import atc

SAMPLE = Path(__file__).parents[2] / "samples" / "voice_activity"
sys.path.insert(0, str(SAMPLE))

import make_detector  # noqa: E402

FRAME, RATE = make_detector.FRAME, make_detector.RATE
SOUNDS = [make_detector.draw_sound(3, seed)[0] for seed in (5, 6)]


@pytest.fixture(scope="module")
def vad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled detector, with the model, the sounds and the program beside it."""
    folder = tmp_path_factory.mktemp("vad")
    onnx.save(make_detector.detector(make_detector.Weights()), folder / "vad.onnx")
    atc.compile(folder / "vad.onnx", folder / "vad", state="auto", target="c99")
    for k, sound in enumerate(SOUNDS):
        make_detector.write_wav(folder / f"{k}.wav", sound)
    compile_c(folder / "vad", level(), str(SAMPLE / "find_speech.c"), "libvad.a", "-lm",
              "-o", "../find_speech")  # fmt: skip
    return folder


def probabilities(folder: Path, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what onnxruntime says of each frame, its states handed on."""
    session = onnxruntime.InferenceSession(str(folder / "vad.onnx"))
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
    found = []
    for frame in samples[: len(samples) // FRAME * FRAME].reshape(-1, 1, FRAME):
        feed = {"input": frame, "state": state, "context_in": context}
        y, state, context = session.run(["output", "stateN", "context_out"], feed)
        found.append(y.item())
    return np.array(found, np.float32)


def as_read(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return samples as they come out of 16 bits."""
    return (np.round(samples * 32767) / 32768).astype(np.float32)


def find_speech(
    folder: Path, *words: object, given: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run the program where the sounds are."""
    done = subprocess.run([folder / "find_speech", *map(str, words)], input=given, cwd=folder,
                          capture_output=True, check=False)  # fmt: skip
    said = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


@pytest.mark.slow
def test_each_frame_is_what_onnxruntime_says(vad: Path) -> None:
    with atc.load(vad / "vad") as net:
        assert [t.name for t in net.inputs] == ["input"]
        for sound in SOUNDS:
            frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, 1, FRAME)
            found = np.array([net(frame).item() for frame in frames])
            np.testing.assert_allclose(found, probabilities(vad, sound), atol=1e-5)
            net.reset()


@pytest.mark.slow
def test_a_program_begins_each_file_anew(vad: Path) -> None:
    done = find_speech(vad, "-p", "0.wav", "1.wav")
    assert done.returncode == 0, done.stderr
    found = np.array([float(x) for x in re.findall(r"^0\.\d+$", done.stdout, re.MULTILINE)])
    wanted = np.concatenate([probabilities(vad, as_read(sound)) for sound in SOUNDS])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    alone = [find_speech(vad, "-p", f"{k}.wav").stdout for k in (0, 1)]
    assert done.stdout == "".join(alone)


@pytest.mark.slow
def test_a_program_finds_what_is_spoken(vad: Path) -> None:
    samples, spoken = make_detector.draw_sound(8, seed=7)
    make_detector.write_wav(vad / "long.wav", samples)
    done = find_speech(vad, "long.wav")
    found = np.zeros_like(spoken)
    spans = re.findall(r"^long.wav: ([\d.]+) s to ([\d.]+) s$", done.stdout, re.MULTILINE)
    for begin, end in spans:
        found[round(float(begin) * RATE / FRAME) : round(float(end) * RATE / FRAME)] = True
    assert len(spans) == np.count_nonzero(np.diff([0, *spoken]) == 1) >= 2
    assert (found == spoken).mean() >= 0.95


@pytest.mark.slow
def test_samples_come_from_a_file_or_a_pipe_with_and_without_a_header(vad: Path) -> None:
    wanted = find_speech(vad, "0.wav").stdout.replace("0.wav", "-")
    whole = (vad / "0.wav").read_bytes()
    assert ": " in wanted
    assert find_speech(vad, given=whole).stdout == wanted
    assert find_speech(vad, "-", given=whole + b"LIST\4\0\0\0????").stdout == wanted
    assert find_speech(vad, given=whole[44:]).stdout == wanted
    streamed = whole[:40] + b"\xff" * 4 + whole[44:]  # by who couldn't know its length
    assert find_speech(vad, given=streamed).stdout == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "width", "rate"), [(2, 2, 16000), (1, 1, 16000), (1, 2, 8000)]
)
def test_other_sounds_are_refused(
    channels: int, width: int, rate: int, vad: Path, tmp_path: Path
) -> None:
    with wave.open(str(tmp_path / "other.wav"), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(b"\0" * 4096)
    path = tmp_path / "other.wav"
    done = find_speech(vad, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{path}: not PCM of one channel, 16 bits and 16 kHz\n"


def test_what_is_no_sound_is_reported(vad: Path) -> None:
    done = find_speech(vad, "none.wav", "0.wav")
    assert (done.returncode, done.stderr) == (1, "none.wav: can't be opened\n")
    assert done.stdout.startswith("0.wav: ")
    done = find_speech(vad, given=b"RIFF\0\0\0\0WAVEfmt ")
    assert (done.returncode, done.stderr) == (1, "-: it ends before its samples\n")
    assert find_speech(vad, "-t", "2").returncode == 2
