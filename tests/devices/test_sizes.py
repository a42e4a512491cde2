"""`--max_ram`, `--max_rom`, `--max_stack`: what the linker counts, held and explained."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from projects import require

import atc
from atc.cli.main import main
from atc.errors import OptionError

ROOT = Path(__file__).parents[2]
KEYWORDS, DIGITS = ROOT / "samples/keywords.onnx", ROOT / "samples/digits.onnx"


@pytest.mark.slow
def test_sizes_are_those_of_a_linked_program(tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    done = atc.compile(KEYWORDS, tmp_path / "kws", target="cortex-m4f", starter=True)
    sizes = done.sizes
    assert sizes is not None
    assert done.report["sizes"]["rom"] == sizes.rom
    require("make")
    folder = done.folder / "starter"
    subprocess.run(["make", "-s", "-C", str(folder)], check=True, capture_output=True)
    command = [require("arm-none-eabi-size"), folder / "kws-mps2-an386.elf"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, data, bss = map(int, said.splitlines()[1].split()[:3])
    # The program has startup, semihosting and the self-test besides.
    assert sizes.rom <= code + data <= sizes.rom + 2600
    assert 0 <= data + bss - sizes.ram <= 128
    assert sizes.ram >= sizes.arena + sizes.inputs + sizes.outputs
    assert 64 <= sizes.stack <= 1024


@pytest.mark.slow
def test_the_table_is_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--model={DIGITS}", f"--output={tmp_path / 'd'}", "--target=c99"]
    limits = ["--max_ram=128K", "--max_rom=1M", "--max_stack=8K"]
    assert main([*words, *limits]) == 0
    said = capsys.readouterr().out
    assert "ROM" in said
    assert "of 131,072" in said
    report = json.loads((tmp_path / "d/d.report.json").read_text())
    assert report["sizes"]["ram"] <= 128 << 10


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("option", "limit", "words"),
    [
        ("max_ram", "8K", ["arena's peak: 'relu1", "--recompute=all|--cal_conf"]),
        ("max_rom", "16K", ["weights 5", "--cal_conf"]),
        ("max_rom", 56 << 10, ["code ", "weights 5"]),  # known only after the build
        ("max_stack", 50, ["of stack"]),
    ],
)
def test_a_limit_that_is_not_kept_is_explained(
    option: str, limit: str | int, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="more than") as caught:
        atc.compile(DIGITS, tmp_path / "d", target="c99", **{option: limit})  # type: ignore[arg-type]
    text = f"{caught.value.message} {caught.value.hint}"
    for word in words:
        assert any(each in text for each in word.split("|"))
    assert "\n" not in text
    assert caught.value.where == f"--{option}"
    assert not (tmp_path / "d").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("language", ["c99", "c11", "c++11"])
def test_the_header_refuses_more(language: str, tmp_path: Path) -> None:
    folder = atc.compile(DIGITS, tmp_path / "d", target="c99", max_ram="80K", max_rom="1M").folder
    header = folder / "include/d.h"
    cc = [require("g++" if "+" in language else "gcc"), f"-std={language}", "-Wpedantic", "-Werror"]
    command = [*cc, "-fsyntax-only", "-x", "c++" if "+" in language else "c", str(header)]
    assert subprocess.run(command, check=False).returncode == 0
    text = header.read_text()
    assert "D_MAX_RAM 81920" in text
    header.write_text(text.replace("D_MAX_RAM 81920", "D_MAX_RAM 8192"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "d_ram_is_in_its_limit" in done.stderr


@pytest.mark.parametrize("text", ["8Q", "-1", "1.5K", ""])
def test_what_is_no_size_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not a number of bytes"):
        atc.compile(DIGITS, tmp_path / "d", max_ram=text)


@pytest.mark.slow
def test_sizes_are_the_same_of_cached_objects(tmp_path: Path) -> None:
    def sizes() -> object:
        return atc.compile(
            DIGITS, tmp_path / "d", target="c99", max_rom=1 << 20,
            op_compiler_cache_mode="enable", op_compiler_cache_dir=tmp_path / "cache",
        ).sizes  # fmt: skip

    first = sizes()
    assert first is not None
    assert sizes() == first
