"""The sample that recognizes speech: an encoder and a decoder as onnxruntime runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
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

import make_whisper  # noqa: E402

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
        room = TOY.longest - make_whisper.PROMPT
        assert decoder.state_size == 8 + 4 * 2 * TOY.layers * TOY.width * room


@pytest.mark.parametrize("prompt", [PROMPT, (9,), (1, 2, 3, 4, 5, 6, 7)])
def test_a_program_says_the_same_tokens(prompt: tuple[int, ...], toy: Path) -> None:
    tokens, _ = Truth(toy, TOY).decoded(prompt, COUNT)
    done = transcribe(toy, "features.f32", COUNT, *prompt)
    assert (done.returncode, done.stderr) == (0, "")
    assert [int(word) for word in done.stdout.split()] == tokens


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("features.f32", 60, *PROMPT), "features.f32: the caches are full"),
        (("none.f32", 1, 2), "none.f32: not a file of as many numbers as the encoder takes"),
        (("encoder.onnx", 1, 2), "encoder.onnx: not a file of as many numbers as the encoder takes"),
        (("features.f32", 1, 256), "features.f32: a token of the prompt isn't known"),
        (("features.f32", 1, "one"), "features.f32: a token of the prompt isn't known"),
        (("features.f32",), "features.f32: a token of the prompt isn't known"),  # Whisper's own
    ],
)  # fmt: skip
def test_what_went_wrong_is_told(words: tuple[object, ...], problem: str, toy: Path) -> None:
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
