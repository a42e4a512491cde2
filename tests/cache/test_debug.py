"""The file of --op_debug_config."""

import pytest

from atc.cache import DebugConfig, parse_debug_config
from atc.errors import OptionError


def test_s15_a_file_with_switches_list_comments_and_blanks():
    text = "# a\n\n op_debug_config = oom , dump_cce\n  # b\nop_debug_list=conv1, OpType::Add,\n"
    config = parse_debug_config(text, "debug.cfg")
    assert config == DebugConfig(("oom", "dump_cce"), ("conv1", "OpType::Add"))


def test_s13_operators_are_listed_by_name_or_by_type():
    config = DebugConfig(("oom",), ("conv1", "OpType::Add"))
    assert config.lists("conv1", "Conv")
    assert config.lists("x", "Add")
    assert not config.lists("Add", "Conv")
    assert not config.lists("conv2", "Conv")


def test_s15_a_list_without_switches_has_no_effect():
    assert parse_debug_config("op_debug_list=conv1\n", "debug.cfg") == DebugConfig()


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_s15_an_empty_file_switches_nothing_on(text):
    assert parse_debug_config(text, "debug.cfg") == DebugConfig()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("op_debug_config", "no '='"),
        ("op_debug_config=", "empty value"),
        ("op_debug_config= , ", "empty value"),
        ("op_debug_list=", "empty value"),
        ("op_debug=oom", "unknown key"),
        ("=oom", "unknown key"),
        ("op_debug_config=dump_bin", "second line"),
    ],
)
def test_s15_a_wrong_line_is_named(line, problem):
    with pytest.raises(OptionError, match=problem) as caught:
        parse_debug_config(f"op_debug_config=oom\n\n{line}\n", "debug.cfg")
    assert "debug.cfg, line 3" in str(caught.value)
