"""The Java class: compiled by javac without a warning, with its library, and run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, reference, require, typed_model

import atc
from atc.errors import OptionError

X = np.linspace(-1, 1, 10, dtype=np.float32)

pytestmark = pytest.mark.slow


def compiled(folder: Path, model: onnx.ModelProto, name: str = "net", **options: object) -> Path:
    onnx.save(model, folder / "model.onnx")
    done = atc.compile(folder / "model.onnx", folder / name, target="c99", wrappers="java",
                       **options)  # type: ignore[arg-type] # fmt: skip
    return done.folder


def java(folder: Path, body: str, name: str = "net") -> str:
    """Build the class, its library and a program whose main has a `network`; return its output."""
    javac = Path(os.path.realpath(require("javac")))
    home, place = javac.parents[1], folder / "java"
    library = place / f"lib{name}_jni.so"
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC",
         f"-I{home}/include", f"-I{home}/include/linux", "-I../include", f"{name}_jni.c",
         f"../lib{name}.a", "-lm", "-o", str(library)],
        cwd=place, check=True,
    )  # fmt: skip
    (place / "Main.java").write_text(
        f"import atc_{name}.Network;\npublic class Main {{\n"
        f"  public static void main(String[] words) {{\n"
        f"    try (Network network = new Network()) {{\n{body}\n    }}\n  }}\n}}\n"
    )
    sources = ["Main.java", f"atc_{name}/Network.java"]
    subprocess.run([str(javac), "-Xlint:all,-try", "-Werror", *sources], cwd=place, check=True)
    done = subprocess.run(
        [require("java"), "-Xcheck:jni", f"-Djava.library.path={place}", "-cp", str(place), "Main"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING in native" not in done.stdout + done.stderr
    return done.stdout


def test_it_computes_what_the_model_does(tmp_path: Path) -> None:
    values = ", ".join(f"{v:.9e}f" for v in X)
    printed = java(compiled(tmp_path, affine_model()), f"""
      float[] x = {{{values}}}, y = new float[6], hidden = new float[16];
      network.run(x, y, hidden);
      for (float each : y) System.out.println(each);
      for (float each : hidden) System.out.println(each);
""")
    wanted = np.concatenate([w.ravel() for w in reference(affine_model(), X.reshape(2, 5))])
    np.testing.assert_allclose([*map(float, printed.split())], wanted, rtol=1e-5)


def test_misuse_is_thrown(tmp_path: Path) -> None:
    printed = java(compiled(tmp_path, affine_model()), """
      float[] x = new float[10], y = new float[6], hidden = new float[16];
      try {
        network.run(new float[9], y, hidden);
      } catch (IllegalArgumentException error) {
        System.out.println(error.getMessage());
      }
      try (Network other = new Network()) {
        other.run(x, y, hidden);
        other.close();
        other.run(x, y, hidden);
      } catch (IllegalStateException error) {
        System.out.println(error.getMessage());
      }
""")
    assert printed.splitlines() == ["x has 9 elements, not 10", "the network is closed"]


def test_every_element_type_has_an_array(tmp_path: Path) -> None:
    printed = java(compiled(tmp_path, typed_model()), """
      short[] h = new short[3], b = new short[3], h2 = new short[3], b2 = new short[3];
      double[] d = {-1, 2, 3}, other = {0, 0, 0}, d2 = new double[3];
      byte[] i = {-7, 8, 9}, i2 = new byte[3];
      long[] u = {1, 2, 3}, n = {-1, 5, 6}, u2 = new long[3], n2 = new long[3];
      boolean[] flag = new boolean[3];
      network.run(h, b, d, i, u, n, other, h2, b2, d2, i2, u2, n2, flag);
      System.out.println(d2[0] + " " + i2[0] + " " + u2[1] + " " + n2[0] + " " + flag[0]
          + flag[1]);
""")
    assert printed.split() == ["1.0", "7", "2", "1", "falsetrue"]


def test_a_state_is_carried_and_reset(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "s"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
    model = make_model(nodes, [("x", F32, (2,)), ("s", F32, (2,))],
                       [("y", F32, (2,)), ("t", F32, (2,))])  # fmt: skip
    printed = java(compiled(tmp_path, model, state="s:t"), """
      float[] x = {1, 2}, y = new float[2];
      for (int k = 0; k < 3; k++) {
        if (k == 2) network.reset();
        network.run(x, y);
        System.out.println(y[0]);
      }
""")
    assert printed.split() == ["1.0", "2.0", "1.0"]


@pytest.mark.parametrize(
    ("tensor", "network"),
    [("\\u002a/ class X {", "net"), ('"\n*/ x', "int_net"), ("int", "class"), ("check", "a__b_")],
)
def test_names_break_out_of_nothing(tensor: str, network: str, tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", [tensor], ["y"])], [(tensor, F32, (2,))],
                       [("y", F32, (2,))])  # fmt: skip
    folder = compiled(tmp_path, model, network)
    name = next((folder / "include").glob("*.h")).stem
    printed = java(folder, """
      float[] x = {-1, 2}, y = new float[2];
      network.run(x, y);
      System.out.println(y[0] + " " + y[1]);
""", name)
    assert printed == "0.0 2.0\n"


@pytest.mark.parametrize(
    ("options", "reported"),
    [({"target": "cortex-m4f"}, "needs an operating system"),
     ({"external_weight": 2, "target": "c99"}, "weights beside the library")],
)  # fmt: skip
def test_what_has_no_class_is_refused(
    options: dict[str, object], reported: str, tmp_path: Path
) -> None:
    onnx.save(affine_model(), tmp_path / "model.onnx")
    with pytest.raises(OptionError, match=reported):
        atc.compile(tmp_path / "model.onnx", tmp_path / "net", wrappers="java", **options)  # type: ignore[arg-type]
