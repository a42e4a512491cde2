"""The functions of the Python array API standard on traced tensors.

`x.__array_namespace__()` returns this module, so functions that are written against the standard
are traced without changes. Complex numbers and functions whose result's shape depends on values
(`nonzero`, `unique_*`) are left out.
"""

from __future__ import annotations

import sys

# ruff: noqa: F403 (all of them are the standard's)
from atc.tracing.creation import *
from atc.tracing.elementwise import *
from atc.tracing.movement import *
from atc.tracing.reductions import *
from atc.tracing.tensor import set_namespace

__array_api_version__ = "2023.12"

set_namespace(sys.modules[__name__])
