"""The configuration file: where it lies and what may stand in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc.errors import OptionError
from atc.settings.surroundings import config_path, parse_config, read_surroundings

TEXT = """
# for everyday work
op_compiler_cache_mode = enable
--fast-run=1

MXNET_ENFORCE_DETERMINISM=1
input_shape=x:1,3;y:2=3
"""


def test_lines() -> None:
    found = parse_config(TEXT, "my.cfg")
    assert {name: (f.text, f.source) for name, f in found.options.items()} == {
        "op_compiler_cache_mode": ("enable", "my.cfg, line 3"),
        "fast_run": ("1", "my.cfg, line 4"),
        "input_shape": ("x:1,3;y:2=3", "my.cfg, line 7"),
    }
    assert list(found.variables) == ["MXNET_ENFORCE_DETERMINISM"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fast_run", "no '=' in this line: 'fast_run' [f, line 1] (hint: write name=value)"),
        ("fast_runs=1", "no option or variable 'fast_runs' [f, line 1] (hint: did you mean fast_"),
        ("jobs=1\njobs=2", "jobs stands twice [f, line 2]"),
        ("help=1", "there is no option or variable 'help'"),
        ("ATC_CONFIG=x", "there is no option or variable 'ATC_CONFIG'"),
        ("\x1b[2J=1", r"there is no option or variable '\x1b[2J'"),
        ("=1", "there is no option or variable ''"),
    ],
)
def test_wrong_lines(line: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_config(line, "f")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.config/atc/atc.cfg"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/atc/atc.cfg"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x", "ATC_CONFIG": "/c"}, "/c"),
        ({}, None),
    ],
)
def test_where_it_lies(environ: dict[str, str], expected: str | None) -> None:
    assert config_path(environ) == (None if expected is None else Path(expected))


def test_reading(tmp_path: Path) -> None:
    assert not read_surroundings({"HOME": str(tmp_path)}).options
    folder = tmp_path / ".config/atc"
    folder.mkdir(parents=True)
    (folder / "atc.cfg").write_text("jobs=2")
    assert read_surroundings({"HOME": str(tmp_path)}).options["jobs"].text == "2"
    with pytest.raises(OptionError, match=r"can't be read.*\[ATC_CONFIG\]"):
        read_surroundings({"ATC_CONFIG": str(tmp_path / "none.cfg")})
    with pytest.raises(OptionError, match="can't be read"):
        read_surroundings({"ATC_CONFIG": str(tmp_path)})
    (folder / "atc.cfg").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="can't be read"):
        read_surroundings({"HOME": str(tmp_path)})
