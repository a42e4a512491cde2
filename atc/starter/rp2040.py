"""The first 256 bytes of an RP2040's flash: a program that lets the core run from flash.

The boot ROM copies them to RAM, checks the CRC in the last four, and runs them (data sheet, 2.8.1).
The program sets the SSI up to read with command 03h, which any flash chip knows (4.10), and goes on
with the vectors behind itself.
"""

from __future__ import annotations

import struct

SIZE = 256
_SSI, _VECTORS, _VTOR = 0x18000000, 0x10000100, 0xE000ED08
_SSIENR, _BAUDR, _CTRLR0, _CTRLR1, _SPI_CTRLR0 = 0x08, 0x14, 0x00, 0x04, 0xF4
_EEPROM_READ = 31 << 16 | 3 << 8
"""CTRLR0: words of 32 bits over one line, an address first and then nothing but data."""
_READ_03H = 0x03 << 24 | 2 << 8 | 6 << 2
"""SPI_CTRLR0: a command of 8 bits, 03h, and an address of 24."""


def second_stage() -> tuple[int, ...]:
    """Return the 64 words, the CRC the last of them."""
    code = _program()
    padded = code + bytes(SIZE - 4 - len(code))
    return struct.unpack(f"<{SIZE // 4}I", padded + struct.pack("<I", crc32_mpeg2(padded)))


def crc32_mpeg2(data: bytes) -> int:
    """Return the CRC-32 that the boot ROM computes: 04C11DB7h, from all ones, nothing reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def _program() -> bytes:
    """Return the machine code: Thumb instructions and the constants that they read."""
    constants = (_SSI, _EEPROM_READ, _READ_03H, _SSI + _SPI_CTRLR0, _VECTORS, _VTOR)
    halfwords: list[int] = []
    size = 44  # bytes of instructions, a multiple of 4

    def load(register: int, constant: int) -> None:
        here = 2 * len(halfwords)
        place = size + 4 * constants.index(constant)
        halfwords.append(0x4800 | register << 8 | (place - (here + 4 & ~3)) // 4)

    def move(register: int, value: int) -> None:
        halfwords.append(0x2000 | register << 8 | value)

    def store(register: int, base: int, offset: int) -> None:
        halfwords.append(0x6000 | offset // 4 << 6 | base << 3 | register)

    load(3, _SSI)
    for value, offset in ((0, _SSIENR), (4, _BAUDR)):  # off; a quarter of the system's clock
        move(1, value)
        store(1, 3, offset)
    load(1, _EEPROM_READ)
    store(1, 3, _CTRLR0)
    move(1, 0)
    store(1, 3, _CTRLR1)  # one word at a time
    load(1, _READ_03H)
    load(0, _SSI + _SPI_CTRLR0)
    store(1, 0, 0)
    move(1, 1)
    store(1, 3, _SSIENR)
    load(0, _VECTORS)
    load(1, _VTOR)
    store(0, 1, 0)
    halfwords += [0xC806, 0xF381, 0x8808, 0x4710]  # ldm r0!, {r1, r2}; msr msp, r1; bx r2
    halfwords += [0x46C0] * (size // 2 - len(halfwords))  # nop
    return struct.pack(f"<{len(halfwords)}H", *halfwords) + struct.pack("<6I", *constants)
