"""What PyTorch hands over is compiled without optimisation by default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from default_run import plain_c


@pytest.fixture(scope="module", autouse=True)
def _quickly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plain_c(tmp_path_factory.mktemp("settings")):
        yield
