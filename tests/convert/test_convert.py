"""Models of other packages: known by their content, converted only where that is asked for."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atc
from atc import convert
from atc.convert import load_model
from atc.errors import AtcError, ModelError, OptionError, ToolchainError, UnsupportedError
from atc.importers.foreign import foreign_format
from atc.options.files import file_digest

SAMPLES = Path(__file__).parents[2] / "samples"
DIGITS = SAMPLES / "digits.onnx"


class Bomb:
    """Pickled, it is a program that makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return path


def pickled(path: Path, module: str) -> Path:
    """Write the beginning of a pickle that names a module, as pickle itself would."""
    path.write_bytes(b"\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c" + bytes([len(module)]) + module.encode())
    return path


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "pt2": (lambda d: zipped(d / "m", "m/archive_format", "m/data/x.pkl"),
            "torch.export", "--framework=torch converts it after pip install 'atc[torch]'"),
    "older pt2": (lambda d: zipped(d / "m", "serialized_exported_program.json"),
                  "torch.export", "--framework=torch"),
    "torch.save": (lambda d: zipped(d / "m.onnx", "m/data.pkl", "m/version"),
                   "torch.save", "torch.export.save"),
    "keras": (lambda d: zipped(d / "m", "config.json", "model.weights.h5"), "Keras", ".export("),
    "hdf5": (lambda d: written(d / "m", b"\x89HDF\r\n\x1a\n" + bytes(20)), "Keras", ".export("),
    "tflite": (lambda d: written(d / "m", b"\x1c\0\0\0TFL3" + bytes(20)),
               "TensorFlow Lite", "--framework=tflite"),
    "ORT format": (lambda d: written(d / "m.ort", b"\x14\0\0\0ORTM" + bytes(20)),
                   "onnxruntime's own format", "session.save_model_format"),
    "SavedModel": (lambda d: written(d / "m/saved_model.pb", b"\x08\x01").parent,
                   "SavedModel", "--framework=tflite"),
    "scikit-learn": (lambda d: pickled(d / "m", "sklearn.linear_model._base"),
                     "a pickle of scikit-learn", "skl2onnx"),
    "xgboost": (lambda d: pickled(d / "m", "xgboost.core"), "XGBoost", "onnxmltools"),
    "lightgbm": (lambda d: pickled(d / "m", "lightgbm.basic"), "LightGBM", "onnxmltools"),
    "a pickle": (lambda d: pickled(d / "m", "numpy"), "a pickle, a program", "ONNX file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", ["", "onnx"])
def test_an_error_says_what_a_file_is_and_how_it_becomes_onnx(
    kind: str, framework: str, tmp_path: Path
) -> None:
    make, what, way = KINDS[kind]
    with pytest.raises(UnsupportedError) as caught:
        load_model(make(tmp_path), framework, {}, None)
    assert what in caught.value.message
    assert way in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["digits.onnx", "keywords.onnx", "images/2.pgm"])
def test_other_files_are_none_of_them(name: str) -> None:
    assert foreign_format(SAMPLES / name) is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80", b"\x80\x09ab", b"PK\x03\x04" * 9])
def test_damaged_files_are_refused_as_onnx(content: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "m", content)
    assert foreign_format(path) is None
    with pytest.raises(AtcError):
        load_model(path, "", {}, None)


@pytest.mark.parametrize("framework", ["", "onnx", "torch", "tflite"])
def test_a_pickle_runs_only_where_that_is_asked_for(framework: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = written(tmp_path / "m.pkl", pickle.dumps([Bomb(mark), "sklearn"]))
    with pytest.raises(AtcError):
        load_model(path, framework, {}, None)
    assert not mark.exists()


@pytest.mark.parametrize("framework", convert.CONVERTED)
def test_a_file_of_another_kind_is_reported(framework: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="digits.onnx is not a file of that framework"):
        load_model(DIGITS, framework, {}, None)
    other = "tflite" if framework == "torch" else "pt2"
    with pytest.raises(OptionError, match=f"--framework={framework}"):
        load_model(KINDS[other][0](tmp_path), framework, {}, None)
    with pytest.raises(ModelError, match="No such file"):
        load_model(tmp_path / "none", framework, {}, None)


def test_what_is_not_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="not installed here: torch, onnxscript") as caught:
        load_model(KINDS["pt2"][0](tmp_path), "torch", {}, None)
    assert "pip install 'atc[torch]'" in caught.value.hint


# ------------------------------------------------------------------------ the process, imitated


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that installs packages of scikit-learn's names; `load` is its reader."""

    def install(load: str) -> Path:
        place = tmp_path / "packages"
        (place / "skl2onnx/common").mkdir(parents=True)
        (place / "sklearn.py").write_text("")
        (place / "joblib.py").write_text(
            f"import os, sys, time\nclass M:\n  n_features_in_ = 4\ndef load(file):\n  {load}\n"
            "  return M()\n"
        )
        (place / "skl2onnx/__init__.py").write_text(
            "class Made:\n  def SerializeToString(self):\n"
            f"    return open({str(DIGITS)!r}, 'rb').read()\n"
            "def convert_sklearn(*a, **k): return Made()\n"
        )
        (place / "skl2onnx/common/__init__.py").write_text("")
        (place / "skl2onnx/common/data_types.py").write_text(
            "class FloatTensorType:\n  def __init__(self, shape): pass\n"
        )
        monkeypatch.syspath_prepend(place)
        monkeypatch.setenv("PYTHONPATH", str(place))
        convert._converted.cache_clear()
        return pickled(tmp_path / "net.pkl", "sklearn.linear_model")

    return install


@pytest.mark.slow
def test_it_is_converted_once_until_it_changes(
    converter: Callable[[str], Path], tmp_path: Path
) -> None:
    count = tmp_path / "count"
    path = converter(f"open({str(count)!r}, 'a').write('x'); print('chatter')")
    for _ in range(2):
        model = load_model(path, "sklearn", {}, None)
        assert [v.name for v in model.graph.inputs] == ["image"]
    assert count.read_text() == "x"
    path.write_bytes(path.read_bytes() + b"more")
    load_model(path, "sklearn", {}, None)
    assert count.read_text() == "xx"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("load", "reported"),
    [
        ("raise ValueError('no \\x1b[1m such\\nlast line')", "can't be converted: last line"),
        ("raise TypeError('\\x1b[1mbold')", r"TypeError: \\x1b\[1mbold"),
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("sys.exit(0)", "exit status 0"),
    ],
)
def test_a_converter_that_fails_is_one_line(
    load: str, reported: str, converter: Callable[[str], Path]
) -> None:
    with pytest.raises(ModelError, match=reported) as caught:
        load_model(converter(load), "sklearn", {}, None)
    assert "\n" not in str(caught.value)
    assert "net.pkl" in caught.value.where


@pytest.mark.slow
def test_a_converter_that_hangs_is_ended(converter: Callable[[str], Path]) -> None:
    with pytest.raises(ToolchainError, match="longer than 0.5 s"):
        load_model(converter("time.sleep(60)"), "sklearn", {}, None, patience=0.5)


def test_errors_of_the_converted_model_name_the_file(converter: Callable[[str], Path]) -> None:
    path = converter("pass")
    with pytest.raises(AtcError) as caught:
        load_model(path, "sklearn", {"none": (1, 2)}, None)
    assert "atc-tmp" not in str(caught.value)


def test_a_folders_digest_is_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a/variables").mkdir(parents=True)
    (tmp_path / "a/variables/x").write_text("1")
    (tmp_path / "a/saved_model.pb").write_text("2")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b")
    (tmp_path / "b/variables/x").rename(tmp_path / "b/variables/y")
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "b")


# --------------------------------------------------------------------------- the packages' own


RNG = np.random.default_rng(5)
DATA = RNG.standard_normal((90, 4)).astype(np.float32)
CLASSES = np.digitize(DATA[:, 0] + 0.3 * DATA[:, 1], [-0.5, 0.5])
X = RNG.standard_normal((6, 4)).astype(np.float32)


def _pipeline() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression())


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=4, random_state=0)


def _ridge() -> Any:
    from sklearn.linear_model import RidgeClassifier

    return RidgeClassifier()


def _xgboost() -> Any:
    return pytest.importorskip("xgboost").XGBClassifier(n_estimators=3, max_depth=3)


def _lightgbm() -> Any:
    return pytest.importorskip("lightgbm").LGBMClassifier(
        n_estimators=3, min_child_samples=3, verbose=-1
    )


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        pytest.param(_pipeline, "skl2onnx", marks=pytest.mark.slow),
        pytest.param(_forest, "skl2onnx", marks=pytest.mark.slow),
        pytest.param(_ridge, "skl2onnx", marks=pytest.mark.slow),
        pytest.param(_xgboost, "onnxmltools", marks=pytest.mark.slow),
        pytest.param(_lightgbm, "onnxmltools", marks=pytest.mark.slow),
    ],
)
def test_a_pickle_computes_what_its_model_does(
    make: Callable[[], Any], needed: str, tmp_path: Path
) -> None:
    pytest.importorskip(needed)
    model = make().fit(DATA, CLASSES)
    path = written(tmp_path / "net.pkl", pickle.dumps(model))
    done = atc.compile(path, tmp_path / "net", framework="sklearn", input_shape={"X": X.shape},
                       target="c99")  # fmt: skip
    outputs = atc.load(done.folder)(X)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    np.testing.assert_allclose(first.ravel(), model.predict(X), rtol=1e-5)
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(outputs[1], model.predict_proba(X), atol=1e-5)


@pytest.mark.slow
def test_a_booster_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("onnxmltools")
    lightgbm = pytest.importorskip("lightgbm")
    settings = {"verbose": -1, "min_data_in_leaf": 3}
    model = lightgbm.train(settings, lightgbm.Dataset(DATA, CLASSES), 3)
    path = written(tmp_path / "net.pkl", pickle.dumps(model))
    done = atc.compile(path, tmp_path / "net", framework="sklearn", input_shape={"X": X.shape},
                       target="c99")  # fmt: skip
    np.testing.assert_allclose(atc.load(done.folder)(X).ravel(), model.predict(X), rtol=1e-5)


@pytest.mark.slow
def test_a_program_of_torch_computes_what_its_module_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).eval()
    x = torch.rand(1, 1, 8, 8)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "net.pt2")
    done = atc.compile(tmp_path / "net.pt2", tmp_path / "net", framework="torch", target="c99")
    wanted = module(x).detach().numpy()
    np.testing.assert_allclose(atc.load(done.folder)(x.numpy()), wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["SavedModel", "tflite"])
def test_a_model_of_tensorflow_computes_what_it_does_there(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Converted without what TensorFlow imports only where it is installed."""
    for name in ("jax", "sklearn"):
        written(tmp_path / f"without/{name}.py", b"raise SystemExit('imported')")
    paths = filter(None, (str(tmp_path / "without"), os.environ.get("PYTHONPATH")))
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    weights = RNG.standard_normal((4, 3)).astype(np.float32)

    class Net(tf.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(weights)

        @tf.function(input_signature=[tf.TensorSpec((6, 4), tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return tf.nn.relu(x @ self.weights)

    path = tmp_path / "saved"
    tf.saved_model.save(Net(), str(path))
    if form == "tflite":
        content = tf.lite.TFLiteConverter.from_saved_model(str(path)).convert()
        path = written(tmp_path / "net.tflite", content)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    done = atc.compile(path, tmp_path / "net", framework="tflite", target="c99")
    wanted = np.maximum(X.astype(np.float64) @ weights, 0)
    np.testing.assert_allclose(atc.load(done.folder)(X), wanted, atol=1e-5)
