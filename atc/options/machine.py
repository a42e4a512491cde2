"""The machine that estimates of a compilation count on: `--machine`, or as measured here.

A compilation depends on it as on any other option: a target that is named has a default machine of
its own, so that its code is the same wherever it is compiled. Only the target `host`, and
`--machine=host`, take what this machine is: what `atc machine --measure` kept, else the record of
its processor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from atc.backends.machine import Machine, machine_json, read_machine
from atc.backends.machines import get_machine, host_machine
from atc.errors import OptionError, not_written
from atc.options.environment import config_path
from atc.options.files import read_json, wrong


def chosen_machine(text: str) -> Machine | None:
    """Return the machine that `--machine` names: a record, a .json file, or the host.

    None for the empty text, and for the host if its processor has no record.
    """
    if not text:
        return None
    if text == "host":
        return host_machine()
    return read_kept(Path(text)) if text.endswith(".json") else get_machine(text)


def read_kept(path: Path) -> Machine:
    """Return the machine of a file; OptionError names the file and what is wrong."""
    data = read_json(path, "machine")
    try:
        return read_machine(data)
    except OptionError as error:
        raise wrong(str(error.message), path, "machine", hint=error.hint) from None


def kept_path(environ: Mapping[str, str]) -> Path | None:
    """Return where measurements of this machine's processor are kept; None without a home.

    That is beside the configuration file, in a file of the processor's name: a home may be shared.
    """
    config = config_path(environ)
    if config is None:
        return None
    name = re.sub(r"[^a-z0-9]+", "_", processor().lower()).strip("_")[:80]
    return config.parent / "machines" / f"{name}.json"


def keep(machine: Machine, path: Path) -> None:
    """Write a measurement, whole or not at all; OptionError where that can't be done."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(machine_json(machine), "utf-8")
        part.replace(path)
    except OSError as error:
        raise not_written(path, error, "--measure") from None


def processor() -> str:
    """Return what this machine's processor is called.

    That of a virtual machine that hides some of its instructions is known by its vectors.
    """
    import archspec.cpu  # reads a database: only when the host is asked for

    host, known = archspec.cpu.host(), host_machine()
    newer = known is not None and host in archspec.cpu.TARGETS[known.name].ancestors
    name = known.name if known is not None and newer else host.name
    brand = archspec.cpu.brand_string()
    return f"{brand}, {name}" if brand else str(name)
