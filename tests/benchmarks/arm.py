"""Instructions of layers on ARM's 64-bit processors beside XNNPACK's and Arm Compute Library's.

usage: arm.py [--target=aarch64-neon,aarch64-neon-dotprod] [--type=float32,int8] [--only=TEXT]
              [--folder=DIR]

Layers of ResNet-50, MobileNetV2, EfficientNet and BERT, in float32, int8 and float16, as qemu's
plugin counts them. Debian's packages of both libraries for arm64 are fetched into DIR (a temporary
folder by default) and not installed. Each layer runs once and twice; the table has what one run
takes, and ours over theirs: below 1 ours takes fewer. Ours includes the change of the layout at a
layer's border (the others' tensors have their channels last), which a network has at its own alone.
Instructions are not cycles. Of float16 Debian's Arm Compute Library has no kernels, XNNPACK none
for processors without arithmetic of it (aarch64-neon): its sums are float16, ours float32.

Needs aarch64-linux-gnu-gcc, qemu-user and apt-get with Debian's sources; Arm Compute Library's
column clang++-19 and lld-19, too ("-" without).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import onnx
from instructions import build_plugin, counts, plugin_words, read_counts
from tiny_networks import Net

from atc.backends.targets import get_target

HERE = Path(__file__).parent
CPUS = {"aarch64-neon": "cortex-a72", "aarch64-neon-dotprod": "max", "aarch64-neon-i8mm": "max"}
"""What the others see, by target."""
PACKAGES = (
    "libxnnpack0", "libxnnpack-dev", "libcpuinfo0", "libcpuinfo-dev", "libpthreadpool0",
    "libpthreadpool-dev", "libarm-compute20", "libarm-compute-dev", "libstdc++6",
    "libstdc++-12-dev", "libgcc-s1",
)  # fmt: skip
LIBRARY = "lib/aarch64-linux-gnu"
ROOM = 1 << 22
LAYERS = {  # kind, channels, height, width, filters, kernel, stride, padding before and behind
    "1x1 64->256 at 56": ("conv", 64, 56, 56, 256, 1, 1, 0, 0),
    "1x1 512->128 at 28": ("conv", 512, 28, 28, 128, 1, 1, 0, 0),
    "1x1 2048->512 at 7": ("conv", 2048, 7, 7, 512, 1, 1, 0, 0),
    "1x1 24->144 at 56": ("conv", 24, 56, 56, 144, 1, 1, 0, 0),
    "3x3 64 at 56": ("conv", 64, 56, 56, 64, 3, 1, 1, 1),
    "3x3 256 at 14": ("conv", 256, 14, 14, 256, 3, 1, 1, 1),
    "3x3 256 at 14 behind a ReLU": ("conv", 256, 14, 14, 256, 3, 1, 1, 1),
    "3x3/2 128 at 56": ("conv", 128, 56, 56, 128, 3, 2, 1, 1),
    "first 3x3/2 at 224": ("conv", 3, 224, 224, 32, 3, 2, 0, 1),
    "first 7x7/2 at 224": ("conv", 3, 224, 224, 64, 7, 2, 2, 3),
    "depthwise 3x3 144 at 56": ("depthwise", 144, 56, 56, 144, 3, 1, 1, 1),
    "depthwise 3x3/2 144 at 56": ("depthwise", 144, 56, 56, 144, 3, 2, 0, 1),
    "depthwise 5x5 240 at 28": ("depthwise", 240, 28, 28, 240, 5, 1, 2, 2),
    "depthwise 5x5/2 672 at 14": ("depthwise", 672, 14, 14, 672, 5, 2, 1, 2),
    "fully connected 2048->1000": ("dense", 2048, 1, 1, 1000, 1, 1, 0, 0),
    "128 rows 768->768": ("dense", 768, 128, 1, 768, 1, 1, 0, 0),
    "128 rows 768->3072": ("dense", 768, 128, 1, 3072, 1, 1, 0, 0),
    "max pool 3x3/2 64 at 112": ("pool", 64, 112, 112, 64, 3, 2, 0, 0),
    "max pool 2x2/2 64 at 112": ("pool", 64, 112, 112, 64, 2, 2, 0, 0),
    "average pool 3x3 64 at 56": ("mean", 64, 56, 56, 64, 3, 1, 0, 0),
    "softmax 128 rows of 128": ("softmax", 128, 128, 1, 128, 1, 1, 0, 0),
}
TYPES = {"float32": (), "float16": ("mean", "softmax"), "int8": ("pool", "mean", "softmax")}
"""Types, and the kinds that aren't compared in them."""
LEAST = "behind a ReLU"
"""What layers are called whose input's zero point is its least number: padding is left out."""

Layer = tuple[str, int, int, int, int, int, int, int, int]


def model(layer: Layer, dtype: str, zero: int = -1) -> onnx.ModelProto:
    """Return a network of one layer, whose input has a zero point where it is quantized."""
    own = _model(layer, dtype == "int8", zero)
    return halved(own) if dtype == "float16" else own


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network of floats with all of them in float16."""
    graph = model.graph
    constants = [onnx.numpy_helper.to_array(c) for c in graph.initializer]
    for constant, array in zip(graph.initializer, constants, strict=True):
        half = onnx.numpy_helper.from_array(array.astype("float16"), constant.name)
        constant.CopyFrom(half)
    for info in (*graph.input, *graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def _model(layer: Layer, quantized: bool, zero: int) -> onnx.ModelProto:
    kind, channels, height, width, filters, kernel, stride, before, behind = layer
    net = Net(quantized)
    if kind in ("conv", "depthwise"):
        x = net.input(1, channels, height, width, zero=zero)
        pads = (before, before, behind, behind)
        alone = kind == "depthwise"
        return net.model(net.conv(x, filters, (kernel, kernel), stride, alone, pads=pads))
    if kind in ("pool", "mean"):
        operator = "MaxPool" if kind == "pool" else "AveragePool"
        x = net.input(1, channels, height, width)
        return net.model(net.pool(x, kernel, stride, operator))
    x = net.input(height, channels)
    return net.model(net.softmax(x) if kind == "softmax" else net.dense(x, filters, relu=False))


def fetch(folder: Path) -> None:
    """Fetch both libraries into a folder and build the programs that run one of their layers."""
    if (folder / "xnnpack_layer").exists():
        return
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "state/status").touch()
    apt = [
        "apt-get", "-qq", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64",
        "-o", f"Dir::State={folder / 'state'}", "-o", f"Dir::State::status={folder}/state/status",
        "-o", f"Dir::Cache={folder / 'cache'}", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], cwd=folder / "packages", check=True)
    for package in (folder / "packages").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    system = folder / "root/usr"
    library = system / LIBRARY
    linked = [f"-L{library}", f"-Wl,-rpath-link,{library}"]
    command = [
        "aarch64-linux-gnu-gcc", "-std=c99", "-O2", HERE / "xnnpack_layer.c", *linked,
        f"-I{system / 'include'}", "-lXNNPACK", "-lcpuinfo", "-lpthreadpool", "-lm",
        "-o", folder / "xnnpack_layer",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    if shutil.which("clang++-19") is None or shutil.which("ld.lld-19") is None:
        return
    headers = ("c++/12", "aarch64-linux-gnu/c++/12", "aarch64-linux-gnu")
    command = [
        "clang++-19", "--target=aarch64-linux-gnu", "-std=c++14", "-O1", "-fuse-ld=lld",
        "-nostdinc++", *(f"-isystem{system / 'include' / each}" for each in headers),
        HERE / "acl_layer.cpp", *linked, f"-L{system}/lib/gcc/aarch64-linux-gnu/12",
        "-larm_compute", "-larm_compute_core", library / "libstdc++.so.6", "-lm", "-lpthread",
        "-o", folder / "acl_layer",
    ]  # fmt: skip
    subprocess.run(command, check=True)


def peer_count(program: Path, layer: Layer, dtype: str, cpu: str, folder: Path) -> int:
    """Return the instructions of one run of another library's layer, 0 without its program."""
    able = dtype != "float16" or (program.name == "xnnpack_layer" and cpu == "max")
    if not program.exists() or not able:
        return 0
    kind, *numbers = layer
    libraries = program.parent / "root/usr" / LIBRARY
    found = []
    for runs in (1, 2):
        command = [
            "qemu-aarch64", "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "-E",
            f"LD_LIBRARY_PATH={libraries}", *plugin_words(folder), program, str(runs), kind, dtype,
            *map(str, numbers),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        found.append(sum(read_counts(folder).values()))
    return found[1] - found[0]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="aarch64-neon,aarch64-neon-dotprod")
    parser.add_argument("--type", default="float32,int8")
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        peers = (given.folder or Path(name) / "peer").absolute()
        fetch(peers)
        build_plugin(Path(name))
        for target in given.target.split(","):
            print(f"\n| {target}, -O2 | type | atc | XNNPACK | ratio | ACL | ratio |")
            print("|---|---|---|---|---|---|---|")
            for label, layer in LAYERS.items():
                for dtype in given.type.split(","):
                    if given.only not in label or layer[0] in TYPES[dtype]:
                        continue
                    if dtype != "int8" and LEAST in label:
                        continue  # as without
                    own = model(layer, dtype, -128 if LEAST in label else -1)
                    found = counts(own, get_target(target), "O2", Path(name), ROOM)
                    ours = sum(n for k, n in found.items() if "_to_" not in k)
                    row = [label, dtype, f"{ours:,}"]
                    for peer in ("xnnpack_layer", "acl_layer"):
                        n = peer_count(peers / peer, layer, dtype, CPUS[target], Path(name))
                        row += [f"{n:,}", f"{ours / n:.2f}"] if n else ["-", "-"]
                    print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
