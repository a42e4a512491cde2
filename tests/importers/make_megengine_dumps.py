"""Write real MegEngine dumps with inputs and outputs, one folder per group of cases.

    PYTHON make_megengine_dumps.py OUTPUT_FOLDER [GROUP ...]

PYTHON is CPython 3.8 or 3.10 on Linux with `pip install MegEngine==1.13.0 "numpy<2"`; the project
itself does not need it. Every case gives NAME.mge (FBS_V2) and NAME.v1.mge (FBS v1), each with an
.npz of the inputs by name and the outputs o0, o1, ...; the outputs are those of MegEngine's own
loader on the dump, because a few functions are written differently from how they compute (two-sided
clip, sign). NAME.skipped holds the reason where MegEngine cannot dump or run a case.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np

GROUPS = (
    *("elemwise", "elemwise_integer", "functions", "multi_type", "conversions", "convolutions"),
    *("quantized", "pooling", "normalizations", "products", "recurrent", "reductions", "shapes"),
    *("indexing", "creation", "images", "networks", "stored"),
)


def words(text):
    """Return the words of a text."""
    return text.split()


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
    """A function or module, its inputs (arrays), and options of dump.

    A `writer` takes the path and options instead of a trace.
    """

    def __init__(self, name, function, *inputs, writer=None, **options):
        self.name, self.function, self.writer, self.options = name, function, writer, options
        self.inputs = [np.ascontiguousarray(x) for x in inputs]


def write_case(g: Context, case: Case, folder: Path) -> None:
    """Dump in both formats, load again with MegEngine and store what it computes."""
    names = [f"x{i}" for i in range(len(case.inputs))]
    inputs = dict(zip(names, case.inputs))  # noqa: B905
    dump = case.writer or tracer(g, case, names)
    for name, more in ((case.name, {}), (case.name + ".v1", {"dump_format": "FBS"})):
        path = folder / (name + ".mge")
        dump(path, **more)
        np.savez(str(folder / name), **inputs, **evaluate(g, path, inputs))


def tracer(g: Context, case: Case, names):
    """Return a function that dumps the trace of a case."""
    from megengine.jit import trace

    traced = trace(case.function, symbolic=True, capture_as_const=True)
    traced(*(g.mge.tensor(x) for x in case.inputs))
    options = dict(arg_names=names, keep_var_name=2, silent=True)
    options.update(case.options)
    return lambda path, **more: traced.dump(str(path), **options, **more)


def evaluate(g: Context, path: Path, inputs):
    """Run a dump with MegEngine's loader; an input that the network ignores isn't in it."""
    from megengine.utils.comp_graph_tools import GraphInference

    network = GraphInference(str(path))
    found = network._inp_dict
    result = network.run(inp_dict={k: v for k, v in inputs.items() if k in found})
    return {f"o{i}": np.asarray(y) for i, y in enumerate(result.values())}


def main(arguments) -> None:
    """Write the named groups, all by default."""
    sys.path.insert(0, str(Path(__file__).parent))
    from megengine_cases import CASES

    output = Path(arguments[0])
    g = Context()
    cases = {function.__name__: function for function in CASES}
    assert tuple(cases) == GROUPS
    for group in arguments[1:] or GROUPS:
        folder = output / group
        folder.mkdir(parents=True, exist_ok=True)
        g.rng = np.random.RandomState(zlib.crc32(group.encode()))
        for case in cases[group](g):
            try:
                write_case(g, case, folder)
            except Exception as error:  # MegEngine refuses: recorded, never hidden
                for path in folder.glob(case.name + ".*"):
                    path.unlink()
                (folder / (case.name + ".skipped")).write_text(str(error)[:300])


if __name__ == "__main__":
    main(sys.argv[1:])
