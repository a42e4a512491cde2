"""The files of a starter: a program for a board, which its Makefile builds and runs."""

from __future__ import annotations

from atc.backends.target import Target
from atc.codegen.template_values import TemplateValues
from atc.starter.boards import Board, boards_of
from atc.templates import render, verbatim

STARTUP = ("startup.c", "semihosting.c", "board.h", "sections.ld")
"""What every program for a board is made of."""
IN_NODE = ("files.c", "board.h", "wasi.mjs")
"""What a program for Node.js is made of."""
SERIAL = ("uart.c", "uart.h")
"""What a program that answers over a serial line is made of besides."""


def starter_texts(interface: TemplateValues, target: Target) -> dict[str, str]:
    """Return the folder `starter/` of a project; `interface` is its emission's."""
    boards = boards_of(target)
    values = {
        **interface.values(), "compiler": target.compiler, "boards": boards,
        "cflags": (*target.compiler_words, *target.cflags),
    }  # fmt: skip
    if target.arch == "wasm32":
        return {
            "starter/Makefile": render("starter/Makefile_node.j2", values),
            "starter/main.c": render("starter/main.c.j2", values),
            **{f"starter/{file}": verbatim(f"starter/{file}") for file in IN_NODE},
        }
    values |= {
        "link_flags": target.link_flags, "libraries": target.libraries, "qemu": target.runner,
        "qemu_serial": _with_line(target.runner),
    }  # fmt: skip
    return {
        "starter/Makefile": render("starter/Makefile.j2", values),
        "starter/main.c": render("starter/main.c.j2", values),
        "starter/serial.c": render("starter/serial.c.j2", values),
        **{f"starter/{file}": text for file, text in startup_texts(target).items()},
        **{f"starter/{file}": verbatim(f"starter/{file}") for file in SERIAL},
        **{f"starter/boards/{b.name}.ld": board_text(b) for b in boards},
    }


def _with_line(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return qemu's command line with a terminal as the board's serial line."""
    at = words.index("-serial") + 1
    return (*words[:at], "pty", *words[at + 1 :])


def startup_texts(target: Target) -> dict[str, str]:
    """Return the files that bring a core from its reset to main, less the linker script."""
    own = {"startup.c": "startup_riscv.c"} if target.arch == "riscv32" else {}
    return {file: verbatim(f"starter/{own.get(file, file)}") for file in STARTUP}


def board_text(board: Board) -> str:
    """Return the linker script of a board."""
    return render("starter/board.ld.j2", {**vars(board)})


def run_texts(values: dict[str, object], target: Target) -> dict[str, str]:
    """Return the sources of a program that runs a network once, on files."""
    texts = {"run.c": render("starter/run.c.j2", values)}
    if not target.is_microcontroller:
        own = ("files.c", "board.h")
        return {**texts, **{file: verbatim(f"starter/{file}") for file in own}}
    return {
        **texts, **startup_texts(target),
        "board.ld": board_text(boards_of(target)[0]),
    }  # fmt: skip
