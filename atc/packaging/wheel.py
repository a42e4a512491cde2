"""A wheel of a compiled network: its Python module with the library inside, for pip.

It needs numpy and cffi, not atc. Equal networks give equal bytes, others have another version.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping

from atc.backends.target import Target, host_arch, normal_arch
from atc.backends.toolchain.compiler import Compiler, shared_library
from atc.errors import OptionError
from atc.names import module_name

_OLDEST = (2, 17)
"""The oldest C library of manylinux that pip asks about: 2014."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NEEDS = ("cffi>=1.17", "numpy>=2.0")


def check_wheel(target: Target, external_weight: int) -> None:
    """Raise OptionError where a target, or how weights lie, makes no wheel."""
    if target.bare:
        raise OptionError(f"{target.name} has no Python", where="--wheel",
                          hint="choose another target")  # fmt: skip
    if external_weight == 1:
        raise OptionError(
            "--wheel and --external_weight=1 can't be combined", where="--wheel", code="E10047",
            hint="use --external_weight=2",
        )  # fmt: skip


def wheel_files(name: str, files: Mapping[str, bytes], compiler: Compiler) -> dict[str, bytes]:
    """Return the wheel by its path in the output folder.

    `files` are a network's module, its shared library and, where it has one, its file of weights.
    """
    library = files[shared_library(compiler, name)]
    module, distribution = module_name(name), distribution_name(name)
    version = f"1.0.0+{hashlib.sha256(library).hexdigest()[:12]}"
    tag = f"py3-none-{platform_tag(compiler, library)}"
    stem = f"{distribution.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {
        f"{module}/__init__.py": files[f"{module}.py"],
        **{f"{module}/{path}": data for path, data in files.items() if path != f"{module}.py"},
        f"{info}/METADATA": _metadata(name, module, distribution, version).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: atc\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode(),
    }
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "".join(f"{r}\n" for r in [*record, f"{info}/RECORD,,"]).encode()
    return {f"dist/{stem}-{tag}.whl": _zipped(content)}


def distribution_name(network: str) -> str:
    """Return what pip calls a network: lower case, with dashes."""
    return "-".join(["atc", *(re.findall("[a-z0-9]+", network.lower()) or ["net"])])


def platform_tag(compiler: Compiler, library: bytes) -> str:
    """Return the systems that a library runs on, as pip names them.

    With the GNU C library it is the newest version that the library asks for.
    """
    arch = normal_arch(compiler.machine.partition("-")[0])
    arch = arch if arch not in ("", "native") else host_arch()
    if compiler.windows:
        return {"x86_64": "win_amd64", "aarch64": "win_arm64"}.get(arch, "win32")
    if any(word in compiler.machine for word in ("darwin", "macos")):
        return f"macosx_11_0_{'arm64' if arch == 'aarch64' else arch}"
    arch = "armv7l" if arch == "arm" else arch
    if "musl" in compiler.machine:
        return f"musllinux_1_1_{arch}"
    wanted = re.findall(rb"GLIBC_(\d{1,3})\.(\d{1,3})[.\0]", library)
    major, minor = max([_OLDEST, *((int(a), int(b)) for a, b in wanted)])
    return f"manylinux_{major}_{minor}_{arch}"


def _metadata(name: str, module: str, distribution: str, version: str) -> str:
    needs = "".join(f"Requires-Dist: {each}\n" for each in _NEEDS)
    return (
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        f"Summary: {name}, a neural network compiled by atc\n"
        f"Requires-Python: >=3.11\n{needs}Description-Content-Type: text/markdown\n\n"
        f"    import {module}\n\n    net = {module}.load()\n    outputs = net(*inputs)\n"
    )


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zipped(content: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
            archive.writestr(entry, data)
    return written.getvalue()
