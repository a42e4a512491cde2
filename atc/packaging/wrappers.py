"""Wrappers of the C interface for other languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc.templates import render

WRAPPERS = ("cpp",)
"""The languages of `--wrappers`."""


def wrapper_texts(interface: Mapping[str, object], wrappers: Sequence[str]) -> dict[str, str]:
    """Return the files of the wrappers by path; `interface` is an emission's."""
    texts: dict[str, str] = {}
    if "cpp" in wrappers:
        name = str(interface["name"])
        values = {**interface, "space": namespace(name)}
        texts[f"include/{name}.hpp"] = render("packaging/network.hpp.j2", values)
    return texts


def namespace(network: str) -> str:
    """Return the C++ namespace of a network: a name in capitals may be a macro's."""
    return f"{network}_net" if network.isupper() else network
