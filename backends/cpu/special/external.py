"""The kernel of External: a call of the user's function, with shapes and attributes."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.external import External


class ExternalCall(Kernel[External]):
    """Hands all operands on."""

    name = "external"
    op = External
    template = "cpu/special/external.c.j2"

    def values(self, w: Workload[External], params: Params, target: Target) -> dict[str, object]:
        """Return the function, its attributes, and the tensors with their C names."""
        op = w.op
        named = [(f"x{i}" if t else "NULL", t) for i, t in enumerate(w.inputs)]
        return {
            "function": op.symbol, "attributes": _literal(op.attributes), "inputs": named,
            "outputs": [(f"y{i}", t) for i, t in enumerate(w.outputs)],
        }  # fmt: skip


def _literal(text: str) -> str:
    """Return printable ASCII as a C string; `?` is escaped, for trigraphs."""
    assert text.isascii()
    assert text.isprintable()
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return f'"{escaped}"'


KERNELS = (ExternalCall(),)
