"""Options of Ascend's ATC that this version knows, but refuses by name."""

from __future__ import annotations

from collections.abc import Mapping

LATER: Mapping[str, str] = {
    "om": "input of modes 1, 5 and 6",
    "input_format": "layout of the inputs",
    "dynamic_batch_size": "several batch sizes in one model",
    "dynamic_image_size": "several image sizes in one model",
    "dynamic_dims": "several shapes in one model",
    "output_type": "types of the outputs",
    "input_fp16_nodes": "inputs in half precision",
    "insert_op_conf": "image preprocessing inside the model",
    "precision_mode_v2": "the newer form of --precision_mode",
    "keep_dtype": "operators that keep their precision",
    "optypelist_for_implmode": "operator types that --op_select_implmode is for",
    "fusion_switch_file": "fusion rules to switch off",
    "op_bank_path": "knowledge base of the operators' tuning",
    "check_report": "report of the operators that are not covered",
    "singleop": "libraries of single operators",
    "deterministic_level": "degree of determinism",
    "host_env_os": "operating system of the host",
    "host_env_cpu": "processor of the host",
    "oo_level": "level of graph optimisation",
    "build_config": "command that compiles the sources",
    "optimization_switch": "single optimisations on or off",
}
"""What each is about, by name."""
