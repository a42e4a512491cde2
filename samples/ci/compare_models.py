"""Compiles the models of a pull request and of its base, and writes what changed as a comment.

python samples/ci/compare_models.py measure --output=head.json 'models/*.onnx' -- --target=c99
python samples/ci/compare_models.py comment base.json head.json

`measure` compiles each model that the patterns name with the options after `--`, and keeps the
sizes of library, weights and arena in bytes and the median time of a run in seconds. A model that
doesn't compile is kept with the error's line. `comment` writes a table in Markdown; its exit status
is 1 where a model of the base no longer compiles, or with --fail_above=PERCENT where a size or a
time has grown by more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MARK = "<!-- atc: sizes and times of the models -->"
"""By which the next run finds the comment."""

BATCH = 0.2
"""Seconds that one measurement of the median takes at least."""


@dataclass(frozen=True)
class Measured:
    """What is known of a model: sizes in bytes, the time of a run in seconds, or an error."""

    library: int = 0
    weights: int = 0
    arena: int = 0
    run: float = 0.0
    error: str = ""


COLUMNS = ("library", "weights", "arena", "run")


def measure(models: Sequence[Path], options: Sequence[str], repeats: int) -> dict[str, Measured]:
    """Compile and time the models; the names are their paths as they were given."""
    return {path.as_posix(): _measured(path, options, repeats) for path in models}


def _measured(model: Path, options: Sequence[str], repeats: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="atc-compare-") as folder:
        output = Path(folder, "net")
        command = [sys.executable, "-P", "-m", "atc", f"--model={model}", f"--output={output}"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return Measured(error=lines[-1] if lines else f"exit status {done.returncode}")
        report = json.loads(Path(output, "net.report.json").read_text())
        library = next((p for p in output.glob("libnet.*") if p.suffix != ".a"), None)
        size = (library or output / "libnet.a").stat().st_size
        memory = report["memory"]
        seconds = _timed(output, repeats) if library is not None else 0.0
        return Measured(
            size, int(memory["weights_bytes"]), int(memory["arena_bytes"]), seconds
        )


def _timed(folder: Path, repeats: int) -> float:
    """Return the median time of a run on random inputs; 0 where the library doesn't run here."""
    import numpy as np

    import atc

    random = np.random.default_rng(0)
    try:
        net = atc.load(folder)
        feeds = [_drawn(random, t.shape, t.dtype) for t in net.inputs]
        net(*feeds)
    except (atc.errors.AtcError, OSError, RuntimeError, TypeError, ValueError):
        return 0.0  # another processor's, or inputs that can't be drawn
    times = []
    end = time.perf_counter() + BATCH * repeats
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        net(*feeds)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _drawn(random: Any, shape: Sequence[int], dtype: Any) -> Any:
    import numpy as np

    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return np.ones(shape, dtype)
    return random.standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------------------------- the comment


def comment(base: dict[str, Measured], head: dict[str, Measured], least: float = 1.0) -> str:
    """Return the comment: rows of models that changed by `least` percent, or are new or gone."""
    rows = [*_rows(base, head, least)]
    lines = [MARK, "### Compiled models"]
    if rows:
        lines += ["", f"| model | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}", *rows]
    unchanged = len(base.keys() | head.keys()) - len(rows)
    if unchanged:
        lines += ["", f"{unchanged} of {len(base.keys() | head.keys())} models are unchanged."]
    return "\n".join(lines) + "\n"


def _rows(base: dict[str, Measured], head: dict[str, Measured], least: float) -> Iterator[str]:
    for name in sorted(base.keys() | head.keys()):
        before, now = base.get(name), head.get(name)
        if now is None:
            yield _row(name, "gone")
        elif now.error:
            if before is None or before.error != now.error:
                yield _row(name, f"**doesn't compile:** {escaped(now.error)}")
        elif before is None or before.error:
            yield _row(name, *(_text(c, getattr(now, c)) for c in COLUMNS))
        elif any(abs(change(before, now, c)) >= least for c in COLUMNS):
            yield _row(name, *(_change_text(before, now, c, least) for c in COLUMNS))


def _row(name: str, *cells: str) -> str:
    filled = [*cells, *[""] * (len(COLUMNS) - len(cells))]
    return f"| {escaped(name)} | {' | '.join(filled)} |"


def change(before: Measured, now: Measured, column: str) -> float:
    """Return by how many percent a number has grown; 0 where one of the two isn't known."""
    old, new = getattr(before, column), getattr(now, column)
    return 100.0 * (new / old - 1.0) if old and new else 0.0


def _change_text(before: Measured, now: Measured, column: str, least: float) -> str:
    grown = change(before, now, column)
    text = _text(column, getattr(now, column))
    return f"{text} ({grown:+.1f} %)" if abs(grown) >= least else text


def _text(column: str, value: float) -> str:
    if not value:
        return "-"
    if column == "run":
        return f"{1e3 * value:.3g} ms"
    return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"


def escaped(text: str) -> str:
    """Return text that means nothing in Markdown, HTML, or to who is mentioned."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"&#{ord(c)};" if c in "\\`*_{}[]<>()#+!|~@&:" else c for c in clean)


def worse(base: dict[str, Measured], head: dict[str, Measured], percent: float) -> bool:
    """Return whether a model no longer compiles, or a number grew by more; 0: none is looked at."""
    for name, before in base.items():
        now = head.get(name)
        if now is None or before.error:
            continue
        if now.error or (percent and any(change(before, now, c) > percent for c in COLUMNS)):
            return True
    return False


# ------------------------------------------------------------------------------ the command line


def read(path: Path) -> dict[str, Measured]:
    """Return what `measure` wrote."""
    return {name: Measured(**each) for name, each in json.loads(path.read_text()).items()}


def main(words: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    measuring = commands.add_parser("measure")
    measuring.add_argument("models", nargs="+", help="patterns of paths below this folder")
    measuring.add_argument("--output", type=Path, required=True)
    measuring.add_argument("--repeats", type=int, default=10)
    commenting = commands.add_parser("comment")
    commenting.add_argument("base", type=Path)
    commenting.add_argument("head", type=Path)
    commenting.add_argument("--least", type=float, default=1.0)
    commenting.add_argument("--fail_above", type=float, default=0.0)
    given = parser.parse_args(words[:at])
    if given.command == "measure":
        models = sorted({path for pattern in given.models for path in Path().glob(pattern)})
        done = measure(models, words[at + 1 :], given.repeats)
        given.output.write_text(json.dumps({n: asdict(m) for n, m in done.items()}, indent=1))
        return 0
    base, head = read(given.base), read(given.head)
    print(comment(base, head, given.least), end="")
    return 1 if worse(base, head, given.fail_above) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
