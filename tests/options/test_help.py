"""`--help GROUP`, `--help OPTION` and `--help VARIABLE`."""

from __future__ import annotations

import pytest

from atc.cli.main import main
from atc.errors import OptionError
from atc.options.help import COMMANDS, help_text
from atc.options.table import VARIABLES, options_of


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_and_variable_has_a_help_of_its_own(command: str) -> None:
    for name, setting in options_of(command).items():
        for spelling in (name, f"--{name}", name.replace("_", "-")):
            assert help_text(command, spelling).startswith(f"  --{name}")
        assert " ".join(setting.meaning.split()[:4]) in help_text(command, name)
    for variable in VARIABLES:
        assert help_text(command, variable.name).startswith(f"  {variable.name}=")


def test_an_option_names_the_variables_that_give_it() -> None:
    text = help_text("compile", "kernels")
    assert "MEGENGINE_EXECUTION_STRATEGY, MXNET_MKLDNN_ENABLED." in text
    assert "Other names: MXNET_ONEDNN_ENABLED." in help_text("compile", "MXNET_MKLDNN_ENABLED")
    assert "row A-08" in help_text("compile", "input_shape")


def test_what_has_no_effect_says_so() -> None:
    text = " ".join(help_text("compile", "MGB_ROCM_RESERVE_MEMORY").split())
    assert "No effect, with a warning: there is no ROCm target" in text
    text = " ".join(help_text("compile", "MGB_JIT_BACKEND").split())
    assert "Other values than MLIR, NVRTC have no effect, with a warning" in text


@pytest.mark.parametrize(
    ("topic", "title"),
    [("Optimisation", "Optimisation:"), ("op compiler cache", "Op compiler cache:"),
     ("mxnet", "MXNet variables:"), ("accepted", "Accepted without effect:")],
)  # fmt: skip
def test_a_group(topic: str, title: str) -> None:
    text = help_text("compile", topic)
    assert text.splitlines()[0] == title
    assert "usage" not in text


def test_an_option_that_follows_is_no_topic_unless_it_stands_alone() -> None:
    assert help_text("compile", "--nonsense").startswith("usage: atc")
    assert help_text("compile", "--kernels").startswith("  --kernels")


def test_an_unknown_topic_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean kernels"):
        help_text("compile", "kernel")
    with pytest.raises(OptionError, match="the groups: Model, Output"):
        help_text("compile", "qqqqqqqq")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--help", "kernels"], ["--help=kernels"], ["-h", "--kernels"]):
        assert main(line) == 0
        assert capsys.readouterr().out == help_text("compile", "kernels")
    assert main(["verify", "--help", "tolerance"]) == 0
    assert capsys.readouterr().out == help_text("verify", "tolerance")
    assert main(["--help", "qqqqqqqq"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("E10001: no group, option or variable")
    assert err.count("\n") == 1
