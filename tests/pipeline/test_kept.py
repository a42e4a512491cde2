"""Output folders that the cache keeps whole: the same bytes, and nothing that ought to differ."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import counting_compiler, pooled_net, save
from onnx import helper, numpy_helper

from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_inputs
from atc.backends.toolchain.processes import ask_program
from atc.batch.matrix import Row
from atc.batch.run import compile_row
from atc.cli.main import main
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.pipeline import kept, pipeline
from atc.pipeline.kept import KeptNetwork, kept_network

SAME = {
    "model", "output", "target_option", "jobs", "compiler_timeout", "build_dir", "debug_dir",
    "runner", "sources", "op_compiler_cache_mode", "op_compiler_cache_dir",
    "op_compiler_cache_remote", "op_compiler_cache_remote_access", "op_compiler_cache_trust",
    "fast_run_cache_type", "fast_run_cache_dir", "fast_run_timeout", "target",
}  # fmt: skip
"""Options that don't change what is written, and those whose contents are tested by themselves."""


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this compiler's files be as they were: somebody may be changing them meanwhile."""
    files, _ = kept._own()
    monkeypatch.setattr(kept, "_own_files", lambda: files)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """Return the options of a build as the command line has them."""
    return {
        "model": str(pooled_net(tmp_path / "model.onnx")), "output": str(tmp_path / "net"),
        "target": "c99", "op_compiler_cache_mode": "enable",
        "op_compiler_cache_dir": str(tmp_path / "cache"), "build_config": "cc -O0",
    }  # fmt: skip


def resolved(given: Mapping[str, Any]) -> tuple[Options, Mapping[str, str], Mapping[str, Any]]:
    found = resolve(dict(given), "compile", program=True)
    return make_options(found.values), found.environ, found.values


def place(given: Mapping[str, Any]) -> KeptNetwork | None:
    return kept_network(*resolved(given))


def digest(given: Mapping[str, Any]) -> str:
    found = place(given)
    assert found is not None
    return found.key.digest()


def build(given: Mapping[str, Any], *more: str) -> None:
    assert main([*(f"--{name}={value}" for name, value in given.items()), *more]) == 0


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return all files of an output folder, with their modes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in files
    }


def compiled_again(given: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> bool:
    """Build once more; return whether that went through the stages of a compilation."""
    capsys.readouterr()
    build(given, "--log=info")
    return "lowering" in capsys.readouterr().err


# ----------------------------------------------------------------------------------- the same


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"wrappers": "cpp,rust", "external_weight": 1, "num_threads": 2},
                     marks=pytest.mark.slow),
        pytest.param({"target": "host", "strip": 1, "wheel": 1}, marks=pytest.mark.slow),
    ],
    ids=["plain", "weights beside", "wheel"],
)  # fmt: skip
def test_a_kept_folder_is_that_of_a_warm_build(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    given |= more
    found = place(given)
    assert found is not None
    build(given)
    entry = next((tmp_path / "cache").rglob(f"{found.key.digest()}.json"))
    text = entry.read_bytes()
    entry.unlink()
    assert compiled_again(given, capsys)
    warm = tree(tmp_path / "net")
    entry.write_bytes(text)
    shutil.rmtree(tmp_path / "net")
    assert not compiled_again(given, capsys)
    assert tree(tmp_path / "net") == warm
    assert not compiled_again({**given, "output": tmp_path / "elsewhere/net"}, capsys)
    assert tree(tmp_path / "elsewhere/net") == warm


def weights_of(given: dict[str, Any], count: int) -> np.ndarray:
    """Make the model a product with so many columns of 1 KB of weights, and return these."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, count)).astype(np.float32)
    save(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        {"x": [1, 256]}, {"y": [1, count]}, Path(given["model"]),
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return weights


def test_large_files_are_kept_in_chunks(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    weights_of(given, 1200)  # more than the megabyte that is read at a time
    build(given)
    first = tree(Path(given["output"]))
    assert not compiled_again(given, capsys)
    second = tree(Path(given["output"]))
    assert {p: f for p, f in first.items() if "report" not in p} == {
        p: f for p, f in second.items() if "report" not in p
    }


def test_files_of_others_are_not_replaced(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(given)
    (tmp_path / "other/net/src").mkdir(parents=True)
    mine = tmp_path / "other/net/src/net.c"
    mine.write_text("mine")
    given["output"] = mine.parents[1]
    capsys.readouterr()
    assert main([f"--{name}={value}" for name, value in given.items()]) != 0
    assert "was not written by atc" in capsys.readouterr().err
    assert tree(tmp_path / "other/net") == {"src/net.c": (b"mine", 0o644)}


def test_another_machine_has_it_from_the_store(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = counting_compiler(tmp_path)
    given |= {"build_config": f"{compiler.command} -O0",
              "op_compiler_cache_remote": f"file://{tmp_path}/store"}  # fmt: skip
    build(given)
    assert compiler.compiled()
    first = tree(tmp_path / "net")
    build({**given, "op_compiler_cache_dir": tmp_path / "other"})
    assert not compiler.compiled()
    assert tree(tmp_path / "net").keys() == first.keys()
    assert not [*(tmp_path / "other").rglob("*.c")]
    entries = [*(tmp_path / "other/kernel_cache/c99").glob("*.json")]
    assert len([e for e in entries if b'"network net"' in e.read_bytes()]) == 1


def test_a_row_of_a_batch_is_restored(given: dict[str, Any], tmp_path: Path) -> None:
    options = {k: v for k, v in given.items() if k not in ("model", "output", "target")}
    row = Row("net", Path(given["model"]), tmp_path / "net", "c99", "", options)
    first = compile_row(row, 1)
    shutil.rmtree(tmp_path / "net")
    second = compile_row(row, 2)
    assert (first.compiled, first.cached) == (second.cached, second.compiled) != (0, 0)
    assert replace(first, compiled=0, cached=0) == replace(second, compiled=0, cached=0)
    assert (tmp_path / "net/libnet.so").stat().st_size == second.library == first.library


# ---------------------------------------------------------------------------- what must differ


def other(value: object, file: Path) -> object:
    """Return another value of an option's kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, "x")
        case Mapping():
            return {**value, "x": (1, 2)}
        case _:
            return file


@pytest.mark.parametrize("name", [f.name for f in fields(Options)])
def test_each_option_counts(given: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Every option changes the key, has nothing kept, or is known to change nothing."""
    options, environ, _ = resolved(given)
    found = kept_network(options, environ)
    file = tmp_path / "file"
    file.write_text("a")
    changed = replace(options, **{name: other(getattr(options, name), file)})
    if name in SAME:
        return
    again = kept_network(changed, environ)
    assert found is not None
    assert again is None or again.key != found.key


def test_options_that_change_nothing_share_the_folder(
    given: dict[str, Any], tmp_path: Path
) -> None:
    more = {"jobs": 1, "compiler_timeout": 5, "build_dir": str(tmp_path / "b"),
            "op_compiler_cache_dir": str(tmp_path / "d"), "fast_run_timeout": 3}  # fmt: skip
    assert digest({**given, **more}) == digest(given)


@pytest.mark.parametrize("name", ["keep_dtype", "insert_op_conf", "fusion_switch_file", "weight"])
def test_the_contents_of_files_count(given: dict[str, Any], tmp_path: Path, name: str) -> None:
    options, environ, _ = resolved(given)
    file = tmp_path / "file"
    keys = []
    for text in ("a", "b", "a"):
        file.write_text(text)
        found = kept_network(replace(options, **{name: file}), environ)
        assert found is not None
        keys.append(found.key)
    assert keys[0] == keys[2] != keys[1]


def weights_changed(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    pooled_net(Path(given["model"]), seed=1)


def model_renamed(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    given["model"] = str(Path(given["model"]).rename(tmp_path / "renamed.onnx"))


def output_renamed(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    given["output"] = str(tmp_path / "other")


def another_target(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    given["target"] = "x86-64"


def own_sources_changed(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    files, _ = kept._own()
    patch.setattr(kept, "_own", lambda: (files, "of another version"))


def package_updated(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site/numpy-99.0.dist-info").mkdir(parents=True)
    patch.syspath_prepend(tmp_path / "site")


def another_compiler(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    given["build_config"] = f"{counting_compiler(tmp_path).command} -O0"


def compiler_replaced(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    another_compiler(given, tmp_path, patch)
    script = Path(given["build_config"].split()[0])
    digest(given)  # knows the file as it is
    script.write_text(script.read_text() + "# another\n")


def library_beside(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    compiler = find_compiler(get_target("host"), os.environ)
    libm = ask_program((*compiler.argv, "-print-file-name=libm.so.6")).stdout.decode().strip()
    shutil.copy(libm, tmp_path / "libm.so")
    patch.setenv("LIBRARY_PATH", str(tmp_path))


def date_given(given: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("SOURCE_DATE_EPOCH", "1")


Change = Callable[[dict[str, Any], Path, pytest.MonkeyPatch], None]
CHANGES: tuple[Change, ...] = (
    weights_changed, model_renamed, output_renamed, another_target, own_sources_changed,
    package_updated, another_compiler, compiler_replaced, library_beside, date_given,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_else_counts(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    first = digest(given)
    change(given, tmp_path, monkeypatch)
    assert digest(given) != first


def test_this_compilers_files_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Templates and headers are among them, and their contents make the digest."""
    files, first = kept._own()
    assert {"kept.py", "kernel.h", "avx2.h", "portable.c.j2"} <= {Path(p).name for p in files}
    changed = tmp_path / "kernel.h"
    changed.write_text("/* another */\n")
    renamed = {str(changed) if p.endswith("/cpu/kernel.h") else p: s for p, s in files.items()}
    monkeypatch.setattr(kept, "_own_files", lambda: renamed)
    assert kept._own.__wrapped__()[1] != first


def test_libraries_that_are_linked_are_looked_into(tmp_path: Path) -> None:
    compiler = find_compiler(get_target("host"), os.environ)
    if compiler.kind != "gcc":
        pytest.skip("only GCC says what it links")
    names = {Path(path).name for path in link_inputs(compiler)}
    assert {"crti.o", "crtbeginS.o", "libgcc.a", "libc.so.6", "ld", "as", "ar", "objcopy"} <= names


def test_a_change_while_compiling_is_noticed(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = KeptNetwork.keep

    def late(self: KeptNetwork, *rest: Any) -> None:
        pooled_net(Path(given["model"]), seed=1)
        whole(self, *rest)

    monkeypatch.setattr(KeptNetwork, "keep", late)
    build(given)
    monkeypatch.undo()
    pooled_net(Path(given["model"]))
    assert compiled_again(given, capsys)


# ----------------------------------------------------------------------------- what isn't kept


def test_external_data_is_not_kept(given: dict[str, Any]) -> None:
    model = onnx.load(given["model"])
    onnx.save(model, given["model"], save_as_external_data=True, size_threshold=0)
    assert place(given) is None


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04model", b"PK\x03\x04", b'{"nodes": []}', b"ATCGRAPH", b"mgb0001"]
)
def test_other_formats_are_not_kept(given: dict[str, Any], data: bytes) -> None:
    Path(given["model"]).write_bytes(data)
    assert place(given) is None


@pytest.mark.parametrize(
    "more",
    [{"op_compiler_cache_mode": "disable"}, {"target": "x86-64,c99"}, {"fast_run": 1},
     {"full_run": 1}, {"dump": "d"}, {"op_debug_level": 1}, {"keep_build": 1}, {"max_error": 0.1},
     {"verify": 1}, {"display_model_info": 1}, {"explain": "conv1"}, {"model": "nowhere.onnx"}],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_builds_that_do_more_are_not_kept(
    given: dict[str, Any], more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place(given) is not None
    assert place({**given, **more}) is None


@pytest.mark.slow
def test_force_neither_takes_nor_loses_it(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    build(given)
    forced = {**given, "op_compiler_cache_mode": "force"}
    assert compiled_again(forced, capsys)
    assert compiled_again(forced, capsys)
    assert not compiled_again(given, capsys)


def test_a_build_that_warns_warns_again(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given["weight"] = given["model"]
    build(given)
    capsys.readouterr()
    build(given, "--log=info")
    log = capsys.readouterr().err
    assert log.count("--weight has no effect") == 1
    assert "lowering" not in log


def test_a_row_warns_again(given: dict[str, Any], tmp_path: Path) -> None:
    options = {k: v for k, v in given.items() if k not in ("model", "output", "target")}
    row = Row("net", Path(given["model"]), tmp_path / "net", "c99", "",
              {**options, "weight": given["model"]})  # fmt: skip
    first, second = compile_row(row, 1), compile_row(row, 1)
    assert first.warnings == second.warnings != ()
    assert second.compiled == 0


def test_a_build_in_trouble_is_not_kept(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only one build had to say isn't kept for others."""
    whole = pipeline.build_project

    def with_trouble(*stages: Any) -> Any:
        stages[-1].warn("a disk is full")
        return whole(*stages)

    monkeypatch.setattr(pipeline, "build_project", with_trouble)
    build(given)
    assert "a disk is full" in capsys.readouterr().err
    monkeypatch.undo()
    assert compiled_again(given, capsys)
    assert not compiled_again(given, capsys)


def test_a_store_in_trouble_is_asked_once(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It isn't waited for again by the objects after the whole network was asked for."""
    asked = []

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(500)

        def log_message(self, *text: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given["op_compiler_cache_remote"] = f"http://127.0.0.1:{server.server_address[1]}/"
        build({**given, "op_compiler_cache_trust": "store"})
        server.shutdown()
    assert capsys.readouterr().err.count("is not asked any more") == 1
    assert len(asked) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("megabytes", [1, 100])
def test_what_would_fill_the_cache_is_not_kept(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    megabytes: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("ASCEND_MAX_OP_CACHE_SIZE", str(megabytes))
    weights_of(given, 512)
    build(given)
    assert compiled_again(given, capsys) == (megabytes == 1)


def test_it_is_aged_like_objects(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    build(given)
    for path in (tmp_path / "cache/kernel_cache/c99").iterdir():
        os.utime(path, (0, 0))
    ini = tmp_path / "cache/op_cache.ini"
    limits = "\nmax_op_cache_size=1\nremain_cache_size_ratio=1\n"
    ini.write_text(ini.read_text() + limits)
    (tmp_path / "cache/kernel_cache/c99" / f"{'0' * 64}.o").write_bytes(bytes(1 << 20))
    assert compiled_again(given, capsys)


def test_weights_are_kept_once(given: dict[str, Any], tmp_path: Path) -> None:
    """They stand in three files of the output: by themselves, and in both libraries."""
    weights = weights_of(given, 512)
    build(given)
    first = tree(tmp_path / "net")
    holders = {p for p in first if (tmp_path / "net" / p).stat().st_size > weights.nbytes - 1}
    assert holders == {"libnet.so", "libnet.a", "net_weights.bin"}
    (entry,) = [p for p in (tmp_path / "cache").rglob("*.o") if p.read_bytes()[:1] == b"{"]
    assert entry.stat().st_size < 2 * weights.nbytes
    shutil.rmtree(tmp_path / "net")
    build(given)
    second = tree(tmp_path / "net")
    assert {p: second[p] for p in holders} == {p: first[p] for p in holders}
