"""The values of --scheduler and --runner: where work is done that isn't done here."""

from __future__ import annotations

import shlex

from atc.errors import OptionError, one_line

RUNNERS = ("local", "qemu", "ssh", "adb", "command", "serial")


def parse_scheduler(value: object) -> str:
    """Return the address of a scheduler; raises OptionError for what is none."""
    text = str(value)
    if not text:
        return ""
    hint = "the form is tcp://host:8786, tls://host:8786, or local:4 for four processes here"
    kind, _, rest = text.partition(":")
    if kind == "local":
        good = rest.isascii() and rest.isdigit() and 1 <= int(rest) <= 1024
    else:
        host, _, port = rest.removeprefix("//").rpartition(":")
        good = kind in ("tcp", "tls", "ws", "wss") and rest.startswith("//") and bool(host)
        good = good and port.isascii() and port.isdigit()
    if not good:
        raise OptionError(f"'{one_line(text, 60)}' is not the address of a scheduler", hint=hint)
    return text


def parse_runner(value: object) -> str:
    """Return the text of a runner; raises OptionError for what is none."""
    text = str(value)
    if text in ("qemu", "node"):
        return "local"  # under the target's own emulator
    kind, _, rest = text.partition(":")
    needs_more = kind in ("qemu", "ssh", "command", "serial")
    if text and (kind not in RUNNERS or (needs_more and not rest.strip())):
        raise OptionError(
            f"'{one_line(text, 60)}' is not a runner",
            hint="use local, qemu[:PROGRAM], node, ssh:[USER@]HOST[:PORT], adb[:SERIAL], "
            "command:WORDS or serial:DEVICE[:BAUD]",
        )
    if kind in ("ssh", "adb") and (rest.startswith("-") or any(c.isspace() for c in rest)):
        raise OptionError(f"'{one_line(rest, 60)}' names no board")
    if kind in ("qemu", "command"):
        try:
            shlex.split(rest)
        except ValueError as error:
            raise OptionError(f"the runner can't be split into words: {error}") from None
    return text
