"""Checked builds name the node whose kernel goes wrong, and are quiet where none does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import onnx
import pytest
from codegen.test_hooks import looping_model
from codegen.test_profile import branching_model
from networks import conv_net
from onnx import helper
from projects import (
    F32,
    MODELS,
    affine_model,
    build_example,
    build_shared,
    emit_model,
    make_model,
    reference,
    write_project,
)

import atc
from atc.cli.main import main
from atc.codegen.emit import Emission
from atc.errors import OptionError
from atc.ir.graph import Array
from atc.options.values import Checks, checks
from atc.runtime.load import load

ALL = Checks(memory=True, nan=True, infinite=True, limit=1e6)
INPUT, NAN, INFINITE, RANGE, OUTSIDE, OVERWRITTEN = range(1, 7)
FAULT = """
typedef struct {
  char message[768];
  int32_t kind; size_t step; const char *nodes, *kernel, *value; size_t index; double number;
} net_fault;
int net_init(void *ctx, void *arena, size_t size);
int net_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
size_t net_context_size(void);
size_t net_arena_size(void);
const char *net_status_string(int status);
const net_fault *net_last_fault(void *ctx);
"""


def chain(*ops: str) -> onnx.ModelProto:
    """Return a model of elementwise operators that nothing fuses: sums along an axis between."""
    nodes, value = [], "x"
    for k, op in enumerate(ops):
        nodes.append(helper.make_node(op, [value], [f"v{k}"], f"the {op}"))
        nodes.append(helper.make_node("CumSum", [f"v{k}", "axis"], [f"s{k}"], f"sum {k}"))
        value = f"s{k}"
    nodes.append(helper.make_node("Add", [value, "s0"], ["y"], "last"))
    shape = (3, 5)
    axis = {"axis": np.array(0, np.int64)}
    return make_model(nodes, [("x", F32, shape)], [("y", F32, shape)], axis)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "cc"),
    [("affine", "clang-19"), ("looping", "gcc"), *((name, "gcc") for name in MODELS)],
)
def test_the_code_is_strict_c99(name: str, cc: str, tmp_path: Path) -> None:
    models = {**MODELS, "looping": looping_model}
    what = ALL if cc == "gcc" else Checks(nan=True)
    emission = emit_model(models[name](), profile=cc == "gcc", hooks=True, checks=what, log=True)
    write_project(tmp_path, emission)
    stdio = ["-DNET_NO_STDIO"] * (name == "looping")
    build_example(tmp_path, "-O1", "-Wshadow", "-Wmissing-prototypes", *stdio, cc=cc)


def test_a_build_without_checks_has_nothing_of_them() -> None:
    plain, full = emit_model(affine_model()), emit_model(affine_model(), checks=ALL)
    text = b"".join(plain.files[path] for path in ("src/net.c", "include/net.h"))
    assert not [w for w in (b"_fault", b"FAULT", b"atc_enter", b"poison", b"_CHECK") if w in text]
    changed = {path for path in full.files if full.files[path] != plain.files.get(path)}
    assert changed == {"src/net.c", "include/net.h", "README.md"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (affine_model, [np.ones((2, 5), np.float32)]),
        (looping_model, [np.arange(4, dtype=np.float32)]),
        (branching_model, [np.array(True), np.ones(2, np.float32)]),
        (branching_model, [np.array(False), np.ones(2, np.float32)]),
        (lambda: chain("Abs", "Neg", "Sin"), [np.ones((3, 5), np.float32)]),
    ],
)  # fmt: skip
def test_what_is_right_passes(
    model: Callable[[], onnx.ModelProto], inputs: list[Array], tmp_path: Path
) -> None:
    results = []
    for name, what in (("plain", None), ("checked", ALL)):
        build_shared(write_project(tmp_path / name, emit_model(model(), checks=what)))
        net = load(tmp_path / name)
        results += [net.run(dict(zip([t.name for t in net.inputs], inputs, strict=True)))
                    for _ in range(2)]  # an arena that was used before is no fault
    for other in results[1:]:
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ops", "x", "what", "kind", "nodes", "value"),
    [
        (("Abs", "Log"), 0.0, ALL, INFINITE, "the Log", "v1"),
        (("Neg", "Sqrt"), 1.0, ALL, NAN, "the Sqrt", "v1"),
        (("Exp", "Abs"), 80.0, ALL, RANGE, "the Exp", "v0"),
        (("Exp", "Abs"), np.nan, ALL, INPUT, "", "x"),
        (("Neg", "Sqrt"), 1.0, Checks(memory=True, infinite=True), 0, "", ""),
        (("Exp", "Abs"), 80.0, Checks(nan=True), 0, "", ""),
    ],
)  # fmt: skip
def test_numbers_are_looked_at(
    ops: tuple[str, ...], x: float, what: Checks, kind: int, nodes: str, value: str, tmp_path: Path
) -> None:
    fault = run(tmp_path, emit_model(chain(*ops), checks=what), [np.full((3, 5), x, np.float32)])
    assert (fault["kind"], fault["nodes"], fault["value"]) == (kind, nodes, value)
    if kind:
        assert value in fault["message"]
        assert nodes in fault["message"]
        assert fault["index"] == 0


EVIL: Mapping[str, tuple[str, int]] = {
    "{out}[15] = 1;": ("the Neg", OUTSIDE),  # behind its result
    "{out}[-1] = 1;": ("the Neg", OUTSIDE),
    "((float *){in_})[3] += 1;": ("the Neg", OVERWRITTEN),  # which the last node needs yet
    "((char *){out})[59] = (char)0xFF; ((char *){out})[58] = (char)0xE5;": ("the Neg", NAN),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("statement", EVIL)
def test_memory_is_looked_at(statement: str, tmp_path: Path) -> None:
    emission = with_evil_kernel(emit_model(chain("Abs", "Neg"), checks=ALL), "the Neg", statement)
    fault = run(tmp_path, emission, [np.ones((3, 5), np.float32)])
    nodes, kind = EVIL[statement]
    assert (fault["kind"], fault["nodes"]) == (kind, nodes)


def test_a_result_that_is_not_written_is_poison(tmp_path: Path) -> None:
    emission = emit_model(chain("Abs", "Neg"), checks=ALL)
    lazy = with_evil_kernel(emission, "the Neg", "", instead=True)
    fault = run(tmp_path, lazy, [np.ones((3, 5), np.float32)])
    assert (fault["kind"], fault["nodes"], fault["index"]) == (NAN, "the Neg", 0)


def test_a_loaded_network_reports_what_a_check_found(tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(chain("Neg", "Sqrt"), checks=ALL))
    build_shared(tmp_path)
    net = load(tmp_path)
    x = np.ones((3, 5), np.float32)
    with pytest.raises(RuntimeError, match=r"node 'the Sqrt' \(.*\) made a NaN in 'v1'"):
        net(x)
    with pytest.raises(RuntimeError, match="the Sqrt"):
        net.bind(x)()
    np.testing.assert_allclose(net(-x), reference(chain("Neg", "Sqrt"), -x)[0])


def test_weights_beside_the_library_are_looked_at_too(tmp_path: Path) -> None:
    """Both the weights and values have sums, in functions of their own."""
    model = conv_net(tmp_path / "m.onnx")
    done = atc.compile(
        model, tmp_path / "net", target="c99", sanity_check="1", external_weight=2, selftest=True
    )
    with load(done.folder) as net:
        given = [np.ones(t.shape, t.dtype) for t in net.inputs]
        assert np.isfinite(net(*given)).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", Checks(True, True, True)), ("", None), ("0", None), ("nan", Checks(nan=True)),
     ("memory,inf, range:2.5", Checks(memory=True, infinite=True, limit=2.5)),
     ("all,range:1e3", Checks(True, True, True, 1e3))],
)  # fmt: skip
def test_the_option(text: str, expected: Checks | None) -> None:
    assert checks(text) == expected


@pytest.mark.parametrize("text", ["guard", "range", "range:-1", "memory,maybe"])
def test_a_wrong_option_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        checks(text)


def with_evil_kernel(
    emission: Emission, node: str, statement: str, instead: bool = False
) -> Emission:
    """Return the project with a statement more at the end of the kernel of a node.

    With `instead` the kernel does nothing else.
    """
    schedule = emission.files["src/net.c"].decode()
    call = re.search(rf': \w+ "{node}.*?\b(atc_(?!enter|leave|watch)\w+)\(', schedule, re.DOTALL)
    assert call is not None
    path = f"src/kernels/{call[1]}.c"
    text = emission.files[path].decode()
    head = re.search(rf"void {call[1]}\(([^)]*)\)\s*{{", text)
    assert head is not None
    names = [re.findall(r"\w+", p)[-1] for p in head[1].split(",")]
    written = [re.findall(r"\w+", p)[-1] for p in head[1].split(",") if p.strip()[:5] == "float"]
    body = statement.format(in_=names[0], out=written[-1])
    end = text.rindex("}")
    kept = text[: head.end()] + f"(void){names[0]}; (void){names[1]};" if instead else text[:end]
    evil = kept.replace(f"restrict {names[0]}", names[0]) + f"\n  {body}\n" + text[end:]
    return replace(emission, files={**emission.files, path: evil.encode()})


def run(folder: Path, emission: Emission, inputs: Sequence[Array]) -> dict[str, Any]:
    """Build a project, run it once and return its fault."""
    write_project(folder, emission)
    ffi = cffi.FFI()
    ffi.cdef(FAULT)
    lib: Any = ffi.dlopen(str(build_shared(folder)))
    context, size = ffi.new("uint64_t[]", lib.net_context_size() // 8 + 1), lib.net_arena_size()
    arena = np.zeros(size + 64, np.uint8)
    assert lib.net_init(context, ffi.from_buffer(arena) + -arena.ctypes.data % 64, size) == 0
    out = np.empty((3, 5), np.float32)
    pointers = [ffi.new("void *[]", [ffi.from_buffer(a) for a in each]) for each in (inputs, [out])]
    status = lib.net_run_tensors(context, *pointers)
    fault = lib.net_last_fault(context)
    assert (status != 0) == (fault.kind != 0)
    if status:
        assert b"last_fault" in ffi.string(lib.net_status_string(status))
    texts = {
        k: ffi.string(getattr(fault, k)).decode() if fault.kind else ""
        for k in ("nodes", "value", "message")
    }
    return {"kind": fault.kind, "index": fault.index, **texts}


def test_ranges_of_shapes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = conv_net(tmp_path / "m.onnx", batch="n")
    arguments = [f"--model={model}", f"--output={tmp_path}/net", "--target=c99", "--sanity_check"]
    assert main([*arguments, "--input_shape=x:1~4,3,8,8"]) != 0
    assert "checked builds take no ranges of shapes" in capsys.readouterr().err
    assert not (tmp_path / "net").exists()
