"""Names of states in networks that are exported for streams: no type tells them from others."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from atc.adapt.state_names import pairs_of

Names = Mapping[str, str]
"""The inputs that are states, and their outputs."""


def added(word: str, *names: str) -> Names:
    return {name: word + name for name in names}


EXPORTS: Mapping[str, tuple[str, str, Names]] = {
    "zipformer": ("x", "encoder_out", added(
        "new_", "cached_key_0", "cached_nonlin_attn_0", "cached_val1_0", "cached_val2_0",
        "cached_conv1_0", "cached_key_1", "cached_avg_1", "embed_states", "processed_lens")),
    "LSTM transducer": ("x", "encoder_out", added("next_", "h", "c")),
    "conformer with a cache": ("audio_signal length", "outputs encoded_lengths", {
        "cache_last_channel": "cache_last_channel_next", "cache_last_time": "cache_last_time_next",
        "cache_last_channel_len": "cache_last_channel_next_len"}),
    "paraformer": ("enc enc_len acoustic_embeds", "logits sample_ids",
                   {"in_cache0": "out_cache0", "in_cache_1": "out_cache_1"}),
    "U2++": ("chunk offset required_cache_size att_mask", "output",
             added("r_", "att_cache", "cnn_cache")),
    "Silero, 4": ("input sr", "output", {"h": "hn", "c": "cn"}),
    "Silero, 5": ("input sr", "output", {"state": "stateN"}),
    "recurrent layers": ("x", "y", {"h0": "hn", "c_0": "c_n", "rnn.hx": "rnn.hy"}),
    "matting": ("src downsample_ratio", "fgr pha", {f"r{k}i": f"r{k}o" for k in (1, 2, 3, 4)}),
    "GTCRN": ("mix", "enh", {n: f"{n}_out" for n in ("conv_cache", "tra_cache", "inter_cache")}),
    "DeepFilterNet": ("input_frame atten_lim_db", "enhanced_audio_frame new_frame lsnr",
                      {"states": "new_states"}),
    "Whisper": ("tokens n_layer_cross_k offset", "logits", {
        f"in_n_layer_self_{k}_cache": f"out_n_layer_self_{k}_cache" for k in "kv"}),
    "RWKV": ("token", "logits", {"input_state": "output_state", "instate3": "outstate3"}),
    "Mamba": ("input_ids", "logits", {
        "past_conv_states.0": "present_conv_states.0",
        "cache_params.past.ssm.0": "cache_params.present.ssm.0"}),
    "decoder": ("input_ids attention_mask past_key_values.0.encoder.key past_key_cross_0",
                "logits present.0.encoder.key present_key_cross_0", {
                    "past_key_values.0.decoder.key": "present.0.decoder.key",
                    "past_key_values.1.value": "present_key_values.1.value",
                    "past_key_self_0": "present_key_self_0", "past": "present"}),
    "streaming convolutions": ("audio", "audio_out", {"state_0": "out_state_0"}),
    "rings in and out": ("x_in", "x_out", {"buffer_in_0": "buffer_out_0", "gru1_in": "gru1_out"}),
    "sounds in and out": ("audio_in", "audio_out", {"h_in": "h_out"}),
    "one name for all": ("in_0", "out_0", {"state_in_0": "state_out_0"}),
    "previous": ("frame", "mask", {"prev_hidden": "hidden", "prev_rows": "next_rows",
                                   "hiddenState": "newHiddenState"}),
    "none": ("input_1 input_2 image", "output_1 output_2 image_out", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_states_are_told_from_other_inputs_by_their_names(name: str) -> None:
    others, results, states = EXPORTS[name]
    inputs, outputs = [*others.split(), *states], [*results.split(), *states.values()]
    for given in (inputs, inputs[::-1]):
        assert dict(pairs_of(given, product(given, outputs))) == dict(states)
    assert pairs_of(inputs, []) == []
