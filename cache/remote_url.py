"""The address of a remote store: what may be written, and what of it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from atc.errors import OptionError, one_line

OPTION = "--op_compiler_cache_remote"
ACCESSES = ("", "read", "readwrite")
TRUSTS = ("key", "store")
BUCKETS = {"s3": "s3fs", "gs": "gcsfs"}
"""The schemes of object stores, with the package beside fsspec that each needs."""
REDIS = ("redis", "rediss")
WEB = ("http", "https")
SCHEMES = (*BUCKETS, *REDIS, "file", *WEB)


@dataclass(frozen=True)
class RemoteUrl:
    """A checked address; `text` may hold a password, `shown` doesn't."""

    text: str
    parts: SplitResult

    @property
    def scheme(self) -> str:
        """The kind of the store."""
        return self.parts.scheme

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written there."""
        return self.scheme in WEB

    @property
    def path(self) -> str:
        """The part after the scheme, without a slash at its end."""
        host = "" if self.scheme == "file" else self.parts.netloc
        return f"{host}{self.parts.path}".rstrip("/")

    @property
    def shown(self) -> str:
        """The address without a user's name and password, in one line."""
        host = self.parts.netloc.rpartition("@")[2]
        return one_line(f"{self.scheme}://{host}{self.parts.path}", 200)

    def scrubbed(self, text: str) -> str:
        """Return a message in which nothing of the password is left."""
        for hidden in (self.text, self.parts.netloc, self.parts.password or "", self.parts.query):
            if hidden and hidden not in self.shown:
                text = text.replace(hidden, "***")
        return text


def parse_remote(value: object) -> RemoteUrl | None:
    """Return the address of a remote store, None for the empty text.

    Raises OptionError for one that isn't `scheme://...` of SCHEMES, or names no place.
    """
    if value is None or isinstance(value, RemoteUrl):
        return value
    text = str(value)
    if not text:
        return None
    hint = "the form is s3://bucket/prefix, gs://bucket/prefix, redis://host:6379/0, "
    hint += "file:///folder or https://host/path"
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for one that is not a number
    except ValueError:
        raise OptionError("the address of the remote store can't be read", hint=hint) from None
    if parts.scheme not in SCHEMES:
        raise OptionError(
            f"no remote store has the scheme '{one_line(parts.scheme, 20)}'", hint=hint
        )
    if any(not c.isprintable() or c.isspace() for c in text):
        raise OptionError("the address of the remote store holds a blank", hint=hint)
    if parts.scheme == "file":
        named = parts.netloc in ("", "localhost") and parts.path.startswith("/")
    else:
        named = bool(parts.hostname)
    if not named or ".." in parts.path.split("/"):
        raise OptionError("the address of the remote store names no place", hint=hint)
    return RemoteUrl(text, parts)
