"""The user's names in generated text: identifiers and comments that no model can break out of."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Collection, Iterable

LIMIT = 48
"""Characters of an identifier: C99 promises 63, and the network's name becomes a prefix."""

RESERVED = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union",
    "unsigned", "void", "volatile", "while", "bool", "true", "false", "asm", "typeof", "main",
    "NULL", "offsetof", "alignas", "alignof", "and", "and_eq", "bitand", "bitor", "catch",
    "char16_t", "char32_t", "contract_assert",
    "char8_t", "class", "co_await", "co_return", "co_yield", "compl", "concept", "const_cast",
    "consteval", "constexpr", "constinit", "decltype", "delete", "dynamic_cast", "explicit",
    "export", "friend", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr",
    "operator", "or", "or_eq", "private", "protected", "public", "reinterpret_cast", "requires",
    "static_assert", "static_cast", "template", "this", "thread_local", "throw", "try", "typeid",
    "typename", "using", "virtual", "wchar_t", "xor", "xor_eq", "linux", "unix", "i386", "errno",
    "stdin", "stdout", "stderr", "assert",
    "HIGH", "LOW", "INPUT", "INPUT_PULLUP", "OUTPUT", "CHANGE", "RISING", "FALLING", "DEFAULT",
    "EXTERNAL", "INTERNAL", "PI", "HALF_PI", "TWO_PI", "EULER", "SERIAL", "DISPLAY",
})  # fmt: skip
"""Words of C and C++, and macros of theirs and of Arduino's, that neither a network nor a parameter
can be called."""

LOCALS = re.compile(
    r"[AB]\d+|[tw]\d+|add_time|advance|arena|axis|begin|branches_\d+|budget|compute|ctx|difference"
    r"|failed|log_status|nanoseconds|observe|operands|partitions_\d+|phase|run_partitions|seen|status"
    r"|watched_value|weights|write_log"
    r"|atc_.*|.*_t|[A-Z][A-Z0-9]*_[A-Z0-9_]*|EOF|INFINITY|NAN"
)
"""What the generated run function uses beside its tensors: locals, kernels, types, macros."""

OF_RANGES = re.compile(r"at|d")
"""What it uses, too, where extents are known only when it runs."""

OF_STRIPES = re.compile(r"join_stripes|r|rows?|shift_rolling_buffer")
"""What it uses, too, where calls run stripe by stripe."""

OF_DEVICES = re.compile(
    r"add_device_time|at|count|CU[a-z]\w*|enter_there|given|gpu|gpu_.*|host_in|host_out|hosted|in"
    r"|is_shaped|leave_there|looked_at|network|out|outputs|run_on_gpu|run_there|shaped|shared|stream"
    r"|took|values"
)
"""What it uses, too, where kernels run on a GPU."""

FILES = frozenset({
    "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits",
    "locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool", "stddef",
    "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings", "tgmath", "threads", "time",
    "uchar", "wchar", "wctype", "cpuid", "immintrin", "unistd", "alloca", "malloc", "memory",
    "features", "endian", "kernel", "kernels", "simd", "simd_math", "simd_bf16", "simd_exact",
    "simd_tiles", "simd_small", "simd_scalar", "simd_scalar_math",
    "c", "m", "dl", "rt", "gcc", "gcc_s", "pthread",
})  # fmt: skip
"""Headers of C, and libraries, that `<name>.h` and `lib<name>.so` would hide."""


def identifier(name: str, fallback: str = "net") -> str:
    """Return a C identifier made of the name's ASCII letters, digits and underscores."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name[: 4 * LIMIT])[:LIMIT].strip("_")
    if not text:
        return fallback
    if text[0].isdigit() or text in RESERVED:
        text = f"{fallback}_{text}"[:LIMIT]
    return text


def network_identifier(name: str) -> str:
    """Return the C prefix of a network, which also names its header and its library."""
    text = identifier(name)
    return f"net_{text}" if text.casefold() in FILES else text


def module_name(network: str) -> str:
    """Return the name of a network's Python module: one that hides no other module."""
    taken = {"numpy", "cffi", "_cffi_backend", "ml_dtypes", *keyword.kwlist, *keyword.softkwlist}
    return f"net_{network}" if network in taken | sys.stdlib_module_names else network


def tensor_identifiers(
    names: Iterable[str], network: str, more: Collection[re.Pattern[str]] = ()
) -> list[str]:  # fmt: skip
    """Return distinct names for the parameters of a network's functions, in order.

    These use names of `LOCALS` and of `more`.
    """
    own = f"{network}_".casefold()
    taken: set[str] = set()
    count: dict[str, int] = {}
    result = []
    for name in names:
        base = identifier(name, "t")
        used = any(each.fullmatch(base) for each in (LOCALS, *more))
        if used or f"{base}_".casefold().startswith(own):
            base = f"t_{base}"
        text = base
        while text in taken:
            count[base] = count.get(base, 1) + 1
            text = f"{base}_{count[base]}"
        taken.add(text)
        result.append(text)
    return result


def comment(name: str, limit: int = 60) -> str:
    """Return the name as it may stand in a comment of C or CMake, or in a Python docstring.

    Printable ASCII without an end of comment, a quote, a backslash or a trigraph.
    """
    text = "".join(c if " " <= c <= "~" and c not in '\\?"' else "_" for c in name[: limit + 1])
    text = text.replace("*/", "*_").replace("/*", "/_")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def c_string(text: str) -> str:
    """Return a C string literal with these UTF-8 bytes; a NUL, which would end it, is replaced."""
    out = []
    for byte in text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace"):
        char = chr(byte)
        plain = " " <= char <= "~" and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'
