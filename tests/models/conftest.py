"""Tiny random twins: a transformers model, the folder it saves to, and the GGUF file a converter would make of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def hf_model(family: str, **overrides: Any) -> torch.nn.Module:
    """A random transformers model in float32; norms and biases are random too, so that none can go unnoticed."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**SIZES, **overrides})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.1)
    return model


@pytest.fixture
def twin(tmp_path: Path, tiny_checkpoint: Path) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """twin(family, **config) -> (checkpoint folder, the transformers model saved there)."""

    def make(family: str = "Llama", *, max_shard_size: str = "1GB", **overrides: Any) -> tuple[Path, torch.nn.Module]:
        folder = tmp_path / f"twin-{family}"
        model = hf_model(family, **overrides)
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        for name in TOKENIZER_FILES:
            if (tiny_checkpoint / name).is_file():
                shutil.copy(tiny_checkpoint / name, folder / name)
        return folder, model

    return make


@pytest.fixture(scope="session")
def token_ids() -> torch.Tensor:
    """Random ids (2, 48) within every twin's vocabulary."""
    return torch.randint(0, SIZES["vocab_size"], (2, 48), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def largest_difference(token_ids: torch.Tensor) -> Callable[..., float]:
    """largest_difference(ours, theirs): over all logits of the random ids, both float32."""

    def measure(ours: torch.nn.Module, theirs: torch.nn.Module) -> float:
        with torch.inference_mode():
            return float((ours(token_ids) - theirs(token_ids).logits).abs().max())

    return measure


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    return lambda model, **options: _write_gguf(tmp_path / "twin.gguf", model, **options)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _write_gguf(
    path: Path,
    model: torch.nn.Module,
    *,
    arch: str = "llama",
    kind: str = "F32",
    extra: Callable[[Any], None] | None = None,
    drop: tuple[str, ...] = (),
) -> Path:
    """The GGUF of a twin as llama.cpp's converter lays it out: matrices of the GGML type `kind`, vectors in F32,
    Llama's q and k rows interleaved; with a byte-level tokenizer over the same 320 ids."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import quantize

    config = model.config
    writer = GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = byte_tokens(config.vocab_size)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if extra is not None:
        extra(writer)
    for name, tensor in _gguf_tensors(model, arch).items():
        if name not in drop:
            matrix = tensor.ndim > 1
            quantised = quantize(tensor, GGMLQuantizationType[kind]) if matrix else tensor
            writer.add_tensor(name, quantised, raw_dtype=GGMLQuantizationType[kind] if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_tokens(size: int) -> list[str]:
    """Three control tokens, the 256 byte letters, "ab", and fillers up to size."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab"]
    return [*tokens, *(f"<filler {i}>" for i in range(size - len(tokens)))]


def _gguf_tensors(model: torch.nn.Module, arch: str) -> dict[str, np.ndarray]:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        layer = ""
        if stem.startswith("model.layers."):
            _, _, number, stem = stem.split(".", 3)
            layer = f"blk.{number}."
        array = parameter.numpy()
        if arch == "llama" and (count := heads.get(stem.split(".")[-1])):
            # convert_hf_to_gguf.py's LlamaModel.permute
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        tensors[f"{layer}{_GGUF_NAMES[stem]}.{suffix}"] = np.ascontiguousarray(array)
    return tensors


@pytest.fixture
def dequantised() -> Callable[[torch.nn.Module, str], None]:
    """dequantised(model, kind): round a twin's matrices to what the GGML type `kind` can hold, in place."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    def change(model: torch.nn.Module, kind: str) -> None:
        number = GGMLQuantizationType[kind]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    rounded = dequantize(quantize(parameter.numpy(), number), number)
                    parameter.copy_(torch.from_numpy(rounded.reshape(parameter.shape)))

    return change
