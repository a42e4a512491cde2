"""`--step`: a run in parts gives the bits of a whole one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, require

import atc
from atc.errors import OptionError

USE = r"""
#include <stdio.h>
#include <string.h>
#include "net.h"
#define CHECK(condition) if (!(condition)) { puts(#condition); return 1; }
static net_arena arena;
int main(void)
{
  net_context ctx;
  float x[10] = {1, -2, 3, 4, -5, 6, 7, 8, -9, 10}, y[6], hidden[16], again[6], other[16];
  size_t parts = 0;
  int status;
  CHECK(net_init(&ctx, &arena, sizeof arena) == NET_OK)
  CHECK(net_run(&ctx, x, y, hidden) == NET_OK)
  for (size_t budget = 1; budget < 9; budget++) {
    memset(again, 0, sizeof again);
    memset(other, 0, sizeof other);
    memset(&arena, 0xff, sizeof arena);
    for (parts = 1; (status = net_step(&ctx, x, again, other, budget)) == NET_MORE; parts++) {
    }
    CHECK(status == NET_OK)
    CHECK(budget > 1 || parts > 1)
    CHECK(memcmp(y, again, sizeof y) == 0 && memcmp(hidden, other, sizeof hidden) == 0)
  }
  CHECK(net_step(&ctx, x, again, other, 0) == NET_MORE)
  CHECK(net_step(&ctx, x, again, other, 1) == NET_MORE)
  CHECK(net_step(&ctx, x, NULL, other, 1) == NET_ERROR_ARGUMENT)
  CHECK(net_step(NULL, x, again, other, 1) == NET_ERROR_ARGUMENT)
  CHECK(net_run(&ctx, x, again, other) == NET_OK) /* begins anew */
  CHECK(memcmp(y, again, sizeof y) == 0)
  CHECK(net_step(&ctx, x, again, other, 1) == NET_MORE)
  return 0;
}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
def test_parts_give_the_bits_of_a_whole_run(target: str, tmp_path: Path) -> None:
    onnx.save(affine_model(), tmp_path / "m.onnx")
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target, step=True)
    folder = done.folder
    (folder / "use.c").write_text(USE)
    command = [require("gcc"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
               "-Iinclude", "use.c", "libnet.a", "-lm", "-o", "use"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run(["./use"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "options", [{"num_threads": 2}, {"profile": True}, {"input_shape": "x:1~4,3"}]
)
def test_runs_without_parts_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([relu], [("x", F32, ("n", 3))], [("y", F32, ("n", 3))]), tmp_path / "m")
    given = {"input_shape": "x:2,3", **options}
    with pytest.raises(OptionError, match="--step and .* can't be combined"):
        atc.compile(tmp_path / "m", tmp_path / "net", step=True, **given)  # type: ignore[arg-type]
