"""The options that commands have beside those of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc.options.table.atc_options import ATC_OPTIONS
from atc.options.table.quantize import QUANTIZE
from atc.options.table.setting import Setting
from atc.options.values import integer, nonnegative, path, positive, switch, text

_JSON = Setting("json", "Result", "print the result as JSON", "0|1", switch, False)
_SEED = Setting("seed", "Inputs", "seed of the random inputs", "N", integer(0, 2**63 - 1), 0)
_INPUT = Setting(
    "input", "Inputs", "the inputs: x.npy for one, name:x.npy;name2:y.npy, or an .npz with arrays "
    "by name (default: random ones)", "FILES", text,
)  # fmt: skip

_ATC = {s.name: s for s in ATC_OPTIONS}

_OWN: Mapping[str, tuple[Setting, ...]] = {
    "check": (_JSON,),
    "diff": (
        _INPUT, _SEED,
        Setting("tolerance", "Inputs", "largest difference, as a part of the value's largest "
                "magnitude", "X", positive, "1e-4"),
        _JSON,
    ),
    "bisect": (
        Setting("first", "Comparison", "the options that give the right outputs, in quotes, or a "
                "policy file (default: none)", "OPTIONS", text),
        Setting("second", "Comparison", "the options that change an output, in quotes, or a policy "
                "file", "OPTIONS", text),
        _INPUT, _SEED,
        Setting("tolerance", "Inputs", "largest change that counts as none, as a part of the "
                "output's largest magnitude; 0: none at all", "X", nonnegative, 0),
        _JSON,
    ),
    "profile": (
        Setting("runs", "Measuring", "how often the network is run", "N", integer(1, 100000), 20),
        _INPUT, _SEED, _JSON,
        Setting("trace", "Result", "also write all runs in the Chrome trace format (about:tracing, "
                "Perfetto)", "FILE", path),
    ),
    "quantize": QUANTIZE,
    "machine": (
        Setting("measure", "Measuring", "measure this machine, which takes some 10 s, and keep the "
                "numbers for compilations", "0|1", switch, False),
        Setting("machine", "Result", "show another one: a name, or a file that --json printed",
                "NAME|FILE.json", text, "host"),
        _JSON,
    ),
    "doctor": (
        Setting("target", "Result", "targets that must compile beside the host's, for the exit "
                "status", "NAME,...", text),
        _JSON,
    ),
    "targets": (_JSON,),
    "batch": (
        Setting("jobs", "Batch", "rows that are compiled at a time (0: one per core)",
                "N", integer(0, 4096), 0),
        Setting("again", "Batch", "compile rows, too, that are up to date", "0|1", switch, False),
        Setting("sdk", "Batch", "also make one library of all networks of a target, in which equal "
                "kernels occur once", "NAME", text),
        _JSON,
    ),
    "cache": (
        *(
            _ATC[name]
            for name in (
                "op_compiler_cache_dir", "op_compiler_cache_remote",
                "op_compiler_cache_remote_access", "op_compiler_cache_trust",
            )
        ),
        replace(
            _ATC["target"], default="", meaning="the target whose cache is meant (default: all)"
        ),
        _ATC["soc_version"], _JSON,
    ),
    "env": (
        _JSON,
        Setting("documentation", "Result", "print the documentation page of all settings", "0|1",
                switch, False),
    ),
    "report": (
        Setting("output", "Result", "the page to write (default: <name>.html in the folder)",
                "FILE", path),
        Setting("profile", "Measuring", "what atc profile --json printed (default: a library "
                "compiled with --profile is measured)", "FILE", path),
        Setting("runs", "Measuring", "how often the network is run", "N", integer(1, 100000), 20),
        _INPUT, _SEED,
    ),
}  # fmt: skip

WITH_OPTIONS = tuple(_OWN)
"""The commands that have such options."""


def command_options(command: str) -> dict[str, Setting]:
    """Return a command's options beside those of a compilation and of the help."""
    return {s.name: s for s in _OWN.get(command, ())}
