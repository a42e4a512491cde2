"""Options of Ascend's ATC that this version knows, but refuses by name."""

from __future__ import annotations

from collections.abc import Mapping

LATER: Mapping[str, str] = {
    "om": "input of modes 1, 5 and 6",
    "dynamic_batch_size": "several batch sizes in one model",
    "dynamic_image_size": "several image sizes in one model",
    "dynamic_dims": "several shapes in one model",
    "check_report": "report of the operators that are not covered",
    "singleop": "libraries of single operators",
}
"""What each is about, by name."""
