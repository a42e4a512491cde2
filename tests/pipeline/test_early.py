"""Compilers begin while a network is planned; what comes out is what would come out anyhow."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from networks import content, counting_compiler, pooled_net

import atc
from atc.backends.toolchain.running import Running
from atc.errors import AtcError
from atc.pipeline import early, pipeline


def test_files_are_the_same_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pooled_net(tmp_path / "model.onnx")
    counting = counting_compiler(tmp_path)
    trees = []
    for k, allowed in enumerate((True, False)):
        if not allowed:
            monkeypatch.setattr(early, "_may_begin", lambda request: False)
        cache = tmp_path / f"cache{k}"
        for _ in range(2):  # cold and warm
            atc.compile(
                model, tmp_path / f"{k}/net", target="x86-64-avx2", build_config=counting.command,
                op_compiler_cache_mode="enable", op_compiler_cache_dir=cache, strip=True,
            )  # fmt: skip
            trees.append(content(tmp_path / f"{k}/net"))
        compiled = counting.compiled()
        assert len(compiled) == len({*compiled}) > 1
    cold, warm, late, late_warm = trees
    assert cold == late
    assert warm == late_warm


def test_a_build_that_is_refused_after_its_plan_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, scratch = pooled_net(tmp_path / "model.onnx"), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    begun: list[Running] = []
    planned = pipeline.plan_all

    def refused(*given: object) -> None:
        planned(*given)  # type: ignore[arg-type]
        begun.append(given[3].running)  # type: ignore[attr-defined]
        raise AtcError("it doesn't fit")

    monkeypatch.setattr(pipeline, "plan_all", refused)
    with pytest.raises(AtcError, match="it doesn't fit"):
        atc.compile(model, tmp_path / "net", target="x86-64-avx2")
    assert not begun[0].leaders
    assert [*scratch.iterdir()] == []
    assert not (tmp_path / "net").exists()
