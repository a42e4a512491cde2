"""The Python of a generated project: the modules of `atc.runtime` as one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Sequence
from functools import cache

from atc.runtime import (
    contexts,
    device,
    interface,
    library,
    memory,
    network,
    profile,
    queue,
    shown,
    values,
)

_PARTS = (values, interface, memory, contexts, library, device, queue, shown, network)


@cache
def runtime_source(profiled: bool) -> str:
    """Return the modules, with what reads times where calls are `profiled`, as one.

    Imports stand at its head, once each; those of the modules from one another are left out.
    """
    parts = [*_PARTS, *[profile] * profiled]
    texts = [inspect.getsource(part) for part in parts]
    heads = [ast.parse(text.partition("\n\n\n")[0]).body for text in texts]  # up to a definition
    own = {part.__name__ for part in parts} | {"__future__"}
    at_once = [node for head in heads for node in head]
    for_types = [inner for node in at_once if isinstance(node, ast.If) for inner in node.body]
    imports = [*_imports(at_once, own), "", "if TYPE_CHECKING:"]
    imports += [f"    {line}" for line in _imports(for_types, own)]
    bodies = (_body(text, head) for text, head in zip(texts, heads, strict=True))
    return "\n".join(imports) + "\n\n" + "\n\n\n".join(bodies)


def _imports(statements: Sequence[ast.stmt], own: Collection[str]) -> list[str]:
    """Return the imports among statements, one for each module, without those of `own` modules."""
    whole: set[str] = set()
    found: dict[str, set[str]] = {}
    for node in statements:
        if isinstance(node, ast.Import):
            whole |= {f"import {ast.unparse(each)}" for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module not in own:
            found.setdefault(node.module, set()).update(map(ast.unparse, node.names))
    named = (f"from {module} import {', '.join(sorted(names))}" for module, names in found.items())
    return [*sorted(whole), *sorted(named)]


def _body(text: str, head: Sequence[ast.stmt]) -> str:
    """Return what stands behind a module's imports, those for types among them."""
    imports = (ast.Import, ast.ImportFrom, ast.If)
    end = max(node.end_lineno or 0 for node in head if isinstance(node, imports))
    return "\n".join(text.splitlines()[end:]).strip("\n")
