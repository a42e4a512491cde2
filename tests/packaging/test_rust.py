"""The Rust crate: its declarations against the header's, and a program that cargo builds of it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, reference, require, typed_model

import atc
from atc.errors import OptionError

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
TYPES = {"float": "f32", "double": "f64", "bool": "bool", "int8_t": "i8", "uint16_t": "u16",
         "int64_t": "i64", "uint64_t": "u64", "void": "c_void", "size_t": "usize",
         "net_context": "c_void"}  # fmt: skip
"""C's types of the header below and Rust's."""


def compiled(folder: Path, model: onnx.ModelProto, **options: object) -> Path:
    onnx.save(model, folder / "model.onnx")
    return atc.compile(
        folder / "model.onnx", folder / "net", target="c99", wrappers="rust", **options
    ).folder  # type: ignore[arg-type]


def in_c(header: str, function: str) -> list[tuple[str, str]]:
    """Return the parameters of a function: whether it's const or a value, and the type."""
    (found,) = re.findall(rf"int net_{function}\((.*?)\);", header, re.S)
    found = re.sub(r"/\*.*?\*/", "", found, flags=re.S)
    parts = [re.fullmatch(r"(const )?(\w+) (\*?)\w+", p.strip()) for p in found.split(",")]
    assert all(parts)
    return [
        ("value" if not p[3] else "const" if p[1] else "mut", TYPES[p[2]]) for p in parts if p
    ]


def in_rust(crate: str, function: str) -> list[tuple[str, str]]:
    (found,) = re.findall(rf"pub fn {function}\(\n(.*?)\) -> c_int;", crate, re.S)
    types = re.findall(r"\w+: (?:\*(const|mut) )?(\w+),", found)
    return [(kind or "value", element) for kind, element in types]


def test_what_it_declares_is_what_the_header_declares(tmp_path: Path) -> None:
    folder = compiled(tmp_path, typed_model(), step=True)
    header = (folder / "include/net.h").read_text()
    crate = (folder / "rust/src/lib.rs").read_text()
    for function in ("init", "run", "step"):
        assert in_rust(crate, function) == in_c(header, function)
    (size,) = re.findall(r"#define NET_ARENA_SIZE (\d+)", header)
    assert f"ARENA_SIZE: usize = {size};" in crate


def cargo_run(folder: Path, main: str, more: str = "") -> str:
    """Build a program with the crate of a network, without a warning, and return what it prints.

    `more` is added to its manifest.
    """
    cargo = require("cargo")
    (folder / "src").mkdir()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "user"\nversion = "0.1.0"\nedition = "2021"\n'
        f'[dependencies]\natc_net = {{ path = "net/rust" }}\n{more}'
    )
    (folder / "src/main.rs").write_text(main)
    done = subprocess.run(
        [cargo, "run", "--offline", "--quiet"], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "RUSTFLAGS": "-Dwarnings"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_runs_it(tmp_path: Path) -> None:
    compiled(tmp_path, affine_model(), step=True)
    printed = cargo_run(tmp_path, """
use atc_net::{Arena, Error, Network};
static X: [f32; 10] = [VALUES];
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arena = Arena::new();
    let network = Network::new(&mut arena)?;
    let (mut y, mut hidden, mut again) = ([0f32; 6], [0f32; 16], [0f32; 6]);
    let mut moved = std::thread::spawn(|| 0).join().map(|_| Box::new(network)).unwrap();
    moved.run(&X, &mut y, &mut hidden)?;
    while !moved.step(&X, &mut again, &mut hidden, 1)? {}
    assert_eq!(y, again);
    assert!(!Error(-1).to_string().is_empty());
    for each in y {
        println!("{each}");
    }
    Ok(())
}
""".replace("VALUES", ", ".join(f"{v:.9e}" for v in X.ravel())))
    wanted = reference(affine_model(), X)[0].ravel()
    np.testing.assert_allclose([*map(float, printed.split())], wanted, rtol=1e-5)


def windows_model(count: int) -> onnx.ModelProto:
    """Return a network of states that hold the last two frames each; y is the sum of all."""
    names = [f"cache{k}" for k in range(count)]
    lines = [
        f"w{k} = Concat<axis = 1>(cache{k}, x)\nnew_cache{k} = Slice(w{k}, one, end, one)\n"
        f"s{k} = ReduceSum(w{k}, one)" for k in range(count)
    ]  # fmt: skip
    inputs = ", ".join(f"float[3, 2] {name}" for name in names)
    outputs = ", ".join(f"float[3, 2] new_{name}" for name in names)
    body = "\n".join([*lines, f"y = Sum({', '.join(f's{k}' for k in range(count))})"])
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[3, 1] x, {inputs}) => '
        f"(float[3, 1] y, {outputs}) <int64[1] one = {{1}}, int64[1] end = {{9}}> {{ {body} }}"
    )


@pytest.mark.slow
def test_a_network_of_many_states_has_a_context_that_is_large_enough(tmp_path: Path) -> None:
    compiled(tmp_path, windows_model(12), state="auto", build_config=f"{require('gcc')} -O0")
    printed = cargo_run(tmp_path, """
use atc_net::{Arena, Network};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arena = Arena::new();
    let mut network = Network::new(&mut arena)?;
    for k in 1..8 {
        let mut y = [0f32; 3];
        network.run(&[k as f32; 3], &mut y)?;
        println!("{}", y[2]);
    }
    Ok(())
}
""")
    sums = [12 * (k + max(k - 1, 0) + max(k - 2, 0)) for k in range(1, 8)]
    assert [*map(float, printed.split())] == sums


ALONE = """
#![no_std]
#![no_main]
use atc_net::{Arena, Network};
use core::ffi::{c_char, c_int};

#[link(name = "c")]
extern "C" {
    fn printf(format: *const c_char, ...) -> c_int;
    fn abort() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    unsafe { abort() }
}

// What the precompiled core of a system that unwinds refers to.
#[no_mangle]
pub extern "C" fn rust_eh_personality() {}

static X: [f32; 10] = [VALUES];

#[no_mangle]
pub extern "C" fn main() -> c_int {
    let mut arena = Arena::new();
    let (mut y, mut hidden) = ([0f32; 6], [0f32; 16]);
    let Ok(mut network) = Network::new(&mut arena) else { return 1 };
    if network.run(&X, &mut y, &mut hidden).is_err() {
        return 1;
    }
    for each in y {
        unsafe { printf(c"%.9g\\n".as_ptr(), f64::from(each)) };
    }
    0
}
"""


@pytest.mark.slow
def test_a_program_without_the_standard_library_runs_it(tmp_path: Path) -> None:
    compiled(tmp_path, affine_model())
    main = ALONE.replace("VALUES", ", ".join(f"{v:.9e}" for v in X.ravel()))
    printed = cargo_run(tmp_path, main, '[profile.dev]\npanic = "abort"\nopt-level = 1\n')
    wanted = reference(affine_model(), X)[0].ravel()
    np.testing.assert_allclose([*map(float, printed.split())], wanted, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["self", "Self", "fn", "None", "Error", "*/ */\n#![x]", "X"])
def test_names_break_out_of_nothing(name: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [name], [name.swapcase() + "2"])]
    model = make_model(nodes, [(name, F32, (2,))], [(name.swapcase() + "2", F32, (2,))])
    compiled(tmp_path, model)
    printed = cargo_run(tmp_path, """
fn main() {
    let mut arena = atc_net::Arena::new();
    let mut network = atc_net::Network::new(&mut arena).unwrap();
    let mut y = [0f32; 2];
    network.run(&[-1.0, 2.0], &mut y).unwrap();
    println!("{y:?}");
}
""")
    assert printed == "[0.0, 2.0]\n"


@pytest.mark.parametrize("option", ["profile", "hooks"])
def test_contexts_of_other_sizes_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"--wrappers=rust and --{option} can't be combined"):
        compiled(tmp_path, affine_model(), **{option: True})
    assert not (tmp_path / "net").exists()
