"""Wrappers of the C interface for other languages: C++, Rust, JavaScript, Java."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc.backends.target import Target
from atc.codegen.template_values import TemplateValues
from atc.errors import OptionError
from atc.templates import render


def wrapper_texts(interface: TemplateValues, wrappers: Sequence[str]) -> dict[str, str]:
    """Return the files of the wrappers by path; `interface` is an emission's.

    Raises OptionError where a language has no wrapper for what the library does.
    """
    name, known = interface.name, interface.values()
    texts: dict[str, str] = {}
    if "cpp" in wrappers:
        values = {**known, "space": namespace(name)}
        texts[f"include/{name}.hpp"] = render("packaging/network.hpp.j2", values)
    if "rust" in wrappers:
        values = {**known, "tensors": rust_tensors(interface)}
        files = {"Cargo.toml": "Cargo.toml", "build.rs": "build.rs", "src/lib.rs": "lib.rs"}
        for path, template in files.items():
            texts[f"rust/{path}"] = render(f"packaging/rust/{template}.j2", values)
    if "js" in wrappers:
        values = {**known, **_tensors_of(interface, "js", JAVASCRIPT)}
        for file in ("index.mjs", "index.d.ts", "package.json"):
            texts[f"js/{file}"] = render(f"packaging/js/{file}.j2", values)
    if "java" in wrappers:
        values = {**known, **_tensors_of(interface, "java", JAVA)}
        values["prefix"] = f"Java_atc_1{name.replace('_', '_1')}_Network"
        place = f"java/atc_{name}/Network.java"
        texts[place] = render("packaging/java/Network.java.j2", values)
        texts[f"java/{name}_jni.c"] = render("packaging/java/jni.c.j2", values)
    return texts


def check_wrappers(wrappers: Sequence[str], target: Target) -> None:
    """Raise OptionError where a wrapper's language doesn't run on a target's processors."""
    if "js" in wrappers and target.arch != "wasm32":
        raise OptionError(f"--wrappers=js needs WebAssembly, not {target.name}",
                          where="--wrappers", hint="add --target=wasm32-simd128")  # fmt: skip
    if "java" in wrappers and target.bare:
        raise OptionError(f"--wrappers=java needs an operating system, which {target.name} has "
                          "not", where="--wrappers", hint="choose another target")  # fmt: skip


def wasm_exports(name: str, states: bool) -> tuple[str, ...]:
    """Return the functions that the JavaScript of a network calls."""
    functions = ("context_size", "init", "run", "status_string", *(("reset",) if states else ()))
    return tuple(f"{name}_{function}" for function in functions)


@dataclass(frozen=True)
class Element:
    """A type of elements in a language: its array, and where there are others, its other names."""

    array: str
    c: str = ""
    letter: str = ""


JAVASCRIPT: Mapping[str, Element] = {
    "float": Element("Float32Array"), "double": Element("Float64Array"),
    "bool": Element("Uint8Array"), "int8_t": Element("Int8Array"),
    "uint8_t": Element("Uint8Array"), "int16_t": Element("Int16Array"),
    "uint16_t": Element("Uint16Array"), "int32_t": Element("Int32Array"),
    "uint32_t": Element("Uint32Array"), "int64_t": Element("BigInt64Array"),
    "uint64_t": Element("BigUint64Array"),
}  # fmt: skip
"""Typed arrays of C's types."""

_INTEGERS = {"8": Element("byte", "Byte", "B"), "16": Element("short", "Short", "S"),
             "32": Element("int", "Int", "I"), "64": Element("long", "Long", "J")}  # fmt: skip
JAVA: Mapping[str, Element] = {
    "float": Element("float", "Float", "F"), "double": Element("double", "Double", "D"),
    "bool": Element("boolean", "Boolean", "Z"),
    **{f"{sign}int{n}_t": each for n, each in _INTEGERS.items() for sign in ("", "u")},
}  # fmt: skip
"""Java's elements of C's types, with their words in JNI's functions and their letters."""


def _tensors_of(
    interface: TemplateValues, wrapper: str, elements: Mapping[str, Element]
) -> dict[str, object]:
    """Return inputs and outputs with elements; OptionError for a network without a wrapper."""
    kinds = {"a network of several shapes": interface.dynamic, "a GPU": interface.gpu,
             "several threads": interface.threads != 1,
             "weights beside the library": interface.external}  # fmt: skip
    sides = {"inputs": interface.inputs, "outputs": interface.outputs}
    ports = [(side, p) for side, each in sides.items() for p in each]
    kinds["tensors of strings"] = any(p.is_string for _, p in ports)
    for kind, is_so in kinds.items():
        if is_so:
            raise OptionError(f"--wrappers={wrapper} and {kind} can't be combined",
                              where="--wrappers", code="E10047")  # fmt: skip
    tensors = [
        {"name": p.c_name, "element": elements[p.dtype.c], "size": p.type.size,
         "shape": [int(n) for n in p.extents], "text": p.text, "c": p.dtype.c,
         "output": side == "outputs"}
        for side, p in ports
    ]  # fmt: skip
    return {"tensors": tensors}


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


def rust_tensors(interface: TemplateValues) -> list[RustTensor]:
    """Return the inputs and outputs; OptionError for a context of other than a few words."""
    kinds = {"a network of several shapes": interface.dynamic, "a GPU": interface.gpu,
             "--profile": interface.profile, "--hooks": interface.hooks,
             "--runtime_log": interface.log, "--sanity_check": interface.sanity,
             "several threads": interface.threads != 1}  # fmt: skip
    for kind, is_so in kinds.items():
        if is_so:
            raise OptionError(f"--wrappers=rust and {kind} can't be combined", where="--wrappers",
                              code="E10047")  # fmt: skip
    taken: set[str] = set()
    sides = {"inputs": interface.inputs, "outputs": interface.outputs}
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
