"""A cache in a temporary folder, and a pretended compilation that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atc.cache import Cache, CacheStats, Key, Session, make_key, open_cache, open_remote
from atc.cache.remote_url import parse_remote

TARGET = "x86-64-avx2"
VERSIONS = {"adk_version": "atc 0.1.0", "ops_version": "kernels 7"}
CHILD = Path(__file__).parents[1] / "cache/child.py"


def own_key() -> dict[str, str]:
    """Return the part of the environment that says where the tests' key lies."""
    return {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}


@dataclass(frozen=True)
class Run:
    """What one pretended compilation produced, compiled and counted."""

    objects: dict[str, bytes]
    compiled: list[str]
    stats: CacheStats


@dataclass
class NodeContext:
    """A cache root with its environment; `warnings` collects what the cache says."""

    root: Path
    environ: dict[str, str] = field(default_factory=own_key)
    versions: Mapping[str, str] = field(default_factory=lambda: VERSIONS)
    warnings: list[str] = field(default_factory=list)
    session: Session = field(default_factory=Session)

    @property
    def base(self) -> Path:
        return self.root / "kernel_cache"

    @property
    def folder(self) -> Path:
        return self.base / TARGET

    @property
    def ini(self) -> Path:
        return self.root / "op_cache.ini"

    @property
    def inner_ini(self) -> Path:
        return self.base / "op_cache.ini"

    def write_ini(self, *lines: str, path: Path | None = None) -> None:
        path = path or self.ini
        path.parent.mkdir(parents=True, exist_ok=True)
        versions = [f"{key}={value}" for key, value in VERSIONS.items()]
        path.write_text("\n".join(["[op_compiler_cache]", *versions, *lines, ""]))

    remote: str = ""
    trust: str = "key"
    access: str = ""

    def open(self, mode: str = "enable", target: str = TARGET) -> Cache:
        return open_cache(
            mode,
            self.root,
            target,
            versions=self.versions,
            environ=self.environ,
            warn=self.warnings.append,
            session=self.session,
            remote=open_remote(
                parse_remote(self.remote), access=self.access, trust=self.trust,
                environ=self.environ, warn=self.warnings.append,
            ),
        )  # fmt: skip

    def key(self, name: str, **changes: str | bytes) -> Key:
        return make_key(
            **{"source": f"void {name}(void);\n", "flags": "-O2", "compiler": "cc 12", **changes}
        )

    def compile(
        self,
        mode: str = "enable",
        names: Iterable[str] = ("add", "conv", "pool"),
        target: str = TARGET,
        listed: Iterable[str] = (),
        **changes: str | bytes,
    ) -> Run:
        """Get or make the object of each kernel, as a compilation does."""
        objects, compiled = {}, []
        with self.open(mode, target) as cache:
            for name in names:
                key, bypass = self.key(name, **changes), name in listed
                data = cache.get(key, name, bypass=bypass)
                if data is None:
                    compiled.append(name)
                    data = b"object of " + key.encoded()
                    cache.put(key, name, data, bypass=bypass)
                objects[name] = data
        return Run(objects, compiled, cache.stats)

    def fill(self, sizes: Mapping[str, int], idle_s: float = 0, target: str = TARGET) -> None:
        """Store entries of these object sizes and set their access times back."""
        with self.open("enable", target) as cache:
            for name, size in sizes.items():
                cache.put(self.key(name), name, name.encode().ljust(size, b"."))
        for name in sizes:
            self.set_idle(name, idle_s, target)

    def set_idle(self, name: str, idle_s: float, target: str = TARGET) -> None:
        then = time.time() - idle_s
        for path in self.paths(name, target):
            os.utime(path, (then, then))

    def paths(self, name: str, target: str = TARGET) -> list[Path]:
        digest = self.key(name).digest()
        return sorted((self.base / target).glob(f"{digest}.*"))

    def path(self, name: str, suffix: str) -> Path:
        return self.folder / f"{self.key(name).digest()}.{suffix}"

    def stored(self, names: Iterable[str], target: str = TARGET) -> list[str]:
        return [name for name in names if self.paths(name, target)]

    def size(self, target: str = TARGET) -> int:
        files = (p for p in (self.base / target).iterdir() if len(p.stem) == 64)
        return sum(path.stat().st_size for path in files)

    def snapshot(self) -> dict[str, tuple[bytes, int, int]]:
        return {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ctime_ns)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def child(self, *arguments: str) -> subprocess.Popen[str]:
        """Start another process that works on this cache; see child.py."""
        return subprocess.Popen(
            [sys.executable, str(CHILD), str(self.root), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
