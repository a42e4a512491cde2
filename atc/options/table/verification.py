"""The options of `atc verify`."""

from __future__ import annotations

from atc.options.table.setting import Setting
from atc.options.values import integer, path, positive, switch

VERIFICATION: tuple[Setting, ...] = (
    Setting("library", "Verification", "the output folder or library to check (default: compile "
            "the model first)", "PATH", path, role="verify"),
    Setting("tolerance", "Verification", "largest difference, as a part of the output's largest "
            "magnitude", "X", positive, "1e-4", role="verify"),
    Setting("seed", "Verification", "seed of the random inputs", "N", integer(0, 2**63 - 1), 0,
            role="verify"),
    Setting("input", "Verification", "an .npz file with the inputs by name, instead of random "
            "ones; with an axis in front of an input's own there is one for each run", "FILE", path,
            role="verify"),
    Setting("runs", "Verification", "runs that are compared, of a network that carries states each "
            "from what the one before left (0: as many as the file of --input has, else 3 with "
            "states, 1 without)", "N", integer(0, 100_000), 0, role="verify"),
    Setting("float64", "Verification", "compare with the model in float64, and the error with the "
            "bound that the library states", "0|1", switch, False, role="verify"),
)  # fmt: skip
