"""Packages for firmware, built by what stands in for their systems."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, reference, require

import atc
from atc.errors import OptionError

ARDUINO = """\
#include <stddef.h>
#include <stdint.h>
#define INPUT 0x0
#define OUTPUT 0x1
#define HIGH 0x1
#define PI 3.14
struct Port {
  void begin(long);
  void println(const char *);
  void println(double);
};
extern Port Serial;
extern "C" void delay(unsigned long);
"""
ZEPHYR = """\
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES C ASM)
set(CONFIG_ATC_NET y)
add_library(zephyr_interface INTERFACE)
macro(zephyr_library_named name)
  set(ZEPHYR_CURRENT_LIBRARY ${name})
  add_library(${name} STATIC "")
  target_link_libraries(${name} zephyr_interface)
endmacro()
macro(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_include_directories)
  target_include_directories(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_include_directories)
  target_include_directories(zephyr_interface INTERFACE ${ARGN})
endmacro()
add_subdirectory(net/zephyr module)
add_executable(app main.c)
target_link_libraries(app atc_net m)
"""
ESP_IDF = """\
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES C ASM)
macro(idf_component_register)
  cmake_parse_arguments(_ "" "" "SRCS;INCLUDE_DIRS;PRIV_INCLUDE_DIRS" ${ARGN})
  get_filename_component(COMPONENT_LIB ${CMAKE_CURRENT_LIST_DIR} NAME)
  add_library(${COMPONENT_LIB} STATIC ${__SRCS})
  target_include_directories(${COMPONENT_LIB}
    PUBLIC ${__INCLUDE_DIRS} PRIVATE ${__PRIV_INCLUDE_DIRS})
endmacro()
add_subdirectory(net/esp-idf/atc_net component)
add_executable(app main.c)
target_link_libraries(app atc_net m)
"""
X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
MAIN = """\
#include <stdio.h>
#include "net.h"
int main(void)
{
  static net_arena arena;
  static float y[6], hidden[16];
  static const float x[10] = {VALUES};
  net_context ctx;
  int status = net_init(&ctx, &arena, sizeof arena);
  if (status == NET_OK) status = net_run(&ctx, x, y, hidden);
  for (int k = 0; k < 6; k++) printf("%.9g\\n", (double)y[k]);
  return status;
}
""".replace("VALUES", ", ".join(f"{v:.9e}f" for v in X.ravel()))


def packaged(
    folder: Path, package: str, model: onnx.ModelProto | None = None, target: str = "c99",
    **options: object,
) -> Path:  # fmt: skip
    """Return the folder of a network with a package."""
    onnx.save(model or affine_model(), folder / "model.onnx")
    return atc.compile(
        folder / "model.onnx", folder / "net", target=target, package=package, **options
    ).folder  # type: ignore[arg-type]


def assert_right(program: Path) -> None:
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    wanted = reference(affine_model(), X)[0].ravel()
    np.testing.assert_allclose([*map(float, done.stdout.split())], wanted, rtol=1e-5)


def build_all(folder: Path, include: Path, sources: list[Path]) -> None:
    """Compile sources as systems do that know no flags of ours, and run them."""
    (folder / "main.c").write_text(MAIN)
    subprocess.run(
        [require("cc"), "-Wall", "-Wextra", "-Werror", "-O1", f"-I{include}", *sources, "main.c",
         "-lm", "-o", "main"],
        cwd=folder, check=True,
    )  # fmt: skip
    assert_right(folder / "main")


@pytest.mark.parametrize("system", [
    pytest.param("zephyr", marks=pytest.mark.slow), pytest.param("esp-idf", marks=pytest.mark.slow),
])  # fmt: skip
def test_cmake_builds_a_module_and_a_component(system: str, tmp_path: Path) -> None:
    require("ninja")
    packaged(tmp_path, system)
    (tmp_path / "CMakeLists.txt").write_text(ZEPHYR if system == "zephyr" else ESP_IDF)
    (tmp_path / "main.c").write_text(MAIN)
    for command in (["-S", ".", "-B", "b", "-G", "Ninja"], ["--build", "b"]):
        subprocess.run([require("cmake"), *command], cwd=tmp_path, check=True, capture_output=True)
    assert_right(tmp_path / "b/app")


@pytest.mark.slow
def test_a_module_says_what_it_is(tmp_path: Path) -> None:
    folder = packaged(tmp_path, "zephyr,esp-idf")
    assert "name: atc_net\n" in (folder / "zephyr/module.yml").read_text()
    for line in re.findall(r"(?:cmake|kconfig): (\S+)", (folder / "zephyr/module.yml").read_text()):
        assert (folder / line).exists()
    assert (folder / "zephyr/Kconfig").read_text().startswith("config ATC_NET\n\tbool ")
    assert 'version: "1.0.0"' in (folder / "esp-idf/atc_net/idf_component.yml").read_text()


def test_an_arduino_library_computes(tmp_path: Path) -> None:
    library = packaged(tmp_path, "arduino") / "arduino/net"
    properties = dict(
        line.split("=", 1) for line in (library / "library.properties").read_text().splitlines()
    )
    assert {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url",
            "architectures"} <= {*properties}  # fmt: skip
    assert (library / "src" / properties["includes"]).is_file()
    build_all(tmp_path, library / "src", sorted((library / "src").rglob("*.c")))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c99", "cortex-m4f"])
def test_a_board_takes_the_library_and_its_sketch(target: str, tmp_path: Path) -> None:
    cxx, cc = require("arm-none-eabi-g++"), require("arm-none-eabi-gcc")
    model = make_model(
        [helper.make_node("MatMul", ["INPUT", "PI"], ["OUTPUT"]),
         helper.make_node("Cast", ["OUTPUT"], ["setup"], to=onnx.TensorProto.STRING)],
        [("INPUT", F32, (3, 4)), ("PI", F32, (4, 2))],
        [("OUTPUT", F32, (3, 2)), ("setup", onnx.TensorProto.STRING, (3, 2))],
    )  # fmt: skip
    library = packaged(tmp_path, "arduino", model, target) / "arduino/net"
    (tmp_path / "Arduino.h").write_text(ARDUINO)
    cpu = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]
    flags = [*cpu, "-Os", "-Wall", "-Wextra", f"-I{library / 'src'}", "-I."]
    sketch = library / "examples/net/net.ino"
    subprocess.run(
        [cxx, *flags, "-Werror", "-std=gnu++17", "-include", "Arduino.h", "-x", "c++", "-c",
         str(sketch), "-o", "sketch.o"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    for k, source in enumerate(sorted((library / "src").rglob("*.c"))):
        subprocess.run([cc, *flags, "-S", str(source), "-o", f"{k}.s"], cwd=tmp_path, check=True)
        assert "vfma" not in (tmp_path / f"{k}.s").read_text()  # products are rounded


HOST_BOARD = {
    "boards.txt": """\
host.name=Host
host.build.board=HOST
host.build.core=host
host.build.mcu=host
host.build.f_cpu=1L
""",
    "platform.txt": """\
name=Host
version=1.0.0
flags=-c -O1 -Wall -Wextra -Werror -MMD {includes} "{source_file}" -o "{object_file}"
recipe.c.o.pattern=gcc -std=gnu11 {flags}
recipe.cpp.o.pattern=g++ -std=gnu++17 {flags}
recipe.ar.pattern=ar rcs "{archive_file_path}" "{object_file}"
recipe.c.combine.pattern=g++ -o "{build.path}/app" {object_files} "{build.path}/{archive_file}" -lm
recipe.preproc.macros=g++ -w -x c++ -E -CC {includes} "{source_file}" -o "{preprocessed_file_path}"
""",
    "cores/host/Arduino.h": f"#pragma once\n{ARDUINO}void setup();\nvoid loop();\n",
    "cores/host/main.cpp": """\
#include "Arduino.h"
#include <stdio.h>
Port Serial;
void Port::begin(long) {}
void Port::println(const char *text) { puts(text); }
void Port::println(double value) { printf("%.9g\\n", value); }
extern "C" void delay(unsigned long) {}
int main()
{
  setup();
  loop();
}
""",
}
"""An Arduino board that is this machine."""


@pytest.mark.slow
def test_arduinos_own_builder_finds_the_library_and_builds_its_sketch(tmp_path: Path) -> None:
    builder = require("arduino-builder")
    library = packaged(tmp_path, "arduino") / "arduino/net"
    for name, text in HOST_BOARD.items():
        file = tmp_path / "hardware/atc/host" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "libraries").mkdir()
    library.rename(tmp_path / "libraries/net")
    sketch = tmp_path / "sketch/sketch.ino"  # its inputs are zeros: what the example starts from
    sketch.parent.mkdir()
    sketch.write_bytes((tmp_path / "libraries/net/examples/net/net.ino").read_bytes())
    (tmp_path / "build").mkdir()
    done = subprocess.run(
        [builder, "-compile", "-hardware", "/usr/share/arduino-builder", "-hardware", "hardware",
         "-tools", "hardware", "-libraries", "libraries", "-fqbn", "atc:host:host",
         "-build-path", tmp_path / "build", "-warnings", "all", sketch],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / "build/app"], capture_output=True, text=True, check=True)
    y, hidden = (a.ravel() for a in reference(affine_model(), np.zeros_like(X)))
    wanted = [*y, *hidden[:10]]
    np.testing.assert_allclose([*map(float, done.stdout.split())], wanted, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["CPU_CORTEX_M4", "CPU_CORTEX_M55"])
def test_zephyrs_kconfig_offers_the_module_where_it_runs(processor: str, tmp_path: Path) -> None:
    genconfig = require("genconfig")
    require("arm-none-eabi-gcc")
    packaged(tmp_path, "zephyr", target="cortex-m4f")
    (tmp_path / "Kconfig").write_text(
        f"config {processor}\n\tbool\n\tdefault y\nsource \"net/zephyr/Kconfig\"\n"
    )
    (tmp_path / ".config").write_text("CONFIG_ATC_NET=y\n")
    subprocess.run([genconfig, "--header-path", "config.h"], cwd=tmp_path, check=True)
    there = "#define CONFIG_ATC_NET 1\n" in (tmp_path / "config.h").read_text()
    assert there == (processor == "CPU_CORTEX_M4")


@pytest.mark.slow
def test_espressifs_component_manager_takes_the_manifest(tmp_path: Path) -> None:
    compote = require("compote")
    component = packaged(tmp_path, "esp-idf") / "esp-idf/atc_net"
    pack = [compote, "component", "pack", "--name", "atc_net", "--dest-dir", tmp_path / "dist"]
    subprocess.run(pack, cwd=component, check=True, capture_output=True)
    assert (tmp_path / "dist/atc_net_1.0.0.tgz").is_file()
    manifest = component / "idf_component.yml"
    manifest.write_text(manifest.read_text().replace('"1.0.0"', '"first"'))
    assert subprocess.run(pack, cwd=component, capture_output=True, check=False).returncode != 0


def test_a_pack_holds_what_it_lists(tmp_path: Path) -> None:
    pack = packaged(tmp_path, "cmsis-pack") / "cmsis-pack"
    root = ET.parse(pack / "atc.net.pdsc").getroot()
    files = [(f.get("category"), f.get("name") or "") for f in root.iter("file")]
    assert all((pack / name).exists() for _, name in files)
    sources = {name for category, name in files if category == "source"}
    assert sources == {str(p.relative_to(pack)) for p in pack.rglob("*.c")}
    conditions = {c.get("id") for c in root.iter("condition")}
    assert {c.get("condition") for c in root.iter("component")} <= conditions
    assert [n.tag for n in root][:4] == ["vendor", "name", "description", "url"]
    build_all(tmp_path, pack / "include", [pack / name for name in sorted(sources)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_n", "__", "a" * 40])
def test_a_component_has_a_name_that_the_schema_allows(name: str, tmp_path: Path) -> None:
    onnx.save(affine_model(), tmp_path / "model.onnx")
    folder = atc.compile(
        tmp_path / "model.onnx", tmp_path / name, target="c99", package="cmsis-pack"
    ).folder
    (pdsc,) = (folder / "cmsis-pack").glob("*.pdsc")
    (component,) = ET.parse(pdsc).getroot().iter("component")
    # PACK.xsd 1.7: CsubType
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+():/\- .]{0,31}", component.get("Csub") or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "core", "symbol"),
    [("cortex-m4f", "Cortex-M4", "CPU_CORTEX_M4"), ("cortex-m55", "Cortex-M55", "CPU_CORTEX_M55")],
)
def test_a_target_is_named_to_its_systems(
    target: str, core: str, symbol: str, tmp_path: Path
) -> None:
    require("arm-none-eabi-gcc")
    folder = packaged(tmp_path, "cmsis-pack,zephyr", target=target)
    root = ET.parse(folder / "cmsis-pack/atc.net.pdsc").getroot()
    assert [r.get("Dcore") for r in root.iter("accept")] == [core]
    assert f"depends on {symbol}\n" in (folder / "zephyr/Kconfig").read_text()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ['</name><x a="&', "a\n}\n#error x\n*/", "$(touch x)\\", "'\"%n"])
def test_names_of_a_model_break_out_of_nothing(name: str, tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Relu", [name], [f"{name}o"], name=name)], [(name, F32, (2,))],
        [(f"{name}o", F32, (2,))],
    )  # fmt: skip
    everything = "arduino,cmsis-pack,esp-idf,zephyr"
    folder = packaged(tmp_path, everything, model)
    plain = make_model(
        [helper.make_node("Relu", ["a"], ["b"], name="c")], [("a", F32, (2,))], [("b", F32, (2,))]
    )
    (tmp_path / "plain").mkdir()
    other = packaged(tmp_path / "plain", everything, plain)
    for package in ("arduino", "cmsis-pack", "esp-idf", "zephyr"):
        for file in (folder / package).rglob("*"):
            if file.suffix not in (".c", ".h", ".ino") and file.is_file():
                there = other / file.relative_to(folder)
                assert file.read_bytes() == there.read_bytes()  # no name of the model is in it
    sketch = (folder / "arduino/net/examples/net/net.ino").read_text()
    again = (other / "arduino/net/examples/net/net.ino").read_text()
    comments = re.compile(r"// .*")
    assert comments.sub("", sketch) == comments.sub("", again)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"package": "esp-idf", "target": "cortex-m4f"}, "esp-idf doesn't run on cortex-m4f"),
        ({"package": "cmsis-pack", "target": "riscv32"}, "cmsis-pack doesn't run on riscv32"),
        ({"package": "zephyr", "target": "x86-64"}, "zephyr doesn't run on x86-64"),
        ({"package": "zephyr", "external_weight": 2}, "weights beside it can't be packaged"),
        ({"package": "mbed"}, "invalid value 'mbed'"),
        ({"package": "zephyr", "target": "x86-64,c99"}, "package"),
    ],
)
def test_what_has_no_package_is_refused(
    options: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        packaged(tmp_path, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "net").exists()
