"""`atc doctor`: what this machine has of what a compilation may need, and how to get the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from atc import __version__, cache
from atc.backends.cpu.targets import TARGETS
from atc.backends.cuda.device import architecture_for, compute_capabilities
from atc.backends.cuda.targets import CUDA_TARGETS, EMULATED, name_of
from atc.backends.target import Target
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.find_compiler import compiler_advice
from atc.backends.toolchain.nvcc import HOW, find_nvcc
from atc.backends.toolchain.probe import EMULATORS, Tools, probe_all
from atc.backends.toolchain.processes import run_binary
from atc.errors import AtcError, one_line
from atc.options.machine import kept_path, processor

NEEDED = (
    "archspec", "cffi", "flatbuffers", "jinja2", "ml-dtypes", "numpy", "onnx", "onnx-ir",
    "protobuf", "rich", "typing-extensions",
)  # fmt: skip
"""The packages that atc depends on."""

OPTIONAL = {
    "onnxruntime": ("quantize", "atc quantize, and a quicker reference for atc verify"),
    "torch": ("torch", "PyTorch's modules and .pt2 files"),
    "tf2onnx": ("tflite", "TensorFlow's and TensorFlow Lite's files"),
    "skl2onnx": ("sklearn", "pickles of scikit-learn"),
    "onnxmltools": ("sklearn", "pickles of XGBoost and LightGBM"),
    "ziglang": ("zig", "a C compiler for most targets"),
    "distributed": ("farm", "--scheduler"),
}
"""Packages that some options want: the extra that brings them, and what for."""

_OTHERS = {
    "cmake": ("cmake", "the CMake project of a network"),
    "ninja": ("ninja-build", "the CMake project, and faster builds"),
    "make": ("make", "the starter's Makefile"),
    "ssh": ("openssh-client", "--runner=ssh:HOST"),
    "adb": ("adb", "--runner=adb"),
    **{program: (package, "programs for other processors") for program, package in
       EMULATORS.items()},
}  # fmt: skip
"""Programs that are no compilers: Debian's package, and what for."""

_ANSWER = 20.0  # seconds that a program may take to print its version

State = Literal["ok", "absent", "wrong"]


@dataclass(frozen=True)
class Finding:
    """A thing that is there, is not, or is no good; `advice` is what to do about it.

    Without a `needed` one nothing compiles, or not for a target that was asked for.
    """

    area: str
    name: str
    state: State
    found: str
    advice: str = ""
    needed: bool = False

    @property
    def healthy(self) -> bool:
        """Whether all that was asked for works with what was found."""
        return self.state == "ok" or (self.state == "absent" and not self.needed)


@dataclass(frozen=True)
class Diagnosis:
    """All findings; the exit status is 1 where one of them is in the way."""

    findings: tuple[Finding, ...]

    @property
    def exit_status(self) -> int:
        """0 where everything that is needed works."""
        return 0 if all(each.healthy for each in self.findings) else 1


def diagnose(environ: Mapping[str, str], wanted: Sequence[str] = ()) -> Diagnosis:
    """Look at this machine; `wanted` are targets that must compile beside the host's.

    Raises OptionError for a target that isn't one.
    """
    host = host_target()
    asked = tuple(get_target(name) for name in wanted)
    all_targets = [get_target(target.name) for target in (*TARGETS, *CUDA_TARGETS)]
    needed = {host.name, *(target.name for target in asked)}
    tools = probe_all(all_targets, environ)
    return Diagnosis((
        *_versions(),
        *_compilers(all_targets, environ),
        *(_of_target(each, each.target.name in needed) for each in tools),
        *_programs(environ),
        *_gpus(environ),
        *_caches(environ),
    ))  # fmt: skip


# ------------------------------------------------------------------------------------ the areas


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "atc", "ok", __version__, needed=True)
    python = f"{platform.python_version()} ({sys.executable})"
    yield Finding("versions", "Python", "ok", python, needed=True)
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {processor()}"
    yield Finding("versions", "machine", "ok", f"{system}; host is {host_target().name}")
    for name in NEEDED:
        there = _package(name)
        state: State = "ok" if there else "absent"
        yield Finding("versions", name, state, there, "" if there else f"pip install {name}", True)
    for name, (extra, use) in OPTIONAL.items():
        there = _package(name)
        advice = "" if there else f"pip install 'atc[{extra}]' for {use}"
        yield Finding("versions", name, "ok" if there else "absent", there, advice)


def _package(name: str) -> str:
    """Return a distribution's version, '' where it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _compilers(targets: Sequence[Target], environ: Mapping[str, str]) -> Iterator[Finding]:
    own = environ.get("CC", "").split()[:1]
    cross = {t.compiler: compiler_advice(t) for t in targets if t.compiler != "cc"}
    plain = {name: f"apt install {name}" for name in ("gcc", "clang")}
    for name, advice in {**dict.fromkeys(own, "correct or unset CC"), **plain, **cross}.items():
        yield _program("compilers", name, advice, environ)
    if importlib.util.find_spec("ziglang") is not None:
        yield Finding("compilers", "zig", "ok", f"{_package('ziglang')} (package ziglang)")


def _of_target(tools: Tools, needed: bool) -> Finding:
    name = tools.target.name
    if tools.compiler is None:
        advice = tools.advice or "see the message"
        return Finding("targets", name, "absent", tools.trouble, advice, needed)
    found = one_line(tools.compiler.version, 80)
    if tools.runner:
        found += f"; runs under {Path(tools.runner[0]).name}"
    advice = f"{tools.no_runner} to run programs for it" if tools.no_runner else ""
    return Finding("targets", name, "ok", found, advice, needed)


def _programs(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, (package, use) in _OTHERS.items():
        yield _program("programs", name, f"apt install {package} for {use}", environ)


def _program(area: str, name: str, advice: str, environ: Mapping[str, str]) -> Finding:
    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is None:
        return Finding(area, name, "absent", "", advice)
    option = "-V" if name == "ssh" else "--version"
    try:
        done = run_binary((path, option), _ANSWER)
    except AtcError as error:
        return Finding(area, name, "wrong", f"{path}: {error.message}", advice)
    text = (done.stdout or done.stderr).decode(errors="replace").strip()
    if done.status:
        return Finding(area, name, "wrong", f"{path}: exit status {done.status}", advice)
    return Finding(area, name, "ok", f"{path}: {one_line(text.partition(chr(10))[0], 80)}")


def _gpus(environ: Mapping[str, str]) -> Iterator[Finding]:
    devices = compute_capabilities()
    for ordinal, (major, minor) in enumerate(devices):
        architecture = architecture_for((major, minor))
        target = name_of(architecture) if architecture else "no target"
        found = f"compute capability {major}.{minor} ({target})"
        yield Finding("GPU", f"device {ordinal}", "ok" if architecture else "wrong", found,
                      "" if architecture else "this GPU is too old for atc")  # fmt: skip
    if not devices:
        emulated = f"--target=cuda-{EMULATED} imitates one"
        yield Finding("GPU", "devices", "absent", "no driver, or no device",
                      f"install NVIDIA's driver, to run networks for GPUs; {emulated}")  # fmt: skip
    yield _nvcc(environ)


def _nvcc(environ: Mapping[str, str]) -> Finding:
    try:
        compiler = find_nvcc(CUDA_TARGETS[0].device, environ)
    except AtcError as error:
        state: State = "absent" if error.hint == HOW else "wrong"
        return Finding("GPU", "nvcc", state, error.message, error.hint)
    return Finding("GPU", "nvcc", "ok", f"{compiler.argv[0]}: {compiler.version}")


def _caches(environ: Mapping[str, str]) -> Iterator[Finding]:
    name = "op compiler cache"
    try:
        root = cache.find_root(None, environ)
        if root is None:
            yield Finding("caches", name, "absent", "HOME is not set", "set ASCEND_CACHE_PATH")
            return
        report = cache.cache_stats(root, environ=environ)
    except AtcError as error:
        yield Finding("caches", name, "wrong", error.message, error.hint)
        return
    entries = sum(folder.entries for folder in report.folders)
    size = sum(folder.size for folder in report.folders) / 1e6
    found = f"{one_line(str(root), 200)}: {entries} entries, {size:.1f} MB"
    trouble = "; ".join(report.warnings) or _unwritable(root)
    advice = "see atc cache verify" if report.warnings else "name another with ASCEND_CACHE_PATH"
    yield Finding("caches", name, "wrong" if trouble else "ok",
                  f"{found}; {one_line(trouble, 300)}" if trouble else found,
                  advice if trouble else "")  # fmt: skip
    times = sorted((root / "algo_cache").glob("*.json")) if root.is_dir() else []
    yield Finding("caches", "measured times", "ok" if times else "absent",
                  f"of {len(times)} machines" if times else "none yet",
                  "" if times else "--fast_run measures kernels")  # fmt: skip
    kept = kept_path(environ)
    there = kept is not None and kept.is_file()
    yield Finding("caches", "this machine's rates", "ok" if there else "absent",
                  one_line(str(kept), 200) if there else "known from its name alone",
                  "" if there else "atc machine --measure")  # fmt: skip


def _unwritable(root: Path) -> str:
    """Return why nothing can be written below a folder that may not be there yet."""
    place = next(p for p in (root, *root.parents) if p.exists())
    if not place.is_dir():
        return f"{place} is not a folder"
    return "" if os.access(place, os.W_OK) else f"can't write to {place}"


# --------------------------------------------------------------------------------------- as text


def doctor_json(diagnosis: Diagnosis) -> str:
    """Return the findings as JSON."""
    data = {
        "healthy": diagnosis.exit_status == 0,
        "findings": [asdict(each) | {"healthy": each.healthy} for each in diagnosis.findings],
    }
    return json.dumps(data, indent=1) + "\n"


def doctor_text(diagnosis: Diagnosis) -> str:
    """Return the findings as lines by area, and last what is in the way."""
    lines: list[str] = []
    width = max(len(each.name) for each in diagnosis.findings)
    for area in dict.fromkeys(each.area for each in diagnosis.findings):
        lines.append(area)
        for each in (f for f in diagnosis.findings if f.area == area):
            parts = [each.found, f"-> {each.advice}" if each.advice else ""]
            text = re.sub(" +", " ", " ".join(part for part in parts if part))
            lines.append(f"  {each.state:<6}  {each.name:<{width}}  {text}")
    troubles = [each for each in diagnosis.findings if not each.healthy]
    for each in troubles:
        lines.append(f"in the way: {each.name}: {each.found or 'not there'}; {each.advice}")
    if not troubles:
        lines.append("all that is needed works")
    return "".join(f"{line.rstrip()}\n" for line in lines)
