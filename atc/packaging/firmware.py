"""Packages for systems of firmware: Arduino, CMSIS-Pack, ESP-IDF, Zephyr.

The ones that CMake builds name the project's own files. Arduino's library and the pack are moved
as they are, and their systems take neither flags nor assembler that includes files: they hold
copies, with the weights as C text.
"""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.target import Target
from atc.codegen.emit import Emission
from atc.codegen.weights import weights_text
from atc.errors import OptionError
from atc.templates import render, verbatim

_CORES = {
    "cortex-m0plus": ("Cortex-M0+", "CPU_CORTEX_M0PLUS"),
    "cortex-m3": ("Cortex-M3", "CPU_CORTEX_M3"),
    "cortex-m4f": ("Cortex-M4", "CPU_CORTEX_M4"),
    "cortex-m7": ("Cortex-M7", "CPU_CORTEX_M7"),
    "cortex-m33": ("Cortex-M33", "CPU_CORTEX_M33"),
    "cortex-m55": ("Cortex-M55", "CPU_CORTEX_M55"),
    "cortex-m85": ("Cortex-M85", "CPU_CORTEX_M85"),
    "riscv32": ("", "RISCV"),
    "c99": ("", ""),
}
"""Targets of firmware: what CMSIS and Zephyr's Kconfig call their processors, '': any."""

_CMSIS_CORES = (
    "Cortex-M0", "Cortex-M0+", "Cortex-M1", "Cortex-M3", "Cortex-M4", "Cortex-M7", "Cortex-M23",
    "Cortex-M33", "Cortex-M35P", "Cortex-M52", "Cortex-M55", "Cortex-M85",
)  # fmt: skip
"""All that portable C is for."""

_LONGEST_SUB = 32
"""Characters of a component's name in PACK.xsd; the first is no underscore."""


def check_packages(packages: Sequence[str], target: Target) -> None:
    """Raise OptionError where a system doesn't run on a target's processors."""
    for package in packages:
        if package == "esp-idf":
            allowed = ["c99", "riscv32"]
        else:
            allowed = [t for t in _CORES if package != "cmsis-pack" or t != "riscv32"]
        if target.name not in allowed:
            raise OptionError(f"{package} doesn't run on {target.name}", where="--package",
                              hint=f"targets for it are {', '.join(allowed)}")  # fmt: skip


def package_files(emission: Emission, target: Target, packages: Sequence[str]) -> dict[str, bytes]:
    """Return the packages' files by path.

    Raises OptionError for networks of several shapes or threads, or without their weights.
    """
    if not packages:
        return {}
    values = emission.interface
    kinds = {"several shapes": values.dynamic, "weights beside it": values.external,
             "several threads": emission.threads > 1}  # fmt: skip
    for kind, is_so in kinds.items():
        if is_so:
            raise OptionError(f"a network of {kind} can't be packaged for firmware",
                              where="--package", code="E10047")  # fmt: skip
    texts: dict[str, str] = {}
    for package in packages:
        if package == "arduino":
            texts |= _arduino(emission, target)
        elif package == "cmsis-pack":
            texts |= _cmsis_pack(emission, target)
        else:
            texts |= _cmake(emission, target, package)
    return {path: text.encode() for path, text in texts.items()}


def _copied(emission: Emission, target: Target) -> dict[str, str]:
    """Return the sources and private headers, of which no flag is needed, and the weights."""
    head = verbatim("packaging/contraction.h")
    name = emission.name
    texts = {
        path: (head if path.endswith(".c") else "") + content.decode()
        for path, content in emission.files.items()
        if path.startswith("src/")
    }
    if emission.blob.size:
        weights = weights_text(name, emission.blob, target)
        texts[f"src/{name}_weights.c"] = weights
    return texts


def _headers(emission: Emission) -> dict[str, str]:
    """Return the public headers by name."""
    start = "include/"
    return {
        path.removeprefix(start): content.decode()
        for path, content in emission.files.items() if path.startswith(start)
    }  # fmt: skip


def _arduino(emission: Emission, target: Target) -> dict[str, str]:
    name, values = emission.name, emission.interface.values()
    example = f"examples/{name}/{name}.ino"
    texts = {
        "library.properties": render("packaging/arduino/library.properties.j2", values),
        example: render("packaging/arduino/example.ino.j2", values),
        **{f"src/{header}": text for header, text in _headers(emission).items()},
        **_copied(emission, target),
    }
    return {f"arduino/{name}/{path}": text for path, text in texts.items()}


def _cmsis_pack(emission: Emission, target: Target) -> dict[str, str]:
    name, copied = emission.name, _copied(emission, target)
    sources = [path for path in copied if path.endswith(".c")]
    own = _CORES[target.name][0]
    cores = [own] if own else _CMSIS_CORES
    sub = name.strip("_")[:_LONGEST_SUB] or "network"
    values = {**emission.interface.values(), "cores": cores, "sources": sources, "sub": sub}
    texts = {
        f"atc.{name}.pdsc": render("packaging/cmsis-pack/network.pdsc.j2", values),
        **{f"include/{header}": text for header, text in _headers(emission).items()},
        **copied,
    }
    return {f"cmsis-pack/{path}": text for path, text in texts.items()}


def _cmake(emission: Emission, target: Target, package: str) -> dict[str, str]:
    paths = [path for path in emission.files if path.startswith("src/") and path.endswith(".c")]
    if emission.blob.size:
        paths.append(f"{emission.name}_weights.S")
    values = {**emission.interface.values(), "paths": paths, "processor": _CORES[target.name][1]}
    if package == "zephyr":
        folder, files = "zephyr", ["CMakeLists.txt", "Kconfig", "module.yml"]
    else:
        folder, files = f"esp-idf/atc_{emission.name}", ["CMakeLists.txt", "idf_component.yml"]
    return {
        f"{folder}/{file}": render(f"packaging/{package}/{file}.j2", values) for file in files
    }
