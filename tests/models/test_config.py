"""What a config.json or GGUF header may say: read, completed, or refused by name before weights are looked at."""

import dataclasses

import pytest

from llm.errors import InputError
from llm.models import DecoderConfig, load_model
from llm.models.config import RopeScaling

HUB = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(**changes):
    return DecoderConfig.from_hf({**HUB, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 100000},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
        {"rope_theta": 100000.0, "rope_scaling": None},
        {"rope_theta": 100000.0, "rope_parameters": {"rope_type": "default"}},
    ],
)
def test_p49_rope_theta_in_every_spelling(changes):
    assert read(**changes).rope_theta == 100000.0


def test_p49_scaling_in_every_spelling():
    expected = RopeScaling(**LLAMA3)
    old_spelling = {"type" if name == "rope_type" else name: value for name, value in LLAMA3.items()}
    assert read(rope_theta=5e5, rope_scaling=LLAMA3).rope_scaling == expected
    assert read(rope_theta=5e5, rope_scaling=old_spelling).rope_scaling == expected
    assert read(rope_parameters={**LLAMA3, "rope_theta": 5e5}).rope_scaling == expected
    assert read(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == RopeScaling(
        rope_type="linear", factor=2.0
    )
    assert read().rope_scaling is None


@pytest.mark.parametrize("rope_type", ["yarn", "dynamic", "longrope", "su", "new-kind"])
def test_p49_unknown_rope_type_is_refused(rope_type):
    with pytest.raises(InputError, match=f"rope_type '{rope_type}' is not supported.*hf:REF"):
        read(rope_scaling={"rope_type": rope_type, "factor": 4.0})


def test_p50_heads():
    with pytest.raises(InputError, match=r"num_attention_heads \(7\) is not a multiple of num_key_value_heads \(2\)"):
        read(hidden_size=70, num_attention_heads=7, num_key_value_heads=2)
    assert read().num_key_value_heads == 4
    assert read(num_key_value_heads=None).num_key_value_heads == 4
    assert read().head_dim == 16
    assert read(head_dim=None).head_dim == 16
    assert read(head_dim=32).head_dim == 32
    with pytest.raises(InputError, match=r"hidden_size \(62\) is not a multiple of num_attention_heads \(4\)"):
        read(hidden_size=62)
    assert read(hidden_size=62, head_dim=16).head_dim == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM.*hf:REF"),
        ({"model_type": None, "architectures": None}, "None.*is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with 'gptq'.*hf:REF"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"vocab_size": None}, "config.json lacks vocab_size"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"head_dim": -2}, "head_dim is -2"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor is -1"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor < high_freq_factor.*4.0 and 4.0"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": None}}, "original_max_position_embeddings"),
        ({"model_type": "mistral", "architectures": None, "sliding_window": 0}, "sliding_window is 0"),
        (
            {"model_type": "qwen2", "architectures": None, "use_sliding_window": True, "max_window_layers": 1},
            "only some of the layers.*hf:REF",
        ),
    ],
)
def test_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 7}, 7),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "llama", "sliding_window": 7}, None),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ({"model_type": "qwen3", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, None),
    ],
)
def test_sliding_window_as_each_family_states_it(changes, window):
    assert read(architectures=None, **changes).sliding_window == window


def test_biases_and_norms_belong_to_the_family():
    def flags(**changes):
        c = read(architectures=None, attention_bias=True, mlp_bias=True, **changes)
        return c.attention_bias, c.attention_output_bias, c.mlp_bias, c.qk_norm

    assert flags(model_type="llama") == (True, True, True, False)
    assert flags(model_type="mistral") == (False, False, False, False)
    assert flags(model_type="qwen2") == (True, False, False, False)
    assert flags(model_type="qwen3") == (True, True, False, True)


def test_end_ids_are_one_or_many():
    assert read(eos_token_id=2).eos_token_ids == (2,)
    assert read(eos_token_id=[2, 5, 2]).eos_token_ids == (2, 5)
    assert read(eos_token_id=None).eos_token_ids == ()


def test_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().vocab_size = 5
    with pytest.raises(TypeError):
        DecoderConfig(320)


def test_refusal_comes_before_weights_are_read(twin):
    """The weights are damaged too: what is said is that the architecture is not supported."""
    folder, _ = twin("Llama")
    (folder / "model.safetensors").write_bytes(b"")
    config = (folder / "config.json").read_text().replace('"llama"', '"mamba"').replace("LlamaForCausalLM", "MambaLM")
    (folder / "config.json").write_text(config)
    with pytest.raises(InputError, match=r"config\.json: architecture MambaLM"):
        load_model(str(folder), device="cpu")
