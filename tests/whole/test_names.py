from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from projects import require

from atc.names import (
    FILES,
    LIMIT,
    RESERVED,
    c_string,
    comment,
    identifier,
    module_name,
    network_identifier,
    tensor_identifiers,
)

HOSTILE = [
    "", " ", "*/ int x; /*", "*//*", "//", "\\", "a\\\nb", "??/", '"""', '"; system("x"); "', "\n",
    "\0", "a\0b", "\u202e", "数据", "int", "Class", "3d", "__LINE__", "_x_", "a b", "a.b/c:0",
    "x" * 100_000, "*" * 99 + "/", "%s%n", "${X}", "$<1:x>", "a;b", "`x`", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n[:12]))
def test_every_name_becomes_an_identifier(name: str) -> None:
    text = identifier(name)
    assert text.isascii()
    assert text.isidentifier()
    assert text not in RESERVED
    assert len(text) <= LIMIT
    assert identifier(text) == text


def test_a_networks_prefix_is_stable_and_hides_no_header() -> None:
    for name in (*HOSTILE, *sorted(FILES), "Math", "9" * 60):
        text = network_identifier(name)
        assert network_identifier(text) == text
        assert text.casefold() not in FILES, name


def test_parameters_are_distinct_and_clash_with_nothing_in_the_function() -> None:
    names = ["x", "x", "x_2", "w0", "t12", "ctx", "uint8_t", "net_run", "NET_OK", "net", "int", ""]
    found = tensor_identifiers(names, "net")
    assert found == [
        "x", "x_2", "x_2_2", "t_w0", "t_t12", "t_ctx", "t_uint8_t", "t_net_run", "t_NET_OK",
        "t_net", "t_int", "t",
    ]  # fmt: skip


def test_many_equal_names_stay_cheap() -> None:
    assert len(set(tensor_identifiers(["same"] * 20_000, "net"))) == 20_000


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n[:12]))
def test_a_comment_is_one_line_that_ends_nothing(name: str) -> None:
    text = comment(name)
    assert len(text) <= 60
    assert text.isascii()
    assert text.isprintable()
    for end in ("*/", "/*", "\\", '"', "?"):
        assert end not in text


@pytest.mark.parametrize("name", ["numpy", "cffi", "json", "lambda", "match", "string"])
def test_a_module_hides_no_other(name: str) -> None:
    assert module_name(name) == f"net_{name}"
    assert module_name("lenet") == "lenet"


def test_c_strings_hold_the_bytes_of_the_text(tmp_path: Path) -> None:
    texts = ["plain", 'quo"te', "back\\slash", "???/", "数据", "tab\tnew\nline", "8\x018", "%d"]
    tables = ", ".join(map(c_string, texts))
    (tmp_path / "t.c").write_text(
        "#include <stdio.h>\n"
        f"static const char *const t[] = {{{tables}}};\n"
        f"int main(void) {{ for (int i = 0; i < {len(texts)}; i++) puts(t[i]); return 0; }}\n"
    )
    command = [require("gcc"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "t.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "a.out"], capture_output=True, check=True).stdout
    assert said.decode() == "".join(f"{text}\n" for text in texts)
