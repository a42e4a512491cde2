"""Boards of microcontrollers: the memory that a program may use, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.target import Target
from atc.errors import OptionError
from atc.starter.rp2040 import second_stage


@dataclass(frozen=True)
class Board:
    """A board: where its flash and its RAM lie, in bytes; `openocd` are OpenOCD's scripts.

    A board without those is qemu's. `boot` are words that a boot ROM looks for, behind the vectors,
    `stage` those that it runs or looks for, before them.
    """

    name: str
    title: str
    flash: int
    flash_size: int
    ram: int
    ram_size: int
    openocd: str = ""
    boot: tuple[int, ...] = ()
    stage: tuple[int, ...] = ()
    uart: int = 0
    """Where the first UART of qemu's boards is."""
    constants: int = 0
    """Where data of the flash are read, if that isn't where its code is run."""
    chip: str = ""
    """What its startup code needs to know, a macro."""
    write: str = "program $(1) verify"
    """OpenOCD's command that writes the program $(1), in Make's words."""


_K, _M = 1 << 10, 1 << 20
_STLINK, _JLINK = "-f interface/stlink.cfg", "-f interface/jlink.cfg -c 'transport select swd'"

# Arm's application notes of the images, and qemu's hw/arm/mps2.c, mps2-tz.c, mps3r.c.
_MPS2 = Board("mps2-an385", "Arm MPS2+ with AN385 (Cortex-M3)", 0, 4 * _M, 0x20000000, 4 * _M,
              uart=0x40004000)  # fmt: skip
_MPS3 = Board("mps3-an547", "Arm MPS3 with AN547 (Cortex-M55)",
              0, 512 * _K, 0x20000000, 512 * _K, uart=0x59303000)  # fmt: skip

# Its memory is all RAM, programs begin where that does: hw/riscv/virt.c.
_VIRT = Board("virt", "qemu's virt (RV32)", 0x80000000, 4 * _M, 0x80400000, 4 * _M)

_CMSIS_DAP = "-f interface/cmsis-dap.cfg -c 'adapter speed 5000'"
_IMAGE_DEF = (0xFFFFDED3, 0x10210142, 0x000001FF, 0x00000000, 0xAB123579)
"""RP2350's smallest block that says: a secure program for its Arm cores, which begins here."""

_DIRECT_BOOT = (0xAEDB041D, 0xAEDB041D)
"""ESP32-C3's boot ROM then maps the flash and goes on behind these words."""

# Data sheets: STM32F446xC/E (DS10693), STM32H742/743 (DS12110), nRF52840 (4413_417), STM32L552,
# RP2040 (2.6 on memory; Pico has 2 MB of flash),
# RP2350 (5.1 on the boot ROM, 5.9.5 on blocks; Pico 2 has 4 MB of flash),
# ESP32-C3 (manual, 3.3 on memory, 7 on booting; 320 KB of RAM for data; 4 MB of flash are mapped).
BOARDS: dict[str, tuple[Board, ...]] = {
    "cortex-m0plus": (
        _MPS2,
        Board("pico", "Raspberry Pi Pico (RP2040)", 0x10000000, 2 * _M, 0x20000000, 264 * _K,
              f"{_CMSIS_DAP} -f target/rp2040.cfg", stage=second_stage()),
    ),
    "cortex-m3": (_MPS2,),
    "cortex-m4f": (
        Board("mps2-an386", "Arm MPS2+ with AN386 (Cortex-M4F)", 0, 4 * _M, 0x20000000, 4 * _M,
              uart=0x40004000),
        Board("nucleo-f446re", "ST Nucleo-F446RE", 0x08000000, 512 * _K, 0x20000000, 128 * _K,
              f"{_STLINK} -f target/stm32f4x.cfg"),
        Board("nrf52840-dk", "Nordic nRF52840 DK", 0, 1024 * _K, 0x20000000, 256 * _K,
              f"{_JLINK} -f target/nrf52.cfg"),
    ),
    "cortex-m7": (
        Board("mps2-an500", "Arm MPS2+ with AN500 (Cortex-M7)", 0, 4 * _M, 0x20000000, 4 * _M,
              uart=0x40004000),
        Board("nucleo-h743zi", "ST Nucleo-H743ZI", 0x08000000, 2 * _M, 0x24000000, 512 * _K,
              f"{_STLINK} -f target/stm32h7x.cfg"),
    ),
    "cortex-m33": (
        Board("mps2-an505", "Arm MPS2+ with AN505 (Cortex-M33)",
              0x10000000, 4 * _M, 0x38000000, 4 * _M, uart=0x50200000),
        Board("nucleo-l552ze", "ST Nucleo-L552ZE-Q", 0x08000000, 512 * _K, 0x20000000, 192 * _K,
              f"{_STLINK} -f target/stm32l5x.cfg"),
        Board("pico2", "Raspberry Pi Pico 2 (RP2350)", 0x10000000, 4 * _M, 0x20000000, 512 * _K,
              f"{_CMSIS_DAP} -f target/rp2350.cfg", _IMAGE_DEF),
    ),
    "cortex-m55": (_MPS3,),
    "cortex-m85": (_MPS3,),
    "riscv32": (
        _VIRT,
        Board("esp32-c3", "boards with ESP32-C3 (from revision 3 on)",
              0x42000000, 4 * _M, 0x3FC80000, 320 * _K, "-f board/esp32c3-builtin.cfg",
              stage=_DIRECT_BOOT, constants=0x3C000000, chip="ESP32C3",
              write="program_esp $(1:.elf=.bin) 0x0 verify"),
    ),
    "riscv32-rvv": (_VIRT,),
    # No board: it has as much memory as there is, and files.
    "wasm32-simd128": (Board("node", "Node.js", 0, 0, 0, 0),),
}  # fmt: skip
"""Each target's boards, the one that qemu imitates first."""


def boards_of(target: Target) -> tuple[Board, ...]:
    """Return a target's boards; OptionError where there is no starter for it."""
    if target.name not in BOARDS:
        raise OptionError(
            f"there is no starter for {target.name}; there are ones for {', '.join(BOARDS)}",
            where="--starter",
        )
    return BOARDS[target.name]
