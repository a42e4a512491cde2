"""Every real model, of all three formats, compiles and gives its stored outputs."""

from __future__ import annotations

import pytest
from shared_models import FILES, check_on_cpu, check_on_device

from atc.backends.target import host_features

LONG = {"mge/mobile", "mxnet/mobilenetv2", "mxnet/squeezenet", "ppocr_cls", "ultraface_rfb320"}
"""Models whose vector kernels take a compiler long: by default they run on portable ones."""

LIKE_OTHERS = {"fastestdet", "mxnet/mobilenetv2", "ort_superres", "ppocr_cls", "yunet_s_320"}
"""Networks of convolutions, as some that are run by default are."""

IMITATED = {
    "cct_op20", "dtln_1", "go1_policy", "kws_fp32", "kws_qdq", "mge/attn", "mnist_cntk",
    "mxnet/lenet", "silero_vad_16k_op15", "vespa_tiny_bert",
}  # fmt: skip
"""Models that an imitated GPU runs soon enough for every slow run."""

FLOATS = "x86-64-avx512-bf16" if "amx_tile" in host_features() else "host"
"""The machine's own vectors, without products in bf16x3, which err more than the stored noise."""

CASES = [
    pytest.param(
        m, t, marks=() if (m in LONG) is (t == "c99") and m not in LIKE_OTHERS else pytest.mark.slow
    )
    for m in FILES
    for t in ("c99", FLOATS)
]


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="../shared/models is not there")
@pytest.mark.parametrize(("model", "target"), CASES)
def test_a_real_model_gives_its_stored_outputs(model: str, target: str) -> None:
    check_on_cpu(model, target)


@pytest.mark.skipif(not FILES, reason="../shared/models is not there")
@pytest.mark.parametrize("model", [
    pytest.param(m, marks=pytest.mark.slow if m in IMITATED else pytest.mark.fuzz) for m in FILES
])  # fmt: skip
def test_a_real_model_gives_its_stored_outputs_on_a_gpu_that_is_imitated(model: str) -> None:
    check_on_device(model, "cuda-emulated", tensor_cores=True)
