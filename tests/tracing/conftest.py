"""What is traced is compiled without optimisation by default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from default_run import settings


@pytest.fixture(scope="module", autouse=True)
def _quickly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with settings(tmp_path_factory.mktemp("settings")):
        yield
