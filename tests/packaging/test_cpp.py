"""The C++ header, as a program of two compilers and three standards uses it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, reference, require, typed_model

import atc
from atc.packaging.wrappers import namespace

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
MAIN = r"""
#include <array>
#include <cstdio>
#include <utility>
#include <vector>
#include "net.hpp"
#if __cplusplus >= 202002L
#include <span>
#endif

int main()
{
  const std::array<float, 10> x{{VALUES}};
  std::vector<float> y(6);
  float hidden[16] = {};
  atc::net::Network first;
  atc::net::Network network(std::move(first));
#if __cplusplus >= 202002L
  network.run(std::span(x), std::span<float, 6>(y), hidden);
#else
  network.run(x, y, hidden);
#endif
  for (float each : y) std::printf("%.9g\n", each);
  y.resize(5);
  try {
    network.run(x, y, hidden);
  } catch (const atc::net::Error &error) {
    return error.status() == NET_ERROR_ARGUMENT && *error.what() != 0 ? 0 : 2;
  }
  return 1;
}
""".replace("VALUES", ", ".join(f"{v:.9e}f" for v in X.ravel()))


def compiled(folder: Path, model: onnx.ModelProto, name: str = "net", **options: object) -> Path:
    """Return a network's folder."""
    onnx.save(model, folder / "model.onnx")
    target = options.pop("target", "c99")
    return atc.compile(
        folder / "model.onnx", folder / name, target=target, wrappers="cpp", **options
    ).folder  # type: ignore[arg-type]


def build(folder: Path, text: str, compiler: str, standard: str, name: str = "net") -> Path:
    """Build a program with a network's header and its static library, without a warning."""
    (folder / "main.cpp").write_text(text)
    subprocess.run(
        [require(compiler), f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
         "-Iinclude", "main.cpp", f"lib{name}.a", "-pthread", "-o", "main"],
        cwd=folder, check=True,
    )  # fmt: skip
    return folder / "main"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "standard"),
    [
        ("g++", "c++20"),
        pytest.param("g++", "c++17", marks=pytest.mark.slow),
        pytest.param("clang++", "c++17", marks=pytest.mark.slow),
        pytest.param("clang++", "c++20", marks=pytest.mark.slow),
        pytest.param("g++", "c++23", marks=pytest.mark.slow),
    ],
)
def test_a_program_runs_it_and_wrong_sizes_are_thrown(
    compiler: str, standard: str, tmp_path: Path
) -> None:
    program = build(compiled(tmp_path, affine_model()), MAIN, compiler, standard)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    wanted = reference(affine_model(), X)[0]
    np.testing.assert_allclose([*map(float, done.stdout.split())], wanted.ravel(), rtol=1e-5)


@pytest.mark.slow
def test_a_span_of_another_size_does_not_compile(tmp_path: Path) -> None:
    folder = compiled(tmp_path, affine_model())
    text = """#include "net.hpp"
int main()
{
  float x[10] = {}, y[6], hidden[16];
  atc::net::Network network;
  network.run(std::span<const float, SIZE>(x, SIZE), y, std::span(hidden));
}
"""
    build(folder, text.replace("SIZE", "10"), "g++", "c++20")
    (folder / "main.cpp").write_text(text.replace("SIZE", "9"))
    done = subprocess.run(
        [require("g++"), "-std=c++20", "-Iinclude", "-fsyntax-only", "main.cpp"], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "a span of another number of elements" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"step": True}, "network.step(x, y, hidden, 1);"),
        ({"external_weight": 2}, ""),
        ({"profile": True}, "network.run(x, y, hidden);"),
        ({"num_threads": 2, "target": "x86-64"}, "network.run(x, y, hidden);"),
    ],
)
def test_what_options_add_compiles(
    options: dict[str, object], text: str, tmp_path: Path
) -> None:
    folder = compiled(tmp_path, affine_model(), **options)
    own = "static char w[1]; try { atc::net::Network bad(w, 1); return 1; } "
    own += "catch (const atc::net::Error &e) { return e.status() != NET_ERROR_WEIGHTS; }"
    body = own if "external_weight" in options else f"""
      float x[10] = {{}}, y[6], hidden[16];
      atc::net::Network network;
      {text}
      return 0;"""
    program = build(folder, f'#include "net.hpp"\nint main() {{ {body} }}\n', "g++", "c++17")
    subprocess.run([program], check=True)


@pytest.mark.slow
def test_every_element_type_has_a_type(tmp_path: Path) -> None:
    folder = compiled(tmp_path, typed_model())
    build(folder, '#include "net.hpp"\nint main() { atc::net::Network n; }\n', "g++", "c++17")


@pytest.mark.slow
def test_a_network_of_several_shapes_takes_pointers(tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [("x", F32, ("n", 2))],
                       [("y", F32, ("n", 2))])  # type: ignore[list-item] # fmt: skip
    folder = compiled(tmp_path, model, input_shape="x:1~8,2")
    body = """
      const std::int64_t shape[] = {2, 2};
      const float x[] = {-1, 2, -3, 4};
      float y[4];
      atc::net::Network network;
      network.set_input_shapes({shape});
      network.run(x, y);
      return !(y[0] == 0 && y[1] == 2 && y[2] == 0 && y[3] == 4);"""
    program = build(folder, f'#include "net.hpp"\nint main() {{ {body} }}\n', "g++", "c++17")
    subprocess.run([program], check=True)


HOSTILE = ['*/ #error "x"', "this", "std", "check", "run", "budget", "memory_", "EOF", "status"]
"""Names of tensors, and of networks."""


def hostile_model(name: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [name], [f"{name}2"])]
    return make_model(nodes, [(name, F32, (3,))], [(f"{name}2", F32, (3,))])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [HOSTILE[0], *(pytest.param(n, marks=pytest.mark.slow) for n in HOSTILE[1:])]
)
def test_names_break_out_of_nothing(name: str, tmp_path: Path) -> None:
    own = name if name.isidentifier() and name != "this" else "net"
    folder = compiled(tmp_path, hostile_model(name), own, step=True)
    header = next((folder / "include").glob("*.hpp")).stem
    text = f"""#include <cstdio>
#include <string>
#include "{header}.hpp"
int main()
{{
  float x[3] = {{-1, 0, 1}}, y[3];
  atc::{namespace(header)}::Network network;
  while (!network.step(x, y, 1)) {{}}
  return y[2] != 1;
}}
"""
    program = build(folder, text, "g++", "c++17", header)
    subprocess.run([program], check=True)
