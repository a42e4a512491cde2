"""The exception of a check that finds something."""

from __future__ import annotations

from atc.errors import VerificationError


class CheckError(VerificationError):
    """A check of load_and_run found something."""

    code = "E19012"
