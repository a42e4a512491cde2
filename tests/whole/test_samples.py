"""The samples, end to end: models, the functions that make them, the embeddings.

test_documents.py runs the program that makes all of them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from projects import cmake, reference, require

import atc
from atc.compile import compile_model
from atc.options.options import Options
from atc.runtime.load import load
from atc.tracing import TrainingStep

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
sys.path.insert(0, str(SAMPLES))

import digits  # noqa: E402
import make_models  # noqa: E402

IMAGES = sorted((SAMPLES / "images").glob("*.pgm"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled digits."""
    output = tmp_path_factory.mktemp("out") / "digits"
    compile_model(Options(model=SAMPLES / "digits.onnx", output=output))
    return output


@pytest.mark.slow
def test_the_committed_digits_are_read(compiled: Path) -> None:
    net = load(compiled)
    images, labels = digits.draw_digits(200, seed=11)
    scores = np.concatenate([net(image[None]) for image in images])
    assert (scores.argmax(1) == labels).mean() >= 0.97
    model = onnx.load(SAMPLES / "digits.onnx")
    (expected,) = reference(model, images[:1])
    np.testing.assert_allclose(scores[:1], expected, atol=1e-5)


@pytest.mark.slow
def test_python_reads_the_images(compiled: Path) -> None:
    program = SAMPLES / "embed_python" / "read_digits.py"
    done = subprocess.run(
        [sys.executable, "-P", program, compiled, *IMAGES],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_right(done.stdout)


@pytest.mark.slow
def test_c_reads_the_images(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "embed_c").symlink_to(SAMPLES / "embed_c")
    build = cmake(tmp_path / "embed_c", f"-DDIGITS={compiled}", build=tmp_path / "build")
    program = build / "read_digits"
    done = subprocess.run([program, *IMAGES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_right(done.stdout)
    wrong = subprocess.run([program, __file__], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "not a plain PGM file" in wrong.stderr


def assert_right(said: str) -> None:
    """Check that every image's digit, its file's name, was read."""
    read = [line.rpartition(": ") for line in said.splitlines()]
    assert [Path(path).stem for path, _, _ in read] == [p.stem for p in IMAGES]
    assert all(digit.startswith(f"{Path(path).stem} (") for path, _, digit in read)


def run_atc(*words: object) -> None:
    """Run the command line as a user does."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "atc", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_digits_are_learned_from_nothing_in_c(tmp_path: Path) -> None:
    (tmp_path / "training").symlink_to(SAMPLES / "training")
    script = SAMPLES / "training" / "make_models.py"
    subprocess.run([sys.executable, "-P", script, tmp_path / "models"], check=True)
    step, models = tmp_path / "digits_step", tmp_path / "models"
    run_atc("--mode=train", f"--model={models / 'digits.onnx'}", f"--output={step}",
            "--loss=cross_entropy", "--optimizer=adam")  # fmt: skip
    run_atc(f"--model={models / 'reader.onnx'}", f"--output={tmp_path / 'digits_reader'}")
    build = cmake(tmp_path / "training", f"-DOUT={tmp_path}", build=tmp_path / "build")
    done = subprocess.run(
        [build / "train_digits", tmp_path / "state"], capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    found = re.search(r"([\d.]+) % of 2000 new digits are read", done.stdout)
    assert found is not None
    assert float(found[1]) >= 99
    trained = TrainingStep(step)
    trained.load((tmp_path / "state").read_bytes())
    images, labels = digits.draw_digits(300, seed=5)  # of the generator in Python
    p = {n: trained.get(n) for n in trained.names() if n in digits.new_parameters(0)}
    assert (digits.forward(p, images)[0].argmax(1) == labels).mean() >= 0.97


@pytest.mark.slow
def test_a_board_learns_new_words(tmp_path: Path) -> None:
    make = require("make")
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        require(tool)
    script = SAMPLES / "fine_tuning" / "make_model.py"
    subprocess.run([sys.executable, "-P", script, tmp_path], check=True)
    words = f"--model={tmp_path / 'words.onnx'}", "--target=cortex-m4f"
    run_atc(*words, f"--output={tmp_path / 'words'}", "--starter=1")
    run_atc(*words, f"--output={tmp_path / 'words_step'}", "--mode=train", "--trainable=dense.*",
            "--loss=cross_entropy", "--optimizer=sgd")  # fmt: skip
    line = [make, "-C", SAMPLES / "fine_tuning", f"OUT={tmp_path}"]
    done = subprocess.run([*line, "RAM=32768", "run"], capture_output=True, text=True, check=False,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    known = re.findall(r"known of 80 (?:before|after): (\d\d)", done.stdout + done.stderr)
    assert int(known[0]) < 20
    assert int(known[1]) >= 76
    less = subprocess.run([*line, "RAM=12000", f"BUILD={tmp_path / 'less'}"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert less.returncode != 0
    assert re.search("overflowed|RAM are left for the stack", less.stderr)


@pytest.mark.slow
def test_torch_compile_in_ten_lines() -> None:
    pytest.importorskip("torch", reason="PyTorch isn't installed")
    pytest.importorskip("onnxscript", reason="onnxscript isn't installed")
    if "atc" not in entry_points(group="torch_dynamo_backends").names:
        pytest.skip("atc isn't installed, so PyTorch doesn't know it")
    done = subprocess.run([sys.executable, "-P", SAMPLES / "torch_compile.py"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert float(done.stdout.rpartition(" ")[2]) < 1e-4


@pytest.mark.slow
def test_a_batch_of_any_size_is_pinned(tmp_path: Path) -> None:
    model = SAMPLES / "spiral.onnx"
    options = Options(model=model, output=tmp_path / "spiral", input_shape={"points": (7, 2)})
    compile_model(options)
    points, arms = make_models.spiral(7, np.random.default_rng(5))
    result = load(tmp_path / "spiral")(points)
    np.testing.assert_allclose(result, reference(onnx.load(model), points)[0], atol=1e-5)
    assert (result.argmax(1) == arms).all()


@pytest.mark.slow
def test_the_keywords_hand_their_state_on(tmp_path: Path) -> None:
    model = SAMPLES / "keywords.onnx"
    compile_model(Options(model=model, output=tmp_path / "keywords"))
    net = load(tmp_path / "keywords")
    random = np.random.default_rng(0)
    state = expected_state = np.zeros((1, 1, 32), np.float32)
    for _ in range(3):
        features = random.standard_normal((16, 1, 20)).astype(np.float32)
        scores, state = net(features, state)
        expected, expected_state = reference(onnx.load(model), features, expected_state)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        np.testing.assert_allclose(state, expected_state, atol=1e-5)


def test_the_gradients_are_those_of_the_loss() -> None:
    images, labels = digits.draw_digits(3, seed=0)
    random = np.random.default_rng(1)
    p = {k: v.astype(np.float64) for k, v in digits.new_parameters(0).items()}
    p = {k: v + 0.1 * random.standard_normal(v.shape) for k, v in p.items()}  # off ReLU's edge

    def loss(changed: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
        scores, kept = digits.forward(changed, images)
        return digits.gradients(changed, labels, scores, kept)

    _, slopes = loss(p)
    for name, slope in slopes.items():
        direction = random.standard_normal(slope.shape)
        ahead, behind = ({**p, name: p[name] + s * direction} for s in (1e-6, -1e-6))
        numeric = (loss(ahead)[0] - loss(behind)[0]) / 2e-6
        assert numeric == pytest.approx(float((slope * direction).sum()), rel=1e-3), name


def test_the_committed_models_are_what_the_program_makes() -> None:
    model, correct = make_models.spiral_model()
    assert correct >= 0.98
    for name, made in (("keywords", make_models.keywords_model()), ("spiral", model)):
        kept = onnx.load(SAMPLES / f"{name}.onnx")
        assert [n.op_type for n in made.graph.node] == [n.op_type for n in kept.graph.node]
        for a, b in zip(made.graph.initializer, kept.graph.initializer, strict=True):
            values = onnx.numpy_helper.to_array(a), onnx.numpy_helper.to_array(b)
            np.testing.assert_allclose(*values, rtol=1e-2, atol=1e-2, err_msg=a.name)


def test_the_samples_stay_small() -> None:
    assert sum(p.stat().st_size for p in SAMPLES.glob("**/*.*")) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny", "tiny-qwen"])
def test_a_decoder_writes_on_as_onnxruntime_does(shape: str, tmp_path: Path) -> None:
    folder = SAMPLES / "language_model"
    model = tmp_path / "tiny.onnx"
    made = subprocess.run(
        [sys.executable, "-P", folder / "make_decoder.py", model, f"--shape={shape}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    command = shlex.split(made.stdout)
    assert command[:2] == ["atc", f"--model={model}"]
    options = dict(word.removeprefix("--").split("=", 1) for word in command[1:])
    atc.compile(model, tmp_path / "decoder", input_shape=options["input_shape"],
                state=options["state"], target="c99")  # fmt: skip
    (tmp_path / "sample").symlink_to(folder)
    build = cmake(tmp_path / "sample", f"-DDECODER={tmp_path / 'decoder'}", build=tmp_path / "b")
    done = subprocess.run(
        [build / "write_on", "Once upon a time", "12"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"Once upon a time{written_on(model, 'Once upon a time', 12)}\n"
    full = subprocess.run([build / "write_on", "x" * 510, "600"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert full.returncode == 1
    assert full.stderr == "the caches are full after 1024 words\n"


def written_on(model: Path, text: str, count: int) -> str:
    """Return what onnxruntime writes on, all words read anew for each."""
    session = onnxruntime.InferenceSession(str(model))
    words = list(text.encode())
    empty = {
        v.name: np.zeros([1, v.shape[1], 0, v.shape[3]], np.float32)
        for v in session.get_inputs() if v.name.startswith("past")
    }  # fmt: skip
    for _ in range(count):
        ids = np.array([words])
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty}
        words.append(int(session.run(["logits"], feed)[0][0, -1].argmax()))
    shown = (chr(w) if w == 10 or 32 <= w <= 126 else f"<{w}>" for w in words[len(text) :])
    return "".join(shown)
