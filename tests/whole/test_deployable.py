"""The whole output folder, as the pipeline writes it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from default_run import find_tcc
from onnx import TensorProto, helper
from projects import STRICT, make_model, reference, require

from atc.cli.main import main
from atc.compile import compile_model
from atc.options.options import Options
from atc.runtime.load import load

SAMPLES = Path(__file__).parents[2] / "samples"
NAMES = ("digits", "keywords")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the output folders of two samples, the second for the target `host`.

    The C compiler makes them, as tcc hides no symbols and has no sections of constants.
    """
    folder = tmp_path_factory.mktemp("out")
    config = "cc -O0" if find_tcc() else ""
    for name, target in zip(NAMES, ("c99", "host"), strict=True):
        compile_model(
            Options(
                model=SAMPLES / f"{name}.onnx", output=folder / name, target=target,
                build_config=config,
            )
        )  # fmt: skip
    return folder


def said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_the_tree_of_files(out: Path) -> None:
    folder = out / "digits"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    kernels = {f for f in files if f.startswith("src/kernels/")}
    assert kernels
    assert files - kernels - {"src/simd.h", "src/simd_math.h", "src/simd_bf16.h"} == {
        ".atc-manifest.json", "CMakeLists.txt", "README.md", "cmake/digitsConfig.cmake.in",
        "cmake/digits.pc.in", "cmake/digits_weights.c.in", "digits.graph.txt", "digits.py",
        "digits.report.json", "digits_weights.S", "digits_weights.bin", "example/main.c",
        "include/digits.h", "libdigits.a", "libdigits.so", "src/digits.c", "src/digits_kernels.h",
        "src/kernel.h",
    }  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_shared_library_exports_its_interface_only(name: str, out: Path) -> None:
    library = out / name / f"lib{name}.so"
    symbols = said(require("nm"), "-D", "--defined-only", library).split()[2::3]
    header = (out / name / f"include/{name}.h").read_text()
    assert set(symbols) == set(
        re.findall(rf"^{name.upper()}_API .*?\b({name}_\w+)\(", header, re.M)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_shared_library_has_no_writable_data_of_its_own(name: str, out: Path) -> None:
    sections = said(require("readelf"), "-SW", out / name / f"lib{name}.so")
    sizes = {
        m[1]: int(m[2], 16)
        for m in re.finditer(r"\] (\.(?:data|bss|tdata|tbss)) +\S+ +\w+ \w+ (\w+)", sections)
    }
    assert all(size <= 16 for size in sizes.values()), sizes  # the C runtime's


def test_static_libraries_define_no_other_symbols_and_meet_in_a_program(
    out: Path, tmp_path: Path
) -> None:
    for name in NAMES:
        library = out / name / f"lib{name}.a"
        lines = said(require("nm"), "-g", "--defined-only", library).splitlines()
        assert all(line.split()[-1].startswith(f"{name}_") for line in lines if " T " in line)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "digits.h"\n#include "keywords.h"\n'
        "int main(void)\n{\n"
        '  printf("%s %s\\n", digits_input_info(0)->name, keywords_input_info(0)->name);\n'
        "  return digits_init(NULL, NULL, 0) == KEYWORDS_OK;\n}\n"
    )
    flags = [f"-I{out / name / 'include'}" for name in NAMES]
    libraries = [str(out / name / f"lib{name}.a") for name in NAMES]
    program = tmp_path / "both"
    said(require("gcc"), *STRICT, *flags, "-o", program, tmp_path / "main.c", *libraries, "-lm")
    assert said(program) == "image features\n"


COMPILE = """
import sys
from pathlib import Path
from atc.compile import compile_model
from atc.options.options import Options
model, output, jobs = sys.argv[1:]
compile_model(Options(model=Path(model), output=Path(output), jobs=int(jobs)))
"""


@pytest.mark.slow
def test_every_byte_is_the_same_in_any_folder_with_any_hash_seed_and_workers(
    out: Path, tmp_path: Path
) -> None:
    for seed, jobs in (("1", "1"), ("2", "2")):
        command = [
            sys.executable,
            "-c",
            COMPILE,
            SAMPLES / "keywords.onnx",
            tmp_path / seed / "keywords",
            jobs,
        ]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=tmp_path, env=env, check=True)
    trees = [digests(folder) for folder in (out, tmp_path / "1", tmp_path / "2")]
    assert trees[0] == trees[1] == trees[2]


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of the keywords' output."""
    root = folder / "keywords"
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_the_example_of_the_folder_links_to_its_libraries(out: Path, tmp_path: Path) -> None:
    folder = out / "digits"
    image = np.random.default_rng(0).random((1, 1, 28, 28)).astype(np.float32)
    image.tofile(tmp_path / "image")
    main = folder / "example/main.c"
    (expected,) = reference(onnx.load(SAMPLES / "digits.onnx"), image)
    for library in ("libdigits.a", "libdigits.so"):
        program = tmp_path / library
        said(
            require("gcc"), *STRICT, f"-I{folder / 'include'}", main, folder / library, "-lm",
            "-o", program,
        )  # fmt: skip
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        done = subprocess.run(
            [program, tmp_path / "image"], env=env, capture_output=True, text=True, check=True
        )
        values = [float(v) for line in done.stdout.splitlines()[1:] for v in line.split()]
        np.testing.assert_allclose(values, expected.ravel(), atol=1e-5)


FIRST_RUN = """
import resource, sys
from pathlib import Path
import numpy as np
from atc.runtime.load import load

def touched():
    of_files = int(Path("/proc/self/statm").read_text().split()[2])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt, of_files

call = load(sys.argv[1]).bind(np.ones((16, 64), np.float32))
before = touched()
call()
print(*(b - a for a, b in zip(before, touched())))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--input_shape=x:16,64"],
        pytest.param(["--input_shape=x:16,64", "--external_weight=1"], marks=pytest.mark.slow),
        pytest.param(["--input_shape=x:1~16,64"], marks=pytest.mark.slow),
        pytest.param(
            ["--input_shape=x:-1,64", "--dynamic_batch_size=8,16"], marks=pytest.mark.slow
        ),
    ],
)
def test_the_first_run_is_not_the_first_to_touch_memory(
    arguments: list[str], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    shapes = {"w": (64, 32768), "v": (32768, 4)}  # 8 MB and 0.5 MB; 2 MB between the products
    model = make_model(
        [helper.make_node("MatMul", [a, b], [c]) for a, b, c in ("xwh", "hvy")],
        [("x", TensorProto.FLOAT, ("n", 64))],
        [("y", TensorProto.FLOAT, None)],
        {k: random.standard_normal(s).astype(np.float32) for k, s in shapes.items()},
    )  # fmt: skip
    onnx.save(model, tmp_path / "net.onnx")
    named = [f"--model={tmp_path / 'net.onnx'}", f"--output={tmp_path / 'net'}"]
    assert main([*named, *arguments]) == 0
    env = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}  # pages of 4 KB
    command = [sys.executable, "-P", "-c", FIRST_RUN, tmp_path / "net"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    faults, pages_of_files = map(int, done.stdout.split())
    assert faults < 40  # the arena has more than 500 pages
    assert pages_of_files < 500  # the weights have more than 2000


def test_arenas_in_large_pages_give_the_same(out: Path) -> None:
    image = np.random.default_rng(0).random((1, 1, 28, 28)).astype(np.float32)
    usual, large = (load(out / "digits", huge_pages=large) for large in (False, True))
    np.testing.assert_array_equal(large(image), usual(image))
    np.testing.assert_array_equal(large.bind(image)(), usual(image))
