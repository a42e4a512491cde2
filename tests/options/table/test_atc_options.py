"""ATC's options, a test per row O-01 ... O-08 and A-01 ... A-35 of the specification.

What a row does is tested in depth beside its module; here each is asked for by its own name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import stages
from importers.megengine_writer import write_v2
from importers.mxnet_files import node, symbol, variable
from importers.test_megengine_reader import small
from networks import content, conv_net, counting_compiler, save
from onnx import helper, numpy_helper
from setting_rows import rows_of
from stages import project_of

import atc
from atc.backends.targets import get_target
from atc.cache import find_root, parse_debug_config
from atc.cache.limits import read_limits
from atc.cli.main import main
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, ModelError, OptionError
from atc.fast_run import measure
from atc.fast_run.task import Task
from atc.importers import load_model
from atc.ir.graph import Graph
from atc.options.options import Options, make_options
from atc.options.table import IGNORED_OPTIONS, read_values
from atc.options.unsupported import LATER
from atc.pipeline.lowering import read_model
from atc.pipeline.pass_switches import CASCADES
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import resolve_request
from atc.select.select import Measurement
from atc.tools.model_info import model_info

ROWS = {*(f"O-{k:02}" for k in range(1, 9)), *(f"A-{k:02}" for k in range(1, 36))}
DYNAMIC = {"A-10": "dynamic_batch_size", "A-11": "dynamic_image_size", "A-12": "dynamic_dims"}
X = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
AIPP = "aipp_op { aipp_mode: static input_format: RGB888_U8 rbuv_swap_switch: true }"


def test_every_row_is_in_the_table_and_has_a_test() -> None:
    have = rows_of("O") | rows_of("A")
    assert have | {row for row, name in DYNAMIC.items() if name in LATER} == ROWS
    names = [name for name in globals() if re.match(r"test_[oa]_\d\d", name)]
    groups = [g for n in names for g in re.findall(r"_([oa])((?:_\d\d)+)", n)]
    tested = {f"{letter.upper()}-{k}" for letter, ks in groups for k in ks.split("_")[1:]}
    assert tested | set(DYNAMIC) == ROWS


# ---- what the tests share -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("atc")
    conv_net(path / "net.onnx")
    return path


@pytest.fixture(scope="module")
def base(folder: Path) -> Compilation:
    """A network compiled into a cache, which makes the next compilations quick."""
    return compiled(folder, "base")


def compiled(folder: Path, name: str, **given: object) -> Compilation:
    values = {
        "target": "c99", "op_compiler_cache_mode": "enable",
        "op_compiler_cache_dir": folder / "cache", **given,
    }  # fmt: skip
    return atc.compile(folder / "net.onnx", folder / name, **values)  # type: ignore[arg-type]


def options(folder: Path, **given: object) -> Options:
    named = {"model": folder / "net.onnx", "output": folder / "out", "target": "c99", **given}
    return make_options(read_values(named, "compile"))


def graph_of(own: Options, warnings: list[str] | None = None) -> Graph:
    return stages.graph_of(own, Diagnostics(warn=(warnings if warnings is not None else []).append))


def run(done: Compilation, x: np.ndarray = X) -> np.ndarray:
    (y,) = atc.load(done.folder).run({"x": x}).values()
    return np.asarray(y)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def failure(given: dict[str, object], folder: Path) -> AtcError:
    with pytest.raises(AtcError) as caught:
        graph_of(options(folder, **given))
    return caught.value


# ---- O: the op compiler cache -------------------------------------------------------------------


def test_o_01_02_the_cache_is_filled_and_used(folder: Path, base: Compilation) -> None:
    again = compiled(folder, "again")
    # All but the source that has the network's name in it.
    assert (again.build.compiled, again.build.cached) == (1, base.build.compiled - 1)
    assert (folder / "cache/kernel_cache/c99").is_dir()
    assert options(folder).op_compiler_cache_mode == "disable"
    for value in ("Enable", "1"):
        with pytest.raises(OptionError, match=r"E10001.*--op_compiler_cache_mode"):
            options(folder, op_compiler_cache_mode=value)
    with pytest.raises(OptionError, match=r"\[--op_compiler_cache_dir\]"):
        find_root(Path("a b"), {})


def test_o_03_a_26_debug_files_go_to_the_debug_dir(folder: Path, base: Compilation) -> None:
    done = compiled(folder, "debug", op_debug_level=1, debug_dir=folder / "debugged")
    kinds = {re.sub(r"^.*?(_loc)?(\.\w+)$", r"\1\2", n) for n in content(folder / "debugged")}
    assert kinds == {".o", ".json", ".c", "_loc.json"}
    assert done.build.cached == 0
    assert done.cache.stored == 0


def test_o_04_debug_configurations() -> None:
    text = "# kernels\nop_debug_config=oom, dump_cce\nop_debug_list=conv1,OpType::Softmax\n"
    assert parse_debug_config(text, "f").switches == ("oom", "dump_cce")
    for line in ("op_debug_config", "op_debug_config="):
        with pytest.raises(OptionError, match="f, line 2"):
            parse_debug_config(f"# kernels\n{line}\n", "f")


@pytest.mark.parametrize(
    ("inis", "environ", "expected"),
    [
        ([], {}, (500, 50)),
        ([], {"ASCEND_MAX_OP_CACHE_SIZE": "7", "ASCEND_REMAIN_CACHE_SIZE_RATIO": "30"}, (7, 30)),
        ([("ini", {"max_op_cache_size": "9", "remain_cache_size_ratio": "80"})],
         {"ASCEND_MAX_OP_CACHE_SIZE": "7"}, (9, 80)),
    ],
)  # fmt: skip
def test_o_05_06_07_limits(
    inis: list[tuple[str, dict[str, str]]], environ: dict[str, str], expected: tuple[int, int]
) -> None:
    limits = read_limits(inis, environ, pytest.fail)
    assert (limits.megabytes, limits.remain_percent) == expected


def test_o_08_the_root_of_caches() -> None:
    environ = {"HOME": "/home/u", "ASCEND_CACHE_PATH": "/tmp/c"}
    assert find_root(Path("/d"), environ) == Path("/d")
    assert find_root(None, environ) == Path("/tmp/c")
    assert find_root(None, {"HOME": "/home/u"}) == Path("/home/u/atc_data")


# ---- A: the model and its interface -------------------------------------------------------------


def test_a_01_a_model_is_required(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"E10007: --model"):
        read_values({"output": "out"}, "compile")
    assert failure({"model": folder / "none.onnx"}, folder).code == "E10041"


def test_a_02_03_weights_and_formats(folder: Path, tmp_path: Path) -> None:
    text = symbol(
        [variable("x"), variable("w"), node("elemwise_add", "sum", [(0, 0), (1, 0)])], [(2, 0)]
    )
    mxnet = written(tmp_path / "n-symbol.json", json.dumps(text))
    mge = tmp_path / "n.mge"
    mge.write_bytes(write_v2(small()))
    assert len(load_model(mge, "", {}, None).graph.inputs) == 1
    assert len(load_model(folder / "net.onnx", "", {}, None).graph.inputs) == 1
    with pytest.raises(ModelError, match="E10008"):
        load_model(mxnet, "", {"x": (2,)}, None)
    for model in (folder / "net.onnx", mge, mxnet):
        with pytest.raises(ModelError, match=r"E10041: no such file \[--weight=.*none\.params\]"):
            load_model(model, "", {"x": (2,)}, tmp_path / "none.params")
    for number in "013":
        with pytest.raises(OptionError, match="E10001.*not supported"):
            options(folder, framework=number)
    assert options(folder, framework=5).framework == "5"


def test_a_02_weights_of_a_model_that_takes_none_are_reported(folder: Path, tmp_path: Path) -> None:
    mge = tmp_path / "n.mge"
    mge.write_bytes(write_v2(small()))
    weight = written(tmp_path / "w.params", "")
    for model in (folder / "net.onnx", mge):
        warnings: list[str] = []
        own = options(folder, model=model, weight=weight)
        read_model(resolve_request(own), Diagnostics(warn=warnings.append))
        (reported,) = [w for w in warnings if "--weight" in w]
        assert reported == f"--weight has no effect: {model.name} is not MXNet's, it has its own"
        read_model(resolve_request(options(folder, model=model)), Diagnostics(warn=pytest.fail))


def test_a_04_27_the_output_folder_and_what_is_reported_of_it(base: Compilation) -> None:
    files = set(content(base.folder))
    assert {"libbase.so", "include/base.h", "base.report.json", "src/base.c"} <= files
    reported = dict(re.findall(r"^(\w+) +(.*)$", model_info(base), re.MULTILINE))
    assert {"arena", "weights", "kernels", "target", "versions"} <= set(reported)
    assert reported["target"] == "c99"
    assert reported["arena"].startswith(f"{base.arena.plan.size} bytes")


def test_a_05_06_modes(base: Compilation, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder / "modes"
    net, text = folder / "net.onnx", base.folder / "base.graph.txt"
    assert main(["--mode=1", f"--om={net}", f"--json={made / 'n.onnx'}"]) == 0
    assert len(onnx.load(made / "n.onnx").graph.node) == 6
    assert main(["--mode=1", f"--om={base.folder}", f"--json={made / 'r.json'}"]) == 0
    assert json.loads((made / "r.json").read_text())["target"] == "c99"
    assert main(["--mode=5", f"--om={text}", f"--json={made / 'g.json'}"]) == 0
    assert len(json.loads((made / "g.json").read_text())["nodes"]) == len(base.graph.nodes)
    capsys.readouterr()
    assert main(["--mode=6", f"--om={base.folder}"]) == 0
    out = capsys.readouterr().out
    assert f"arena    {base.arena.plan.size} bytes" in out
    assert "build    target=c99" in out


def test_a_07_the_target_by_atcs_name(folder: Path) -> None:
    assert options(folder, target="host", soc_version="c99").target == "c99"
    with pytest.raises(OptionError, match="the targets are host, c99.*aarch64-neon"):
        get_target("Ascend310")


def test_a_08_shapes(folder: Path) -> None:
    own = options(folder, input_shape="x:1,3,8,8;a:b:2;s:").input_shape
    assert own == {"x": (1, 3, 8, 8), "a:b": (2,), "s": ()}
    assert failure({"input_shape": "z:1"}, folder).code == "E10017"


@pytest.mark.parametrize("row", DYNAMIC)
def test_dynamic_shapes_are_refused_by_name_until_they_work(row: str, folder: Path) -> None:
    if DYNAMIC[row] not in LATER:
        pytest.skip("they work: their tests are beside them")
    assert main([f"--model={folder / 'net.onnx'}", "--output=o", f"--{DYNAMIC[row]}=1,2"]) == 1


def test_a_09_14_15_inputs_and_outputs_of_other_kinds(folder: Path, base: Compilation) -> None:
    done = compiled(
        folder, "kinds", input_format="NHWC", input_fp16_nodes="x", output_type="softmax:0:FP16"
    )
    y = run(done, X.transpose(0, 2, 3, 1).astype(np.float16).copy())
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, run(base, X.astype(np.float16).astype(np.float32)), atol=1e-3)


def test_a_13_other_outputs(folder: Path) -> None:
    assert graph_of(options(folder, out_nodes="conv1:0;pool:0")).outputs == ("c1", "g")
    assert failure({"out_nodes": "conv9:0"}, folder).code == "E10016"


def test_a_16_images(folder: Path, tmp_path: Path) -> None:
    conf = written(tmp_path / "aipp.cfg", AIPP)
    graph = graph_of(options(folder, insert_op_conf=conf))
    assert str(graph.types["x"]) == "u8[1,8,8,3]"
    assert [n.op.kind for n in graph.nodes][:2] == ["Map", "Conv"]
    assert str(graph_of(options(folder)).types["x"]) == "f32[1,3,8,8]"


# ---- A: precision -------------------------------------------------------------------------------


def test_a_17_18_precision_modes(folder: Path) -> None:
    plain, half = (
        project_of(options(folder, precision_mode=m)).emission for m in ("", "force_fp16")
    )
    assert b"precision=force_fp16" in half.files["src/out.c"]
    assert b"precision=default" in plain.files["src/out.c"]
    assert half.weights != plain.weights
    newer = project_of(options(folder, precision_mode_v2="fp16")).emission
    assert newer.files == half.files
    with pytest.raises(OptionError, match="E10056"):
        options(folder, precision_mode="force_fp16", precision_mode_v2="fp16")


def test_a_19_precision_of_single_operators(folder: Path, tmp_path: Path) -> None:
    keep = written(tmp_path / "keep", "OpType::Conv\nrelu1\npool\nflat\nsoftmax\nghost\n")
    warnings: list[str] = []
    kept = graph_of(options(folder, precision_mode="force_fp16", keep_dtype=keep), warnings)
    assert [n.op for n in kept.nodes] == [n.op for n in graph_of(options(folder)).nodes]
    assert len(warnings) == 1
    assert "'ghost'" in warnings[0]
    lists = written(tmp_path / "lists", '{"white-list": {"to-remove": ["Conv"]}}')
    mixed = {"precision_mode": "allow_mix_precision"}
    gray = project_of(options(folder, modify_mixlist=lists, **mixed)).emission
    assert gray.weights == project_of(options(folder)).emission.weights
    assert gray.weights != project_of(options(folder, **mixed)).emission.weights
    custom = written(tmp_path / "custom", "conv2::InputDtype:fp16,fp16,OutputDtype:fp32")
    assert graph_of(options(folder, customize_dtypes=custom)) is not None
    modes = written(tmp_path / "modes", "[ByOpType]\nConv=high_precision\n")
    with pytest.raises(OptionError, match="E10047"):
        options(folder, op_precision_mode=modes, op_select_implmode="high_precision")


@pytest.mark.slow
def test_a_20_precise_kernels(tmp_path: Path) -> None:
    weights = np.zeros((64, 64, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["y"], "second", pads=[1] * 4),
    ]
    shape: list[int | str] = [1, 64, 56, 56]
    save(nodes, {"x": shape}, {"y": shape}, tmp_path / "net.onnx",
         [numpy_helper.from_array(weights, "w")])  # fmt: skip
    avx2 = {"target": "x86-64-avx2"}

    def fast(**given: object) -> int:
        chosen = project_of(options(tmp_path, **avx2, **given)).selection.values()
        return sum(not c.candidate.kernel.exact(c.candidate.params) for c in chosen)

    assert fast() == 2
    assert fast(op_select_implmode="high_precision") == 0
    precise = {"op_select_implmode": "high_precision_for_all"}
    assert fast(**precise, optypelist_for_implmode="MatMul") == 2
    assert fast(**precise, optypelist_for_implmode="Conv,Add") == 0
    alone = [*options(tmp_path, optypelist_for_implmode="Conv").warnings()]
    assert len(alone) == 1
    assert "--optypelist_for_implmode has no effect without" in alone[0]
    assert [*options(tmp_path, **precise, optypelist_for_implmode="Conv").warnings()] == []
    modes = written(tmp_path / "modes", "[ByNodeName]\nsecond=high_precision\n")
    assert fast(op_precision_mode=modes) == 1


def test_a_19_a_20_operators_that_the_model_lacks_are_named(folder: Path, tmp_path: Path) -> None:
    def found(**given: object) -> list[str]:
        warnings: list[str] = []
        graph_of(options(folder, **given), warnings)
        return warnings

    precise = {"op_select_implmode": "high_precision"}
    assert found(**precise, optypelist_for_implmode="Conv") == []
    assert found(**precise, optypelist_for_implmode="Conv,Covn") == [
        "--optypelist_for_implmode: 'OpType::Covn' is not an operator of the model"
    ]
    text = "[ByOpType]\nConv=high_precision\n[ByNodeName]\nother=high_precision\n"
    modes = written(tmp_path / "modes", text)
    assert found(op_precision_mode=modes) == [
        "--op_precision_mode: 'other' is not an operator of the model"
    ]


# ---- A: optimisation ----------------------------------------------------------------------------


def kinds(graph: Graph) -> list[str]:
    return [n.op.kind for n in graph.nodes]


def test_a_21_fusion_switches(folder: Path, tmp_path: Path) -> None:
    fused = kinds(graph_of(options(folder)))
    lines = written(tmp_path / "lines", "# fusion\nfuse_epilogue : off\n")
    group = {"ALL": "off", "fuse_epilogue": "on"}
    text = json.dumps({"Switch": {"GraphFusion": group, "UBFusion": {"TbePass": "off"}}})
    only = written(tmp_path / "only.json", text)
    apart = kinds(graph_of(options(folder, fusion_switch_file=lines)))
    warnings: list[str] = []
    alone = kinds(graph_of(options(folder, fusion_switch_file=only), warnings))
    assert "Map" not in fused[:2]
    assert apart.index("Map") == apart.index("Conv") + 1
    assert alone[:2] == ["Conv", "Conv"]
    assert [w for w in warnings if "'TbePass'" in w] == warnings
    assert len(warnings) == 1


def test_a_21_cascade_is_a_rule_too(folder: Path, tmp_path: Path) -> None:
    lines = written(tmp_path / "lines", "cascade:off\n")
    assert CASCADES in resolve_request(options(folder, fusion_switch_file=lines)).switches.off
    assert CASCADES in resolve_request(options(folder, oo_level="O2")).switches.off
    assert CASCADES not in resolve_request(options(folder)).switches.off


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("fuse_epilogue off\n", "E10001", "line 1"),
        ("a:on\nb:maybe\n", "E10001", "line 2"),
        ("{", "E10032", "line 1"),
        ("{}", "E10001", "Switch"),
        ('{"Switch": {"Other": {}}}', "E10001", "'Other'"),
        ('{"Switch": {"UBFusion": {"a": 1}}}', "E10001", "'a'"),
    ],
)
def test_a_21_wrong_switches(
    text: str, code: str, words: str, folder: Path, tmp_path: Path
) -> None:
    error = failure({"fusion_switch_file": written(tmp_path / "file", text)}, folder)
    assert error.code == code
    assert words in str(error)


def test_a_22_memory_of_its_own_for_every_tensor(folder: Path) -> None:
    shared, apart = (
        project_of(options(folder, oo_level="O0", disable_reuse_memory=flag)).arena
        for flag in (False, True)
    )
    assert shared.plan.size < apart.plan.size
    ends = sorted((apart.plan.offsets[b.name], b.size) for b in apart.buffers)
    assert all(a + size <= b for (a, size), (b, _) in zip(ends, ends[1:], strict=False))


@pytest.mark.parametrize("name", [s.name for s in IGNORED_OPTIONS if s.row in ("A-23", "A-35")])
def test_a_23_35_what_has_no_meaning_here_is_one_warning(name: str, folder: Path) -> None:
    from atc.options.environment import ConfigEnvironment
    from atc.options.resolve import resolve

    given = {"model": str(folder / "net.onnx"), "output": "out", "target": "c99"}
    value = "true"
    plain = make_options(resolve(given, "compile", ConfigEnvironment({})).values)
    resolved = resolve({**given, name: value}, "compile", ConfigEnvironment({}))
    chosen = make_options(resolved.values)
    (warning,) = chosen.warnings()
    assert f"--{name}" in warning
    assert {**vars(chosen), "notes": ()} == {**vars(plain), "notes": ()}


def test_a_24_a_bank_of_measured_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank chooses another kernel, whose source (and so cache key) is another."""
    shape: list[int | str] = [8, 64]
    node_ = helper.make_node("Softmax", ["x"], ["y"])
    save([node_], {"x": shape}, {"y": shape}, tmp_path / "net.onnx")
    bank = {"target": "host", "op_bank_path": tmp_path / "bank"}
    (plain,) = project_of(options(tmp_path, target="host")).selection.values()
    if len(plain.estimates) < 2:
        pytest.skip("this machine's target has one kernel for Softmax")

    def other_is_best(
        tasks: Sequence[Task], bench: object
    ) -> Iterator[tuple[Task, tuple[Measurement, ...]]]:
        worst = plain.candidate.label
        for task in tasks:
            labels = [c.label for c in task.chosen]
            yield task, tuple(Measurement(n, 9.0 if n == worst else 1.0) for n in labels)

    monkeypatch.setattr(measure, "_run", other_is_best)
    compiled(tmp_path, "measured", fast_run=True, **bank)
    assert list((tmp_path / "bank").rglob("*.json"))
    monkeypatch.setattr(measure, "_run", lambda *a: pytest.fail("measured"))
    (chosen,) = compiled(tmp_path, "banked", **bank).selection.values()
    assert chosen.candidate.label != plain.candidate.label
    assert chosen.measurements


# ---- A: the tool --------------------------------------------------------------------------------


def test_a_25_the_log(base: Compilation, capsys: pytest.CaptureFixture[str]) -> None:
    net = base.options.model
    report = base.folder.parent / "log.json"
    for level, words in (("null", ""), ("info", "lowering"), ("debug", "fuse_epilogue")):
        arguments = ["--mode=3", f"--model={net}", "--target=c99", f"--check_report={report}"]
        assert main([*arguments, f"--log={level}"]) == 0
        err = capsys.readouterr().err
        assert words in err
        assert bool(err) == bool(words)
    assert main(["--mode=3", f"--model={net}", "--log=loud"]) == 1
    assert capsys.readouterr().err.startswith("E10010")


def test_a_28_a_report_of_all_that_is_not_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], "one"),
        helper.make_node("Relu", ["x"], ["b"], "two"),
        helper.make_node("Twiddle", ["b"], ["y"], "three"),
    ]
    model = save(nodes, {"x": [2]}, {"a": [2], "y": [2]}, tmp_path / "bad.onnx")
    monkeypatch.chdir(tmp_path)
    assert main(["--mode=3", f"--model={model}", "--target=c99"]) == 1
    assert "E10055" in capsys.readouterr().err
    named = tmp_path / "report.json"
    assert main([f"--model={model}", "--output=out", f"--check_report={named}"]) == 1
    for path in (tmp_path / "check_result.json", named):
        report = json.loads(path.read_text())
        assert not report["compiles"]
        failing = {n["name"] for n in report["nodes"] if n["status"] == "fails"}
        assert failing == {"one", "three"}


def test_a_29_single_operators(tmp_path: Path) -> None:
    square = {"format": "ND", "shape": [3, 3], "type": "float32"}
    content_ = [{"op": "Add", "input_desc": [square, square], "output_desc": [square]}]
    file = written(tmp_path / "ops.json", json.dumps(content_))
    arguments = [f"--singleop={file}", f"--output={tmp_path / 'ops'}", "--target=c99", "--verify"]
    assert main(arguments) == 0
    net = atc.load(tmp_path / "ops/0_Add_float32_3x3_float32_3x3")
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_array_equal(net(a, a), a + a)


def test_a_30_deterministic_is_what_everything_is(folder: Path) -> None:
    plain = project_of(options(folder)).emission.files
    for given in ({"deterministic": True}, {"deterministic_level": 2}):
        assert project_of(options(folder, **given)).emission.files == plain
    with pytest.raises(OptionError, match="E10013"):
        options(folder, deterministic_level=4)


def test_a_31_weights_beside_the_library(folder: Path, base: Compilation) -> None:
    expected = run(base)
    assert base.emission.weights in base.library.read_bytes()
    for kind, file in ((1, "weights1_weights"), (2, "weights2_weights.bin")):
        done = compiled(folder, f"weights{kind}", external_weight=kind)
        np.testing.assert_array_equal(run(done), expected)
        assert base.emission.weights not in done.library.read_bytes()
        gone = done.folder / file
        parts = sorted(gone.iterdir()) if gone.is_dir() else [gone]
        assert b"".join(p.read_bytes() for p in parts) == base.emission.weights
        assert len(parts) == (3 if kind == 1 else 1)
        parts[0].unlink()
        with pytest.raises((ModelError, RuntimeError), match="weights"):
            atc.load(done.folder)


@pytest.mark.slow
def test_a_32_another_processor(folder: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no compiler for aarch64")
    done = compiled(folder, "arm", target="host", host_env_os="linux", host_env_cpu="aarch64")
    header = done.library.read_bytes()[:20]
    assert int.from_bytes(header[18:20], "little") == 183  # EM_AARCH64 of the ELF specification
    with pytest.raises(OptionError, match="E10056"):
        options(folder, target="x86-64-avx2", host_env_cpu="aarch64")
    with pytest.raises(OptionError, match="E10001"):
        options(folder, host_env_os="windows")


def test_a_33_levels_of_optimisation(folder: Path) -> None:
    counts = [len(graph_of(options(folder, oo_level=f"O{k}")).nodes) for k in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[3]
    switched = graph_of(options(folder, oo_level="O0", optimization_switch="fuse_epilogue:on"))
    assert len(switched.nodes) < counts[0]
    off = ";".join(f"{name}:off" for name in ("ALL",))
    assert len(graph_of(options(folder, optimization_switch=off)).nodes) == counts[0]
    assert failure({"optimization_switch": "fuse_epilogue"}, folder).code == "E10014"


@pytest.fixture
def wrapper(tmp_path: Path) -> tuple[str, Path]:
    made = counting_compiler(tmp_path)
    return made.command, made.log


def test_a_34_a_compiler_of_ones_own(folder: Path, wrapper: tuple[str, Path]) -> None:
    command, log = wrapper
    build = f"{shlex.quote(command)} -DOWN_FLAG=1"
    done = compiled(folder, "own", build_config=build, op_compiler_cache_mode="disable")
    assert len(log.read_text().splitlines()) == done.build.compiled > 0
    assert options(folder, build_config=build).compiler_flags == ("-DOWN_FLAG=1",)
    with pytest.raises(OptionError, match="E10014"):
        options(folder, build_config="-O3")
