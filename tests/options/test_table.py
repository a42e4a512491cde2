from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from atc.dims import Range
from atc.errors import OptionError
from atc.options.help import WIDTH, help_text
from atc.options.options import Options, make_options
from atc.options.table import (
    ATC_OPTIONS,
    IGNORED_OPTIONS,
    LOG_LEVELS,
    OPTIONS,
    SETTINGS,
    find_option,
    options_of,
    read_values,
)
from atc.options.table.training import TRAINING
from atc.options.unsupported import LATER
from atc.options.values import required_path

NEEDED = {"model": "x.onnx", "output": "out/x"}
COMMANDS = ("compile", "verify", "cache", "explain")

TABLE_1_4 = """op_compiler_cache_mode op_compiler_cache_dir op_debug_level op_debug_config model
weight framework output mode om json soc_version input_shape input_format dynamic_batch_size
dynamic_image_size dynamic_dims out_nodes output_type input_fp16_nodes insert_op_conf precision_mode
precision_mode_v2 keep_dtype modify_mixlist op_precision_mode customize_dtypes op_select_implmode
optypelist_for_implmode fusion_switch_file disable_reuse_memory buffer_optimize core_type aicore_num
virtual_type enable_small_channel sparsity enable_compress_weight compression_optimize_conf
compress_weight_conf enable_scope_fusion_passes enable_single_stream ac_parallel_enable
tiling_schedule_optimize cluster_config mdl_bank_path auto_tune_mode op_bank_path log debug_dir
display_model_info check_report singleop deterministic deterministic_level external_weight
host_env_os host_env_cpu oo_level build_config save_original_model dump_mode input_shape_range
input_hint_shape op_name_map cal_conf quant_dumpable is_weight_clip status_check jit_compile
optimization_switch shape_generalized_build_mode atomic_clean_policy static_model_ops_lower_limit
allow_hf32 target device_id hccl_sub_comm_config enable_attr_compression"""


def test_every_option_of_atc_is_known_or_refused_by_name() -> None:
    for name in TABLE_1_4.split():
        if name in OPTIONS:
            assert find_option(name, "compile") is OPTIONS[name]
            continue
        said = f"--{name} is an option of ATC that this version does not support yet"
        with pytest.raises(OptionError, match=said) as caught:
            find_option(name, "compile")
        assert caught.value.code == "E10055", name


def test_no_option_is_both_known_and_refused() -> None:
    assert not set(OPTIONS) & set(LATER)
    assert len(OPTIONS) == len([*ATC_OPTIONS, *TRAINING, *IGNORED_OPTIONS])


def test_settings_say_what_they_are() -> None:
    for setting in SETTINGS:
        assert setting.name == setting.name.strip()
        assert setting.meaning, setting.name
        assert setting.group, setting.name
        alone = setting.role == "help" or setting.kind == "feature"
        assert setting.values or alone, setting.name
        unset = setting.kind == "variable" and setting.default == ""
        if setting.parse is not required_path and not unset:
            setting.value(setting.default)


def test_defaults_written_as_text_are_the_same_values() -> None:
    for name, setting in OPTIONS.items():
        if setting.parse is not required_path:
            default = setting.default
            text = str(int(default)) if isinstance(default, bool) else str(default)
            assert setting.value(text) == setting.value(default), name


def test_measuring_some_and_all_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="--fast_run and --full_run exclude each other"):
        make_options(read_values({**NEEDED, "fast_run": True, "full_run": True}, "compile"))
    for given in ({}, {"fast_run": True}, {"full_run": True}):
        assert make_options(read_values({**NEEDED, **given}, "compile")).measures == bool(given)


def test_options_are_the_settings_of_a_compilation() -> None:
    own = {f.name for f in fields(Options)} - {"notes", "sources", "target_option"}
    settings = {s.name for s in OPTIONS.values() if s.role == "compilation"}
    assert own == settings - {"soc_version", "input_shape_range"}


def test_defaults_of_options_are_those_of_the_table() -> None:
    from_table = make_options(read_values(NEEDED, "compile"))
    assert from_table == Options(Path("x.onnx"), Path("out/x"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_option_of_the_command(command: str) -> None:
    text = help_text(command)
    for name, setting in options_of(command).items():
        assert f"  --{name}" in (help_text(command, "accepted") if setting.accepted else text)
    assert max(map(len, text.splitlines())) <= 100
    assert WIDTH <= 100
    assert "Examples:" in text
    assert "ASCEND_CACHE_PATH" in text


def test_help_says_what_the_cache_is_for() -> None:  # statements 8, 9 and 45 of the specification
    text = " ".join(help_text("compile").split())
    assert "For a final release build disable or force is recommended" in text
    assert "recommended for everyday work" in text
    assert "may be deleted when the tool is upgraded; one given here never is" in text
    assert "never while other compilations run" in text


@pytest.mark.parametrize("name", ["model", "output"])
def test_what_is_required(name: str) -> None:
    with pytest.raises(OptionError, match=rf"E10007: --{name} is required"):
        read_values({k: v for k, v in NEEDED.items() if k != name}, "compile")
    with pytest.raises(OptionError, match=rf"E10004: the value is empty \[--{name}\]"):
        read_values({**NEEDED, name: ""}, "compile")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("log", "verbose", "E10010"),
        ("log", "", "E10010"),
        ("op_compiler_cache_mode", "Enable", "E10001"),
        ("op_compiler_cache_mode", "", "E10001"),
        ("op_debug_level", "5", "E10013"),
        ("op_debug_level", "x", "E10003"),
        ("framework", "0", "E10001"),
        ("framework", "3", "E10001"),
        ("framework", "caffe", "E10001"),
        ("mode", "7", "E10001"),
        ("mode", "31", "E10013"),
        ("external_weight", "3", "E10013"),
        ("precision_mode", "fp32", "E10001"),
        ("precision_mode_v2", "force_fp16", "E10001"),
        ("op_select_implmode", "fast", "E10001"),
        ("input_format", "HWC", "E10001"),
        ("output_type", "FP8", "E10014"),
        ("build_config", "gcc 'x", "E10014"),
        ("deterministic_level", "4", "E10013"),
        ("disable_reuse_memory", "2", "E10006"),
        ("display_model_info", "", "E10006"),
        ("num_threads", "0", "E10013"),
        ("jobs", "-1", "E10013"),
        ("input_shape", "x", "E10002"),
        ("output", "a" * 300, "E10021"),
    ],
)
def test_a_wrong_value_names_its_option(name: str, value: str, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_values({**NEEDED, name: value}, "compile")
    assert caught.value.code == code
    assert caught.value.where == f"--{name}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("framework", "0", "'0' (Caffe) is not supported yet"),
        ("framework", "0", "hint: export the model to ONNX; "),
        ("framework", "1", "MindSpore"),
        ("framework", "3", "TensorFlow"),
        ("mode", "7", "not supported yet"),
        ("precision_mode_v2", "mixed_hif8", "not supported yet"),
    ],
)
def test_what_comes_later_is_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_values({**NEEDED, name: value}, "compile")
    assert words in str(caught.value)


def options(**given: object) -> Options:
    return make_options(read_values({**NEEDED, **given}, "compile"))


def test_target_and_soc_version_are_two_names_of_one_option() -> None:
    assert options(soc_version="c99").target == "c99"
    assert options(target="c99").target == "c99"
    assert options(target="c99", soc_version="c99").target == "c99"
    with pytest.raises(OptionError, match="E10056"):
        options(target="x86-64", soc_version="c99")


def test_input_shape_has_a_former_name() -> None:
    shapes = {"x": (Range(1, 4), 2), "a:b": (3,)}
    for text in ("x:[1~4,2];a:b:[3]", "x: [1~4,2] ;a:b:3", "x:1~4,2;a:b:3"):
        assert options(input_shape_range=text).input_shape == shapes
    assert options(input_shape="x:1~4,2;a:b:3", input_shape_range=text).input_shape == shapes
    with pytest.raises(OptionError, match="E10056"):
        options(input_shape="x:1,2", input_shape_range="x:[1~4,2]")


@pytest.mark.parametrize("word", ["", "force_fp32", "must_keep_origin_dtype"])
def test_precisions_that_change_nothing_are_taken(word: str) -> None:
    assert options(precision_mode=word).precision_mode == word


@pytest.mark.parametrize("word", ["high_precision", "high_performance"])
def test_both_implementation_modes_are_taken(word: str) -> None:
    assert options(op_select_implmode=word).op_select_implmode == word


@pytest.mark.parametrize("word", ["", "-1"])
def test_no_framework_is_found_out(word: str) -> None:
    assert options(framework=word).framework == ""


def test_more_threads_and_hooks_give_a_warning() -> None:
    assert list(options(num_threads=4).warnings()) == []
    (warning,) = options(num_threads=4, hooks=True).warnings()
    assert "--num_threads=4" in warning


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_log_levels(level: str) -> None:
    assert read_values({**NEEDED, "log": level}, "compile")["log"] == level


def test_the_commands_take_what_they_need() -> None:
    assert "output" not in options_of("verify")
    assert {"library", "tolerance", "seed", "input", "log"} <= set(options_of("verify"))
    assert set(options_of("cache")) == {
        "op_compiler_cache_dir", "op_compiler_cache_remote", "op_compiler_cache_remote_access",
        "op_compiler_cache_trust", "target", "soc_version", "log", "json", "help", "version",
    }  # fmt: skip
    assert options_of("cache")["target"].default == ""
