"""The sample that recognizes speech: an encoder and a decoder as onnxruntime runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from default_run import level
from numpy.typing import NDArray
from projects import compile_c

import atc

SAMPLE = Path(__file__).parents[2] / "samples" / "speech_recognition"
sys.path.insert(0, str(SAMPLE))

import log_mel  # noqa: E402
import make_whisper  # noqa: E402

pytestmark = pytest.mark.slow
Floats = NDArray[np.float32]
TOY = make_whisper.SHAPES["toy"]
PROMPT = (1, 2, 3, 4)
COUNT = 12


class Truth:
    """What onnxruntime makes of the features beside the models."""

    def __init__(self, folder: Path, shape: make_whisper.Shape) -> None:
        self.shape = shape
        self.features = np.fromfile(folder / "features.f32", np.float32)
        self.features = self.features.reshape(1, shape.mels, shape.frames)
        encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"))
        self.heard = encoder.run(None, {"audio_features": self.features})
        self.decoder = onnxruntime.InferenceSession(str(folder / "decoder.onnx"))

    def decoded(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[Floats]]:
        """Return the likeliest tokens after a prompt, and the scores of all in each run."""
        names = [v.name for v in self.decoder.get_inputs()]
        cross = dict(zip([n for n in names if "cross" in n], self.heard[1:], strict=True))
        empty = np.zeros((1, self.shape.heads, 0, self.shape.size), np.float32)
        held = {n: empty for n in names if "self" in n}
        tokens, scores = [*prompt], []
        while len(tokens) < len(prompt) + count:
            ids = np.array([tokens[-1:] if scores else prompt], np.int32)
            made, *grown = self.decoder.run(None, {"input_ids": ids, **held, **cross})
            held = dict(zip(held, grown, strict=True))
            scores.append(made)
            tokens.append(int(made[0, -1].argmax()))
        return tokens[len(prompt) :], scores


def make(folder: Path, shape: str, target: str) -> Path:
    """Write the models and compile them as the script says; return the folder of all."""
    made = subprocess.run(
        [sys.executable, "-P", SAMPLE / "make_whisper.py", folder, f"--shape={shape}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [shlex.split(line)[1:] for line in made.stdout.splitlines()]
    for name, words in zip(("encoder", "decoder"), lines, strict=True):
        options = dict(word.removeprefix("--").split("=", 1) for word in words)
        assert Path(options.pop("model")) == folder / f"{name}.onnx"
        assert options.pop("output") == f"out/{name}"
        atc.compile(folder / f"{name}.onnx", folder / name, target=target, **options)  # type: ignore[arg-type]
    return folder


def build(folder: Path) -> Path:
    """Build the C program against the two static libraries."""
    compile_c(
        folder, level(), "-Iencoder/include", "-Idecoder/include", str(SAMPLE / "transcribe.c"),
        "encoder/libencoder.a", "decoder/libdecoder.a", "-lm", "-o", "transcribe",
    )  # fmt: skip
    return folder / "transcribe"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest shape, compiled, with the program beside it."""
    folder = make(tmp_path_factory.mktemp("toy"), "toy", "c99")
    build(folder)
    return folder


def transcribe(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "transcribe", *map(str, words)], cwd=folder,
                          capture_output=True, text=True, check=False)  # fmt: skip


def test_scores_are_those_of_onnxruntime(toy: Path) -> None:
    truth = Truth(toy, TOY)
    tokens, wanted = truth.decoded(PROMPT, COUNT)
    assert len(set(tokens)) > 4  # what says something of the attention
    with atc.load(toy / "encoder") as encoder, atc.load(toy / "decoder") as decoder:
        heard = encoder(truth.features)
        for found, expected in zip(heard, truth.heard, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)
        for _ in range(2):  # reset, it is as it was
            ids = np.array([PROMPT], np.int32)
            for scores, token in zip(wanted, tokens, strict=True):
                np.testing.assert_allclose(decoder(ids, *heard[1:]), scores, atol=1e-4)
                ids = np.array([[token]], np.int32)
            decoder.reset()


def test_the_decoder_keeps_its_own_keys_and_values_alone(toy: Path) -> None:
    with atc.load(toy / "decoder") as decoder:
        assert [t.name for t in decoder.inputs] == [
            "input_ids", *make_whisper.names(TOY, "past_{kind}_cross_{layer}")
        ]  # fmt: skip
        assert [t.name for t in decoder.outputs] == ["logits"]
        numbers = 2 * TOY.layers * TOY.width * TOY.longest
        assert decoder.state_size == 8 + 4 * numbers


def test_the_cache_is_filled_to_its_last_place(toy: Path) -> None:
    count = TOY.longest - len(PROMPT) + 1  # the last token isn't read again
    tokens, _ = Truth(toy, TOY).decoded(PROMPT, count)
    done = transcribe(toy, "features.f32", count, *PROMPT)
    assert [int(word) for word in done.stdout.split()] == tokens
    assert transcribe(toy, "features.f32", count + 1, *PROMPT).returncode == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("prompt", [PROMPT, (9,), (1, 2, 3, 4, 5, 6, 7)])
def test_a_program_says_the_same_tokens(prompt: tuple[int, ...], toy: Path) -> None:
    tokens, _ = Truth(toy, TOY).decoded(prompt, COUNT)
    done = transcribe(toy, "features.f32", COUNT, *prompt)
    assert (done.returncode, done.stderr) == (0, "")
    assert [int(word) for word in done.stdout.split()] == tokens


NO_FEATURES = "not a file of as many numbers as the encoder takes"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("features.f32", 60, *PROMPT), "features.f32: the caches are full"),
        (("none.f32", 1, 2), f"none.f32: {NO_FEATURES}"),
        (("encoder.onnx", 1, 2), f"encoder.onnx: {NO_FEATURES}"),
        (("features.f32", 1, 256), "features.f32: a token of the prompt isn't known"),
        (("features.f32", 1, "one"), "features.f32: a token of the prompt isn't known"),
        (("features.f32",), "features.f32: a token of the prompt isn't known"),  # Whisper's own
    ],
)  # fmt: skip
def test_what_went_wrong_is_reported(words: tuple[object, ...], problem: str, toy: Path) -> None:
    done = transcribe(toy, *words)
    assert (done.returncode, done.stderr) == (1, f"{problem}\n")


@pytest.mark.slow
def test_the_real_shape_says_the_same_tokens(tmp_path: Path) -> None:
    shape = make_whisper.SHAPES["whisper-tiny"]
    folder = make(tmp_path, "whisper-tiny", "host")
    truth = Truth(folder, shape)
    assert [a.shape for a in truth.heard[:2]] == [(1, 1500, 384), (1, 6, 1500, 64)]
    prompt = (50258, 50259, 50359, 50363)
    tokens, wanted = truth.decoded(prompt, COUNT)
    with atc.load(folder / "encoder") as encoder, atc.load(folder / "decoder") as decoder:
        heard = encoder(truth.features)
        np.testing.assert_allclose(heard[0], truth.heard[0], atol=1e-3)
        ids, found = np.array([prompt], np.int32), []
        for scores in wanted:
            made = decoder(ids, *heard[1:])
            np.testing.assert_allclose(made, scores, atol=1e-3)
            found.append(int(made[0, -1].argmax()))
            ids = np.array([found[-1:]], np.int32)
    assert found == tokens


BANDS, COLUMNS = [0, 5, 20, 40, 60, 79], [0, 1, 49, 50, 120, 199, 200, 2999]
EXTRACTED = [
    [1.05968, 0.43420, -0.36989, -0.12443, -0.65834, 0.08595, 0.59602, -0.65834],
    [1.16515, 1.27813, 0.39943, 0.34181, -0.65834, 0.09668, 0.61346, -0.65834],
    [0.46619, -0.05055, -0.41413, -0.09507, -0.63117, 1.29666, 1.17130, -0.65834],
    [0.12469, -0.38317, -0.53030, -0.01109, -0.65834, -0.23539, 0.27150, -0.65834],
    [-0.18733, -0.65834, -0.44097, 0.06843, -0.65834, -0.33452, 0.17573, -0.65834],
    [-0.36426, -0.65834, -0.65834, -0.28816, -0.65834, -0.60636, -0.09627, -0.65834],
]
"""What WhisperFeatureExtractor of transformers 5.23 makes of `two_tones`, in these places."""


def two_tones(seconds: float = 2) -> NDArray[np.float64]:
    """Return a tone that rises, and after half a second another one."""
    t = np.arange(int(seconds * log_mel.RATE)) / log_mel.RATE
    rising = 0.3 * np.sin(2 * np.pi * (200 * t + 150 * t * t))
    return rising + 0.05 * np.sin(2 * np.pi * 3000 * t) * (t > 0.5)


def test_features_are_those_of_transformers() -> None:
    features = log_mel.log_mel(two_tones())
    assert features.shape == (80, 3000)
    np.testing.assert_allclose(features[np.ix_(BANDS, COLUMNS)], EXTRACTED, atol=3e-5)
    assert features.mean(dtype=np.float64) == pytest.approx(-0.6409846, abs=1e-5)


def test_features_of_a_file(tmp_path: Path) -> None:
    samples = np.round(two_tones() * 32768)
    for rate in (16000, 44100):
        with wave.open(str(tmp_path / f"{rate}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
    script = [sys.executable, "-P", SAMPLE / "log_mel.py"]
    subprocess.run([*script, tmp_path / "16000.wav", tmp_path / "f"], check=True)
    written = np.fromfile(tmp_path / "f", "<f4").reshape(80, 3000)
    assert np.array_equal(written, log_mel.log_mel(samples / 32768))
    done = subprocess.run([*script, tmp_path / "44100.wav", tmp_path / "g"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    reported = f"{tmp_path / '44100.wav'}: not one channel, 16 bits and 16 kHz\n"
    assert (done.returncode, done.stderr) == (1, reported)
    assert not (tmp_path / "g").exists()
