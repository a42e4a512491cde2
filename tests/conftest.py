"""No test reads the configuration file of whoever runs it."""

from __future__ import annotations

import os

os.environ["ATC_CONFIG"] = os.devnull
