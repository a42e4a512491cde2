"""Options of Ascend's ATC that this version knows, but refuses by name."""

from __future__ import annotations

from collections.abc import Mapping

LATER: Mapping[str, str] = {
    "dynamic_batch_size": "several batch sizes in one model",
    "dynamic_image_size": "several image sizes in one model",
    "dynamic_dims": "several shapes in one model",
}
"""What each is about, by name."""
