"""The errors a user can see: each is one line that says what, where and how to mend it.

Codes are those of Ascend's ATC where one has the same meaning.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class AtcError(Exception):
    """A failure with ATC's code, a one-line message, its place and a hint.

    `where` names the file, node or option; `hint` says what to do about it.
    """

    code = "E19999"
    exit_status = 1

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        place = f" [{self.where}]" if self.where else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return one_line(f"{self.code}: {self.message}{place}{hint}")


class OptionError(AtcError):
    """A command-line option, keyword or variable has a wrong value."""

    code = "E10001"


class ModelError(AtcError):
    """The model file is missing, damaged or breaks its format's rules."""

    code = "E10041"


class UnsupportedError(AtcError):
    """The model is legal, but this compiler doesn't cover it."""

    code = "E10055"


class ToolchainError(AtcError):
    """A compiler, linker or other tool of the machine is missing or failed."""

    code = "E19010"
    exit_status = 3


class CompilerCrash(ToolchainError):
    """A compiler crashed, again and again, on the source that `where` names."""


class VerificationError(AtcError):
    """The compiled library and the reference disagree."""

    code = "E19011"
    exit_status = 5


class InternalError(AtcError):
    """A mistake of this compiler; never the user's fault."""

    code = "E19999"
    exit_status = 4


_WAYS_OUT = {
    errno.EACCES: "change the permissions, or name another place",
    errno.EPERM: "change the permissions, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.ENOSPC: "free some room there, or name another place",
    errno.EDQUOT: "free some room there, or name another place",
    errno.ENOENT: "check the name",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "name a folder where a file is in the path",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.ELOOP: "correct its links",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def reason_of(error: BaseException, file: object = "") -> str:
    """Return what an error says; the system's in words, with the file: `permission denied: x`.

    `file` is one that the message names anyhow.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    text = error.strerror[:1].lower() + error.strerror[1:]
    named = isinstance(error.filename, str) and error.filename != str(file)
    return f"{text}: {error.filename}" if named else text


def way_out(error: BaseException) -> str:
    """Return what to do about an error of the system's, '' where that is anyone's guess."""
    return _WAYS_OUT.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def not_written(path: object, error: OSError, where: str) -> OptionError:
    """Return the error for a file that can't be written; `where` is the option that names it."""
    return OptionError(
        f"can't write {path}: {(error.strerror or str(error)).lower()}", where=where,
        hint=way_out(error),
    )  # fmt: skip


def one_line(text: str, limit: int = 2000) -> str:
    """Return `text` with control characters escaped, so that it prints as one line."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


_LONGEST_CHAIN = 16
"""Names of a chain that a message shows."""


def chain_text(names: Sequence[str]) -> str:
    """Return names that lead to each other as text; of many only the last."""
    shown = [one_line(name, 60) for name in names[-_LONGEST_CHAIN:]]
    return " -> ".join(["..."] * (len(names) > _LONGEST_CHAIN) + shown)
