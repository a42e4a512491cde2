"""Wrappers of the C interface for other languages: a C++ header, a Rust crate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc.codegen.interface import Port
from atc.errors import OptionError
from atc.templates import render


def wrapper_texts(interface: Mapping[str, object], wrappers: Sequence[str]) -> dict[str, str]:
    """Return the files of the wrappers by path; `interface` is an emission's.

    Raises OptionError where there is no Rust for what the library does.
    """
    name = str(interface["name"])
    texts: dict[str, str] = {}
    if "cpp" in wrappers:
        values = {**interface, "space": namespace(name)}
        texts[f"include/{name}.hpp"] = render("packaging/network.hpp.j2", values)
    if "rust" in wrappers:
        values = {**interface, "tensors": rust_tensors(interface)}
        files = {"Cargo.toml": "Cargo.toml", "build.rs": "build.rs", "src/lib.rs": "lib.rs"}
        for path, template in files.items():
            texts[f"rust/{path}"] = render(f"packaging/rust/{template}.j2", values)
    return texts


def namespace(network: str) -> str:
    """Return the C++ namespace of a network: a name in capitals may be a macro's."""
    return f"{network}_net" if network.isupper() else network


@dataclass(frozen=True)
class RustTensor:
    """A parameter of a network's functions in Rust."""

    name: str
    element: str
    type: str
    text: str
    output: bool


def rust_tensors(interface: Mapping[str, object]) -> list[RustTensor]:
    """Return the inputs and outputs; OptionError for a context of other than a few words."""
    kinds = {"a network of several shapes": interface["dynamic"], "a GPU": interface["gpu"],
             "--profile": interface["profile"], "--hooks": interface["hooks"],
             "--runtime_log": interface["log"], "--sanity_check": interface["sanity"],
             "several threads": interface["threads"] != 1}  # fmt: skip
    for kind, is_so in kinds.items():
        if is_so:
            raise OptionError(f"--wrappers=rust and {kind} can't be combined", where="--wrappers",
                              code="E10047")  # fmt: skip
    taken: set[str] = set()
    sides: dict[str, Sequence[Port]] = {
        side: interface[side] for side in ("inputs", "outputs")  # type: ignore[misc]
    }
    return [
        RustTensor(_rust_name(p.c_name, taken), _ELEMENTS[p.dtype.c],
                   f"[{_ELEMENTS[p.dtype.c]}; {p.type.size}]", p.text, side == "outputs")
        for side, ports in sides.items() for p in ports
    ]  # fmt: skip


def _rust_name(name: str, taken: set[str]) -> str:
    """Return a parameter's name in lower case, which no constant or variant has; adds it."""
    base = name.lower()
    base = f"{base}_" if base in _RUST_WORDS else base
    text, count = base, 1
    while text in taken:
        count += 1
        text = f"{base}_{count}"
    taken.add(text)
    return text


_ELEMENTS = {
    "float": "f32", "double": "f64", "bool": "bool", "atc_string": "[u8; 256]",
    **{f"{sign}int{n}_t": f"{'u' if sign else 'i'}{n}" for n in (8, 16, 32, 64)
       for sign in ("", "u")},
}  # fmt: skip
"""What C's types are in Rust."""

_RUST_WORDS = frozenset({
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in",
    "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield", "budget", "ctx", "_",
})  # fmt: skip
"""Words that no parameter in Rust can be called, and those that are taken."""
