"""Operators through which no gradient goes, and why."""

from __future__ import annotations

from collections.abc import Mapping

from atc.lower.training import OWN

_DISCRETE = "its results are integers, truths or texts"
_DRAWN = "its results are drawn, or don't depend on the operand's values"
_ROUNDED = "it rounds to integers: train the floats and quantize them after"
_SEQUENCE = "it handles sequences or optionals: use tensors"
_SHAPE = "the shape of its result depends on the data"
_STOPPED = "it stops gradients"


def _all(why: str, names: str) -> dict[tuple[str, str], str]:
    return {("", name): why for name in names.split()}


WITHOUT: Mapping[tuple[str, str], str] = {
    **_all(_DISCRETE, """And ArgMax ArgMin BitCast Equal Greater GreaterOrEqual IsInf IsNaN Less
        ImageDecoder LessOrEqual Multinomial NonMaxSuppression Not Or SequenceLength Shape Size
        StringNormalizer TfIdfVectorizer Xor"""),
    **_all(_DRAWN, """Bernoulli BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow
        HannWindow MelWeightMatrix RandomNormal RandomNormalLike RandomUniform RandomUniformLike
        Range"""),
    **_all(_ROUNDED, """ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv
        QLinearMatMul QuantizeLinear"""),
    **_all(_SEQUENCE, "Optional OptionalGetElement OptionalHasElement SequenceEmpty SequenceMap"),
    **_all(_SHAPE, "Compress NonZero Unique"),
    (OWN, "StopGradient"): _STOPPED,
}  # fmt: skip
"""Why, by domain and operator."""

STOPS = frozenset(key for key, why in WITHOUT.items() if why in (_DISCRETE, _DRAWN, _STOPPED))
"""Those whose results don't follow small changes of their operands: the gradient is 0."""
