"""Starters: a program for a board that tests the network, and what is linked for other boards."""

from __future__ import annotations

import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import F32, affine_model, make_model, require

import atc
from atc.backends.targets import get_target
from atc.errors import OptionError, UnsupportedError
from atc.starter.boards import BOARDS

ROOT = Path(__file__).parents[2]
KEYWORDS = ROOT / "samples/keywords.onnx"
QUICK = [
    pytest.param(t, marks=[] if t in ("cortex-m4f", "cortex-m55") else [pytest.mark.slow])
    for t in BOARDS
]  # fmt: skip
"""The targets; all others than two are for the long tests."""


def make(folder: Path, *words: str) -> str:
    """Run make in a starter and return what it shows; a missing tool skips."""
    require("make")
    done = subprocess.run(
        ["make", "-s", "-C", str(folder / "starter"), *words], capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def starter(folder: Path, target: str, model: onnx.ModelProto | Path = KEYWORDS) -> Path:
    require(get_target(target).compiler)
    if not isinstance(model, Path):
        onnx.save(model, folder / "model.onnx")
        model = folder / "model.onnx"
    return atc.compile(model, folder / "net", target=target, starter=True).folder


@pytest.mark.slow
@pytest.mark.parametrize("target", QUICK)
def test_make_run_says_ok(target: str, tmp_path: Path) -> None:
    require(get_target(target).runner[0])
    folder = starter(tmp_path, target)
    assert "selftest: ok" in make(folder, "run").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m4f", "cortex-m55", "riscv32"])
def test_what_zig_builds_is_linked_by_the_starter(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ziglang", reason="the package ziglang isn't installed")
    require(get_target(target).runner[0])
    monkeypatch.setenv("CC", shlex.join([sys.executable, "-m", "ziglang", "cc"]))
    done = atc.compile(
        KEYWORDS, tmp_path / "net", target=target, starter=True, max_ram=2**16, max_stack=2**12
    )
    assert done.sizes is not None
    assert 0 < done.sizes.stack < 2**12
    assert make(done.folder, "run").splitlines()[-1] == "selftest: ok"


@pytest.mark.slow
def test_a_changed_weight_fails_the_self_test(tmp_path: Path) -> None:
    require("qemu-system-arm")
    folder = starter(tmp_path, "cortex-m4f", affine_model())
    data = bytearray((folder / "net_weights.bin").read_bytes())
    for at in range(3, 160, 4):
        data[at] ^= 0x80  # a float's sign
    (folder / "net_weights.bin").write_bytes(data)
    flags = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]
    cc = require("arm-none-eabi-gcc")
    sources = [*map(str, folder.glob("src/**/*.c")), "net_weights.S"]
    options = [*flags, "-O1", "-Iinclude", "-I.", "-c"]
    subprocess.run([cc, *options, *sources], cwd=folder, check=True)
    (folder / "libnet.a").unlink()
    objects = [p.name for p in folder.glob("*.o")]
    subprocess.run(
        [require("arm-none-eabi-ar"), "rcs", "libnet.a", *objects], cwd=folder, check=True
    )
    done = subprocess.run(
        ["make", "-s", "-C", str(folder / "starter"), "run"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).splitlines()
    said = next(line for line in lines if line.startswith("selftest"))
    number = r"\d\.\d\de[+-]\d\d"
    output = rf"output (y|hidden) is off by {number}"
    node = rf"node activation is the first, by an RMSE of about {number}"
    assert re.fullmatch(rf"selftest: the weights .* damaged.*: {output}: {node}", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "board"),
    [
        pytest.param(target, b.name, marks=[pytest.mark.slow] * (target != "cortex-m4f"))
        for target, boards in BOARDS.items() for b in boards if b.openocd and target != "riscv32"
    ],  # fmt: skip
)
def test_programs_for_real_boards_lie_in_their_memory(
    target: str, board: str, tmp_path: Path
) -> None:
    folder = starter(tmp_path, target)
    make(folder, f"BOARD={board}")
    program = folder / f"starter/net-{board}.elf"
    said = subprocess.run(
        [require("arm-none-eabi-readelf"), "-lW", program], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    record = next(b for b in BOARDS[target] if b.name == board)
    loaded = re.findall(r"LOAD +\S+ +0x(\S+) 0x(\S+) 0x(\S+) 0x(\S+)", said)
    assert loaded
    for virtual, physical, size, memory in (map(lambda n: int(n, 16), row) for row in loaded):
        assert record.flash <= physical <= record.flash + record.flash_size or size == 0
        in_flash = record.flash <= virtual < record.flash + record.flash_size
        assert in_flash or record.ram <= virtual < record.ram + record.ram_size - memory
    image = tmp_path / "image.bin"
    objcopy = require("arm-none-eabi-objcopy")
    subprocess.run([objcopy, "-O", "binary", program, image], check=True)
    first = struct.pack(f"<{len(record.stage)}I", *record.stage)
    assert image.read_bytes().startswith(first)
    stack, entry = struct.unpack("<2I", image.read_bytes()[len(first) :][:8])
    assert stack == record.ram + record.ram_size
    assert record.flash <= entry < record.flash + record.flash_size
    block = struct.pack(f"<{len(record.boot)}I", *record.boot)
    assert 0 <= image.read_bytes().find(block) < 4096, "the boot ROM looks in the first 4 KB"


@pytest.mark.slow
def test_an_esp32_c3_boots_from_its_flash(tmp_path: Path) -> None:
    readelf = require("riscv64-unknown-elf-readelf")
    folder = starter(tmp_path, "riscv32")
    make(folder, "BOARD=esp32-c3")
    program = folder / "starter/net-esp32-c3.elf"
    command = [readelf, "-hlW", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    image = program.with_suffix(".bin").read_bytes()
    assert image.startswith(2 * bytes.fromhex("1d04dbae")), "what the boot ROM looks for"
    assert re.search(r"Entry point address: +0x42000008\n", said), "where it goes on"
    code, constants, ram = 0x42000000, 0x3C000000, 0x3FC80000
    rows = re.findall(r"LOAD +\S+ +0x(\S+) 0x(\S+) 0x(\S+) 0x(\S+)", said)
    places = {}
    for virtual, physical, size, memory in (map(lambda n: int(n, 16), row) for row in rows):
        base = next(b for b in (code, ram, constants) if virtual >= b)
        places[base] = virtual
        if base == constants:
            assert virtual - constants == physical - code, "the same bytes of the flash"
        if base == ram:
            assert virtual + memory <= ram + 320 * 1024 - 2048
            assert size == 0 or physical - code + size <= len(image)
    assert places.keys() == {code, constants, ram}
    weights = (folder / "net_weights.bin").read_bytes()
    assert image.find(weights) >= places[constants] - constants


@pytest.mark.slow
def test_self_tests_have_every_kind_of_number(tmp_path: Path) -> None:
    kinds = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8,
             TensorProto.INT32, TensorProto.INT64]  # fmt: skip
    names = [f"x{k}" for k in range(len(kinds))]
    values = [(n, k, (3, 5)) for n, k in zip(names, kinds, strict=True)]
    nodes = [helper.make_node("Add", [name, name], [f"{name}_y"]) for name in names]
    nodes.append(helper.make_node("Not", ["b"], ["b_y"]))
    model = make_model(
        nodes,
        [*values, ("b", TensorProto.BOOL, (4,))],
        [*((f"{n}_y", k, shape) for n, k, shape in values), ("b_y", TensorProto.BOOL, (4,))],
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    folder = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", selftest=True).folder
    use = '#include "net.h"\nint main(void)\n{\n  net_context ctx; net_difference d = {0};\n'
    types = ["float", "double", "int8_t", "uint8_t", "int32_t", "int64_t", "bool"]
    use += "".join(f"  {t} in{k}[15], out{k}[15];\n" for k, t in enumerate(types))
    pointers = ", ".join([f"in{k}" for k in range(7)] + [f"out{k}" for k in range(7)])
    use += f"  return net_init(&ctx, 0, 0) || net_selftest(&ctx, {pointers}, &d);\n}}\n"
    (folder / "use.c").write_text(use)
    command = [require("gcc"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
               "-fsanitize=undefined", "-fno-sanitize-recover=all", "-Iinclude", "-I."]  # fmt: skip
    sources = ["use.c", *map(str, folder.glob("src/**/*.c"))]
    subprocess.run([*command, *sources, "-lm", "-o", "use"], cwd=folder, check=True)
    subprocess.run(["./use"], cwd=folder, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [0, 90])
def test_a_self_test_takes_two_kilobytes_and_a_macro_leaves_it_out(
    nodes: int, tmp_path: Path
) -> None:
    cc, size = require("arm-none-eabi-gcc"), require("arm-none-eabi-size")
    model = KEYWORDS
    if nodes:  # more than there is room for
        model = tmp_path / "m.onnx"
        rows = [
            helper.make_node("Softmax", [f"x{k}"], [f"x{k + 1}"], name=f"a/name/{k}" * 3)
            for k in range(nodes)
        ]
        values = [("x0", F32, (64,))], [(f"x{nodes}", F32, (64,))]
        onnx.save(make_model(rows, *values), model)
    folder = atc.compile(model, tmp_path / "kws", target="cortex-m4f", selftest=True).folder
    flags = [*get_target("cortex-m4f").cflags, "-std=c99", "-O2", "-Iinclude", "-Wpedantic",
             "-Werror", "-c", "src/kws_selftest.c", "-o", "t.o"]  # fmt: skip
    taken = []
    for more in ([], ["-DKWS_NO_SELFTEST"]):
        subprocess.run([cc, *flags, *more], cwd=folder, check=True)
        said = subprocess.run([size, "t.o"], cwd=folder, capture_output=True, text=True, check=True)
        taken.append(int(said.stdout.splitlines()[1].split()[3]))
    assert 0 < taken[0] < 2048
    assert taken[1] == 0


def test_an_open_extent_is_reported(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([relu], [("x", F32, ("n", 3))], [("y", F32, ("n", 3))]), tmp_path / "m")
    with pytest.raises(UnsupportedError, match="dynamic dimension 'n'"):
        atc.compile(tmp_path / "m", tmp_path / "net", target="c99", selftest=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"starter": True, "target": "x86-64"}, "no starter for x86-64"),
        ({"selftest": True, "input_shape": "x:1~4,3"}, "several shapes has no self-test"),
        ({"selftest": True, "input_shape": "x:-1,3", "dynamic_batch_size": "1,2"},
         "several shapes has no self-test"),
    ],
)
def test_what_has_no_starter_or_self_test_is_refused(
    options: dict[str, object], text: str, tmp_path: Path
) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([relu], [("x", F32, ("n", 3))], [("y", F32, ("n", 3))]), tmp_path / "m")
    with pytest.raises(OptionError, match=text):
        atc.compile(tmp_path / "m", tmp_path / "net", **{"input_shape": "x:2,3", **options})  # type: ignore[arg-type]
    assert not (tmp_path / "net").exists()


def test_the_formula_is_the_same_in_c(tmp_path: Path) -> None:
    from atc.codegen.selftest import inputs_by_formula

    x = inputs_by_formula((2, 3), np.dtype(np.float32), 0)
    assert x.shape == (2, 3)
    assert np.unique(x).size == 6
    assert (np.abs(x) <= 1).all()
