"""`atc verify --runner=serial:DEVICE`: the starter's serial program at the other end of a line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from projects import affine_model, require

import atc
from atc.backends.targets import get_target
from atc.cli.main import main
from atc.devices.network import Device, DeviceNetwork
from atc.devices.serial_line import SerialLine, Span, line_of, open_line, run_over
from atc.errors import OptionError, ToolchainError

ROOT = Path(__file__).parents[2]
UART = """#include "uart.h"
#include <stdlib.h>
#include <unistd.h>
static unsigned long count;
void uart_open(void) {}
unsigned char uart_read(void)
{
  unsigned char byte;
  if (read(0, &byte, 1) != 1) exit(0);
  return ++count % NOISE == NOISE - 1 ? (unsigned char)(byte ^ 0x10) : byte;
}
void uart_write(unsigned char byte) { if (write(1, &byte, 1) != 1) exit(1); }
"""
"""A line of this machine, which damages one byte of so many."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a starter for a Cortex-M, whose serial program other tests build for this machine."""
    require("arm-none-eabi-gcc")
    place = tmp_path_factory.mktemp("serial")
    onnx.save(affine_model(), place / "affine.onnx")
    return atc.compile(
        place / "affine.onnx", place / "net", target="cortex-m4f", starter=True
    ).folder


@contextmanager
def board(folder: Path, place: Path, noise: int = 1 << 30) -> Iterator[str]:
    """Yield the device of a terminal behind which a folder's serial program runs."""
    (place / "uart.c").write_text(UART)
    words = [require("cc"), "-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
             f"-DNOISE={noise}ul", "-D_POSIX_C_SOURCE=200809L"]  # fmt: skip
    folders = ["-Istarter", "-Iinclude", "-I."]
    sources = ["starter/serial.c", str(place / "uart.c"), *map(str, folder.glob("src/**/*.c"))]
    weights = [w for w in ("net_weights.S",) if (folder / w).exists()]
    program = [*words, *folders, *sources, *weights, "-lm", "-o", str(place / "serial")]
    subprocess.run(program, cwd=folder, check=True)
    with ExitStack() as stack:
        near, far = os.openpty()
        stack.callback(os.close, far)
        stack.callback(os.close, near)
        name = os.ttyname(far)
        with open_line(name):  # raw from the beginning: nothing is echoed
            pass
        process = subprocess.Popen([str(place / "serial")], stdin=near, stdout=near)
        try:
            yield name
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_outputs_come_over_the_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder.parent / "affine.onnx"
    with board(folder, tmp_path) as device:
        words = ["verify", str(folder), f"--model={model}", f"--runner=serial:{device}"]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "2 of 2 outputs agree" in said
        assert "rmse" in said
        assert any(line.startswith("activation") for line in said.splitlines())  # node by node
        other = tmp_path / "other.onnx"
        onnx.save(affine_model(seed=1), other)
        assert main(["verify", str(folder), f"--model={other}", *words[3:]]) != 0


@pytest.mark.slow
def test_damaged_bytes_are_asked_for_again(folder: Path, tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    net = DeviceNetwork(folder, Device(get_target("cortex-m4f"), "serial:"), {})
    sizes = [int(np.prod(t.shape)) * t.dtype.itemsize for t in net.outputs]
    found = []
    for noise in (1 << 30, 90):
        place = tmp_path / str(noise)
        place.mkdir()
        with board(folder, place, noise) as device, open_line(device) as line:
            patient = replace(line, tries=20, patience=0.5)
            spans = [Span(0, 0, 0, 16)]
            found.append(run_over(patient, lambda _: True, [[x.tobytes()]], sizes, spans))
    assert found[0] == found[1]
    assert all(any(data) for data in found[0][0][0])


class Impatient(SerialLine):
    """A line whose first request is sent twice, as if its answer came late: others follow late."""

    again = True

    def _write(self, data: bytes) -> None:
        super()._write(data + data if self.again else data)
        self.again = False

    def _drain(self) -> None:
        """Drop nothing: what is late comes after that."""


@pytest.mark.slow
def test_an_answer_to_another_request_is_not_taken(folder: Path, tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    net = DeviceNetwork(folder, Device(get_target("cortex-m4f"), "serial:"), {})
    sizes = [int(np.prod(t.shape)) * t.dtype.itemsize for t in net.outputs]
    spans = [Span(0, 0, at, 8) for at in range(0, 32, 8)]
    found = []
    for kind in (SerialLine, Impatient):
        with board(folder, tmp_path) as device, open_line(device) as line:
            own = kind(line.descriptor, line.name, line.baud, tries=20)
            found.append(run_over(own, lambda _: True, [[x.tobytes()]], sizes, spans))
    assert found[0] == found[1]


@pytest.mark.slow
def test_another_network_is_refused(folder: Path, tmp_path: Path) -> None:
    onnx.save(affine_model(seed=2), tmp_path / "a.onnx")
    require("arm-none-eabi-gcc")
    other = atc.compile(tmp_path / "a.onnx", tmp_path / "net", target="cortex-m4f").folder
    with board(folder, tmp_path) as device:
        net = DeviceNetwork(other, Device(get_target("cortex-m4f"), f"serial:{device}"), {})
        with pytest.raises(ToolchainError, match="another network answers"):
            net.run({"x": np.zeros((2, 5), np.float32)})


def test_a_silent_line_is_reported() -> None:
    near, far = os.openpty()
    with open_line(os.ttyname(far)) as line, pytest.raises(ToolchainError, match="nothing answers"):
        run_over(replace(line, patience=0.01), lambda _: True, [[bytes(40)]], [40])
    os.close(near)
    os.close(far)


@pytest.mark.parametrize(
    ("text", "line"),
    [("/dev/ttyACM0", ("/dev/ttyACM0", 115200)), ("/dev/ttyS1:9600", ("/dev/ttyS1", 9600)),
     ("/dev/by:path", ("/dev/by:path", 115200))],
)  # fmt: skip
def test_lines_have_a_speed(text: str, line: tuple[str, int]) -> None:
    assert line_of(text) == line


def test_what_is_no_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for text, said in (
        ("/dev/ttyS0:0", "not a serial line"), (f"{tmp_path}/none", "can't be opened"),
        (f"{tmp_path}/file", "not a serial line"), (f"{tmp_path}/file:7", "not a speed"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=said), open_line(text):
            pass


@contextmanager
def qemus_board(folder: Path) -> Iterator[str]:
    """Yield the terminal of qemu's board, which runs a folder's serial program."""
    make = ["make", "-s", "-C", str(folder / "starter")]
    subprocess.run([*make, "serial"], check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        [*make, "run-serial"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield next(m[1] for line in process.stdout if (m := re.search(r"(/dev/pts/\d+)", line)))
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f", "cortex-m33", "cortex-m55"])
def test_qemus_boards_answer(target: str, tmp_path: Path) -> None:
    for tool in ("make", "arm-none-eabi-gcc", "qemu-system-arm"):
        require(tool)
    model = ROOT / "samples/keywords.onnx"
    made = atc.compile(model, tmp_path / "net", target=target, starter=True).folder
    with qemus_board(made) as device:
        words = ["verify", str(made), f"--model={model}", f"--runner=serial:{device}"]
        assert main(words) == 0
