"""The rules of ARCHITECTURE.md that a machine can check: layers, sizes, the wheel's content."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    **{f"atc/{p.relative_to(ROOT / 'atc')}": p for p in sorted((ROOT / "atc").rglob("*.py"))},
    **{
        f"atc/{folder}/{p.relative_to(ROOT / folder)}": p
        for folder in ("backends", "cache", "templates")
        for p in sorted((ROOT / folder).rglob("*.py"))
        if p.name != "fit.py"
    },
}

LAYERS: dict[str, set[str]] = {
    "atc.errors": set(),
    "atc.dims": {"atc.errors", "atc.dims"},
    "atc.ir": {"atc.dims"},
    "atc.expr": {"atc.dims", "atc.ir"},
    "atc.view": {"atc.dims", "atc.ir"},
    "atc.names": set(),
    "atc.regular_file": set(),
    "atc.ops": {"atc.dims", "atc.ir", "atc.expr", "atc.view", "atc.ops"},
    "atc.cache": {"atc.errors", "atc.cache"},
    "atc.templates": set(),
    "atc.temporary": set(),
    "atc.verify": {"atc.errors", "atc.ir", "atc.ops"},
    "atc.memory_plan": {"atc.errors"},
    "atc.memory_check": {"atc.errors", "atc.memory_plan"},
    "atc.passes": {
        "atc.dims", "atc.errors", "atc.ir", "atc.expr", "atc.view", "atc.ops", "atc.verify",
        "atc.passes",
    },
    "atc.lower": {
        "atc.dims", "atc.errors", "atc.ir", "atc.expr", "atc.view", "atc.ops", "atc.lower",
    },
    "atc.importers": {"atc", "atc.dims", "atc.errors", "atc.importers", "atc.regular_file"},
    "atc.adapt": {"atc.errors", "atc.dims", "atc.adapt", "atc.regular_file"},
    "atc.backends": {
        "atc.dims", "atc.errors", "atc.ir", "atc.expr", "atc.view", "atc.ops", "atc.templates",
        "atc.backends",
    },
    "atc.runtime": {"atc.runtime_library", "atc.runtime_queue", "atc.runtime_values"},
    "atc.runtime_interface": set(),
    "atc.runtime_library": {"atc.runtime_interface", "atc.runtime_values"},
    "atc.runtime_profile": {"atc.runtime", "atc.runtime_library"},
    "atc.runtime_queue": {"atc.runtime_values"},
    "atc.runtime_values": set(),
    "atc.load": {
        "atc.errors", "atc.names", "atc.runtime", "atc.runtime_profile", "atc.runtime_values",
        "atc.temporary",
    },
}  # fmt: skip
"""What each package or module may import of ours; those not named are free."""


def package(module: str) -> str:
    """Return the unit of LAYERS that a module belongs to."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else module


def imports(path: Path) -> set[str]:
    """Return our modules that a file imports, at run time (not under TYPE_CHECKING)."""
    tree = ast.parse(path.read_text("utf-8"))
    hidden = {
        id(n)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for n in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{a.name}" for a in node.names if node.module == "atc"}
    return {m for m in found if m.split(".")[0] == "atc"}


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_modules_import_only_what_their_layers_may() -> None:
    wrong = {}
    for name, path in SOURCES.items():
        own = package(module_of(name))
        if own in LAYERS:
            used = {package(m) for m in imports(path)} - {"atc"}
            wrong[name] = sorted(used - LAYERS[own] - {own})
    assert not {name: modules for name, modules in wrong.items() if modules}


def calls_of(path: Path, names: set[str]) -> list[str]:
    text = path.read_text("utf-8")
    if not re.search(rf"\b({'|'.join(n.split('.')[-1] for n in names)})\s*\(", text):
        return []  # most files: parsing all takes two seconds
    tree = ast.parse(text)
    return [
        ast.unparse(n.func)
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) in names
    ]


def test_only_the_command_line_prints_or_exits() -> None:
    found = {n: calls_of(p, {"print", "sys.exit", "exit"}) for n, p in SOURCES.items()}
    assert {n for n, calls in found.items() if calls} <= {"atc/cli.py", "atc/__main__.py"}


def test_only_the_toolchain_starts_processes() -> None:
    start = re.compile(r"^\s*(import|from) subprocess|os\.(system|popen|exec|spawn|fork)\b", re.M)
    found = {name for name, path in SOURCES.items() if start.search(path.read_text("utf-8"))}
    assert found == {"atc/backends/toolchain.py"}


def test_no_file_grows_out_of_hand() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in SOURCES.items()}
    large = {name: count for name, count in lines.items() if count > 450}
    assert not large, "split them by family"


def test_packages_are_all_listed() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    there = {module_of(n) for n in SOURCES if n.endswith("__init__.py")}
    assert listed == there


@pytest.mark.slow
def test_the_wheel_holds_the_whole_tree(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("atc/")}
    templates = {
        f"atc/templates/{p.relative_to(ROOT / 'templates')}"
        for pattern in ("*.j2", "*.h")
        for p in (ROOT / "templates").rglob(pattern)
    }
    wanted = {*SOURCES, *templates, "atc/py.typed", "atc/docs/settings.md"}
    assert wanted <= held | {"atc/templates/simd/fit.py"}
