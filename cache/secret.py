"""The key that the entries of a cache are signed with: the user's own, or one that several share.

The user's own lies in the configuration folder and is made when it is first needed. A signature is
an HMAC-SHA256: without the key nobody makes one that holds.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from atc.cache.folder import Folder
from atc.cache.private import open_private

KEY_VARIABLE = "ATC_CACHE_KEY"
KEY_FILE = "cache.key"  # in the configuration folder
SIGNATURE_BYTES = 32

_LEAST = 16  # characters of a shared key: whoever guesses it can sign
_KEY_BYTES = 32


@dataclass(frozen=True)
class Secret:
    """A key that signs; `shared` if others have it, too."""

    key: bytes = field(repr=False)
    shared: bool = False

    def sign(self, *parts: bytes) -> bytes:
        """Return the signature of a list of parts, of SIGNATURE_BYTES."""
        message = b"".join(b"%d\0%s" % (len(part), part) for part in parts)
        return hmac.digest(self.key, message, "sha256")

    def signed(self, signature: bytes, *parts: bytes) -> bool:
        """Say whether a signature of these parts holds."""
        return hmac.compare_digest(signature, self.sign(*parts))


def find_secret(environ: Mapping[str, str], *, create: bool = True) -> Secret:
    """Return $ATC_CACHE_KEY, else the key of the configuration folder, which is made there.

    Without `create` one that isn't there isn't made: no signature holds then. Raises OSError, which
    says how to mend it, where the key isn't safe or has no place.
    """
    if is_shared(environ):
        given = environ[KEY_VARIABLE]
        if len(given) < _LEAST:
            raise OSError(
                f"{KEY_VARIABLE} has {len(given)} characters; set it to {_LEAST} or more that "
                "nobody guesses, such as those of: openssl rand -hex 32"
            )
        return Secret(given.encode("utf-8", "surrogateescape"), shared=True)
    place = _config_folder(environ)
    if not create and not os.path.lexists(place / KEY_FILE):
        return Secret(secrets.token_bytes(_KEY_BYTES))
    with open_private(place, shared=False, create=create) as folder:
        with suppress(FileNotFoundError):
            return Secret(_read(folder))
        text = secrets.token_hex(_KEY_BYTES) + "\n"
        with suppress(FileExistsError):  # another process was first: its key counts
            folder.create(KEY_FILE, text.encode(), 0o600)
        return Secret(_read(folder))


def is_shared(environ: Mapping[str, str]) -> bool:
    """Say whether several share the key, and so the cache."""
    return bool(environ.get(KEY_VARIABLE))


def _config_folder(environ: Mapping[str, str]) -> Path:
    if base := environ.get("XDG_CONFIG_HOME"):
        return Path(base, "atc")
    if home := environ.get("HOME"):
        return Path(home, ".config", "atc")
    raise OSError(
        "there is no place for the key that signs its entries; set HOME, XDG_CONFIG_HOME or "
        f"{KEY_VARIABLE}"
    )


def _read(folder: Folder) -> bytes:
    path = folder.path / KEY_FILE
    status = folder.stat(KEY_FILE)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(
            f"others may know the key in '{path}' (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"a new one is made after: rm {shlex.quote(str(path))}"
        )
    data = folder.read(KEY_FILE, 2 * _KEY_BYTES + 1)
    with suppress(ValueError):
        key = bytes.fromhex(data.decode("ascii"))
        if len(key) == _KEY_BYTES:
            return key
    raise OSError(f"'{path}' holds no key; a new one is made after: rm {shlex.quote(str(path))}")
