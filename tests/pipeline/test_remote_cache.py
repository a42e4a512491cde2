"""A compilation with a store that several machines share."""

from __future__ import annotations

from pathlib import Path

import pytest
from networks import pooled_net

import atc
from atc.build.output_folder import MANIFEST
from atc.pipeline.pipeline import Compilation


def test_another_machine_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pooled_net(tmp_path / "net.onnx")
    monkeypatch.setenv("ATC_CACHE_KEY", "0123456789abcdef")
    monkeypatch.setenv("ATC_OP_COMPILER_CACHE_REMOTE", f"file://{tmp_path}/store")

    def compile(machine: str) -> Compilation:
        return atc.compile(
            model, tmp_path / machine / "net", target="c99", build_config="cc -O0",
            op_compiler_cache_mode="enable", op_compiler_cache_dir=tmp_path / machine / "cache",
        )  # fmt: skip

    first, second = compile("first"), compile("second")
    assert first.build.compiled == second.cache.remote_counts.hits > 2
    assert second.build.compiled == 0
    for path in (p for p in first.folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        if ".report." not in path.name:
            same = second.folder / path.relative_to(first.folder)
            assert same.read_bytes() == path.read_bytes(), path


def test_a_missing_store_costs_one_warning(tmp_path: Path) -> None:
    done = atc.compile(
        pooled_net(tmp_path / "net.onnx"), tmp_path / "net", target="c99", build_config="cc -O0",
        op_compiler_cache_mode="enable", op_compiler_cache_dir=tmp_path / "cache",
        op_compiler_cache_remote="http://127.0.0.1:1/store", op_compiler_cache_trust="store",
    )  # fmt: skip
    (warning,) = done.warnings
    assert "is not asked any more" in warning
