"""Machines: records, what costs make of them, how a compilation chooses one, and measuring."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import archspec.cpu
import archspec.cpu.detect
import pytest

from atc.backends import machines
from atc.backends.cpu.conv.blocked import ConvDirect, DirectParams
from atc.backends.cpu.conv.nchw_rows import ConvNchwRows
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.cpu.matmul.bf16 import MatMulBf16
from atc.backends.cpu.matmul.cost import TileParams, crowding
from atc.backends.cpu.matmul.dot import MatMulDot
from atc.backends.cpu.matmul.tile import MatMulTile
from atc.backends.cpu.targets import TARGETS
from atc.backends.kernel import Candidate, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.machine import Cache, Machine, machine_json, read_machine
from atc.backends.machines import MACHINES, get_machine, host_machine
from atc.backends.targets import get_target
from atc.errors import OptionError
from atc.fast_run.machine import Found, machine_of, parsed, system_caches
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Conv, ConvBlocked, MatMul, Window, identity_epilogue
from atc.ir.view import View
from atc.options.machine import processor as called
from atc.select.cost import estimate as candidate_cost
from atc.select.layout_costs import estimate
from atc.select.select import Limits

F = DType.FLOAT
ZEN5 = MACHINES["zen5"]
MICROCONTROLLERS = {
    "cortex_m0plus", "cortex_m3", "cortex_m4", "cortex_m7", "cortex_m33", "cortex_m55",
    "cortex_m85", "esp32c3",
}  # fmt: skip


def product(m: int, k: int, n: int) -> Workload:
    """A product with constant B."""
    op = MatMul((), m, n, k, View((k, 1)), View((n, 1)), identity_epilogue(F))
    types = TensorType(F, (m, k)), TensorType(F, (k, n))
    return Workload(op, types, (TensorType(F, (m, n)),), (False, True))


# ---------------------------------------------------------------------------------------- records


def test_records_cover_the_families_and_are_called_by_their_names() -> None:
    assert {name: m.name for name, m in MACHINES.items()} == {name: name for name in MACHINES}
    known = set(archspec.cpu.TARGETS)
    by_hand = {"gracemont", "cortex_a53", "cortex_a76", "spacemit_x60"}  # archspec has no name
    assert set(MACHINES) - known == by_hand | MICROCONTROLLERS
    for targets in TARGETS:
        assert MACHINES[targets.machine.name] == targets.machine


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_records_are_plausible(machine: Machine) -> None:
    levels = [c for c in (machine.l1, machine.l2, machine.l3) if c.size]
    rates = [*(c.rate for c in levels), machine.memory]
    assert rates == sorted(rates, reverse=True)
    assert [c.latency for c in levels] == sorted(c.latency for c in levels)
    assert machine.l1.size < machine.l2.size
    if machine.name in MICROCONTROLLERS:
        assert machine.datapath in (4, 8)
        assert machine.fmas <= 1  # and far less in software
        return
    assert machine.datapath in (8, 16, 32, 64)
    assert 2 <= machine.fma_latency <= 6
    assert machine.fmas in (2, 4)


@pytest.mark.parametrize(
    ("name", "size", "rate"),
    [("zen4", 64, 1), ("zen4", 32, 2), ("zen5", 64, 2), ("gracemont", 32, 1), ("gracemont", 16, 2),
     ("cortex_a53", 16, 1), ("neoverse_v2", 16, 4)],
)  # fmt: skip
def test_wide_vectors_take_narrow_units_several_times(name: str, size: int, rate: float) -> None:
    assert MACHINES[name].fma_rate(size) == rate


def test_a_core_without_a_third_cache_reads_from_memory() -> None:
    assert MACHINES["cortex_a72"].far_rate == MACHINES["cortex_a72"].memory


# ------------------------------------------------------------------------------ what is chosen


def test_deep_products_are_blocked_where_the_second_cache_is_small() -> None:
    w = product(512, 1024, 256)  # A: 2 MiB
    record = {k: replace(ZEN5, l2=replace(ZEN5.l2, size=k << 20)) for k in (1, 8)}
    blocks = {
        k: {p.kb for p in MatMulTile().parameters(w, get_target("x86-64-avx512", machine=m))}
        for k, m in record.items()
    }
    assert blocks == {1: {None, 256}, 8: {None}}


@pytest.mark.parametrize(("latency", "phases"), [(2.0, 1), (4.0, 2), (8.0, 4)])
def test_a_longer_latency_asks_for_more_sums(latency: float, phases: int) -> None:
    w, machine = product(1, 4096, 96), replace(ZEN5, fma_latency=latency)
    sets = MatMulTile().parameters(w, get_target("x86-64-avx512", machine=machine))
    (narrow,) = (p for p in sets if p.nv == 6)
    assert narrow.phases == phases


def test_dot_products_that_read_rows_again_from_far_cost_more() -> None:
    w, kernel = product(2000, 512, 128), MatMulDot()  # A: 4 MB
    slow = replace(ZEN5, l3=replace(ZEN5.l3, rate=8.0))
    held = replace(slow, l2=replace(ZEN5.l2, size=16 << 20))
    costs = []
    for machine in (slow, ZEN5, held):
        target = get_target("x86-64-avx2", machine=machine)
        costs.append(kernel.cost(w, kernel.parameters(w, target)[0], target))
    assert costs[0] > 1.5 * costs[1] >= 1.5 * costs[2]


def test_tiles_are_chosen_for_products_of_many_rows_on_avx2() -> None:
    w = product(1999, 512, 128)  # a layer of Conv-TasNet; dots take twice as long there
    for name in ("zen3", "zen5", "haswell", "sapphirerapids"):
        target = get_target("x86-64-avx2", machine=MACHINES[name])
        least = {
            type(k): min(k.cost(w, p, target) for p in k.parameters(w, target))
            for k in (MatMulTile(), MatMulDot())
        }
        assert least[MatMulTile] < least[MatMulDot], name


def test_pairs_are_multiplied_where_that_is_faster_than_floats() -> None:
    many, one = product(128, 768, 768), product(1, 2048, 2048)  # one row waits for its weights
    for name, w, gains in (("zen4", many, True), ("sapphirerapids", many, False),
                           ("zen4", one, True), ("sapphirerapids", one, True)):  # fmt: skip
        target = get_target("x86-64-avx512-bf16", machine=MACHINES[name])
        floats, pairs = (
            min(k.cost(w, p, target) for p in k.parameters(w, target))
            for k in (MatMulTile(), MatMulBf16())
        )
        assert (pairs < floats) == gains, (name, w.op)


@pytest.mark.parametrize(
    ("m", "name", "asked"),
    [
        (197, "sapphirerapids", True),  # a layer of ViT-Tiny: its third cache is slow
        (197, "zen5", False),
        (1999, "sapphirerapids", False),  # which is little beside so many rows
        (9, "sapphirerapids", False),  # one tile has each panel for itself
    ],
)
def test_panels_are_asked_for_where_waiting_for_them_takes_long(
    m: int, name: str, asked: bool
) -> None:
    w, kernel = product(m, 192, 576), MatMulTile()  # 432 KiB of weights
    target = get_target("x86-64-avx512", machine=MACHINES[name])
    params = next(p for p in kernel.parameters(w, target) if p.nv == 3)
    text = render_kernel(Candidate(kernel, params), w, target).text
    assert ("v_prefetch_l2(next" in text) == asked


def convolution(channels: int, size: int, block: int = 16) -> Workload:
    """A 3 x 3 convolution in blocks of so many channels."""
    image = TensorType(F, (1, channels // block, size, size, block))
    op = ConvBlocked(Window((3, 3), (1, 1), (1, 1), (1, 1)), 1, identity_epilogue(F))
    weights = TensorType(F, (channels, channels, 3, 3))
    return Workload(op, (image, weights), (image,), (False, True))


def test_filters_from_a_slow_third_cache_are_transformed_when_compiling() -> None:
    w, kernel = convolution(256, 14), ConvWinograd()  # a layer of ResNet-50, 1.5 times as fast so
    least = {}
    for name in ("sapphirerapids", "zen5"):
        target = get_target("x86-64-avx512", machine=MACHINES[name])
        for p in kernel.parameters(w, target):
            cost = kernel.cost(w, p, target)
            least[name, p.raw] = min(cost, least.get((name, p.raw), cost))
    assert least["sapphirerapids", True] > 1.3 * least["sapphirerapids", False]
    assert least["zen5", True] < 1.2 * least["zen5", False]


def test_weights_from_a_slow_third_cache_are_read_by_tiles_of_many_pixels() -> None:
    w = convolution(512, 7)  # of ResNet-50; 7 x 3 takes 1.25 times as long on a Sapphire Rapids
    wide, high = (DirectParams(p=p, nv=nv, u=4, rb=0, pf=True) for p, nv in ((7, 3), (14, 2)))
    ratios = []
    for name in ("sapphirerapids", "zen5"):
        target = get_target("x86-64-avx512", machine=MACHINES[name])
        ratios.append(ConvDirect().cost(w, wide, target) / ConvDirect().cost(w, high, target))
    assert ratios[0] > 1.05 > ratios[1]


def test_panels_that_the_second_cache_does_not_hold_are_read_more_slowly() -> None:
    """Those of ResNet-50's last stage on a Zen 3: F(2 x 2, 3 x 3) takes 0.8 of the time."""
    params, growth = DirectParams(p=4, nv=3, u=4, rb=0, pf=True), {}
    for name in ("zen3", "zen4"):
        target = get_target("x86-64-avx2", machine=MACHINES[name])
        half, whole = (ConvDirect().cost(convolution(n, 7, 8), params, target) for n in (256, 512))
        growth[name] = whole / half
    assert growth["zen4"] < 4.1 < 4.4 < growth["zen3"]
    w, target = convolution(512, 7, 8), get_target("x86-64-avx2", machine=MACHINES["zen3"])
    direct, winograd = (
        min(candidate_cost(Candidate(k, p), w, target) for p in k.parameters(w, target))
        for k in (ConvDirect(), ConvWinograd())
    )
    assert winograd < direct


@pytest.mark.parametrize(("name", "copied"), [("zen3", True), ("skylake", True), ("zen4", False)])
def test_what_a_stride_meets_is_copied_where_lines_hold_more_than_that(
    name: str, copied: bool
) -> None:
    """Of ResNet-50 between its third and fourth stage: 0.8 of the time on a Zen 3."""
    vectors = "avx512" if name == "zen4" else "avx2"
    target = get_target(f"x86-64-{vectors}", machine=MACHINES[name])
    block = target.vector_bytes // 4
    x, y = (TensorType(F, (1, c // block, n, n, block)) for c, n in ((512, 28), (1024, 14)))
    op = ConvBlocked(Window((1, 1), (2, 2), (1, 1), (0, 0)), 1, identity_epilogue(F))
    w = Workload(op, (x, TensorType(F, (1024, 512, 1, 1))), (y,), (False, True))
    assert ConvDirect().parameters(w, target)[0].sampled == copied


def test_every_cost_of_a_convolution_follows_the_rate_of_multiply_adds() -> None:
    w = convolution(256, 28)
    params = DirectParams(p=14, nv=2, u=4, rb=0, pf=True)
    fast, slow = (
        ConvDirect().cost(w, params, get_target("x86-64-avx512", machine=MACHINES[name]))
        for name in ("zen5", "zen4")
    )
    assert 1.7 < slow / fast < 2.1


def plain_convolution(filters: int, channels: int) -> Workload:
    """A 1x1 convolution of planes with constant filters."""
    shapes = [(1, channels, 28, 28), (filters, channels, 1, 1), (1, filters, 28, 28)]
    x, weights, y = (TensorType(F, shape) for shape in shapes)
    op = Conv(Window((1, 1), (1, 1), (1, 1), (0, 0)), 1, identity_epilogue(F))
    return Workload(op, (x, weights), (y,), (False, True))


def test_layouts_compare_costs_of_planes_that_follow_the_machine() -> None:
    w = plain_convolution(128, 64)
    fast, slow = (
        estimate(w, get_target("x86-64-avx512", machine=MACHINES[name]), Limits())
        for name in ("zen5", "zen4")
    )
    assert fast is not None
    assert slow is not None
    assert 1.6 < slow / fast < 2.2


def test_a_broadcast_takes_a_load_of_the_vector_that_it_fills() -> None:
    zen4 = MACHINES["zen4"]
    assert zen4.broadcast_rate(64) == zen4.load_rate(64) == zen4.loads / 2
    assert MACHINES["cortex_a53"].broadcast_rate(16) == MACHINES["cortex_a53"].loads


@pytest.mark.parametrize(
    ("rows", "stride", "slower"),
    [(29, 2048, True), (16, 2048, False), (13, 4096, True), (8, 4096, False), (29, 2112, False),
     (13, 12288, True), (29, 0, False)],
)  # fmt: skip
def test_rows_crowd_whose_distance_is_a_multiple_of_a_power_of_two(
    rows: int, stride: int, slower: bool
) -> None:
    assert (crowding(MACHINES["zen4"], rows, stride) > 1.0) == slower


def test_tiles_of_few_rows_are_taken_where_more_would_crowd() -> None:
    w, kernel = plain_convolution(256, 512), ConvNchwRows()  # rows of filters 2 KB apart
    target = get_target("x86-64-avx512", machine=MACHINES["zen4"])
    high, low = (kernel.cost(w, TileParams(mr=m, nv=v), target) for m, v in ((29, 1), (14, 2)))
    assert high > 1.5 * low


# ------------------------------------------------------------------------------- which machine


def test_a_named_target_counts_on_its_default_wherever_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {t.name: get_target(t.name).machine for t in TARGETS}
    monkeypatch.setattr(archspec.cpu, "host", lambda: archspec.cpu.TARGETS["m1"])
    assert {t.name: get_target(t.name).machine for t in TARGETS} == before
    assert host_machine() == MACHINES["m1"]


@pytest.mark.parametrize(
    ("processor", "name"),
    [("zen5", "zen5"), ("zen3", "zen3"), ("icelake", "icelake"), ("broadwell", "haswell"),
     ("cannonlake", "skylake"), ("m2", "m1"), ("x86_64_v4", None), ("power9", None)],
)  # fmt: skip
def test_the_host_has_its_own_record_or_the_nearest_older_one(
    processor: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = archspec.cpu.TARGETS[processor]
    monkeypatch.setattr(machines, "_model", lambda vendor: None)
    monkeypatch.setattr(archspec.cpu, "host", lambda: own)
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: own)
    assert host_machine() == (None if name is None else MACHINES[name])
    assert called().endswith(processor)  # which the record of an older one doesn't change


@pytest.mark.parametrize(
    ("processor", "real", "hidden", "name"),
    [
        ("icelake", "sapphirerapids", {"amx_tile", "amx_int8", "amx_bf16", "waitpkg"},
         "sapphirerapids"),
        ("icelake", "sapphirerapids", {"amx_tile", "avx512_bf16"}, "icelake"),
        ("icelake", "icelake", set(), "icelake"),
        ("zen3", "zen4", {"flush_l1d"}, "zen4"),
        ("zen3", "zen5", {"avx512f", "avx512_bf16"}, "zen3"),
        ("haswell", "zen4", set(), "haswell"),  # of another vendor
        ("x86_64_v4", "zen4", {"flush_l1d", "pku"}, "zen4"),
        ("x86_64_v4", "zen5", {"flush_l1d", "pku"}, "zen5"),
        ("x86_64_v4", "cascadelake", {"pku"}, "cascadelake"),
        ("x86_64_v3", "zen3", {"pku", "clwb", "sse4a"}, "zen3"),
    ],
)  # fmt: skip
def test_a_processor_is_known_whose_tiles_are_hidden(
    processor: str, real: str, hidden: set[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = archspec.cpu.TARGETS
    shown = SimpleNamespace(vendor=known[real].vendor, features=known[real].features - hidden)
    monkeypatch.setattr(machines, "_model", lambda vendor: None)
    monkeypatch.setattr(archspec.cpu, "host", lambda: known[processor])
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: shown)
    assert host_machine() == MACHINES[name]
    assert called().endswith(name)


@pytest.mark.parametrize(
    ("signature", "processor", "name"),
    [
        (0x806F8, "icelake", "sapphirerapids"), (0xC06F2, "icelake", "sapphirerapids"),
        (0x606A6, "cascadelake", "icelake"), (0xA10F11, "zen3", "zen4"), (0xB00F21, "zen2", "zen5"),
        (0xA00F11, "zen3", "zen3"), (0x00F61, "zen3", "zen3"),  # the latter is of no known family
    ],
)  # fmt: skip
def test_the_number_of_a_model_tells_a_processor_that_hides_instructions(
    signature: int, processor: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = archspec.cpu.TARGETS[processor]
    registers = SimpleNamespace(registers_for=lambda **_: SimpleNamespace(eax=signature))
    monkeypatch.setattr(machines, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(archspec.cpu.detect, "CPUID", lambda: registers)
    monkeypatch.setattr(archspec.cpu, "brand_string", lambda: None)
    monkeypatch.setattr(archspec.cpu, "host", lambda: own)
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: own)
    assert host_machine() == MACHINES[name]
    assert called() == name


@pytest.mark.parametrize("spelling", ["zen3", "Zen3", " ZEN3 "])
def test_names_are_found_in_any_spelling(spelling: str) -> None:
    assert get_machine(spelling) is MACHINES["zen3"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match="neoverse_v2.*did you mean neoverse_n1"):
        get_machine("neoverse-n9")


# --------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_file_holds_all_of_a_machine(machine: Machine) -> None:
    assert read_machine(json.loads(machine_json(machine))) == machine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fmas": 0}, "'fmas' is 0"), ({"fmas": "2"}, "'fmas' is 2"), ({"memory": -1}, "'memory'"),
        ({"memory": True}, "'memory'"), ({"l2": 5}, "l2 has the fields"), ({"name": 3}, "name"),
        ({"loads": float("nan")}, "'loads'"), ({"more": 1}, "a machine has the fields"),
        ({"l1": {"size": 0, "rate": 1.0, "latency": 1.0}}, "'l1.size' is 0"),
        ({"measured": 1}, "measured"), ({"datapath": 1e400}, "'datapath'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_machine({**asdict(ZEN5), **change})


# ----------------------------------------------------------------------------------- measuring


def made(machine: Machine, vector_bytes: int) -> Found:
    """What the measuring program would print on a machine, a little off."""
    sizes = [k << 10 for k in (8, 16, 24, 32, 48, 96, 192, 384, 768, 2048, 4096, 65536, 262144)]
    levels = (machine.l1, machine.l2, machine.l3)

    def level(size: int) -> Cache:
        return next((c for c in levels if size <= c.size), Cache(0, machine.memory, 300.0))

    numbers = {
        "fmas": machine.fma_rate(vector_bytes) * 0.98, "fma_latency": machine.fma_latency + 0.03,
        "loads": machine.load_rate(vector_bytes) * 0.97, "some_lines": machine.memory * 0.7,
        "every_lines": machine.memory * (0.8 if machine.every_line else 0.72),
        "near_lines": machine.memory * (0.9 if machine.near_lines else 0.73),
        "pair_products": machine.of_pairs.fma_rate(vector_bytes) * 1.03,
    }  # fmt: skip
    lines = [f"{name} 0 {value:g}" for name, value in numbers.items()]
    for size in sizes:
        lines += [f"rate {size} {level(size).rate}", f"latency {size} {level(size).latency}"]
    return parsed("\n".join(lines), vector_bytes)


@pytest.mark.parametrize("known", [False, True], ids=["by curves", "by the system"])
@pytest.mark.parametrize(("name", "widths"), [("zen4", (32, 64)), ("zen5", (32, 64)),
                                              ("zen3", (32,)), ("neoverse_v1", (16,))])  # fmt: skip
def test_what_is_measured_becomes_a_machine(
    name: str, widths: tuple[int, ...], known: bool
) -> None:
    machine = MACHINES[name]
    sizes = {k: c.size for k, c in enumerate((machine.l1, machine.l2, machine.l3), 1)}
    found = machine_of(MACHINES["haswell"], [made(machine, v) for v in widths],
                       sizes if known else {})  # fmt: skip
    assert found.measured
    assert (found.datapath, found.fmas, found.fma_latency, found.loads) == (
        machine.datapath, machine.fmas, machine.fma_latency, machine.loads
    )  # fmt: skip
    assert machine.l1.size / 2 <= found.l1.size <= machine.l1.size
    assert machine.l2.size / 2 <= found.l2.size <= machine.l2.size
    assert found.memory == machine.memory


@pytest.mark.parametrize(
    ("every", "near"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_lines_are_asked_for_as_was_fastest(every: bool, near: bool) -> None:
    machine = replace(ZEN5, every_line=every, near_lines=near)
    found = machine_of(MACHINES["haswell"], [made(machine, 64)], {})
    assert (found.every_line, found.near_lines) == (every, near)


@pytest.mark.parametrize("slow", [False, True])
def test_pairs_of_bfloat16_are_as_slow_as_measured(slow: bool) -> None:
    machine = replace(ZEN5, slow_pairs=slow)
    assert machine_of(MACHINES["haswell"], [made(machine, 64)], {}).slow_pairs == slow


def test_the_system_reports_the_sizes_of_caches(tmp_path: Path) -> None:
    rows = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "?", "x")]
    for k, row in enumerate(rows):
        folder = tmp_path / f"index{k}"
        folder.mkdir()
        for name, value in zip(("level", "type", "size"), row, strict=True):
            (folder / name).write_text(f"{value}\n")
    assert system_caches(tmp_path) == {1: 48 << 10, 2: 2 << 20}
    assert system_caches(tmp_path / "none") == {}
