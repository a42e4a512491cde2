"""What `atc profile` makes of a library's clock: a table, JSON, a Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from networks import conv_net

from atc.cli.main import main
from atc.errors import OptionError
from atc.tools.profile import CallProfile, Profile, Span, profile_json, read_profile, trace_json

PROFILE = Profile(
    "net", (5000, 7000),
    (
        CallProfile('a "quoted" + node', "Conv", "conv", 4000, 100, 2000.0, 1,
                    (Span(100, 2000), Span(300, 2000))),
        CallProfile("in a loop", "Map", "map", 0, 10, 900.0, 3, (Span(2200, 900), Span(3000, 960))),
        CallProfile("never run", "Map", "map", 0, 10, 0.0, 0, (Span(0, 0), Span(0, 0))),
    ),
    8.0,
)  # fmt: skip


def test_json_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(profile_json(PROFILE))
    assert read_profile(tmp_path / "p.json") == PROFILE
    assert PROFILE.share_of_peak(PROFILE.calls[0]) == 2 / 8
    assert PROFILE.inside == pytest.approx((2900 / 5000 + 2960 / 7000) / 2)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "atc profile 1", "name": "x"}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(OptionError, match="is not a profile"):
        read_profile(tmp_path / "p.json")


def test_a_trace_has_every_call_inside_its_run() -> None:
    trace = json.loads(trace_json(PROFILE))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    runs = [e for e in spans if e["cat"] == "run"]
    assert [(e["ts"], e["dur"]) for e in runs] == [(0, 5), (5, 7)]
    calls = [e for e in spans if e["cat"] != "run"]
    assert [e["name"] for e in calls] == ['a "quoted" + node', "in a loop"] * 2
    assert [(e["ts"], e["dur"]) for e in calls[:2]] == [(0.1, 2), (2.2, 0.3)]
    for run, inside in zip(runs, (calls[:2], calls[2:]), strict=True):
        for e in inside:
            assert run["ts"] <= e["ts"]
            assert e["ts"] + e["dur"] <= run["ts"] + run["dur"]
    assert all({"pid", "tid", "name"} <= set(e) for e in trace["traceEvents"])


@pytest.mark.slow
def test_a_library_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = conv_net(tmp_path / "m.onnx")
    for name, option in (("net", "--profile"), ("plain", "--profile=0")):
        arguments = [f"--model={model}", f"--output={tmp_path}/{name}", option, "--target=c99"]
        assert main(arguments) == 0
    capsys.readouterr()
    trace = tmp_path / "trace.json"
    assert main(["profile", f"{tmp_path}/net", "--runs=3", f"--trace={trace}"]) == 0
    out = capsys.readouterr().out
    assert "conv1 + relu1" in out
    assert "the median of 3" in out
    names = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert names.count("conv1 + relu1") == 3
    assert main(["profile", f"{tmp_path}/plain"]) == 1
    assert "wasn't compiled with --profile" in capsys.readouterr().err
