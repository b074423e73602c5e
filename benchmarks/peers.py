"""The peers' own model classes on this project's weights, so that a comparison is of code alone."""

from typing import Any


def transformers_twin(ref: str, dtype: str) -> tuple[Any, Any]:
    """transformers' LlamaForCausalLM holding the weights that `load_model(ref)` gives, and the tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from llm.models import load_model

    model, tokenizer = load_model(ref, dtype=dtype, device="cpu")
    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tie_word_embeddings,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    heads, kv_heads, width = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        full = name if name.startswith("lm_head") else f"model.{name}"
        if "qkv_proj" in name:
            parts = tensor.split([heads * width, kv_heads * width, kv_heads * width])
            state |= {full.replace("qkv", part): value for part, value in zip("qkv", parts, strict=True)}
        elif "gate_up_proj" in name:
            gate, up = tensor.chunk(2)
            state |= {full.replace("gate_up", "gate"): gate, full.replace("gate_up", "up"): up}
        else:
            state[full] = tensor
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        twin = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    missing, unexpected = twin.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    twin.tie_weights()
    del model
    return twin.eval(), tokenizer
