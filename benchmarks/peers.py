"""The peers' own model classes on this project's weights, so that a comparison is of code alone."""

from pathlib import Path
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


def save_twin(ref: str, dtype: str, folder: Path) -> None:
    """Write `transformers_twin(ref, dtype)` as a checkpoint folder, which every peer can load."""
    model, tokenizer = transformers_twin(ref, dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def stock_lm(folder: Path, *, batch_size: int = 8) -> Any:
    """lm-eval's own HFLM on a checkpoint folder, float32, on the CPU."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=batch_size)


def stock_provider(folder: Path) -> Any:
    """Inspect's own `hf` provider on a checkpoint folder, float32, on the CPU, without sampling."""
    from inspect_ai.model import get_model

    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "do_sample": False}
    return get_model(f"hf/{folder.name}", model_path=str(folder), memoize=False, **settings)
