"""Write real MegEngine dumps with inputs and outputs, one folder per group of cases.

    PYTHON make_megengine_dumps.py OUTPUT_FOLDER [GROUP ...]

PYTHON is CPython 3.8 or 3.10 on Linux with `pip install MegEngine==1.13.0 "numpy<2"`; the project
itself does not need it. Every case gives NAME.mge (FBS_V2), NAME.v1.mge (FBS v1, where MegEngine can
write it) and NAME.npz with the inputs by name and the outputs o0, o1, ...; the outputs are those of
MegEngine's own loader on the dump, because a few functions are written differently from how they
compute (two-sided clip, sign). NAME.skipped holds the reason where MegEngine cannot dump a case.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np


class Context:
    """What the cases build from: MegEngine's modules and seeded random data."""

    def __init__(self) -> None:
        import megengine
        import megengine.functional as functional
        import megengine.module as module
        from megengine.core._imperative_rt.core2 import apply
        from megengine.core.ops import builtin

        self.mge, self.F, self.M, self.B = megengine, functional, module, builtin
        self.apply = apply
        self.rng = np.random.RandomState(0)

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def uniform(self, low, high, *shape):
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def integers(self, low, high, *shape, dtype=np.int32):
        return self.rng.randint(low, high, shape).astype(dtype)

    def bools(self, *shape):
        return self.rng.rand(*shape) > 0.5

    def randomized(self, network):
        """Give every parameter and statistic of a module a random value, and set it to eval."""
        for name, tensor in list(network.named_parameters()) + list(network.named_buffers()):
            low = 0.5 if "var" in name else -0.5
            tensor[...] = self.mge.tensor(self.uniform(low, low + 1, *tensor.shape))
        network.eval()
        return network

    def op(self, name, *args, **params):
        """Return a function that applies one built-in operator."""
        operator = getattr(self.B, name)(*args, **params)

        def apply(*xs):
            ys = self.apply(operator, *xs)
            return ys[0] if len(ys) == 1 else tuple(ys)

        return apply


class Case:
    """A function or module, its inputs (arrays), and options of dump."""

    def __init__(self, name, function, *inputs, **options):
        self.name, self.function, self.options = name, function, options
        self.inputs = [np.ascontiguousarray(x) for x in inputs]


def write_case(g: Context, case: Case, folder: Path) -> None:
    """Trace, dump in both formats, load again with MegEngine and store what it computes."""
    from megengine.jit import trace

    traced = trace(case.function, symbolic=True, capture_as_const=True)
    traced(*(g.mge.tensor(x) for x in case.inputs))
    names = ["x%d" % i for i in range(len(case.inputs))]
    options = dict(arg_names=names, keep_var_name=2, silent=True)
    options.update(case.options)
    path = folder / (case.name + ".mge")
    traced.dump(str(path), **options)
    try:
        traced.dump(str(folder / (case.name + ".v1.mge")), dump_format="FBS", **options)
    except Exception as error:  # what FBS v1 cannot say
        (folder / (case.name + ".v1.skipped")).write_text(str(error)[:300])
    inputs = dict(zip(names, case.inputs))
    np.savez(str(folder / case.name), **inputs, **evaluate(g, path, inputs))


def evaluate(g: Context, path: Path, inputs):
    """Run a dump with MegEngine's loader; an input that the network ignores isn't in it."""
    from megengine.utils.comp_graph_tools import GraphInference

    network = GraphInference(str(path))
    found = network._inp_dict
    result = network.run(inp_dict={k: v for k, v in inputs.items() if k in found})
    return {"o%d" % i: np.asarray(y) for i, y in enumerate(result.values())}


def main(arguments) -> None:
    """Write the named groups, all by default."""
    sys.path.insert(0, str(Path(__file__).parent))
    from megengine_cases import GROUPS

    output = Path(arguments[0])
    g = Context()
    for group in arguments[1:] or GROUPS:
        folder = output / group
        folder.mkdir(parents=True, exist_ok=True)
        g.rng = np.random.RandomState(zlib.crc32(group.encode()))
        for case in GROUPS[group](g):
            try:
                write_case(g, case, folder)
            except Exception as error:  # MegEngine refuses: recorded, never hidden
                (folder / (case.name + ".skipped")).write_text(str(error)[:300])


if __name__ == "__main__":
    main(sys.argv[1:])
