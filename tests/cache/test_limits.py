"""Size limit and remaining share: ini, environment, defaults."""

import pytest

from atc.cache.limits import Limits, read_limits

SIZE, RATIO = "ASCEND_MAX_OP_CACHE_SIZE", "ASCEND_REMAIN_CACHE_SIZE_RATIO"


def limits(ini=None, environ=None):
    warnings = []
    inis = [] if ini is None else [("op_cache.ini", ini)]
    return read_limits(inis, environ or {}, warnings.append), warnings


def ini(size, ratio):
    return {"max_op_cache_size": size, "remain_cache_size_ratio": ratio}


def test_s19_the_ini_gives_megabytes_and_percent():
    found, warnings = limits(ini("700", "80"))
    assert found == Limits(700, 80, True, "op_cache.ini")
    assert found.max_bytes == 700 * 1024 * 1024
    assert found.remain_bytes == 560 * 1024 * 1024
    assert warnings == []


@pytest.mark.parametrize(
    "values", [{"max_op_cache_size": "700"}, {"remain_cache_size_ratio": "80"}]
)
def test_s20_one_key_of_the_ini_alone_is_ignored_with_a_warning(values):
    found, warnings = limits(values, {SIZE: "9", RATIO: "10"})
    assert found == Limits(9, 10, True, "environment")
    assert len(warnings) == 1
    assert "missing" in warnings[0]


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        (ini("0", "80"), "1...2147483647"),
        (ini("700", "0"), "1...100"),
        (ini("x", "80"), "1...2147483647"),
        (ini("700", "101"), "1...100"),
    ],
)
def test_s20_an_invalid_value_drops_both_with_the_valid_range(values, allowed):
    found, warnings = limits(values)
    assert found == Limits()
    assert len(warnings) == 1
    assert allowed in warnings[0]


@pytest.mark.parametrize("size", ["1", "500", "2147483647", " 12 "])
def test_s21_valid_sizes(size):
    assert limits(ini(size, "50"))[0].megabytes == int(size)


@pytest.mark.parametrize(
    "size", ["0", "-2", "2147483648", "", "x", "1.5", "1e3", "0x10", "\u0663", "+5", "9" * 5000]
)
def test_s21_invalid_sizes(size):
    found, warnings = limits(ini(size, "80"))
    assert found == Limits()
    assert len(warnings) == 1


@pytest.mark.parametrize("ratio", ["1", "50", "100"])
def test_s21_valid_ratios(ratio):
    assert limits(ini("7", ratio))[0].remain_percent == int(ratio)


@pytest.mark.parametrize("ratio", ["0", "-1", "101", "", "50%", "half"])
def test_s21_invalid_ratios(ratio):
    found, warnings = limits(ini("7", ratio))
    assert found == Limits()
    assert len(warnings) == 1


def test_s25_users_of_one_ini_share_its_limit(site):
    site.write_ini("max_op_cache_size=7", "remain_cache_size_ratio=80")
    seen = set()
    for size in ("9", "-1"):
        site.environ |= {SIZE: size}
        with site.open() as cache:
            seen.add(cache.limits)
    assert {found.megabytes for found in seen} == {7}
    assert len(seen) == 1


def test_s27_defaults_are_500_mb_and_50_percent():
    assert limits()[0] == Limits(500, 50, True, "default")


def test_s28_the_variable_sets_the_size():
    assert limits(environ={SIZE: "9"})[0] == Limits(9, 50, True, "environment")


@pytest.mark.parametrize("size", ["0", "-2", "many", "2147483648", "1\x1b[2J"])
def test_s28_an_invalid_size_variable_is_a_warning_and_500(size):
    found, warnings = limits(environ={SIZE: size, RATIO: "10"})
    assert (found.megabytes, found.remain_percent) == (500, 10)
    assert len(warnings) == 1
    assert SIZE in warnings[0]
    assert warnings[0].isprintable()


def test_s29_the_variable_sets_the_ratio():
    assert limits(environ={RATIO: "100"})[0].remain_percent == 100


@pytest.mark.parametrize("ratio", ["0", "101", "-1", "half"])
def test_s29_an_invalid_ratio_variable_is_a_warning_and_50(ratio):
    found, warnings = limits(environ={SIZE: "9", RATIO: ratio})
    assert (found.megabytes, found.remain_percent) == (9, 50)
    assert len(warnings) == 1
    assert RATIO in warnings[0]


def test_s30_ini_beats_environment_beats_default():
    environ = {SIZE: "9", RATIO: "10"}
    assert limits(ini("700", "80"), environ)[0] == Limits(700, 80, True, "op_cache.ini")
    assert limits({}, environ)[0] == Limits(9, 10, True, "environment")
    assert limits({}, {RATIO: "10"})[0] == Limits(500, 10, True, "environment")


def test_s30_a_variable_the_ini_overrides_is_not_complained_about():
    assert limits(ini("700", "80"), {SIZE: "many"})[1] == []


@pytest.mark.parametrize(("values", "environ"), [(ini("-1", "80"), {}), (None, {SIZE: "-1"})])
def test_s35_minus_one_switches_ageing_off_at_a_nominal_500(values, environ):
    found, warnings = limits(values, environ)
    assert (found.ages, found.megabytes) == (False, 500)
    assert warnings == []
