"""TensorFlow Lite models with variables, as states, against TensorFlow Lite's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atc
from atc.errors import AtcError

RNG = np.random.default_rng(5)
STEPS = RNG.standard_normal((6, 1, 8)).astype(np.float32)


def model(step: Callable[[Any, Any], Any], start: float = 0) -> bytes:
    """Return a model whose `step(self, x)` reads and assigns the variables h and k, [1, 8]."""
    import tensorflow as tf

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = tf.Variable(np.full((1, 8), start, np.float32), name="h")
            self.k = tf.Variable(np.zeros((1, 8), np.float32), name="k")
            self.w = tf.constant(RNG.standard_normal((8, 8)).astype(np.float32) / 3)

        @tf.function(input_signature=[tf.TensorSpec((1, 8), tf.float32, name="x")])
        def run(self, x: Any) -> Any:
            return step(self, x)

    net = Net()
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [net.run.get_concrete_function()], net
    )
    converter.experimental_enable_resource_variables = True
    found: bytes = converter.convert()
    return found


def recurrent(self: Any, x: Any) -> Any:
    import tensorflow as tf

    self.h.assign(tf.tanh(tf.matmul(x + self.h, self.w)))
    self.k.assign(self.k * 0.5 + self.h)  # the new one
    return tf.matmul(self.k, self.w)


def delayed(self: Any, x: Any) -> Any:
    import tensorflow as tf

    y = self.h + 2 * self.k
    self.k.assign(self.h)
    self.h.assign(x)
    return tf.tanh(y)


def kept(self: Any, x: Any) -> Any:
    import tensorflow as tf

    y = tf.tanh(tf.matmul(x - self.h, self.w))
    self.h.assign(y)  # a state that is the result, too
    return y


@pytest.mark.slow
@pytest.mark.parametrize("step", [recurrent, delayed, kept])
def test_variables_are_states(step: Callable[[Any, Any], Any], tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    content = model(step)
    (tmp_path / "m.tflite").write_bytes(content)
    done = atc.compile(tmp_path / "m.tflite", tmp_path / "net", framework="tflite", target="c99",
                       state="auto")  # fmt: skip
    assert {s.value for s in done.program.states} <= {"state_h", "state_k"}
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    with atc.load(done.folder) as network:
        for x in STEPS:
            interpreter.set_tensor(given["index"], x)
            interpreter.invoke()
            expected = interpreter.get_tensor(made["index"])
            np.testing.assert_allclose(network(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_variable_that_begins_as_something_else_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    (tmp_path / "m.tflite").write_bytes(model(recurrent, 0.5))
    with pytest.raises(AtcError, match="a variable is not zero at first"):
        atc.compile(tmp_path / "m.tflite", tmp_path / "net", framework="tflite", state="auto")
