"""The C of kernels without what shapes make superfluous: loops of one iteration, `+ 0`, `* 1`.

Templates write every term and factor of their algorithm: an index is `n * 36864 + c * 1 + 0` where
a batch, a stride or an offset is trivial. It is done to the text because any number of any template
may turn out to be neutral.
"""

from __future__ import annotations

import re
from functools import lru_cache

from atc.backends.render.code import changed
from atc.backends.render.single_loops import without_single_loops

_ANY = re.compile(r"[-+*/%] [01]\b|\b[01] [+*]|= 0;")
_END = r"(?![\w.])"
_AFTER_OPERAND = r"(?<=[\w)\]])"
_RULES = [
    # A name in parentheses that stand there for this factor or term alone.
    (re.compile(rf"([(\[)]|[-+*/%=<>?:,&|] )\((\w+)(?: [*/] 1| [+-] 0)\){_END}"), r"\1\2"),
    (re.compile(rf" [+-] \w+ % 1{_END}(?! [*/%])"), ""),
    (re.compile(r"(= |\()\w+ % 1(?: \* \w+)*(?=[,;)])"), r"\g<1>0"),
    (re.compile(rf"{_AFTER_OPERAND} [*/] 1{_END}"), ""),
    (re.compile(rf"{_AFTER_OPERAND} [+-] 0{_END}(?! [*/%])"), ""),
    (re.compile(r"([(\[]|[-+,=?:<>] |\breturn )1 \* (?=[\w(])"), r"\1"),
    (re.compile(r"([(\[]|[,=?:<>] |\breturn )0 \+ (?=[\w(])"), r"\1"),
    (re.compile(r"^ *\w+ [+-]= 0;\n", re.MULTILINE), ""),
]


def simplified(text: str) -> str:
    """Return C without loops of one iteration, terms that are 0 and factors that are 1."""
    return without_neutral_operands(without_single_loops(text))


def without_neutral_operands(text: str) -> str:
    """Return C without integer terms that are 0 and factors and divisors that are 1.

    Types stay what they are, as an `int` widens no other operand but those that any operator does.
    """
    return changed(text, _simplified) if _ANY.search(text) else text


def _simplified(code: str) -> str:
    """Apply the rules to the lines of a part."""
    return "".join(map(_simplified_line, code.splitlines(keepends=True)))


@lru_cache(1 << 14)  # kernels share most of their lines
def _simplified_line(line: str) -> str:
    """Apply the rules to a line until none applies: `m / 1 * 1` has two."""
    before = ""
    while line != before and _ANY.search(line):
        before = line
        for rule, to in _RULES:
            line = rule.sub(to, line)
    return line
