"""The RP2040's second stage: its checksum, and its machine code beside an assembler's."""

from __future__ import annotations

import struct
import subprocess
import zlib
from pathlib import Path

from projects import require

from atc.starter.rp2040 import crc32_mpeg2, second_stage

SOURCE = """.syntax unified
.cpu cortex-m0plus
.thumb
.p2align 2
  ldr r3, ssi
  movs r1, #0
  str r1, [r3, #0x08]
  movs r1, #4
  str r1, [r3, #0x14]
  ldr r1, control
  str r1, [r3, #0x00]
  movs r1, #0
  str r1, [r3, #0x04]
  ldr r1, read
  ldr r0, spi_control
  str r1, [r0]
  movs r1, #1
  str r1, [r3, #0x08]
  ldr r0, vectors
  ldr r1, vtor
  str r0, [r1]
  ldm r0!, {r1, r2}
  msr msp, r1
  bx r2
  nop
ssi: .word 0x18000000
control: .word 0x001f0300
read: .word 0x03000218
spi_control: .word 0x180000f4
vectors: .word 0x10000100
vtor: .word 0xe000ed08
"""


def reflected(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def test_the_checksum_is_crc_32_mpeg_2() -> None:
    assert crc32_mpeg2(b"123456789") == 0x0376E6E7  # the catalogue's check value
    data = bytes(range(256)) * 3
    other = zlib.crc32(bytes(reflected(b, 8) for b in data)) ^ 0xFFFFFFFF
    assert crc32_mpeg2(data) == reflected(other, 32)


def test_the_second_stage_ends_in_its_checksum() -> None:
    words = second_stage()
    data = struct.pack("<64I", *words)
    assert len(words) == 64
    assert crc32_mpeg2(data[:252]) == words[-1]
    assert crc32_mpeg2(data[:252] + struct.pack(">I", words[-1])) == 0  # as the ROM may look


def test_its_machine_code_is_an_assemblers(tmp_path: Path) -> None:
    compiler, objcopy = require("arm-none-eabi-gcc"), require("arm-none-eabi-objcopy")
    (tmp_path / "a.S").write_text(SOURCE)
    subprocess.run([compiler, "-c", "a.S", "-o", "a.o"], cwd=tmp_path, check=True)
    subprocess.run([objcopy, "-O", "binary", "-j", ".text", "a.o", "a.bin"], cwd=tmp_path,
                   check=True)  # fmt: skip
    code = (tmp_path / "a.bin").read_bytes()
    assert struct.pack("<64I", *second_stage())[:252] == code + bytes(252 - len(code))
