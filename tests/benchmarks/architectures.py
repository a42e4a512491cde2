"""Thirty public architectures with random weights, and their export to ONNX.

usage: python tests/benchmarks/architectures.py NAME FILE

Needs torch, onnxscript, and the package that the architecture is from: torchvision, timm or
transformers. Nothing is downloaded: constructors are called without weights.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A network of a package, by its constructor there, and what it is run on.

    `config` are the arguments of a class of transformers; the others have their defaults.
    """

    name: str
    package: str
    constructor: str
    shape: tuple[int, ...] = (1, 3, 224, 224)
    kind: str = "images"
    config: tuple[tuple[str, Any], ...] = ()
    vocabulary: int = 0
    """Inputs are numbers of words below this, where it isn't 0."""


def _text(name: str, model: str, words: int = 30000, **config: Any) -> Architecture:
    given = tuple({"vocab_size": words, **config}.items())
    return Architecture(name, "transformers", model, (1, 128), "text", given, words)


_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
ARCHITECTURES = (
    Architecture("ResNet-18", "torchvision", "resnet18"),
    Architecture("ResNet-50", "torchvision", "resnet50"),
    Architecture("MobileNetV2", "torchvision", "mobilenet_v2"),
    Architecture("MobileNetV3-Small", "torchvision", "mobilenet_v3_small"),
    Architecture("EfficientNet-B0", "torchvision", "efficientnet_b0"),
    Architecture("ShuffleNetV2 x1.0", "torchvision", "shufflenet_v2_x1_0"),
    Architecture("SqueezeNet 1.1", "torchvision", "squeezenet1_1"),
    Architecture("DenseNet-121", "torchvision", "densenet121"),
    Architecture("MNASNet 1.0", "torchvision", "mnasnet1_0"),
    Architecture("RegNetY-400MF", "torchvision", "regnet_y_400mf"),
    Architecture("ConvNeXt-Tiny", "torchvision", "convnext_tiny"),
    Architecture("Swin-T", "torchvision", "swin_t"),
    Architecture("GhostNet 1.0", "timm", "ghostnet_100"),
    Architecture("MobileViT-XS", "timm", "mobilevit_xs", (1, 3, 256, 256)),
    Architecture("DeiT-Tiny", "timm", "deit_tiny_patch16_224"),
    Architecture("RepVGG-A0", "timm", "repvgg_a0"),
    Architecture("EdgeNeXt-XXS", "timm", "edgenext_xx_small", (1, 3, 256, 256)),
    Architecture("PoolFormer-S12", "timm", "poolformer_s12"),
    Architecture("MLP-Mixer-S/32", "timm", "mixer_s32_224"),
    Architecture("ReXNet 1.0", "timm", "rexnet_100"),
    Architecture("DLA-34", "timm", "dla34"),
    Architecture("HardCoRe-NAS-A", "timm", "hardcorenas_a"),
    _text("BERT, 4 layers of 256", "BertModel", intermediate_size=1024, **_SMALL),
    _text("RoBERTa, 4 layers of 256", "RobertaModel", intermediate_size=1024, **_SMALL),
    _text("ELECTRA, 4 layers of 256", "ElectraModel", intermediate_size=1024, **_SMALL),
    _text("DistilBERT, 3 layers of 256", "DistilBertModel", dim=256, n_layers=3, n_heads=4,
          hidden_dim=1024),
    _text("GPT-2, 4 layers of 256", "GPT2Model", n_embd=256, n_layer=4, n_head=4),
    _text("ALBERT, 4 layers of 256", "AlbertModel", intermediate_size=1024, embedding_size=128,
          **_SMALL),
    Architecture("SegFormer-B0", "transformers", "SegformerForSemanticSegmentation",
                 (1, 3, 256, 256)),
    Architecture("Whisper-Tiny encoder", "transformers", "WhisperEncoder", (1, 80, 3000), "sound",
                 (("d_model", 384), ("encoder_layers", 4), ("encoder_attention_heads", 6),
                  ("encoder_ffn_dim", 1536))),
)  # fmt: skip
"""Those of transformers are as small as their configurations say."""


def named(name: str) -> Architecture:
    """Return an architecture; SystemExit where there is none of that name."""
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    raise SystemExit(f"architectures: there is no {name}")


def module(a: Architecture) -> Any:
    """Return an architecture's module of PyTorch, with random weights that depend on nothing."""
    import torch

    torch.manual_seed(0)
    _import_torchvision()  # the others import it, too, where it is
    if a.package == "torchvision":
        made = getattr(import_module("torchvision.models"), a.constructor)(weights=None)
    elif a.package == "timm":
        made = import_module("timm").create_model(a.constructor, pretrained=False)
    else:
        made = _of_transformers(a)
    for weight in made.parameters():
        if weight.dim() > 1 and not weight.any():  # a last layer that begins as zero
            torch.nn.init.normal_(weight, std=0.02)
    return made.eval()


def _of_transformers(a: Architecture) -> Any:
    transformers = import_module("transformers")
    if a.constructor == "WhisperEncoder":
        whisper = import_module("transformers.models.whisper.modeling_whisper")
        return _FirstOutput(whisper.WhisperEncoder(transformers.WhisperConfig(**dict(a.config))))
    model = getattr(transformers, a.constructor)
    return _FirstOutput(model(model.config_class(**dict(a.config))))


def _FirstOutput(model: Any) -> Any:  # noqa: N802 - makes a module, whose base class is late
    """Return a module whose result is the first output of a model of transformers."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x, return_dict=False)[0]

    return First()


def _import_torchvision() -> None:
    """Import torchvision, also one that was built for another PyTorch: of it only models are used.

    Its operators don't load then, and it stops where it describes them; so they are declared.
    """
    import torch

    with suppress(ImportError):
        try:
            import_module("torchvision")
        except RuntimeError:
            library = torch.library.Library("torchvision", "DEF")
            _KEPT.append(library)
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
            for name in [n for n in sys.modules if n.startswith("torchvision")]:
                del sys.modules[name]
            import_module("torchvision")


_KEPT: list[Any] = []
"""Declarations of operators, which end with their objects."""


def export(a: Architecture, file: str) -> dict[str, Any]:
    """Write an architecture as an ONNX model; return its number of parameters, and versions."""
    import torch

    made = module(a)
    x = torch.randint(0, a.vocabulary, a.shape) if a.vocabulary else torch.randn(a.shape)
    torch.onnx.export(made, (x,), file, dynamo=True, external_data=False, verbose=False)
    packages = {"torch", a.package}
    return {
        "parameters": sum(p.numel() for p in made.parameters()),
        "packages": {name: version(name) for name in sorted(packages)},
    }


def main(argv: list[str]) -> int:
    """Export one architecture, and print what is known of it as JSON in the last line."""
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(json.dumps(export(named(argv[0]), argv[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
