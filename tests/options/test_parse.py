from __future__ import annotations

import pytest

from atc.errors import OptionError
from atc.options.parse import parse_arguments


@pytest.mark.parametrize(
    ("line", "given"),
    [
        (["--model=a b"], {"model": "a b"}),
        (["--model", "a b"], {"model": "a b"}),
        (["--model=a=b"], {"model": "a=b"}),
        (["--input-shape=x:1", "--debug_dir", "-"], {"input_shape": "x:1", "debug_dir": "-"}),
        (["--framework", "-1"], {"framework": "-1"}),
        (["--verify"], {"verify": "1"}),
        (["--verify=0"], {"verify": "0"}),
        (["--verify", "0", "--fast-run"], {"verify": "0", "fast_run": "1"}),
        (["--verify", "--model", "1"], {"verify": "1", "model": "1"}),
        (["--fast_run", "true"], {"fast_run": "true"}),
        (["--log=info", "--log=debug"], {"log": "debug"}),
        (["--log="], {"log": ""}),
        (["-j2"], {"jobs": "2"}),
        (["-j", "2"], {"jobs": "2"}),
        (["--jobs=2"], {"jobs": "2"}),
        (["-h"], {"help": "1"}),
        ([], {}),
    ],
)
def test_options(line: list[str], given: dict[str, str]) -> None:
    assert parse_arguments(line, "compile").given == given


def test_words() -> None:
    arguments = parse_arguments(["why", "--target=c99", "kernel"], "cache", words=2)
    assert arguments.words == ("why", "kernel")
    assert arguments.given == {"target": "c99"}


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (["--modl=x"], "E10001", "unknown option --modl [--modl] (hint: did you mean --mode"),
        (["--inputshape=x"], "E10001", "did you mean --input_shape"),
        (["--zzzz"], "E10001", "see atc --help"),
        (["-x"], "E10001", "unknown option -x"),
        (["-hx"], "E10001", "unknown option -hx"),
        (["net.onnx"], "E10001", "did you mean --model=net.onnx?"),
        (["chekc"], "E10001", "did you mean atc check?"),
        (["help"], "E10001", "did you mean atc --help?"),
        (["compile", "net.onnx"], "E10001", "atc --model=FILE --output=FOLDER, without a command"),
        (["--model"], "E10004", "the value is missing [--model]"),
        (["--tolerance=1"], "E10001", "(hint: it is an option of atc verify)"),
        (["--warmup-iter=1"], "E10001", "(hint: it is an option of load_and_run)"),
        (["--calibration=x"], "E10001", "(hint: it is an option of atc quantize)"),
        (["--\x1b[2J"], "E10001", r"unknown option --\x1b[2J"),
    ],
)
def test_wrong_options(line: list[str], code: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_arguments(line, "compile")
    assert caught.value.code == code
    assert words in str(caught.value)
