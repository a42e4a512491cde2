"""What all tests share: no configuration of whoever runs them; which are slow by kind."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from c_compiler import EMULATED, compiler_version, keep_headers_in, keep_results_in
from default_run import (
    TemplateFolder,
    compile_quickly,
    folder_in_memory,
    offer_quick_compiling,
    plain_c,
    quickly,
    repeats,
    select_cases,
)

from atc.templates import keeping_templates

os.environ.pop("ATC_CACHE_KEY", None)
os.umask(0o022)
# The workers keep all cores busy: threads of numpy's and PyTorch's would only spin beside them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A hundred processes would each compile all modules, and every worker rewrite all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SSE2 = frozenset({"x86-64-sse2", "sse2"})
AVX2 = frozenset({"x86-64-avx2", "x86-64-avx2-vnni", "avx2"})
SEEDS = 4
"""Of tests of many random cases, so many are run by default."""
CACHES = pytest.StashKey[Path]()
"""Where the op compiler caches of the tests are."""
GARBAGE = 50_000
"""Objects after which the collector looks for garbage: what a compilation makes goes by itself."""
DRAWN = ("test_standard", "test_resize_is_the_reference")
"""Tests of many cases, some of which are run by default."""

QUICK = (
    "tests/load_and_run/", "tests/lower/", "tests/memory/", "tests/options/", "tests/passes/",
    "tests/program/", "tests/pytorch/", "tests/quantize/", "tests/tracing/",
    *(f"tests/whole/test_{name}.py" for name in (
        "compare_models", "cuda", "cuda_ranges", "documents", "dynamic", "dynamic_models",
        "growing_states", "names", "ranges", "states")),
)  # fmt: skip
"""Slow tests of what networks compute, or options do, not of what compilers make of it."""
PLAIN = ("tests/pytorch/", "tests/tracing/")
"""Tests whose default ones, in any run, compile for plain C, and slow ones for this machine."""

UNTIL = "ATC_TESTS_UNTIL"
"""Variable with the second since 1970 from which on no test begins: CI's time is limited."""

LONG = (
    "tests/backends/cuda/products/test_tensor.py", "tests/tools/test_check.py::test_it_says_what_",
    "tests/whole/test_documents.py", "tests/whole/test_large.py",
)  # fmt: skip
"""Tests of up to a minute: they begin first, so that no worker waits for them in the end."""


def pytest_configure(config: pytest.Config) -> None:
    """Say how tests compile: without optimisation by default, with headers that all share.

    Slow tests compile as users do, but for those of QUICK.

    What a test keeps on disk goes to a folder of the tests' own, in memory by default: nothing of
    whoever runs them is read or written. Only what default runs compile of kernels and networks
    stays, and of templates, in pytest's own cache, so that the next one takes it: --cache-clear
    empties that.
    """
    gc.disable()  # until all tests are collected
    default = "not slow" in str(config.getoption("markexpr"))
    if default and "TMPDIR" not in os.environ and (place := folder_in_memory()):
        os.environ["TMPDIR"], tempfile.tempdir = place, place
    kept = tempfile.TemporaryDirectory(prefix="atc-tests-")
    config.stash[CACHES] = Path(kept.name)
    os.environ["ASCEND_CACHE_PATH"] = str(config.stash[CACHES] / "session")
    config.add_cleanup(kept.cleanup)
    cache = config.cache if config.pluginmanager.has_plugin("cacheprovider") else None
    if cache is not None:
        templates = ExitStack()
        templates.enter_context(keeping_templates(TemplateFolder(cache.mkdir("templates"))))
        config.add_cleanup(templates.close)
    if not hasattr(config, "workerinput"):  # the workers share the folder of whoever started them
        folder = tempfile.TemporaryDirectory(prefix="atc-tests-")
        keep_headers_in(Path(folder.name))
        os.environ["XDG_CONFIG_HOME"] = folder.name
        os.environ["ATC_CONFIG"] = os.devnull
        version = b"".join(compiler_version(name) for name in ("cc", "tcc") if shutil.which(name))
        if default:
            if cache is not None:
                keep_results_in(cache.mkdir("compiled"))
                if config.getoption("cacheclear"):  # each worker empties the folder once more
                    cache = None
            compile_quickly(Path(folder.name), cache.mkdir("kernels") if cache else None, version)
        else:
            offer_quick_compiling(Path(folder.name), version)
        config.add_cleanup(folder.cleanup)


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the configuration of default runs away, for tests of what `atc` does without any."""
    monkeypatch.setenv("ATC_CONFIG", os.devnull)


@pytest.fixture
def without_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the package ziglang: where it is installed, it compiles for nearly all targets."""
    monkeypatch.setitem(sys.modules, "ziglang", None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say what is run; spare the garbage collector the thousands of tests, which stay."""
    specs = (getattr(item, "callspec", None) for item in session.items)
    select_cases(spec.params for spec in specs if spec is not None)
    gc.enable()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let whoever started the workers not look for garbage among their reports, five times."""
    if not hasattr(session.config, "workerinput"):
        gc.freeze()


def pytest_runtest_setup() -> None:
    """Skip a test for which no time is left."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"no time was left for it: {UNTIL} is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Compile as default runs do where only numbers count; give each file's tests their own cache.

    Each opening of a cache lists it, and one of the whole session's would have thousands of files.
    """
    own = hashlib.sha256(str(item.path).encode()).hexdigest()[:16]
    os.environ["ASCEND_CACHE_PATH"] = str(item.config.stash[CACHES] / own)
    with ExitStack() as settings:
        if item.nodeid.startswith(QUICK):
            settings.enter_context(quickly())
        if item.nodeid.startswith(PLAIN) and not item.get_closest_marker("slow"):
            settings.enter_context(plain_c(item.config.stash[CACHES]))
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what repeats, for more instructions or more cases, what another test shows."""
    from support import runnable  # not before bytecode may be written

    # Targets that show what this CPU's widest vectors show, with narrower ones.
    narrower = SSE2 | AVX2 if runnable("x86-64-avx512") else SSE2
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        words = {v if isinstance(v, str) else str(getattr(v, "name", "")) for v in values.values()}
        name = values.get("name", "")
        drawn = item.name.startswith(DRAWN) and isinstance(name, str)
        seed = values.get("seed", 0)
        late = isinstance(seed, int) and seed >= SEEDS
        emulated = words & EMULATED and hasattr(getattr(item, "module", None), "VECTOR_TARGETS")
        if words & narrower or emulated or late or (drawn and repeats(name)):
            item.add_marker(pytest.mark.slow)
    _leave_a_few(items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def _leave_a_few(items: list[pytest.Item]) -> None:
    """Mark as slow all but some cases, far from each other, of tests that are marked `few`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for own in cases.values():
        marker = own[0].get_closest_marker("few")
        count = marker.args[0] if marker else len(own)
        kept = {k * len(own) // count for k in range(count)}
        for k, item in enumerate(own):
            if k not in kept:
                item.add_marker(pytest.mark.slow)
