"""Recurrent layers against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from atc.errors import ModelError
from support import Batch, assert_close, node_model, run_model

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Case:
    """One layer: what it is given beside x, W and R, its attributes and which outputs are asked."""

    op: str
    given: str = ""  # of b(ias), l(engths), h, c, p(eepholes)
    outputs: str = "yhc"
    directions: str = "forward"
    steps: int = 5
    batch: int = 3
    hidden: int = 6
    constant: bool = True
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        parts = [self.op, self.directions, self.given, self.outputs, f"{self.steps}x{self.batch}"]
        parts += [f"{k}={v}" for k, v in self.attributes]
        return "-".join([*parts, str(self.hidden), "" if self.constant else "runtime"])

    def inputs(self) -> list[np.ndarray | None]:
        """Return x, W, R, B, lengths, initial h, initial c, P of layout 0."""
        rng = np.random.default_rng(len(self.label))
        d, g, h = 2 if self.directions == "bidirectional" else 1, GATES[self.op], self.hidden

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32) * np.float32(0.6)

        lengths = rng.integers(1, self.steps + 1, self.batch).astype(np.int32)
        every = {
            "x": normal(self.steps, self.batch, 4), "w": normal(d, g * h, 4),
            "r": normal(d, g * h, h), "b": normal(d, 2 * g * h), "l": lengths,
            "h": normal(d, self.batch, h), "c": normal(d, self.batch, h), "p": normal(d, 3 * h),
        }  # fmt: skip
        count = 8 if self.op == "LSTM" else 6
        return [a if k in f"xwr{self.given}" else None for k, a in every.items()][:count]

    def model(self, inputs: list[np.ndarray | None], **more: Any) -> onnx.ModelProto:
        names = {"y": "y0", "h": "y1", "c": "y2"}
        outputs = 3 if self.op == "LSTM" else 2
        constant = [i for i in (1, 2, 3, 7) if self.constant and i < len(inputs)]
        model = node_model(
            self.op, inputs, outputs, opset=14, constant=constant, hidden_size=self.hidden,
            direction=self.directions, **dict(self.attributes), **more,
        )  # fmt: skip
        model.ir_version = 10  # as new as onnxruntime reads
        wanted = [names[k] for k in self.outputs if k != "c" or outputs == 3]
        node = model.graph.node[0]
        node.output[:] = [n if n in wanted else "" for n in node.output]
        del model.graph.output[:]
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(n, 1, None) for n in node.output if n
        )
        return model


def given(model: onnx.ModelProto, inputs: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    names = {v.name for v in model.graph.input}
    return {f"x{i}": a for i, a in enumerate(inputs) if a is not None and f"x{i}" in names}


def attributes(**values: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(values.items())


THREE = ["ScaledTanh", "HardSigmoid", "LeakyRelu"]
CASES = [
    *(Case(op, given, directions=d) for op in GATES for d in ("forward", "reverse", "bidirectional")
      for given in ("", "bl", "blhc")),
    *(Case(op, "bh", wanted) for op in GATES for wanted in ("y", "h", "hc", "yh")),
    *(Case(op, "bhcp", directions="bidirectional", constant=False) for op in GATES),
    *(Case(op, "b", hidden=h, steps=s, batch=1)
      for op in GATES for h, s in ((1, 1), (16, 3), (35, 2))),
    *(Case("GRU", g, directions="bidirectional", constant=c, hidden=h,
           attributes=attributes(linear_before_reset=1))
      for g in ("", "bl") for c in (True, False) for h in (5, 16)),
    *(Case("LSTM", "bhcp", directions=d) for d in ("forward", "bidirectional")),
    Case("LSTM", "bc", attributes=attributes(input_forget=1)),
    *(Case(op, given, attributes=attributes(clip=0.4))
      for op, given in (("RNN", "bh"), ("GRU", "bh"), ("LSTM", "bhcp"))),
    Case("LSTM", "b", attributes=attributes(activations=THREE, activation_alpha=[0.9, 0.3, 0.05],
                                            activation_beta=[0.8, 0.4])),
    Case("LSTM", "b", attributes=attributes(activations=["Sigmoid", "Softsign", "Elu"])),
    Case("GRU", "b", directions="bidirectional",
         attributes=attributes(activations=["HardSigmoid", "Affine", "Sigmoid", "Tanh"],
                               activation_alpha=[0.3, 0.5], activation_beta=[0.45, 0.1])),
    *(Case("RNN", "b", attributes=attributes(activations=[name]))
      for name in ("Relu", "Softplus", "HardSigmoid", "LeakyRelu", "Elu", "Softsign")),
    Case("RNN", attributes=attributes(activations=["ThresholdedRelu"], activation_alpha=[0.3])),
]  # fmt: skip
LAYERS = {c.label: c for c in CASES}
LAYERS_COMPILED = Batch({n: c.model(c.inputs()) for n, c in LAYERS.items()}, chunk=80)


def truth(model: onnx.ModelProto, inputs: list[np.ndarray | None]) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, given(model, inputs))
    return results


@pytest.mark.few(12)
@pytest.mark.parametrize("label", LAYERS)
def test_layer_equals_onnxruntime(label: str) -> None:
    case = LAYERS[label]
    inputs = case.inputs()
    model = case.model(inputs)
    expected = truth(model, inputs)
    got = LAYERS_COMPILED[label](list(given(model, inputs).values()))
    assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layout_1_puts_the_batch_first(op: str, direction: str) -> None:
    case = Case(op, "blhc", directions=direction)
    inputs = case.inputs()
    expected = truth(case.model(inputs), inputs)
    swapped = [
        a if a is None or i not in (0, 5, 6) else a.swapaxes(0, 1).copy()
        for i, a in enumerate(inputs)
    ]
    model = case.model(swapped, layout=1)
    y, *last = run_model(model, list(given(model, swapped).values()))
    # [B, T, D, H] and [B, D, H] instead of [T, D, B, H] and [D, B, H]
    assert_close([y], [expected[0].transpose(2, 0, 1, 3)], rtol=1e-5, atol=1e-5)
    assert_close(last, [e.swapaxes(0, 1) for e in expected[1:]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_float_types(dtype: type) -> None:
    case = Case("LSTM", "bhc", steps=4)
    inputs = [None if a is None else a.astype(dtype) for a in case.inputs()]
    model = case.model(inputs)
    for v in model.graph.output:
        v.type.tensor_type.elem_type = 11 if dtype is np.float64 else 10
    wide = [None if a is None else a.astype(np.float32) for a in inputs]
    expected = truth(case.model(wide), wide)
    got = run_model(model, list(given(model, inputs).values()))
    rtol = 1e-5 if dtype is np.float64 else 5e-3
    assert_close(got, [e.astype(dtype) for e in expected], rtol=rtol, atol=rtol)


def test_rows_stop_at_lengths_known_when_compiling() -> None:
    case = Case("GRU", "bl", directions="bidirectional")
    inputs = case.inputs()
    model = case.model(inputs)
    kept = model.graph.input.pop(1)
    assert kept.name == "x4"
    model.graph.initializer.append(onnx.numpy_helper.from_array(inputs[4], "x4"))
    expected = truth(model, inputs)
    assert_close(run_model(model, [inputs[0]]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", GATES)
def test_rows_without_steps_end_in_zero(op: str) -> None:
    case = Case(op, "blhc", directions="bidirectional")
    inputs = case.inputs()
    inputs[4] = np.array([0, 5, 2], np.int32)
    expected = truth(case.model(inputs), inputs)
    model = case.model(inputs)
    got = run_model(model, list(given(model, inputs).values()))
    assert not any(y[:, 0].any() for y in got[1:])
    assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_lone_layer_equals_the_reference() -> None:
    case = Case("LSTM", "bp", batch=2)
    inputs = case.inputs()
    model = case.model(inputs)
    expected = ReferenceEvaluator(model).run(None, given(model, inputs))
    assert_close(run_model(model, [inputs[0]]), expected[:3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"direction": "up"}, "direction is 'up'"), ({"activations": ["Relu"]}, "1 activations"),
     ({"activations": ["Sine"] * 3}, "'Sine' is unknown"),
     ({"hidden_size": 7}, "hidden_size is 7")],
)  # fmt: skip
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    inputs = Case("LSTM").inputs()
    arguments = {"hidden_size": 6, **change}
    model = node_model("LSTM", inputs, 3, constant=(1, 2), **arguments)
    with pytest.raises(ModelError, match=message):
        run_model(model, [inputs[0]])
