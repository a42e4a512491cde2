"""The options of benchmarks that draw networks: which of them, how often, and those of atc."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """The networks that are wanted, rounds, keywords of `atc.compile`, and what else was set."""

    names: tuple[str, ...]
    rounds: int
    options: dict[str, str]
    flags: frozenset[str]


def parse(usage: str | None, networks: Iterable[str], rounds: int, *flags: str) -> Given:
    """Return what the command line says: --only, --rounds, `flags`, and atc's as --name=value."""
    parser = argparse.ArgumentParser(usage=usage)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=rounds)
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    given, options = parser.parse_known_args()
    names = given.only.split(",") if given.only else networks
    return Given(
        tuple(names), given.rounds,
        dict(option.removeprefix("--").split("=", 1) for option in options),
        frozenset(flag for flag in flags if getattr(given, flag)),
    )  # fmt: skip
