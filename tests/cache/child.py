"""A second process for the tests: `child.py ROOT COMMAND [ARGUMENT...]`.

hold             open the cache, say "open", keep it until stdin closes
lock             hold the lock for changes in the same way
limits           print the limits in force
compile NAME...  get or make each kernel, print the compiled names and each object's checksum
kill N BEFORE    store one kernel; die by SIGKILL before (1) or after (0) the N-th rename
endless          store kernels until killed
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from pathlib import Path

from atc.cache import Cache, make_key, open_cache
from atc.cache.folder import open_folder

TARGET = "x86-64-avx2"
VERSIONS = {"adk_version": "atc 0.1.0", "ops_version": "kernels 7"}


def main(root: Path, command: str, arguments: list[str]) -> None:
    if command == "lock":
        with open_folder(root / "kernel_cache") as base:
            base.lock("op_cache_file_del.lock")
            _wait("locked")
        return
    with open_cache(
        "enable", root, TARGET, versions=VERSIONS, environ=os.environ, warn=print
    ) as cache:
        match command:
            case "hold":
                _wait("open")
            case "limits":
                print(cache.limits)
            case "compile":
                _compile(cache, arguments)
            case "kill":
                _die_at_rename(int(arguments[0]), before=arguments[1] == "1")
                _put(cache, "victim", 100_000)
            case "endless":
                print("open", flush=True)
                for number in itertools.count():
                    _put(cache, f"kernel{number}", 200_000)


def _wait(word: str) -> None:
    print(word, flush=True)
    sys.stdin.read()


def _compile(cache: Cache, names: list[str]) -> None:
    for name in names:
        key = make_key(source=f"void {name}(void);\n", flags="-O2", compiler="cc 12")
        data = cache.get(key, name)
        made = data is None
        if data is None:
            data = b"object of " + key.encoded()
            cache.put(key, name, data)
        print(name, "made" if made else "found", hashlib.sha256(data).hexdigest())


def _put(cache: Cache, name: str, size: int) -> None:
    key = make_key(source=f"void {name}(void);\n", flags="-O2", compiler="cc 12")
    cache.put(key, name, name.encode() * size)


def _die_at_rename(number: int, *, before: bool) -> None:
    real, counter = os.replace, itertools.count(1)

    def replace(*arguments: object, **keywords: object) -> None:
        last = next(counter) == number
        if not (last and before):
            real(*arguments, **keywords)  # type: ignore[arg-type]
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace


main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
