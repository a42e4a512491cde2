"""The options that say what is written beside a library's C, and in what form."""

from __future__ import annotations

from atc.options.table.setting import Setting
from atc.options.values import choice, choices, size, switch

PRODUCTS: tuple[Setting, ...] = (
    Setting("selftest", "Output", "put inputs and the outputs that a reference computes of them "
            "into the library: <name>_selftest says whether a device computes the same, and which "
            "node is the first to differ", "0|1",
            switch, False, documentation="At most 2 KB; linkers leave it out where nobody calls "
            "it, <NAME>_NO_SELFTEST leaves it out of the sources."),
    Setting("starter", "Output", "write a program for the target beside the library: startup, "
            "linker scripts of boards, main and Makefile, which run under qemu as they are",
            "0|1", switch, False,
            documentation="For Cortex-M and RISC-V. make run prints selftest: ok."),
    Setting("wrappers", "Output", "write what other languages need beside the C: a C++ header "
            "(C++17; std::span in C++20), a Rust crate without std, an npm package with the "
            "network in WebAssembly, a Java class", "cpp,rust,js,java",
            choices("cpp", "rust", "js", "java"),
            documentation="js needs --target=wasm32-simd128."),
    Setting("wheel", "Output", "write the network as a wheel for pip, which needs numpy and cffi: "
            "dist/*.whl", "0|1", switch, False,
            documentation="Of the platform that the target's compiler builds for; import it by the "
            "network's name."),
    Setting("package", "Output", "write packages for systems of firmware: an Arduino library, a "
            "CMSIS-Pack, a component of ESP-IDF, a module of Zephyr",
            "arduino,cmsis-pack,esp-idf,zephyr",
            choices("arduino", "cmsis-pack", "esp-idf", "zephyr")),
    Setting("step", "Output", "let the library do a run in parts: <name>_step does some calls and "
            "returns, for loops with a watchdog", "0|1", switch, False),
    Setting("io", "Output", "where inputs and outputs lie: in the caller's memory, or in the "
            "arena, where other values take their room while they aren't needed", "caller|arena",
            choice(("caller", "arena")), "caller",
            documentation="<name>_input and <name>_output return the places. A run overwrites its "
            "inputs; it takes other memory, too."),
    Setting("input_type", "Output", "take inputs that the model quantizes at once as 8-bit "
            "integers of the same scale; of the other sign than the model's they are 128 more or "
            "less",
            "int8|uint8", choice(("", "int8", "uint8"))),
    Setting("max_ram", "Output", "most bytes of RAM (0: any): arena, context, inputs, outputs and "
            "what the linker puts there", "BYTES[K|M]", size, 0,
            documentation="Checked against the sections that come out, and held by the header, "
            "whose compiler refuses more. Layers run stripe by stripe where that lowers it, as "
            "they do for microcontrollers without being asked."),
    Setting("max_rom", "Output", "most bytes of ROM (0: any): code, tables and weights",
            "BYTES[K|M]", size, 0),
    Setting("max_stack", "Output", "most bytes of stack of a run (0: any)", "BYTES[K|M]", size, 0),
)  # fmt: skip
