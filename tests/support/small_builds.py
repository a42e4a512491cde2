"""A cache in memory, and small trees of sources to build."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from atc.build.objects import Unit
from atc.build.output_folder import Content
from atc.cache import Key
from atc.templates import verbatim


class Memory:
    """A cache that only remembers."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Remember nothing of it: it is all here."""

    def get(self, key: Key, name: str, *, bypass: bool = False) -> bytes | None:
        return None if bypass else self.objects.get(f"{name} {key.digest()}")

    def put(self, key: Key, name: str, data: bytes, *, bypass: bool = False) -> None:
        if not bypass:
            self.objects[f"{name} {key.digest()}"] = data


def kernels_of_vectors(count: int) -> tuple[dict[str, Content], tuple[Unit, ...]]:
    """Return kernels that include the vocabulary, one that doesn't, and their units."""
    headers = ("src/kernel.h", "src/simd.h", "src/simd_math.h")
    tree: dict[str, Content] = {
        "src/kernel.h": verbatim("cpu/kernel.h").encode(),
        "src/simd.h": verbatim("simd/avx2.h").encode(),
        "src/simd_math.h": verbatim("simd/math.h").encode(),
        "src/plain.c": b'#include "kernel.h"\nint plain(void);\nint plain(void) { return 1; }\n',
    }
    for k in range(count):
        text = "".join(f'#include "../{Path(h).name}"\n' for h in headers)
        name = f"void k{k}(const float *x, float *y)"
        body = f"{{ v_store(y, v_exp(v_add(v_load(x), v_set1({k}.0f)))); }}\n"
        tree[f"src/kernels/k{k}.c"] = (text + name + ";\n" + name + body).encode()
    units = [Unit(f"src/kernels/k{k}.c", f"k{k}", headers) for k in range(count)]
    return tree, (*units, Unit("src/plain.c", "plain", headers[:1]))
