"""An algorithm policy is written by a build that measures and replayed by one that doesn't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atc.select
from atc.backends.cpu.map.portable import MapLoops
from atc.backends.targets import get_target
from atc.compile import compile_model
from atc.errors import OptionError
from atc.fast_run.policy import HEADER, Pick, picks, read_policy, replay, write_policy
from atc.fast_run.task import workloads
from atc.options.options import Options, make_options
from atc.options.table import read_values
from atc.select.select import ANY, Measurement
from support import compile_graph, node_model

TARGET = get_target("c99")
GRAPH = compile_graph(node_model("Exp", [np.zeros(100, np.float32)]))
PICK = Pick("map_other", 12.5, "Map f32[100] -> f32[100]")


class Other(MapLoops):
    """The Map under another name."""

    name = "map_other"


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (MapLoops(), Other())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)


def options(folder: Path, name: str, **given: object) -> Options:
    """Return the options of a compilation of x -> exp(x) into `folder/name/net`."""
    model = folder / "exp.onnx"
    model.write_bytes(node_model("Exp", [np.zeros(100, np.float32)]).SerializeToString())
    values = {"model": model, "output": folder / name / "net", "target": "c99", **given}
    return make_options(read_values(values, "compile"))


def library(given: Options) -> bytes:
    return compile_model(given).library.read_bytes()


@pytest.mark.few(1)
@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize("flag", ["fast_run", "full_run"])
def test_a_replay_makes_the_same_library(tmp_path: Path, flag: str) -> None:
    path = tmp_path / "policy.txt"
    first = library(options(tmp_path, "a", fast_run_algo_policy=path, **{flag: True}))
    text = path.read_text()
    assert text.startswith(HEADER)
    assert library(options(tmp_path, "b", fast_run_algo_policy=path)) == first
    assert path.read_text() == text


@pytest.mark.usefixtures("catalogue")
def test_the_policy_chooses_whatever_the_estimate(tmp_path: Path) -> None:
    path = tmp_path / "policy.txt"
    library(options(tmp_path, "a", fast_run_algo_policy=path, fast_run=True))
    for label in ("map", "map_other"):
        policy = {d: Pick(label, 1.0, p.summary) for d, p in read_policy(path).items()}
        assert policy
        write_policy(path, policy)
        done = compile_model(options(tmp_path, label, fast_run_algo_policy=path))
        assert {c.candidate.label for c in done.selection.values()} == {label}
        assert not done.warnings


@pytest.mark.usefixtures("catalogue")
def test_a_kernel_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "policy.txt"
    library(options(tmp_path, "a", fast_run_algo_policy=path, fast_run=True))
    write_policy(path, {d: Pick("gone(a=1)", 1.0, p.summary) for d, p in read_policy(path).items()})
    done = compile_model(options(tmp_path, "b", fast_run_algo_policy=path))
    gone, summary = done.warnings
    assert "'gone(a=1)' is not a candidate for Map f32[100]" in gone
    assert "has no entry for 1 of 1 workloads, the first is Map f32[100]" in summary
    assert done.selection == compile_model(options(tmp_path, "c")).selection


def test_a_missing_policy_is_an_error_unless_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "none.txt"
    with pytest.raises(OptionError, match=r"none\.txt: No such file.*--fast_run"):
        compile_model(options(tmp_path, "a", fast_run_algo_policy=path))
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("catalogue")
def test_lines_of_other_models_stay(tmp_path: Path) -> None:
    path = tmp_path / "policy.txt"
    write_policy(path, {"0" * 16: PICK})
    library(options(tmp_path, "a", fast_run_algo_policy=path, fast_run=True))
    found = read_policy(path)
    assert found["0" * 16] == PICK
    assert len(found) == 2


@pytest.mark.usefixtures("catalogue")
def test_what_a_policy_leaves_open_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "policy.txt"
    write_policy(path, {})
    (warning,) = compile_model(options(tmp_path, "a", fast_run_algo_policy=path)).warnings
    assert "policy.txt has no entry for 1 of 1 workloads" in warning
    assert not compile_model(
        options(tmp_path, "b", fast_run_algo_policy=path, fast_run=True)
    ).warnings


def test_writing_and_reading(tmp_path: Path) -> None:
    policy = {"0" * 16: PICK, "f" * 16: Pick("a(b=1, c=2)", 0.0, "A | with | bars")}
    write_policy(tmp_path / "new" / "p.txt", policy)
    assert read_policy(tmp_path / "new" / "p.txt") == policy
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["p.txt"]


@pytest.mark.parametrize(
    "text",
    ["", "hello", f"{HEADER}\n1 | 2", f"{HEADER}\n{'0' * 16} | x | map | s",
     f"{HEADER}\n{'0' * 16} | nan | map | s", f"{HEADER}\n{'0' * 16} | 1 |  | s",
     f"{HEADER}\n{'Z' * 16} | 1 | map | s", "\xff"],
)  # fmt: skip
def test_a_damaged_file_is_reported_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=r"p\.txt"):
        read_policy(path)


@pytest.mark.usefixtures("catalogue")
def test_picks_are_the_fastest_that_worked() -> None:
    (w,) = workloads(GRAPH, {})
    measured = (Measurement("map", 3.0), Measurement("map_other", None, "crashed"))
    ((digest, pick),) = picks({w: measured}, TARGET).items()
    assert (pick.label, pick.ns) == ("map", 3.0)
    assert replay([w], {digest: pick}, TARGET, ANY, pytest.fail) == {w: (measured[0],)}
    assert replay([w], {}, TARGET, ANY, pytest.fail) == {}


@pytest.mark.parametrize("word", ["partitions", "pieces"])
def test_lines_of_calls_that_threads_share_say_how_many_do(tmp_path: Path, word: str) -> None:
    path = tmp_path / "policy"
    path.write_text(f"{HEADER}\n{'0' * 16} | 5 | 3 {word} | MatMul\n")
    assert [pick.partitions for pick in read_policy(path).values()] == [3]
