"""What a compilation keeps for the next one, by its options."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from atc.cache import TEMPLATES
from atc.options.options import Options
from atc.pipeline.caches import file_store
from atc.pipeline.request import resolve_request


def options(tmp_path: Path, mode: str) -> Options:
    return Options(
        tmp_path / "m.onnx", tmp_path / "out",
        op_compiler_cache_mode=mode, op_compiler_cache_dir=tmp_path / "cache",
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "fresh"), [("enable", False), ("force", True)])
def test_templates_lie_beside_the_operators(tmp_path: Path, mode: str, fresh: bool) -> None:
    given = options(tmp_path, mode)
    store = file_store(resolve_request(given, os.environ), TEMPLATES)
    assert store is not None
    assert (store.root, store.fresh) == (tmp_path / "cache", fresh)


def test_templates_are_not_kept_where_operators_are_not(tmp_path: Path) -> None:
    given = options(tmp_path, "disable")
    assert file_store(resolve_request(given, os.environ), TEMPLATES) is None
    debug = replace(options(tmp_path, "enable"), op_debug_level=1)
    assert file_store(resolve_request(debug, os.environ), TEMPLATES) is None
    homeless = replace(options(tmp_path, "enable"), op_compiler_cache_dir=None)
    assert file_store(resolve_request(homeless, {}), TEMPLATES) is None
