"""What PyTorch hands over is compiled without optimisation by default."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from default_run import plain_c


@pytest.fixture(scope="module", autouse=True)
def _quickly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plain_c(tmp_path_factory.mktemp("settings")):
        yield


@pytest.fixture(autouse=True, scope="session")
def _without_traces() -> None:
    """Keep PyTorch's structured traces, thousands of lines, out of what a failed test prints."""
    logging.getLogger("torch.__trace").propagate = False
