"""The rules of ARCHITECTURE.md that a machine can check: layers, sizes, the wheel's content."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    **{
        f"atc/{p.relative_to(ROOT / 'atc')}": p
        for p in sorted((ROOT / "atc").rglob("*.py"))
        if p.parent.name != "docs"  # what mkdocs loads
    },
    **{
        f"atc/{folder}/{p.relative_to(ROOT / folder)}": p
        for folder in ("backends", "cache", "templates")
        for p in sorted((ROOT / folder).rglob("*.py"))
        if p.name != "fit.py"
    },
}

LEVELS = """
errors names lazy_imports templates
files
cache dims
ir importers adapt
backends lower passes runtime
options
diagnostics select
program notebook
memory
codegen
build onnx_backend
starter packaging convert exporters
farm
fast_run
pipeline
accuracy quantize devices
compile
tools
api load_and_run
tracing pytorch batch
entry
cli
smoke
__main__
"""
"""Packages and modules of `atc`, lowest first: each imports only what stands on lower lines."""

ONLY: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "names": set(),
    "lazy_imports": set(),
    "templates": set(),
    "dims": {"errors"},
    "cache": {"errors"},
    "ir": {"dims", "errors"},
    "importers": {"dims", "errors", "files"},
    "adapt": {"dims", "errors", "files"},
    "lower": {"dims", "errors", "ir"},
    "passes": {"dims", "errors", "ir"},
    "backends": {"dims", "errors", "ir", "templates"},
    "runtime": {"errors", "files", "ir", "names"},
    "select": {"backends", "dims", "errors", "ir", "passes"},
    "program": {"backends", "dims", "files", "ir", "select"},
    "memory": {"dims", "errors", "ir", "program"},
}
"""What these may import, where that is less than all of the lower levels."""

KERNELS = [
    "map", "matmul", "normalize", "data", "attention", "rnn", "conv", "special", "amx", "small",
]  # fmt: skip
"""The families of `backends/cpu`, lowest first, below `catalogue`."""

CUDA_KERNELS = [
    "gpus", "kernel", "map", "products", "conv", "normalize", "attention", "data", "rnn", "special",
]  # fmt: skip
"""The families of `backends/cuda`, likewise."""

COMMANDS = ("atc.cli", "atc.tools.commands", "atc.tools.verify", "atc.load_and_run.command")
"""Who may defer imports: commands load what they run, and no more."""

DEFERRED = {
    # A row that the cache has whole takes no compiler.
    "atc.batch.run": {"atc.api", "atc.pipeline.held"},
    # Most models are ONNX's, and most targets CPUs.
    "atc.backends.catalogue": {"atc.backends.cuda.catalogue"},
    "atc.importers.megengine": {"atc.importers.megengine.translate"},
    "atc.importers.mxnet": {"atc.importers.mxnet.load"},
    # PyTorch is large, and may be missing.
    "atc.entry": {"atc.pytorch"},
    # These derive from classes of onnx's evaluator, which takes 0.1 s to import.
    "atc.accuracy.float64": {"atc.accuracy.float64_ops"},
    # Only cases that lie in MegEngine's files are read by its importer.
    "atc.load_and_run.cases": {"atc.importers.megengine.stored_cases"},
}
"""The other modules that defer imports, and which."""

LEVEL = {name: k for k, line in enumerate(LEVELS.strip().splitlines()) for name in line.split()}


def unit(module: str) -> str:
    """Return the package or module of LEVELS that a module belongs to; '' is atc itself."""
    return module.partition(".")[2].split(".")[0]


When = Literal["at once", "deferred", "for types"]
"""An import runs with its module, inside of a function, or under TYPE_CHECKING: never."""


@dataclass(frozen=True)
class Imported:
    """A module of ours that a file imports."""

    module: str
    when: When


Imports = Mapping[str, set[Imported]]
"""What each module imports."""


def imports(path: Path) -> set[Imported]:
    """Return what a file imports of ours."""
    tree = ast.parse(path.read_text("utf-8"))
    found: set[Imported] = set()
    for node, when in _import_statements(tree.body):
        if isinstance(node, ast.Import):
            names = {a.name for a in node.names}
        elif node.module:
            names = {m if (m := f"{node.module}.{a.name}") in MODULES else node.module
                     for a in node.names}  # fmt: skip
        else:
            continue
        found |= {Imported(m, when) for m in names if m.split(".")[0] == "atc"}
    return found


def _import_statements(
    body: Sequence[ast.AST], when: When = "at once"
) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """Yield the imports below statements, and when each runs.

    Expressions hold none, so that only blocks are gone through.
    """
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, when
            continue
        blocks = [
            part
            for name in ("body", "orelse", "finalbody", "handlers", "cases")
            if isinstance(part := getattr(node, name, ()), list)
        ]
        for_types = isinstance(node, ast.If) and any(
            isinstance(part, ast.Name) and part.id == "TYPE_CHECKING"
            for part in ast.walk(node.test)
        )
        for block in blocks:
            yield from _import_statements(block, "for types" if for_types else "deferred")


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(name): path for name, path in SOURCES.items()}


@pytest.fixture(scope="module")
def imported() -> Imports:
    """Return what every module imports: read when a test asks, not when tests are collected."""
    return {module: imports(path) for module, path in MODULES.items()}


def test_every_module_stands_on_a_level() -> None:
    assert {unit(m) for m in MODULES} - {""} == set(LEVEL)


def test_the_map_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("## Map")[1].split("\n## ")[0]
    packages = LEVEL.keys() - {"__main__"}
    assert not [name for name in packages if not re.search(rf"\b{name}\b", text)]


def test_modules_import_only_lower_levels(imported: Imports) -> None:
    wrong = [
        f"{module} imports {each.module}"
        for module, found in imported.items()
        for each in found
        if unit(module) and (other := unit(each.module)) and other != unit(module)
        and (LEVEL[other] >= LEVEL[unit(module)] or other not in ONLY.get(unit(module), {other}))
    ]  # fmt: skip
    assert not wrong


def test_the_package_itself_imports_next_to_nothing(imported: Imports) -> None:
    """`import atc` must stay cheap; `atc.compile` and `atc.load` load what they need."""
    run = {each.module for each in imported["atc"] if each.when != "for types"}
    assert run == {"atc.lazy_imports"}


def test_families_of_kernels_import_only_lower_ones(imported: Imports) -> None:
    wrong = [*_out_of_order(imported, "atc.backends.cpu.", KERNELS)]
    assert not [*wrong, *_out_of_order(imported, "atc.backends.cuda.", CUDA_KERNELS)]


def test_kinds_of_processors_share_only_what_renders_text(imported: Imports) -> None:
    """`backends/cpu` and `backends/cuda` don't see each other, what both have neither.

    Neither sees compilers; those know the lists of GPUs.
    """
    both = ("atc.backends.render", "atc.backends.parallel_for")
    toolchain = "atc.backends.toolchain"
    kinds = ("atc.backends.cpu", "atc.backends.cuda", *both, toolchain)
    across = {
        (m.rsplit(".", m.count(".") - 2)[0], e.module.rsplit(".", e.module.count(".") - 2)[0])
        for m, found in imported.items()
        for e in found
        if m.startswith(kinds) and e.module.startswith(kinds)
    }
    assert {(a, b) for a, b in across if a != b} == {
        *((a, b) for a in kinds[:2] for b in both), both[::-1], (toolchain, "atc.backends.cuda")
    }  # fmt: skip


def _out_of_order(imported: Imports, start: str, families: Sequence[str]) -> list[str]:
    """Return the imports of families below `start` that aren't of lower ones."""
    rank = {name: k for k, name in enumerate((*families, "catalogue"))}
    rank |= {"targets": -2, "device": -1}
    return [
        f"{module} imports {each.module}"
        for module, found in imported.items()
        for each in found
        if module.startswith(start) and each.module.startswith(start)
        and (own := module.removeprefix(start).split(".")[0])
        != (other := each.module.removeprefix(start).split(".")[0])
        and rank[other] >= rank[own]
    ]  # fmt: skip


def test_only_selection_sees_the_catalogue_of_kernels(imported: Imports) -> None:
    own = "atc.backends.catalogue"
    catalogues = {own, "atc.backends.cpu.catalogue", "atc.backends.cuda.catalogue"}
    seen = {m for m, found in imported.items() if catalogues & {each.module for each in found}}
    assert {unit(m) for m in seen - {own}} <= {"select", "load_and_run"}


def test_modules_import_each_other_in_no_circle(imported: Imports) -> None:
    after = {m: {e.module for e in found} & set(MODULES) - {m} for m, found in imported.items()}
    packages = {m for m, path in MODULES.items() if path.name == "__init__.py"}
    after = {m: others - packages for m, others in after.items() if m not in packages}
    assert list(TopologicalSorter(after).static_order())  # raises CycleError, which names it


def test_only_commands_defer_imports(imported: Imports) -> None:
    deferred = {
        module: late for module, found in imported.items()
        if module != "atc" and not f"{module}.".startswith(tuple(f"{c}." for c in COMMANDS))
        and (late := {each.module for each in found if each.when == "deferred"})
    }  # fmt: skip
    assert deferred == DEFERRED


def test_top_folders_are_small() -> None:
    """A folder's own files are those that belong to no room of it."""
    most = {"atc": 9, "backends": 11, "backends/cpu": 3, "templates/cpu": 5, "tests": 3}
    flat = {f: [p.name for p in (ROOT / f).iterdir() if p.is_file()] for f in most}
    hidden = (".", "py.typed")
    flat = {f: [n for n in names if not n.startswith(hidden)] for f, names in flat.items()}
    assert not {f: names for f, names in flat.items() if len(names) > most[f]}


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
    assert {n for n, calls in found.items() if calls} <= {"atc/cli/main.py", "atc/__main__.py"}


def test_only_the_toolchain_starts_processes() -> None:
    start = re.compile(r"^\s*(import|from) subprocess|os\.(system|popen|exec|spawn|fork)\b", re.M)
    found = {name for name, path in SOURCES.items() if start.search(path.read_text("utf-8"))}
    assert found == {"atc/backends/toolchain/processes.py"}


def test_docstrings_name_what_they_are_for() -> None:
    """They begin with a noun or a verb: a question names neither.

    `Whether` is left to properties, which are the truth of what follows.
    """
    question = re.compile('"""(What|How|Which|Who|Where|When|Whether) ')
    texts = {name: path.read_text("utf-8") for name, path in SOURCES.items()}
    found = [
        f"{name}: {doc.splitlines()[0]}"
        for name, text in texts.items()
        if question.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (doc := ast.get_docstring(node))
        and question.match(f'"""{doc}')
        and not (doc.startswith("Whether") and getattr(node, "decorator_list", ()))
    ]
    assert not found


def test_packages_say_what_they_may_import() -> None:
    docs = {
        name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for name, path in SOURCES.items()
        if path.name == "__init__.py" and name != "atc/__init__.py"
    }
    said = re.compile(r"\b[Mm]ay\s+import\b|\b[Ii]mports nothing\b|\bA family imports\b")
    assert not [name for name, doc in docs.items() if not said.search(doc)]


def test_no_file_grows_out_of_hand() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in SOURCES.items()}
    large = {name: count for name, count in lines.items() if count > 450}
    assert not large, "split them by family"


def test_templates_lines_fit_a_screen() -> None:
    """Long expressions are folded inside of `{{ }}` and `{% %}`, where Jinja ignores line ends."""
    files = (p for p in (ROOT / "templates").rglob("*") if p.suffix not in ("", ".pyc"))
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} characters"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not long


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
