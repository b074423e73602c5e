"""The decoder against transformers' own, on tiny random twins in float32."""

import pytest
import torch

from llm.models import DecoderConfig, DecoderModel, load_model
from llm.models.decoder import causal_mask

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": ("Llama", {}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 32}),
    "llama-no-gqa": ("Llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 4, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-biases": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, twin, largest_difference):
    family, overrides = CASES[case]
    folder, theirs = twin(family, **overrides)
    ours, _ = load_model(str(folder), device="cpu")
    assert largest_difference(ours, theirs) <= 1e-5


def test_scaled_rope_differs_from_unscaled(twin, largest_difference):
    """The scaled cases above would pass idly if the tiny twin did not notice the scaling."""
    _, plain = twin("Llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    folder, _ = twin("Llama", rope_parameters=LLAMA3)
    assert largest_difference(load_model(str(folder), device="cpu")[0], plain) > 1e-3


def test_p54_window_4_on_length_12_is_a_band(twin):
    folder, theirs = twin("Mistral", sliding_window=4)
    ours, _ = load_model(str(folder), device="cpu")
    ids = torch.randint(0, 320, (1, 12), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        assert float((ours(ids) - theirs(ids).logits).abs().max()) <= 1e-5
    mask = causal_mask(12, ours.config.sliding_window, torch.device("cpu"))
    assert mask.sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    assert mask[11].nonzero().flatten().tolist() == [8, 9, 10, 11]


def test_flat_pack_of_two_sequences_equals_each_alone(twin, token_ids):
    """The engine's path: sequences of different lengths side by side, attention supplied by the caller."""
    folder, _ = twin("Qwen3", head_dim=32)
    model, _ = load_model(str(folder), device="cpu")
    lengths = (48, 17)
    flat = torch.cat([token_ids[row, :length] for row, length in enumerate(lengths)])
    positions = torch.cat([torch.arange(length) for length in lengths])
    mask = torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool()

    def attend(layer, q, k, v):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(0, 1).flatten(1)

    with torch.inference_mode():
        logits = model.project(model.hidden_states(flat, positions, attend))
        alone = torch.cat([model(token_ids[row : row + 1, :length])[0] for row, length in enumerate(lengths)])
    assert logits.shape == (65, 320)
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=0)


def test_bfloat16_norms_are_reduced_in_float32(twin, token_ids):
    """As in transformers: a norm reduced in bfloat16 would move its outputs by whole bfloat16 steps."""
    folder, theirs = twin("Llama")
    ours, _ = load_model(str(folder), dtype="bfloat16", device="cpu")
    theirs = theirs.bfloat16()
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(ours.norm(x), theirs.model.norm(x))
    with torch.inference_mode():
        difference = (ours(token_ids).float() - theirs(token_ids).logits.float()).abs().max()
    assert float(difference) < 0.1
    assert ours.dtype == torch.bfloat16


def test_fused_weights_are_the_three_and_two_stacked(twin):
    folder, theirs = twin("Llama")
    layer, other = load_model(str(folder), device="cpu")[0].layers[1], theirs.model.layers[1]
    parts = [other.self_attn.q_proj.weight, other.self_attn.k_proj.weight, other.self_attn.v_proj.weight]
    assert torch.equal(layer.self_attn.qkv_proj.weight, torch.cat(parts))
    assert torch.equal(layer.mlp.gate_up_proj.weight, torch.cat([other.mlp.gate_proj.weight, other.mlp.up_proj.weight]))


SMALL = DecoderConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, rms_norm_eps=1e-5
)


def test_a_model_built_in_memory_runs_without_gradients():
    model = DecoderModel(SMALL)
    logits = model(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3, 32)
    assert not logits.requires_grad
    assert (model.max_length, model.num_decodable) == (2048, 32)


def test_fingerprint_tells_weights_config_and_dtype():
    model = DecoderModel(SMALL)
    other = DecoderModel(DecoderConfig(**{**_fields(SMALL), "rope_theta": 5e5}))
    other.load_state_dict(model.state_dict())
    seen = [model.fingerprint, other.fingerprint, other.bfloat16().fingerprint]
    model.layers[0].mlp.down_proj.weight[0, 0] += 1
    seen.append(model.fingerprint)
    assert len(set(seen)) == 4
    assert all(len(f) == 32 and int(f, 16) >= 0 for f in seen)


def test_fingerprint_does_not_depend_on_the_file(twin, write_gguf):
    folder, theirs = twin("Qwen2", tie_word_embeddings=True)
    from_folder = load_model(str(folder), device="cpu")[0]
    again = load_model(str(folder), device="cpu")[0]
    from_gguf = load_model(str(write_gguf(theirs, arch="qwen2")), device="cpu")[0]
    assert from_folder.fingerprint == again.fingerprint == from_gguf.fingerprint


def _fields(config):
    return {name: getattr(config, name) for name in config.__slots__}
