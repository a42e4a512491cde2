"""Every command line of the README, the documents and the samples does what it is there for.

Blocks that are fenced (tutorials, recipes, concepts) are run by test_tutorials.py, page by page.

They are found in the text, so that one that nobody knows how to run fails. What stands for
something of the reader's (FILE, FOLDER, a model that isn't here) is replaced; the rest is run as
it stands.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from importers.megengine_writer import Dump, write_v2
from importers.mxnet_files import node, params, symbol, variable
from readers_folder import ROOT, install_programs, lay_out

import atc

_PLACES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "cache/*.md", "atc/docs/**/*.md",
           "samples/**/*.md")  # fmt: skip
DOCUMENTS = tuple(
    str(p.relative_to(ROOT)) for place in _PLACES for p in sorted(ROOT.glob(place))
)  # fmt: skip
SAMPLES = (
    "samples/external_op/leaky_clip.c", "samples/embed_c/CMakeLists.txt",
    "samples/embed_python/read_digits.py", "samples/compare_precisions.py",
    "samples/make_models.py", "samples/external_op/make_model.py",
)  # fmt: skip
PROGRAMS = (
    r"(?:atc|make -C|load_and_run|compare_binary_iodump|python3?|pip|pytest|pre-commit|bash|ruff"
    r"|mypy|cmake|cc|H=\$\(|out/\S+/read_digits)"
)
_BLOCK = re.compile(rf"^    ({PROGRAMS}\b(?:.*\\\n)*.*?)(?: {{2,}}#.*)?$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(rf"`({PROGRAMS}(?: [^`]*)?)`")
_COMMENT = re.compile(
    rf"^(?:usage: | \*   |#     |    )?({PROGRAMS}(?: |(?<=\()).+)$", re.MULTILINE
)


@dataclass(frozen=True)
class Script:
    """Commands that are run one after the other, in the top folder or one below it.

    `instead` has what is replaced in them; `first` is run before.
    """

    commands: tuple[str, ...]
    instead: dict[str, str] = field(default_factory=dict)
    first: str = ""
    folder: str = "."
    needs: tuple[str, ...] = ()
    """Programs without which it is left out."""

    @property
    def text(self) -> str:
        text = "".join(f"{command}\n" for command in self.commands)
        for old, new in self.instead.items():
            assert old in text, f"{old} isn't in {text}"
            text = text.replace(old, new)
        return "\n".join(filter(None, ("set -e", self.first, text)))


SCORES = """
import numpy as np
import onnx

model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> scores (float[4,6] x) => '
    '(float[4,2] y) { h = MatMul(x, w1) r = Relu(h) s = MatMul(r, w2) y = Add(s, bias1) }')
for name, shape in (("w1", (6, 8)), ("w2", (8, 2)), ("bias1", (2,))):
    array = np.ones(shape, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
onnx.save(model, "scores.onnx")
"""
NET = "--model=samples/digits.onnx --target=c99 --op_compiler_cache_mode=enable"
FAST = {
    "quick start": Script(
        ("pip install . && atc --model=samples/digits.onnx --output=out/digits "
         "--op_compiler_cache_mode=enable",),
        {"pip install . && ": ""},  # see the installation below
    ),
    "load_and_run": Script(
        ('load_and_run lenet.mge --input="data:digit.pgm" --iter=20 --thread=2 '
         "--profile=lenet.json",
         'load_and_run lenet.mge --input="data:digit.pgm" --fast-run '
         "--fast_run_algo_policy=lenet.policy"),
    ),
    "coming from elsewhere": Script(
        ("atc --mode=1 --om=samples/digits.onnx --json=digits.json",
         'atc --model=net-symbol.json --weight=net-0010.params --output=out/net '
         '--input_shape="data:1,4"',
         "atc --model=samples/digits.onnx --output=out/digits --target=c99"),
        {"--output=": "--target=c99 --build_config='cc -O0' --output=", "--target=c99\n": "\n"},
    ),
    "help": Script(("atc --help", "load_and_run --help", "atc --help NAME"), {"NAME": "target"}),
    "named tools": Script(
        ("atc verify", "atc diff", "atc bisect", "atc quantize", "compare_binary_iodump",
         "atc machine", "atc targets"),
        {"atc verify": "atc verify --help", "atc diff": "atc diff --help",
         "atc bisect": "atc bisect --help", "atc quantize": "atc quantize --help",
         "compare_binary_iodump": "compare_binary_iodump --help",
         "atc machine": "atc machine --json"},
    ),
    "check": Script(("atc check --model=FILE",), {"FILE": "samples/digits.onnx"}),
    "float64": Script(
        ("atc verify --float64",), {"--float64": f"--float64 {NET} --build_config='cc -O0'"}
    ),
    "explain": Script(("atc explain FOLDER NODE",), {"FOLDER": "made/digits", "NODE": "NODE_1"}),
    "profile": Script(("atc profile FOLDER",), {"FOLDER": "made/digits"}),
    "report": Script(
        ("atc report FOLDER", "atc report out/digits", "atc report"),
        {"FOLDER": "made/digits", "out/": "made/", "atc report\n": "atc report --help\n"},
    ),
    "cache": Script(
        ("atc cache stats", "atc cache verify", "atc cache why", "atc cache clear"),
        {"why": "why $(ls cache/kernel_cache/c99 | head -c 12)"},
        first="export ASCEND_CACHE_PATH=$PWD/cache\n"
        f"atc {NET} --output=out/cached --build_config='cc -O0' >log",
    ),
    "devices": Script(
        ("atc --model=samples/keywords.onnx --output=out/kws --target=cortex-m4f --starter=1 "
         "--max_ram=16K --max_rom=64K",
         "make -C out/kws/starter run",
         "atc verify out/kws --model=samples/keywords.onnx",
         "make -C out/kws/starter flash-serial BOARD=nucleo-f446re",
         "atc verify out/kws --model=samples/keywords.onnx --runner=serial:/dev/ttyACM0",
         "atc verify FOLDER"),
        {"atc verify FOLDER": "atc verify --help", "flash-serial BOARD=nucleo-f446re": "serial",
         "--runner=serial:/dev/ttyACM0": "--runner=serial:/dev/none 2>&1 | grep opened",
         "make -C out/kws/starter run":
         "make -C out/kws/starter run 2>&1 | grep -x 'selftest: ok'"},
        needs=("arm-none-eabi-gcc", "qemu-system-arm", "make"),
    ),
    "a static link": Script(
        ("cc -Iout/digits -Iout/digits/include main.c out/digits/digits_weights.S "
         "out/digits/libdigits.a -lm",),
        {"out/digits": "made/digits"}, first="cp made/digits/example/main.c .",
    ),
    "pkg-config": Script(
        ("cc main.c $(pkg-config --cflags --libs kws)",), {"kws": "digits"},
        first="cmake -S made/digits -B b -DCMAKE_INSTALL_PREFIX=$PWD/there "
        "-DCMAKE_INSTALL_LIBDIR=lib >log && cmake --build b >log && cmake --install b >log\n"
        "export PKG_CONFIG_PATH=$PWD/there/lib/pkgconfig; cp made/digits/example/main.c .",
        needs=("cmake", "pkg-config"),
    ),
    "env": Script(
        ("atc env", "atc env --documentation", "atc env --documentation > atc/docs/settings.md",
         "atc completion bash"),
        first="mkdir -p atc/docs",
    ),
    "a shared cache": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --op_compiler_cache_mode=enable "
         "--op_compiler_cache_remote=file://$PWD/store",),
        {"--output=": "--target=c99 --build_config='cc -O0' --output="},
        first="export ATC_CACHE_KEY=0123456789abcdef ASCEND_CACHE_PATH=$PWD/cache",
    ),
    "measuring elsewhere": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --fast_run=export",
         "atc --model=samples/digits.onnx --output=out/digits --fast_run_import=times.txt"),
        {"--output=": "--target=c99 --build_config='cc -O0' --output="},
        first="printf 'atc fast-run 1\\nmachine a board\\nend\\n' > times.txt",
    ),
    "batch": Script(
        ("atc batch matrix.toml --sdk=vision", "atc batch matrix.toml"),
        first="printf 'targets = [\"c99\"]\\n[[model]]\\npath = \"samples/digits.onnx\"\\n"
        "options = {build_config = \"cc -O0\"}\\n' > matrix.toml",
    ),
    "dump": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --dump=out/dump",
         "atc explain out/digits NODE"),
        {"--dump": "--target=c99 --build_config='cc -O0' --dump", "NODE": "NODE_1"},
    ),
    "training": Script(
        ("atc --mode=train --model=scores.onnx --output=scores_step --loss=cross_entropy "
         '--optimizer=adam --lr=0.1 --trainable="w2;bias*" --clip_norm=1 '
         '--optimizer_options="betas=0.9,0.99;weight_decay=1e-4"',),
        {"--output=": "--target=c99 --build_config='cc -O0' --output="},
        first=f"python - <<'END'\n{SCORES}END",
    ),
    "an operator of one's own": Script(
        ("H=$(python -c \"import atc.templates as t; print(t.FOLDER / 'project')\")",
         'cc -shared -fPIC -I"$H" -o libleaky_clip.so leaky_clip.c',
         "python make_model.py leaky_clip.onnx",
         'load_and_run leaky_clip.onnx --c-opr-lib=./libleaky_clip.so --input="x:[-3.0,0.5,9.0]" '
         "--io-dump-stdout"),
        folder="samples/external_op",
    ),
}  # fmt: skip
"""By default."""

EXTRAS = (
    "zig", "quantize", "converters", "exporters", "cuda", "farm", "torch", "docs", "sklearn",
    "tflite", "peers",
)  # fmt: skip
"""What the documents install with `atc`, beside what tests need."""

SLOW = {
    "doctor": Script(
        ("atc doctor", "atc doctor --target=cortex-m4f,aarch64-neon"),
        needs=("arm-none-eabi-gcc", "aarch64-linux-gnu-gcc"),
    ),
    "wrappers": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --wrappers=cpp",
         "atc --model=samples/digits.onnx --output=out/digits --wrappers=java"),
        {"--output=": "--target=c99 --build_config='cc -O0' --output="},
    ),
    "WebAssembly": Script(
        ("atc doctor --target=wasm32-simd128",
         "atc --model=samples/digits.onnx --output=out/digits --target=wasm32-simd128 "
         "--wrappers=js",
         "atc --model=samples/digits.onnx --output=samples/web/digits --target=wasm32-simd128 "
         "--wrappers=js",
         "python -m http.server --directory samples/web"),
        {"http.server --directory samples/web": "http.server --help",
         "samples/web/digits": "out/web/digits"},
        needs=("clang-19", "wasm-ld-19"),
    ),
    "wheels": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --wheel",
         "pip install out/digits/dist/*.whl",
         "atc --model=samples/digits.onnx --output=out/digits --wheel "
         "--target=x86-64-avx512,x86-64-avx2,x86-64"),
        {"pip install": "pip install -q --no-deps --no-index --target=there",
         "dist/*.whl\n": "dist/*.whl && test -f there/digits/libdigits.so\n"},
    ),
    "a pull request": Script(
        ("python samples/ci/compare_models.py measure --output=head.json 'samples/*.onnx' -- "
         "--target=c99",
         "python samples/ci/compare_models.py comment base.json head.json > comment.md"),
        {"samples/*.onnx": "samples/spiral.onnx", "python samples/ci/compare_models.py comment":
         "cp head.json base.json\npython samples/ci/compare_models.py comment"},
    ),
    "packages": Script(
        ("python -m build", "pytest --pyargs atc.smoke"),
        {"build": "build --help", "pytest": "mkdir away; cd away; pytest -q -k reference"},
    ),
    "for this machine and others": Script(
        ("atc --model=samples/digits.onnx --framework=5 --output=out/digits "
         "--soc_version=x86-64-avx2",
         "atc --model=samples/digits.onnx --output=out/digits --target=host",
         "atc --model=samples/digits.onnx --output=out/digits --fast_run=1 "
         "--fast_run_algo_policy=digits.policy",
         "atc --model=samples/digits.onnx --output=out/digits "
         "--fast_run_algo_policy=digits.policy",
         'atc --model=samples/spiral.onnx --output=out/spiral --input_shape="points:-1,2" '
         '--dynamic_batch_size="1,8"'),
    ),
    "installation": Script(
        ("pip install . && atc --model=samples/digits.onnx --output=out/digits "
         "--op_compiler_cache_mode=enable",
         "pip install '.[test]' && pytest", "pip install '.[zig]'", "pip install '.[quantize]'",
         "pip install '.[converters]'", "pip install '.[exporters]'", "pip install '.[cuda]'",
         "pip install '.[farm]'", "pip install '.[torch]'", "pip install '.[docs]'",
         "pip install '.[sklearn]'", "pip install '.[tflite]'", "pip install '.[peers]'"),
        {"pip install . &&": "uv pip install -q . &&",  # by pip in .ci/run, as the next one
         "pip install '.[test]' && pytest":
         "uv pip install -q '.[test]' && pytest -n 0 tests/dims",
         # All extras go together, and aren't fetched: gigabytes.
         **{f"pip install '.[{extra}]'\n": "" for extra in EXTRAS[1:]},
         f"pip install '.[{EXTRAS[0]}]'": f"uv pip install -q --dry-run '.[{','.join(EXTRAS)}]'"},
        first=f"uv venv -q --python={sys.executable} env || python -m venv env\n"
        ". env/bin/activate && command -v uv || pip install -q uv",
    ),
    "a GPU": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --target=cuda-sm90 "
         "--op_compiler_cache_mode=enable",
         "atc --model=samples/digits.onnx --output=out/digits --target=cuda-sm90"),
        {"cuda-sm90": "cuda-emulated"},  # which needs no nvcc
    ),
    "embedding in Python": Script(
        ("atc --model=samples/digits.onnx --output=out/digits",
         "python samples/embed_python/read_digits.py out/digits samples/images/*.pgm"),
        {"--output=out/digits": "--output=out/digits --op_compiler_cache_mode=enable"},
    ),
    "embedding in C": Script(
        ("atc --model=samples/digits.onnx --output=out/digits",
         "cmake -S samples/embed_c -B out/read_digits && cmake --build out/read_digits",
         "out/read_digits/read_digits samples/images/*.pgm"),
    ),
    "precisions": Script(
        ("python samples/compare_precisions.py",
         "python samples/compare_precisions.py [IMAGES]     (needs numpy and onnxruntime)"),
        {"python samples/compare_precisions.py\n": "",  # the same with all images
         " [IMAGES]     (needs numpy and onnxruntime)": " 20"},
    ),
    "models": Script(
        ("python samples/make_models.py", "python make_model.py leaky_clip.onnx"),
        {"make_models.py": "make_models.py again | grep 'digits: 9'\n"
         "test \"$(ls again/*.onnx | xargs -n1 basename)\" = "
         "\"$(ls samples/*.onnx | xargs -n1 basename)\"", "python make_model.py":
         "python samples/external_op/make_model.py"},
        first="set -o pipefail; mkdir again",
    ),
    "coverage": Script(
        ("python tests/suite.py --coverage", "python tests/suite.py --coverage > "
         "atc/docs/coverage.md"),
        {"--coverage\n": "--help\n",  # the same without a file
         "> atc/docs/coverage.md": f"> atc/docs/coverage.md\n"
         f"cmp atc/docs/coverage.md {ROOT}/atc/docs/coverage.md >&2"},  # the page is up to date
        first="mkdir -p atc/docs",
    ),
    "gpu": Script(  # without a GPU it says so, with one a network is enough
        ("python tests/benchmarks/gpu.py",),
        {"python tests/benchmarks/gpu.py": "python tests/benchmarks/gpu.py resnet50:1 --rounds=1 "
         "|| test $? = 1"},
    ),
    "suite": Script(("python tests/suite.py",), {"suite.py": "suite.py simple"}),
    "fuzz": Script(
        ("python tests/fuzz/run.py --kind=graph --count=2000",
         "python tests/fuzz/run.py --kind=graph --count=200 --seed=7"),
        {"count=2000": "count=3", "count=200 ": "count=3 "},
    ),
    "a cluster": Script(
        ("atc --model=samples/digits.onnx --output=out/digits --scheduler=local:2",),
    ),
    "how it scales": Script(
        ("python tests/benchmarks/farm.py --networks=4 --targets=c99 --simulated=0",),
        {"networks=4": "networks=1"},
    ),
    "benchmark": Script(
        ("python tests/benchmarks/compare.py resnet50.onnx --peers=onnxruntime,openvino --layers "
         "--op_select_implmode=high_precision",
         "python tests/benchmarks/compare.py resnet50.onnx --op_select_implmode=high_precision "
         "--clock=cpu --rounds=8", "python tests/benchmarks/compare.py MODEL --layers",
         "python tests/benchmarks/compare.py",
         "python tests/benchmarks/ranges.py --only=residual_batch,text_tokens",
         "python tests/benchmarks/compile_time.py mixed --nodes=50000,100000 --no-c"),
        {"residual_batch,text_tokens": "rows --rounds=1", "50000,100000": "50,100",
         "resnet50.onnx": "samples/digits.onnx",
         "python tests/benchmarks/compare.py MODEL --layers\n": "",  # as the first one
         "--layers": "--layers --rounds=2", "--rounds=8": "--rounds=2",
         "compare.py\n": "compare.py --help\n"},
    ),
    "decoding": Script(
        ("python tests/benchmarks/decode.py --weights=float32,float16,bfloat16,int4,int4-int8",),
        {"--weights=float32,float16,bfloat16,int4,int4-int8": "--shape=tiny "
         "--weights=float16,int4-int8 --steps=2 --prompt=4 --at_once=2"},
    ),
    "streams": Script(
        ("python tests/benchmarks/streams.py",),
        {"streams.py": "streams.py --only=lstm --rounds=1"},
    ),
    "less memory": Script(
        ("python tests/benchmarks/recomputation.py --batch=100 --plan",
         "python tests/benchmarks/recomputation.py",
         "python tests/benchmarks/checkpointing.py --batch=30"),
        {"recomputation.py": "recomputation.py --help",
         "checkpointing.py": "checkpointing.py --help"},
    ),
    "charts": Script(
        ("python tests/benchmarks/charts.py", "python tests/benchmarks/gallery.py --page",
         "python tests/benchmarks/gallery.py --exporter=python --only=SqueezeNet",
         "python tests/benchmarks/gallery.py"),
        {"tests/benchmarks/": "own/tests/benchmarks/", "--only=SqueezeNet": "--only=nothing",
         "gallery.py\n": "gallery.py --help\n"},
        first="mkdir -p own/atc own/tests && cp -r tests/benchmarks own/tests && "
        f"cp -r {ROOT}/atc/docs own/atc",  # a copy, whose charts it draws
    ),
    "instructions": Script(
        ("python tests/benchmarks/instructions.py", "python tests/benchmarks/sizes.py",
         "python tests/benchmarks/instructions.py --target=armv7-neon,riscv32-rvv,riscv64-rvv",
         "python tests/benchmarks/arm.py", "python tests/benchmarks/node.py",
         "python tests/benchmarks/inner_loops.py --type=int8"),
        {"instructions.py": "instructions.py --help",  # needs an emulator, takes minutes
         "benchmarks/arm.py": "benchmarks/arm.py --help", "sizes.py": "sizes.py --help",
         "inner_loops.py --type=int8": "inner_loops.py --help", "node.py": "node.py --help"},
    ),
    "a contributor's set up": Script(
        ("python3 -m venv .venv && . .venv/bin/activate", "pip install -e '.[test,dev,docs]'",
         "pre-commit install"),
        {"python3 -m venv .venv": "(uv venv -q .venv || python3 -m venv .venv)", "pip install -e":
         "command -v uv || pip install -q uv; uv pip install -q --dry-run -e",
         "pre-commit install": "uv pip install -q pre-commit; git init -q; pre-commit install"},
    ),
    "tests": Script(
        ("pytest", "pytest tests/passes -n 0", "pytest -m slow tests/lower", "pytest -m suite",
         "pytest -m gpu", "bash .ci/run"),
        {"pytest\n": "pytest tests/dims\n",  # all of them by .ci/run
         "pytest": "pytest -q --collect-only", "bash": "bash -n",
         "-m suite": "-m suite tests/whole/test_onnx_backend.py",
         "-m gpu": "-m gpu tests/whole/test_gpu.py"},
        folder=str(ROOT),
    ),
    "checks": Script(
        ("ruff check .", "bash .ci/types"), {"bash": "bash -n"},  # .ci/run runs it
        folder=str(ROOT),
    ),
}  # fmt: skip
"""What installs, measures, or compiles many networks."""


def lines(document: str) -> Iterator[str]:
    """Yield the command lines of a document: those that stand alone, and those in sentences."""
    text = (ROOT / document).read_text("utf-8")
    if not document.endswith(".md"):
        found = [m[1] for m in _COMMENT.finditer(text)]
        yield from (re.split(r"`| \(a minute", line)[0] for line in found if "import " not in line
                    or line.startswith("H="))  # fmt: skip
        yield from (m[1] for m in _INLINE.finditer(text))
        return
    text = _FENCED.sub("", text)
    yield from (re.sub(r"\s*\\\n\s*", " ", m[1]) for m in _BLOCK.finditer(text))
    for line in (m[1].replace("\\|", "|") for m in _INLINE.finditer(text)):
        head, _, words = line.rpartition(" ")
        yield from (f"{head} {word}".strip() for word in words.split("|"))


def found_commands() -> set[str]:
    found = {line for document in (*DOCUMENTS, *SAMPLES) for line in lines(document)}
    return found - {"atc", "load_and_run", "ruff"}  # names of the tools themselves


def test_every_command_of_the_documents_is_run() -> None:
    run = {c for script in (*FAST.values(), *SLOW.values()) for c in script.commands}
    assert found_commands() == run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of programs, and of the digits' network with times of its calls.

    By its configuration scripts share a cache of kernels: many compile the same network.
    """
    folder = tmp_path_factory.mktemp("documents")
    install_programs(folder)
    options = {"target": "c99", "profile": True, "build_config": "cc -O0"}
    atc.compile(ROOT / "samples/digits.onnx", folder / "made/digits", **options)  # type: ignore[arg-type]
    (folder / "atc.cfg").write_text("op_compiler_cache_mode=enable\n")
    return folder


def top_folder(made: Path, folder: Path) -> dict[str, str]:
    """Lay out what a reader has in front of him; returns the environment of his shell."""
    environ = lay_out(folder, made / "bin", made / "cache")
    (folder / "made").symlink_to(made / "made")
    dump = Dump()
    data = dump.input("data", (1, 1, 28, 28))
    dump.output(dump.op("Elemwise", [data], {"Elemwise": {"mode": "RELU"}}, name="y")[0], "y")
    (folder / "lenet.mge").write_bytes(write_v2(dump))
    root = symbol([variable("data"), node("Activation", "y", [[0, 0, 0]], act_type="relu")],
                  [[1, 0, 0]])  # fmt: skip
    (folder / "net-symbol.json").write_text(json.dumps(root))
    (folder / "net-0010.params").write_bytes(params({"arg:unused": np.zeros(1, np.float32)}))
    shutil.copy(ROOT / "samples/images/2.pgm", folder / "digit.pgm")
    return environ


def run_script(script: Script, made: Path, folder: Path, **settings: str) -> str:
    environ = top_folder(made, folder) | settings
    missing = [program for program in script.needs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{missing[0]} isn't installed")
    node = onnx.load(folder / "samples/digits.onnx").graph.node[0]
    text = script.text.replace("NODE_1", node.name or node.output[0])
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder / script.folder, env=environ, capture_output=True,
        text=True,
    )  # fmt: skip
    if "No module named " in done.stderr and script is SLOW.get("checks"):
        pytest.skip("ruff isn't installed: pip install '.[dev]'")
    offline = ("Could not find a version", "Temporary failure", "Failed to establish")
    if done.returncode and any(part in done.stdout + done.stderr for part in offline):
        pytest.skip("packages can't be fetched here")
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("name", FAST)
def test_a_command_of_the_documents(name: str, made: Path, tmp_path: Path) -> None:
    run_script(FAST[name], made, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_command_of_the_documents(name: str, made: Path, tmp_path: Path) -> None:
    if name in ("installation", "a contributor's set up"):
        for part in ("atc", "backends", "cache", "templates", "pyproject.toml", "README.md",
                     "LICENSE"):  # fmt: skip
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, tmp_path / part)
    run_script(SLOW[name], made, tmp_path, ATC_CONFIG=str(made / "atc.cfg"))
