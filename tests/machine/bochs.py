"""Runs programs on processors that this machine isn't, emulated by Bochs (3.0 or later).

Bochs knows CPUs with AMX (`sapphire_rapids`) and many older ones: `bochs --help cpu`. Nothing else
is needed: the machine's kernel is kernel.c, which offers as much of Linux as a static C program of
one thread asks for. `Write`, `Run` and `Read` go to it on a disk image, which takes the answers.

    export BOCHS=bochs   # Debian 13 or later: apt-get install bochs bochs-term bochsbios vgabios
    python tests/machine/bochs.py [--model=NAME] [--get=FILE] PROGRAM [ARGUMENTS...]

runs a program that was compiled as `FOR_MACHINE` says, with the files that its arguments name,
prints what it printed, writes the files that are to be got, and ends with its status. With BOCHS
set, all tests of kernels also run on the machine, and must give the same bits there.

Where the packages are unpacked into a folder (`apt-get download`, `dpkg -x`), BOCHS is a script
that sets LTDL_LIBRARY_PATH (the folder of plugins) and BXSHARE (that of the BIOS), and starts
bochs-bin by the folder's ld-linux-x86-64.so.2 with --library-path.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HERE = Path(__file__).parent
SECTOR, MANY = 512, 128
"""Bytes of a sector, and sectors that the kernel moves at once."""
ANSWERS_ROOM = 256 << 20
"""Bytes of the disk for answers; what isn't written takes no room in the file."""
KERNEL_AT, MEMORY = 0x200000, 1024
"""The kernel's address, and the machine's megabytes."""
DONE = 0x656E6F64
"""The status of the answer after the last."""

FOR_MACHINE = ("-static", "-no-pie", "-fno-pie", "-include", str(HERE / "faults.h"))
"""What a compiler must know about programs for the machine."""
MODELS = {
    "c99": "athlon64_clawhammer",
    "x86-64": "athlon64_clawhammer",
    "x86-64-sse2": "athlon64_clawhammer",
    "x86-64-avx2": "corei7_haswell_4770",
    "x86-64-avx2-vnni": "arrow_lake",
    "x86-64-avx512": "corei7_skylake_x",
    "x86-64-avx512-vnni": "corei7_icelake_u",
    "x86-64-avx512-bf16": "sapphire_rapids",
    "x86-64-amx": "sapphire_rapids",
}
"""By target the CPU that has least of those that Bochs knows and the target runs on."""

CONFIGURATION = """\
megs: {memory}
cpu: model={model}, count=1, ips=50000000, reset_on_triple_fault=0
clock: sync=none
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
display_library: term
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, path=disk, mode=flat, cylinders={cylinders}, heads=16, spt=63
boot: disk
log: log
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
"""


@dataclass(frozen=True)
class Write:
    """Put a file into the machine."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Run:
    """Run a static program, by its path; its folder is where all files lie."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Read:
    """Get a file out of the machine."""

    path: str


@dataclass(frozen=True)
class Answer:
    """What came of a Run or Read.

    status: a program's exit status, -n where signal n would have ended it; of a Read 0, or 1 if
    there is no such file. data: what was printed, errors too (at most 1 MB), or a file's content.
    """

    status: int
    data: bytes

    @property
    def text(self) -> str:
        """The data as text."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class Machine:
    """A Bochs program and what it emulates."""

    bochs: str
    model: str = "sapphire_rapids"

    def run(self, records: Sequence[Write | Run | Read], limit: float = 1800) -> list[Answer]:
        """Boot, carry out the records and return the answers to those that have one.

        Raises RuntimeError with the end of Bochs's log where it stops before the last record, or
        isn't done within `limit` seconds.
        """
        with tempfile.TemporaryDirectory(prefix="machine") as name:
            folder = Path(name)
            answers_at = _write_disk(self.model, records, folder)
            _start(self.bochs, folder, limit)
            with (folder / "disk").open("rb") as disk:
                disk.seek(answers_at)
                asked = [r for r in records if not isinstance(r, Write)]
                answers = [_answer(disk, isinstance(r, Run)) for r in asked]
                if _answer(disk, False).status == DONE:
                    return answers
            log = (folder / "log").read_text(errors="replace")
        raise RuntimeError(f"the emulated machine stopped early:\n{log[-4000:]}")


def find_machine(model: str = "sapphire_rapids") -> Machine | None:
    """Return a machine of the emulator that BOCHS names; None if it names none."""
    program = shutil.which(os.environ.get("BOCHS", "bochs"))
    return Machine(program, model) if program and "BOCHS" in os.environ else None


def _write_disk(model: str, records: Sequence[Write | Run | Read], folder: Path) -> int:
    """Write the disk image; return where in it the answers come."""
    kernel, boot = bytearray(_kernel(folder)), _boot_sector(folder)
    stream = b"".join(_record(r) for r in records) + struct.pack("<IIQ", 0, 0, 0)
    sectors = -(-len(kernel) // SECTOR)
    records_at = 1 + sectors
    answers_at = records_at + -(-len(stream) // SECTOR) + MANY
    struct.pack_into("<II", kernel, kernel.index(b"clap") + 4, records_at, answers_at)
    sector = boot + struct.pack("<IIIIII", 1, sectors, KERNEL_AT, 0, 0, 0)
    assert len(sector) <= 510, len(sector)
    cylinders = -(-(answers_at * SECTOR + ANSWERS_ROOM) // (16 * 63 * SECTOR))
    with (folder / "disk").open("wb") as disk:
        disk.write(sector.ljust(510, b"\0") + b"\x55\xaa" + kernel)
        disk.seek(records_at * SECTOR)
        disk.write(stream)
        disk.truncate(cylinders * 16 * 63 * SECTOR)
    configuration = CONFIGURATION.format(memory=MEMORY, model=model, cylinders=cylinders)
    (folder / "bochsrc").write_text(configuration)
    return answers_at * SECTOR


def _kernel(folder: Path) -> bytes:
    """Return the kernel as it lies in memory."""
    flags = ["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic"]
    flags += ["-no-pie", "-mno-red-zone", "-mgeneral-regs-only", "-fno-stack-protector"]
    flags += ["-fcf-protection=none", "-fno-tree-loop-distribute-patterns", "-nostdlib"]
    flags += [f"-Wl,--build-id=none,--section-start=.start={KERNEL_AT:#x}"]
    flags += [f"-Wl,-Ttext={KERNEL_AT + 4096:#x},-e,start"]
    sources = [str(HERE / name) for name in ("start.S", "kernel.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", "kernel.elf"], cwd=folder, check=True)
    command = ["objcopy", "-O", "binary", "kernel.elf", "kernel"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "kernel").read_bytes()


def _boot_sector(folder: Path) -> bytes:
    """Return the code of the first sector."""
    flags = ["-m16", "-nostdlib", "-Wl,--oformat=binary,--build-id=none,-Ttext=0x7c00,-e,start"]
    command = ["gcc", *flags, str(HERE / "boot.S"), "-o", "boot"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "boot").read_bytes()


def _start(program: str, folder: Path, limit: float) -> None:
    """Run Bochs until the machine is off, on a terminal that nobody sees."""
    master, slave = pty.openpty()
    threading.Thread(target=_drain, args=(master,), daemon=True).start()
    try:
        # without a keyboard: it would wait a millisecond each time that it asks for keys
        subprocess.run(
            [program, "-q", "-f", "bochsrc"], cwd=folder, stdin=subprocess.DEVNULL, stdout=slave,
            stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}, timeout=limit,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pass
    finally:
        os.close(slave)


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # the other end is closed
        os.close(terminal)


def _record(record: Write | Run | Read) -> bytes:
    match record:
        case Write(path, data):
            return _head(1, path.encode(), len(data)) + data
        case Run(arguments):
            return _head(2, b"".join(word.encode() + b"\0" for word in arguments), 0)
        case Read(path):
            return _head(3, path.encode(), 0)


def _head(kind: int, words: bytes, size: int) -> bytes:
    return struct.pack("<IIQ", kind, len(words), size) + words


def _answer(disk: BinaryIO, ran: bool) -> Answer:
    status, _, size = struct.unpack("<IIQ", disk.read(16))
    if size > ANSWERS_ROOM:
        return Answer(-1, b"")
    return Answer(os.waitstatus_to_exitcode(status) if ran else status, disk.read(size))


def main() -> int:
    """Run the program of the command line; return its status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="sapphire_rapids", help="see bochs --help cpu")
    parser.add_argument("--file", action="append", default=[], help="to have in the machine, too")
    parser.add_argument("--get", action="append", default=[], type=Path, help="to write here")
    parser.add_argument("program", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    machine = find_machine(options.model)
    if machine is None:
        parser.error("BOCHS names no emulator")
    records: list[Write | Run | Read] = [
        Write(word, Path(word).read_bytes())
        for word in dict.fromkeys((str(options.program), *options.arguments, *options.file))
        if Path(word).is_file()
    ]
    records += [Run((str(options.program), *options.arguments))]
    records += [Read(str(path)) for path in options.get]
    ran, *got = machine.run(records)
    for path, answer in zip(options.get, got, strict=True):
        path.write_bytes(answer.data)
    print(ran.text, end="")
    return ran.status


if __name__ == "__main__":
    sys.exit(main())
